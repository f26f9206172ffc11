"""One request, line by line."""
