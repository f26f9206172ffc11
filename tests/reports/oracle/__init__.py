"""A second, independent calculation of the reports of sums: `raw_ledger` reads the ledger's own
tables, `expected` adds them up in Python, and `world` writes a ledger with every kind of row.
"""
