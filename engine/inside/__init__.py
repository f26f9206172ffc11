"""Scripts for the interpreter of the engine's own environment, started by path, one process
each.
"""
