"""Declares the tables that are locked and never written."""

from __future__ import annotations

from sqlalchemy import Table

from gateway.storage.postgres.locks import TableLock
from gateway.storage.postgres.schema.base import metadata

LOCKS = tuple(Table(f"lock_{lock}", metadata) for lock in TableLock)
