"""Policies, keys, prices and their audit log, in Postgres."""
