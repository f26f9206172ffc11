"""Translated requests of generated conversations, judged by their targets' own published rules."""
