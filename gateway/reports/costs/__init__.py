"""Answers what the money bought, what it would have bought elsewhere, and where it changed most."""
