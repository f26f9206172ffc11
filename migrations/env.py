"""The environment in which Alembic runs migrations: the caller provides the connection and its
transaction.

`alembic check` compares the database with the declared tables.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.schema import SchemaItem

from gateway.storage.postgres.schema import metadata
from gateway.storage.postgres.schema.base import Xid8

# Without it SQLAlchemy reads such a column as one of no type, and compares nothing.
ischema_names["xid8"] = Xid8


def include_name(name: str | None, kind: str, _: object) -> bool:
    """Compare one schema alone; `finance` has only views, and other schemas are not ours."""
    return kind != "schema" or name == metadata.schema


def include_object(
    _: SchemaItem, name: str | None, kind: str, reflected: bool, declared: SchemaItem | None
) -> bool:
    """Leave out the partitions: the gateway creates one for each month."""
    is_partition = kind == "table" and str(name).startswith("usage_events_")
    return not (is_partition and reflected and declared is None)


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    include_schemas=True,
    include_name=include_name,
    include_object=include_object,
    compare_server_default=True,
    version_table_schema=metadata.schema,
    # a later migration may need to run outside of any transaction (CREATE INDEX CONCURRENTLY)
    transaction_per_migration=True,
    on_version_apply=context.config.attributes.get("on_version_apply"),
)
with context.begin_transaction():
    context.run_migrations()
