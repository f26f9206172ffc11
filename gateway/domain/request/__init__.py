"""One request: its facts, its bounds, its identity."""
