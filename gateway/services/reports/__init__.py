"""Sends the reports that people have scheduled."""
