"""`tollgate doctor` and what it looks at."""
