"""Reads the arguments that several commands take."""
