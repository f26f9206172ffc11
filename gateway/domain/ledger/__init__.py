"""Records of the ledger and how it is doing."""
