"""The commands, one module per job. They parse, call and print; what they need they import late."""
