"""Sends alerts to people: by webhook and by mail."""
