"""Policy, prices and keys as one value in memory, and how it stays fresh."""
