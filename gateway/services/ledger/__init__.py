"""From the journal to Postgres, and the jobs that keep the ledger's tables."""
