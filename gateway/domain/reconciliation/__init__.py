"""Reconciliation: the lines of providers' bills, the metered usage beside them, and the cause of
each difference. Pure; reads no file and no table.
"""
