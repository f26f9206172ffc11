"""Shapes and codecs of the data on the wire: JSON bodies, server-sent events, policy documents.
No I/O.
"""
