"""What Alembic runs around the migrations: they get the connection, and its transaction, from the
caller.
"""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table_schema="tollgate",
    # a later one may need to run outside of any (CREATE INDEX CONCURRENTLY)
    transaction_per_migration=True,
    on_version_apply=context.config.attributes["on_version_apply"],
)
with context.begin_transaction():
    context.run_migrations()
