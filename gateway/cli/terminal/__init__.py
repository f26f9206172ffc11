"""What a person sees while a command runs."""
