"""`tollgate policy`, one file a command."""
