"""Policy, prices and keys as one value in memory, and the job that refreshes it."""
