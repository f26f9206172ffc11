"""Commands of `tollgate export`: the ledger as files for warehouses and other programs."""
