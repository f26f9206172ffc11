"""Contains the scripts that run under the engine environment's own interpreter, each started by its
path as a process; no module imports them.
"""
