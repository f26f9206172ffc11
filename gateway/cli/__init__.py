"""The commands. Thin: they open `main`'s toolbox, call services and stores, and print."""
