"""Decides at which places a request may be processed, and declares denials, permits, ejections and
upstreams' stated places.
"""
