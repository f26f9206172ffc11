"""Comparisons of books that share no code. Pure."""
