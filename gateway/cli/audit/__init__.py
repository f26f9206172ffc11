"""`tollgate audit`."""
