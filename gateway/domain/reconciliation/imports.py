"""Declares the results of importing a bill and of approving its differences."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedExport:
    """The result of an import. `duplicates` are the lines of days that counted before, unchanged.

    `import_id` is None if nothing was written: after a dry run, or if every day counts already.
    """

    import_id: UUID | None
    rows: int
    duplicates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedTrueUps:
    """The result of an approval, in nano-dollars."""

    adjustments: int
    amount_nusd: int
    posted_period: date
