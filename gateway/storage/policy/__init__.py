"""Stores policies, API keys and prices in Postgres, reads the audit log and the bundled price list,
and keeps the pepper and snapshot files.
"""
