"""Serves callers over HTTP: parses and authenticates their requests, and writes answers in their
dialect; `services` makes the decisions.
"""
