"""Months and their open items."""
