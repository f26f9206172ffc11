"""The ledger's records and its health."""
