"""Stores imported GPU bills: their lines as history, and their pieces by hour, which count; parses
no file.

A newer import replaces all earlier lines of the same invoice and deployment, and in other lines the
seconds that it covers. Nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
from sqlalchemy import Connection, text

from gateway.domain.deployments.engine_sample import UpSpan
from gateway.domain.deployments.gpu_bills import BillLine, BillPiece, left_of, pieces_of, union
from gateway.domain.deployments.imported_bills import BillFile, DeploymentBill, ImportedBill
from gateway.domain.money import usd_from_nusd
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.locks import TableLock

_KNOWN = """
SELECT deployment FROM tollgate.gpu_hours UNION SELECT deployment FROM tollgate.gpu_bill_lines
UNION SELECT deployment FROM tollgate.spend_rollup WHERE is_self_hosted AND NOT is_demo
"""
# The lines of these invoices that count in full.
_SAME_LINES = """
SELECT line.import_id, line.line, line.deployment, line.starts_at, line.ends_at, line.gpu_ms,
       line.amount_nusd, line.invoice_id
FROM tollgate.gpu_bill_lines AS line
WHERE line.deployment = ANY(:deployments) AND line.invoice_id = ANY(:invoices) AND NOT EXISTS (
    SELECT FROM tollgate.gpu_bill_hours AS piece
    WHERE piece.import_id = line.import_id AND piece.line = line.line
      AND piece.replaced_by IS NOT NULL)
"""
_IN_FORCE = """
SELECT piece.piece_id, piece.import_id, piece.line, piece.deployment, piece.hour, piece.starts_at,
       piece.ends_at, piece.gpu_ms, piece.amount_nusd, line.invoice_id
FROM tollgate.gpu_bill_hours AS piece JOIN tollgate.gpu_bill_lines AS line USING (import_id, line)
WHERE piece.replaced_by IS NULL AND piece.deployment = ANY(:deployments)
  AND ((piece.hour >= :first AND piece.hour <= :last) OR line.invoice_id = ANY(:invoices))
"""
_ESTIMATE = """
SELECT deployment, hour, sum(bill_nusd)::bigint AS nusd FROM tollgate.gpu_hours
WHERE deployment = ANY(:deployments) AND hour >= :first AND hour <= :last AND bill_nusd IS NOT NULL
GROUP BY deployment, hour
"""
_REPLACE = (
    "UPDATE tollgate.gpu_bill_hours SET replaced_by = :import_id WHERE piece_id = ANY(:pieces)"
)
_POSTED = "SELECT own, posted FROM tollgate.posting_months(CAST(:months AS date[])) ORDER BY own"
# The amount that some hours show: the bill in force, else the estimate.
_SHOWN = """
SELECT deployment, sum(coalesce(imported, estimate, 0))::bigint AS nusd FROM (
    SELECT deployment,
           (SELECT sum(amount_nusd) FROM tollgate.gpu_bill_hours AS piece
            WHERE piece.deployment = wanted.deployment AND piece.hour = wanted.hour
              AND piece.replaced_by IS NULL) AS imported,
           (SELECT sum(bill_nusd) FROM tollgate.gpu_hours AS seen
            WHERE seen.deployment = wanted.deployment AND seen.hour = wanted.hour) AS estimate
    FROM unnest(CAST(:deployments AS text[]), CAST(:hours AS timestamptz[]))
      AS wanted (deployment, hour)
) AS hours GROUP BY deployment
"""
_ADD_LATE = """
INSERT INTO tollgate.adjustments (adjustment_id, deployment, posted_period, occurred_at,
  amount_nusd, kind, reason, author)
VALUES (gen_random_uuid(), :deployment, :posted, :occurred_at, :amount_nusd, 'late_bill', :reason,
  session_user)
"""
_ADD_IMPORT = """
INSERT INTO tollgate.gpu_bill_imports (import_id, file_name, sha256, rows, amount_nusd, author)
VALUES (:import_id, :file_name, :sha256, :rows, :amount_nusd, session_user)
"""
_COPY_LINES = """
COPY tollgate.gpu_bill_lines (import_id, line, deployment, starts_at, ends_at, gpu_ms, amount_nusd,
  invoice_id) FROM STDIN
"""
_COPY_PIECES = """
COPY tollgate.gpu_bill_hours (import_id, line, deployment, hour, starts_at, ends_at, gpu_ms,
  amount_nusd) FROM STDIN
"""

_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replaced:
    """A piece in force that an import replaces, wholly or in part, and the parts that stay.

    `is_same` is True if the import has lines of its invoice and deployment.
    """

    piece_id: int
    import_id: UUID
    line: int
    is_same: bool
    deployment: str
    hour: datetime
    amount_nusd: int
    left: Sequence[BillPiece]

    @property
    def lost_nusd(self) -> int:
        """Return the amount that does not count any more."""
        return self.amount_nusd - sum(part.amount_nusd for part in self.left)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClosedHours:
    """The hours of a closed month that a bill is about, the month that a difference is posted to,
    and the nano-dollars that they show, by deployment.
    """

    month: date
    posted: date
    hours: Sequence[tuple[str, datetime]]
    shown: Mapping[str, int]


class GpuBillStore:
    """A store of imported GPU bills. Imports run one after the other."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def deployments(self) -> frozenset[str]:
        """Return the self-hosted deployments that the ledger knows, in the policy or not."""
        with self._database.begin() as connection:
            return frozenset(connection.execute(text(_KNOWN)).scalars())

    def preview(self, lines: Sequence[BillLine]) -> list[DeploymentBill]:
        """Return the effect of an import by deployment, without writing anything."""
        with self._database.begin() as connection:
            replaced = _replaced(connection, lines)
            found = connection.execute(text(_ESTIMATE), _reach(lines))
            estimates = {(row.deployment, row.hour): row.nusd for row in found}
        return [
            _of_deployment(name, lines, replaced, estimates)
            for name in sorted({line.deployment for line in lines})
        ]

    def add(self, file: BillFile, lines: Sequence[BillLine]) -> ImportedBill:
        """Import the lines of a bill in one transaction; change nothing if all of them count
        already, and no others of their invoices do.

        Hours of a closed month stay as they were closed; the difference is booked as a `late_bill`.
        """
        with self._database.begin(is_long=True) as connection:
            connection.execute(text(TableLock.GPU_BILLS.taken))
            same = _same_lines(connection, lines)
            known = [same[key] for key in map(_content, lines) if key in same]
            replaced = _replaced(connection, lines)
            # An invoice from which a line was taken out is another one, though each of its lines
            # counts.
            others = {(one.import_id, one.line) for one in replaced if one.is_same} - {*known}
            if len(known) == len(lines) and not others:
                return _imported(known[-1][0], lines, duplicates=len(known), is_changed=False)
            closed = _closed_hours(connection, lines, replaced)
            import_id = uuid4()
            row = {"import_id": import_id, "file_name": file.name, "sha256": file.sha256}
            amount_nusd = sum(line.amount_nusd for line in lines)
            totals = {"rows": len(lines), "amount_nusd": amount_nusd}
            connection.execute(text(_ADD_IMPORT), row | totals)
            pieces = {"import_id": import_id, "pieces": [one.piece_id for one in replaced]}
            connection.execute(text(_REPLACE), pieces)
            _write(connection, import_id, lines, replaced)
            late_nusd = _book_late(connection, import_id, closed)
            found = _imported(import_id, lines, duplicates=len(known), is_changed=True)
            return replace(found, late_usd=usd_from_nusd(late_nusd), is_late=bool(closed))


def _replaced(connection: Connection, lines: Sequence[BillLine]) -> list[_Replaced]:
    """Return the pieces in force that an import of these lines replaces."""
    invoices = {(line.deployment, line.invoice_id) for line in lines}
    covered = _covered(lines)
    found = []
    for row in connection.execute(text(_IN_FORCE), _reach(lines)):
        piece = BillPiece(
            hour=row.hour,
            span=UpSpan(begin=row.starts_at, end=row.ends_at),
            gpu_ms=row.gpu_ms,
            amount_nusd=row.amount_nusd,
        )
        is_same = (row.deployment, row.invoice_id) in invoices
        left = [] if is_same else left_of(piece, covered.get((row.deployment, row.hour), ()))
        if left is not None:
            found.append(
                _Replaced(
                    piece_id=row.piece_id,
                    import_id=row.import_id,
                    line=row.line,
                    is_same=is_same,
                    deployment=row.deployment,
                    hour=row.hour,
                    amount_nusd=row.amount_nusd,
                    left=left,
                )
            )
    return found


def _covered(lines: Iterable[BillLine]) -> Mapping[tuple[str, datetime], Sequence[UpSpan]]:
    """Return the spans that the lines cover, by deployment and hour."""
    spans: dict[tuple[str, datetime], list[UpSpan]] = {}
    for line in lines:
        for piece in pieces_of(line):
            spans.setdefault((line.deployment, piece.hour), []).append(piece.span)
    return {key: union(found) for key, found in spans.items()}


def _reach(lines: Sequence[BillLine]) -> dict[str, Any]:
    """Return the SQL parameters of the deployments, invoices and hours of some lines."""
    return {
        "deployments": sorted({line.deployment for line in lines}),
        "invoices": sorted({line.invoice_id for line in lines}),
        "first": min(line.hours[0] for line in lines),
        "last": max(line.hours[-1] for line in lines),
    }


def _same_lines(connection: Connection, lines: Sequence[BillLine]) -> dict[_Key, tuple[UUID, int]]:
    """Return the import and number of each line of these invoices that counts in full, by its
    content.
    """
    reach = _reach(lines)
    wanted = {name: reach[name] for name in ("deployments", "invoices")}
    found = connection.execute(text(_SAME_LINES), wanted)
    return {tuple(row[2:]): (row[0], row[1]) for row in found}


def _content(line: BillLine) -> _Key:
    """Return a line's content in the order of the columns of `_SAME_LINES`."""
    return (
        line.deployment,
        line.begin,
        line.end,
        line.gpu_ms,
        line.amount_nusd,
        line.invoice_id,
    )


def _closed_hours(
    connection: Connection, lines: Sequence[BillLine], replaced: Sequence[_Replaced]
) -> list[_ClosedHours]:
    """Return the hours of closed months that the lines bill or replace a bill of, with the amount
    that they show; lock all months of the bill.
    """
    hours = {(line.deployment, hour) for line in lines for hour in line.hours}
    hours |= {(one.deployment, one.hour) for one in replaced}
    months = sorted({hour.date().replace(day=1) for _, hour in hours})
    found = []
    for own, posted in connection.execute(text(_POSTED), {"months": months}).all():
        if own != posted:
            closed = sorted(one for one in hours if one[1].date().replace(day=1) == own)
            found.append(
                _ClosedHours(
                    month=own, posted=posted, hours=closed, shown=_shown(connection, closed)
                )
            )
    return found


def _shown(connection: Connection, hours: Sequence[tuple[str, datetime]]) -> dict[str, int]:
    """Return the nano-dollars that some hours show, by deployment."""
    values = {
        "deployments": [deployment for deployment, _ in hours],
        "hours": [hour for _, hour in hours],
    }
    return {row.deployment: row.nusd for row in connection.execute(text(_SHOWN), values)}


def _book_late(connection: Connection, import_id: UUID, closed: Sequence[_ClosedHours]) -> int:
    """Book the difference of the amounts that hours of closed months show now and before; return
    the sum.

    The closed months stay as they are, and the difference stands in the oldest one that is not
    closed, by deployment.
    """
    total = 0
    for one in closed:
        now = _shown(connection, one.hours)
        for deployment in sorted({name for name, _ in one.hours}):
            amount_nusd = now.get(deployment, 0) - one.shown.get(deployment, 0)
            if amount_nusd:
                total += amount_nusd
                row = {
                    "deployment": deployment,
                    "posted": one.posted,
                    "occurred_at": min(hour for name, hour in one.hours if name == deployment),
                    "amount_nusd": amount_nusd,
                    "reason": f"bill of hours of {one.month:%Y-%m}, which is closed: import "
                    f"{import_id}",
                }
                connection.execute(text(_ADD_LATE), row)
    return total


def _write(
    connection: Connection,
    import_id: UUID,
    lines: Sequence[BillLine],
    replaced: Sequence[_Replaced],
) -> None:
    """Write an import's lines and pieces, and the parts of replaced pieces that stay."""
    driver: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]  # psycopg's, by the URL
    with driver.cursor() as cursor:
        with cursor.copy(_COPY_LINES) as copy:
            for line in lines:
                copy.write_row((import_id, line.number, *_content(line)))
        with cursor.copy(_COPY_PIECES) as copy:
            for line in lines:
                for piece in pieces_of(line):
                    copy.write_row(_piece_to_row(import_id, line.number, line.deployment, piece))
            for old in replaced:
                for part in old.left:
                    copy.write_row(_piece_to_row(old.import_id, old.line, old.deployment, part))


def _piece_to_row(
    import_id: UUID, line: int, deployment: str, piece: BillPiece
) -> tuple[object, ...]:
    """Return a piece as a row of its table."""
    span = piece.span
    times = (piece.hour, span.begin, span.end)
    return (import_id, line, deployment, *times, piece.gpu_ms, piece.amount_nusd)


def _imported(
    import_id: UUID, lines: Sequence[BillLine], *, duplicates: int, is_changed: bool
) -> ImportedBill:
    """Return the result of an import."""
    return ImportedBill(
        import_id=import_id,
        rows=len(lines),
        duplicates=duplicates,
        is_changed=is_changed,
        hours=len({(line.deployment, hour) for line in lines for hour in line.hours}),
        amount_usd=usd_from_nusd(sum(line.amount_nusd for line in lines)),
    )


def _of_deployment(
    name: str,
    lines: Sequence[BillLine],
    replaced: Sequence[_Replaced],
    estimates: Mapping[tuple[str, datetime], int],
) -> DeploymentBill:
    """Return the effect of an import on one deployment; `estimates` are in nano-dollars by
    deployment and hour.
    """
    own = [line for line in lines if line.deployment == name]
    hours = {hour for line in own for hour in line.hours}
    seen = [estimates[name, hour] for hour in hours if (name, hour) in estimates]
    lost_nusd = sum(one.lost_nusd for one in replaced if one.deployment == name)
    return DeploymentBill(
        deployment=name,
        rows=len(own),
        begin=min(line.begin for line in own),
        end=max(line.end for line in own),
        hours=len(hours),
        gpu_ms=sum(line.gpu_ms for line in own),
        amount_usd=usd_from_nusd(sum(line.amount_nusd for line in own)),
        estimated_usd=usd_from_nusd(sum(seen)) if seen else None,
        replaced_usd=usd_from_nusd(lost_nusd),
    )
