"""The environment in which Alembic runs migrations: the caller provides the connection and its
transaction.
"""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table_schema="tollgate",
    # a later migration may need to run outside of any transaction (CREATE INDEX CONCURRENTLY)
    transaction_per_migration=True,
    on_version_apply=context.config.attributes.get("on_version_apply"),
)
with context.begin_transaction():
    context.run_migrations()
