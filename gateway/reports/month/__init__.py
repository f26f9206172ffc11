"""Months, and what is open in them."""
