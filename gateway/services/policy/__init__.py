"""Applies, plans, tests and explains policies."""
