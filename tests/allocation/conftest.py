"""Open reports on a real, migrated database, and a way to put events into it."""

from __future__ import annotations

from tests.reports.conftest import finance, write

__all__ = ["finance", "write"]
