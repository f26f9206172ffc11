"""Contains the gateway's use cases: each service orders its steps, and calls adapters only through
the protocols of `ports.py` or of its own file.
"""
