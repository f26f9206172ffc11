"""The way from the journal to Postgres, and the jobs that maintain the ledger's tables."""
