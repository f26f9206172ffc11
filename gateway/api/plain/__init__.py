"""Endpoints outside of forwarding that are too large for `app.py`: stored responses, and the
OpenAPI description.
"""
