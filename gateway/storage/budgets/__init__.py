"""Budget leases, limits, idempotency keys and budget alerts, in Postgres."""
