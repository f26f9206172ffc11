"""Contains the `tollgate` commands: each reads its arguments, opens stores or reports through the
toolbox, calls services, and prints the result.
"""
