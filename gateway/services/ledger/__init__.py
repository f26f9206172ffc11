"""Moves settled events from the journals to Postgres, and maintains the ledger there: partitions,
roll-ups, budget alerts, dead letters and its watch.
"""
