"""Stores the lines of providers' bills; parses no file.

The key is the provider, the account, the kind of export and the day. A day of a newer import
replaces that day whole. Nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import psycopg
from sqlalchemy import Connection, text

from gateway.domain.deployments.imported_bills import BillFile
from gateway.domain.reconciliation.bills import (
    AccountDay,
    Bill,
    BilledLine,
    BilledTo,
    BillFileKind,
    bill_of,
)
from gateway.domain.reconciliation.imports import BookedTrueUps, ImportedExport
from gateway.domain.reconciliation.metered import MeteredUsage
from gateway.domain.reconciliation.true_ups import TrueUp, TrueUpKey
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.locks import TableLock
from gateway.storage.reconciliation.metered import metered_usage
from gateway.storage.reconciliation.true_ups import book
from gateway.wire.bills.exports.collected import ParsedExport

_STORED = """
SELECT account, day, digest FROM tollgate.provider_bill_days
WHERE provider = :provider AND kind = :kind AND account = ANY(:accounts) AND replaced_by IS NULL
  AND day >= :first AND day <= :last
"""
_ADD_IMPORT = """
INSERT INTO tollgate.provider_bill_imports (import_id, provider, kind, file_name, sha256, first_day,
  last_day, rows, amount_nusd)
VALUES (:import_id, :provider, :kind, :file_name, :sha256, :first_day, :last_day, :rows,
  :amount_nusd)
"""
_REPLACE = """
UPDATE tollgate.provider_bill_days AS old SET replaced_by = :import_id
FROM unnest(CAST(:accounts AS text[]), CAST(:days AS date[])) AS new (account, day)
WHERE old.provider = :provider AND old.kind = :kind AND old.account = new.account
  AND old.day = new.day AND old.replaced_by IS NULL AND old.import_id <> :import_id
"""
_COPY_DAYS = """
COPY tollgate.provider_bill_days (import_id, account, day, provider, kind, rows, digest) FROM STDIN
"""
_COPY_LINES = """
COPY tollgate.provider_bill_lines (import_id, number, account, day, project, key, model, token_kind,
  quantity, amount_nusd, slack_nusd, text) FROM STDIN
"""
_LINES = """
SELECT line.number, stored.kind, line.day, line.account, line.project, line.key, line.model,
  line.token_kind, line.quantity, line.amount_nusd, line.slack_nusd, line.text
FROM tollgate.provider_bill_days AS stored
JOIN tollgate.provider_bill_lines AS line USING (import_id, account, day)
WHERE stored.provider = :provider AND stored.replaced_by IS NULL
  AND stored.day >= :first AND stored.day <= :last
ORDER BY line.day, stored.kind, line.number
"""
_DAYS = """
SELECT kind, account, day FROM tollgate.provider_bill_days
WHERE provider = :provider AND replaced_by IS NULL AND day >= :first AND day <= :last
"""
_COVERED = """
SELECT DISTINCT stored.account, file.first_day, file.last_day
FROM tollgate.provider_bill_days AS stored JOIN tollgate.provider_bill_imports AS file USING
  (import_id)
WHERE stored.provider = :provider AND file.first_day <= :last AND file.last_day >= :first
"""
DAY = timedelta(days=1)


class ProviderBillStore:
    """A store of providers' bills. Imports run one after the other, and so do approvals."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def preview(self, provider: str, export: ParsedExport) -> ImportedExport:
        """Return the effect of an import, without writing anything."""
        with self._database.begin() as connection:
            changed = _changed_days(connection, provider, export)
        return _result(None, export, changed)

    def add(self, provider: str, export: ParsedExport, file: BillFile) -> ImportedExport:
        """Import an export in one transaction; change nothing if every day counts already."""
        with self._database.begin(is_long=True) as connection:
            connection.execute(text(TableLock.PROVIDER_BILLS.taken))
            changed = _changed_days(connection, provider, export)
            if not changed:
                return _result(None, export, changed)
            import_id = uuid4()
            _write(connection, import_id, provider, export, file=file, changed=changed)
        return _result(import_id, export, changed)

    def bill(self, provider: str, *, first: date, last: date) -> Bill:
        """Return the bill of a provider in some days, both inclusive."""
        wanted = {"provider": provider, "first": first, "last": last}
        with self._database.begin(is_long=True) as connection:
            lines = [_line_from_row(row) for row in connection.execute(text(_LINES), wanted)]
            days: dict[BillFileKind, set[AccountDay]] = {}
            for kind, account, day in connection.execute(text(_DAYS), wanted):
                days.setdefault(BillFileKind(kind), set()).add(AccountDay(account, day))
            covered = {
                AccountDay(account, max(begin, first) + n * DAY)
                for account, begin, end in connection.execute(text(_COVERED), wanted)
                for n in range((min(end, last) - max(begin, first)).days + 1)
            }
        return bill_of(lines, days, covered)

    def metered(
        self, provider: str, *, first: date, last: date, on_day: Callable[[date], None]
    ) -> MeteredUsage:
        """Return the metered usage at a provider in some days, both inclusive; `on_day` is called
        before each is read. The policy's statements are not in it.
        """
        return metered_usage(self._database, provider, first=first, last=last, on_day=on_day)

    def approve(
        self,
        provider: str,
        month: date,
        *,
        make: Callable[[Mapping[TrueUpKey, int]], Sequence[TrueUp]],
        reason: str,
    ) -> BookedTrueUps:
        """Book the true-ups that `make` returns for those booked so far, in one transaction."""
        return book(self._database, provider, month, make=make, reason=reason)


def _digests(export: ParsedExport) -> dict[AccountDay, bytes]:
    """Return a digest of the lines of each day, whatever their order in the file."""
    contents: dict[AccountDay, list[str]] = {at: [] for at in export.days}
    for line in export.lines:
        contents[line.at].append(repr(replace(line, number=0)))
    return {
        at: sha256("\n".join(sorted(content)).encode("utf-8", "backslashreplace")).digest()
        for at, content in contents.items()
    }


def _changed_days(
    connection: Connection, provider: str, export: ParsedExport
) -> dict[AccountDay, bytes]:
    """Return the days of an export that are not stored yet as they are in it, with their
    digests.
    """
    digests = _digests(export)
    wanted = {
        "provider": provider,
        "kind": export.kind.value,
        "accounts": sorted({at.account for at in export.days}),
        "first": export.first_day,
        "last": export.last_day,
    }
    stored = {
        AccountDay(row.account, row.day): bytes(row.digest)
        for row in connection.execute(text(_STORED), wanted)
    }
    return {at: digest for at, digest in digests.items() if stored.get(at) != digest}


def _write(
    connection: Connection,
    import_id: UUID,
    provider: str,
    export: ParsedExport,
    *,
    file: BillFile,
    changed: Mapping[AccountDay, bytes],
) -> None:
    """Write the changed days of an export, in place of the stored ones."""
    row = {"import_id": import_id, "provider": provider, "kind": export.kind.value}
    connection.execute(
        text(_ADD_IMPORT),
        row
        | {
            "file_name": file.name,
            "sha256": file.sha256,
            "first_day": export.first_day,
            "last_day": export.last_day,
            "rows": export.rows,
            "amount_nusd": export.amount_nusd,
        },
    )
    places = {"accounts": [at.account for at in changed], "days": [at.day for at in changed]}
    connection.execute(text(_REPLACE), row | places)
    driver: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]  # psycopg's, by the URL
    with driver.cursor() as cursor:
        with cursor.copy(_COPY_DAYS) as copy:
            for at, digest in changed.items():
                copy.write_row(
                    (import_id, *at, provider, export.kind.value, export.days[at], digest)
                )
        with cursor.copy(_COPY_LINES) as copy:
            for line in export.lines:
                if line.at in changed:
                    copy.write_row(_line_to_row(import_id, line))


def _line_to_row(import_id: UUID, line: BilledLine) -> tuple[object, ...]:
    """Return a line as a row of its table."""
    to = line.billed_to
    return (
        import_id,
        line.number,
        to.account,
        line.day,
        to.project,
        to.key,
        to.model,
        line.token_kind,
        line.quantity,
        line.amount_nusd,
        line.slack_nusd,
        line.text,
    )


def _line_from_row(row: Any) -> BilledLine:
    """Return the line of a row."""
    return BilledLine(
        number=row.number,
        kind=BillFileKind(row.kind),
        day=row.day,
        billed_to=BilledTo(row.account, row.project, row.key, row.model),
        token_kind=row.token_kind,
        quantity=row.quantity,
        amount_nusd=row.amount_nusd,
        slack_nusd=row.slack_nusd,
        text=row.text,
    )


def _result(
    import_id: UUID | None, export: ParsedExport, changed: Mapping[AccountDay, bytes]
) -> ImportedExport:
    """Return the result of an import."""
    duplicates = sum(rows for at, rows in export.days.items() if at not in changed)
    return ImportedExport(import_id=import_id, rows=export.rows, duplicates=duplicates)
