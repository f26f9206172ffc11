"""Holds money for attempts on one worker's budget leases: `lease` keeps one lease's amounts,
`leases` exchanges all of them with Postgres.
"""
