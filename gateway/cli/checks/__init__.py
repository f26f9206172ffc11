"""`tollgate doctor` and its checks."""
