"""The virtual GPU: the real compilers' output, executed on the CPU."""
