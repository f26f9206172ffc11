"""Tokens, prices and the cost of an attempt."""
