"""Contains the `tollgate audit` commands: the audit log in `commands.py`, the report on the places
of a team's data in `residency.py`.
"""
