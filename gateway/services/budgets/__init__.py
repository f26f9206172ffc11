"""Leases on budgets and units of limits that one worker has at hand."""
