"""The commands. Thin: they open what `main` hands them, call services and stores, and print."""
