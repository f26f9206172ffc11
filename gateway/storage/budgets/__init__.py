"""Stores budget rules, leases, grants and alerts, shared limits, idempotency claims and refusal
counts in Postgres.
"""
