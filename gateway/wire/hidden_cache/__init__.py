"""Hides from a caller what the upstream's prompt cache did: in a usage object, and in a whole
answer or a stream's event.
"""
