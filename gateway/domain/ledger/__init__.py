"""Declares the ledger's values (events, intents, journals, resolutions), and checks its health and
the audit chain; `storage.ledger` writes.
"""
