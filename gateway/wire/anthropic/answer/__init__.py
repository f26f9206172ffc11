"""Rewrites the answers of Anthropic's messages for callers of the same dialect, and records their
usage, end and text.
"""
