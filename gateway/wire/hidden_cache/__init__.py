"""Hides the work of the upstream's prompt cache from a caller: in a usage object, and in a whole
answer or a stream's event.
"""
