"""Events, journals and what follows from them, in Postgres."""
