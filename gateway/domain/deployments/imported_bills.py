"""Declares an imported GPU bill: its file, its effect by deployment and its result."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class BillFile:
    """The file of a bill; `name` is without its folder."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentBill:
    """The effect that an import would have on one deployment.

    `estimated_usd` is uptime × rate of the bill's hours, None if none was seen.
    `replaced_usd` is the amount of earlier imports that would not count any more.
    """

    deployment: str
    rows: int
    begin: datetime
    end: datetime
    hours: int
    gpu_ms: int
    amount_usd: Decimal
    estimated_usd: Decimal | None
    replaced_usd: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedBill:
    """The result of an import, over all lines of the file.

    `duplicates` are the lines that counted before, unchanged; `hours` are those of deployments.
    `is_changed` is False if nothing was written, because the bill counts as it is. `late_usd` is
    booked as a late bill, because its hours lie in closed months; `is_late` if there are such.
    """

    import_id: UUID
    rows: int
    duplicates: int
    is_changed: bool
    hours: int
    amount_usd: Decimal
    late_usd: Decimal = Decimal(0)
    is_late: bool = False
