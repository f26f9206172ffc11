"""Output on the terminal while a command runs."""
