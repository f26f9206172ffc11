"""Writes to the ledger, keys, policies and prices. Only this package and `reports` contain SQL."""
