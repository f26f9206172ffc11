"""Declares the SQLAlchemy MetaData of the tables and of the views, and the column types that
several schema modules use.
"""

from __future__ import annotations

from sqlalchemy import DateTime, MetaData
from sqlalchemy.types import UserDefinedType

metadata = MetaData(schema="tollgate")
# Apart from the tables: Alembic compares tables, and would create each view as one.
finance = MetaData(schema="finance")
TIMESTAMPTZ = DateTime(timezone=True)


class Xid8(UserDefinedType[int]):
    """The type of Postgres' transaction numbers, which SQLAlchemy does not know."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        """Return the type's name in SQL."""
        return "xid8"


class PgSnapshot(UserDefinedType[str]):
    """The type of Postgres' snapshots: the transactions whose rows one sees."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        """Return the type's name in SQL."""
        return "pg_snapshot"
