"""Alembic migrations of the Tollgate database. Run by `gateway.storage.migrations`; no alembic.ini is needed."""
