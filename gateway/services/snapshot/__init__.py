"""Holds policy, prices, keys and ejections as one value in memory, and refreshes it from Postgres;
a copy on disk serves a start without Postgres.
"""
