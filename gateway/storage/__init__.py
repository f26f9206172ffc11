"""Writes: ledger, keys, policies, prices. SQL lives here and in `reports`."""
