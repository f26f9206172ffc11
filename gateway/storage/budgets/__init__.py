"""Leases, limits, keys of requests and alerts, in Postgres."""
