"""Reads the columns of tables and views that queries are composed from, and has their types.

A declaration is a line as `"seq bigint, at timestamptz, subject text"`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Time,
    Uuid,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import TypeEngine, UserDefinedType

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


_TYPES: dict[str, TypeEngine[Any]] = {
    "bigint": BigInteger(),
    "boolean": Boolean(),
    "bytea": LargeBinary(),
    "date": Date(),
    "double precision": Double(),
    "integer": Integer(),
    "integer[]": ARRAY(Integer),
    "jsonb": JSONB(),
    "numeric": Numeric(),
    "pg_snapshot": PgSnapshot(),
    "smallint": SmallInteger(),
    "text": Text(),
    "text[]": ARRAY(Text),
    "time": Time(),
    "timestamptz": TIMESTAMPTZ,
    "uuid": Uuid(),
    "xid8": Xid8(),
}


def declared(name: str, columns: str, *, schema: str, metadata: MetaData | None = None) -> Table:
    """Return a table or view with these columns, of a separate `MetaData` unless one is given."""
    pairs = (column.split(maxsplit=1) for column in columns.split(","))
    return Table(
        name,
        MetaData() if metadata is None else metadata,
        *(Column(column, _TYPES[kind.strip()]) for column, kind in pairs),
        schema=schema,
    )


def table(name: str, columns: str) -> Table:
    """Return a table of the schema `tollgate` with the columns that its queries use."""
    return declared(name, columns, schema="tollgate")
