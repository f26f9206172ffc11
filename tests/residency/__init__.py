"""Residency, checked by another implementation and by counting connections."""
