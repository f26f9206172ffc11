"""Contains the `tollgate policy` commands, all registered in `commands.py`; those that write a
file, plan, apply, roll back, readmit and test have modules of their own.
"""
