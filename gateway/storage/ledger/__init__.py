"""Stores usage events, journal states, adjustments and roll-ups in Postgres, and encodes events for
the local journal.
"""
