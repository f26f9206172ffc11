"""Composes the SQL relations that reports select from, and runs them on a read-only connection."""
