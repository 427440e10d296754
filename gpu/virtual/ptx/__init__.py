"""PTX translated to LLVM IR over 32-lane vectors and compiled in this process."""
