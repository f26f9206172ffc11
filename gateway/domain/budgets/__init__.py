"""Budgets and limits: periods, leases, windows, alerts."""
