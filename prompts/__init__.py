"""What a language model reads: templates and the optimization playbook as data."""
