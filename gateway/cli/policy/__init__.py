"""`tollgate policy`, one file per command."""
