"""Reports on engines of our own."""
