"""Attacks by name; the fixtures of this package end with its last test."""
