"""Parses and writes the data on the wire as bytes and texts: JSON bodies, server-sent events,
policy documents; does no I/O.
"""
