"""Reads the arguments and files that several commands take, and prints words of others."""
