"""Alembic migrations of the Tollgate database.

`gateway.storage.postgres.migrations` runs them; no alembic.ini is needed.
"""
