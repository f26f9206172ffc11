"""An audit log written here, and every kind of edit that one could make.

Shares no code with the checker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from random import Random

from gateway.domain.ledger.audit_chain import AuditRow

Rows = list[AuditRow]
START = datetime(2026, 11, 22, 7, tzinfo=UTC)
COLUMNS = tuple(field.name for field in fields(AuditRow))


def audit_log(length: int) -> Rows:
    """A log of so many acts, as Postgres writes one."""
    rows: Rows = []
    for seq in range(1, length + 1):
        operator, reason = (
            (None, None) if seq % 5 == 0 else ("ada", f'leaked "in a log" \\ no. {seq} – ç')
        )
        details = f'{{"team": "payments", "amount_nusd": {seq}.50, "nested": {{"a": [1, null]}}}}'
        at = f"{START + timedelta(seconds=seq, microseconds=seq):%Y-%m-%dT%H:%M:%S.%f}Z"
        row = AuditRow(
            seq=seq,
            at=at,
            db_user="tollgate",
            operator=operator,
            reason=reason,
            action="key.revoke",
            subject=f"k{seq:09}",
            details=details,
            line=None,
            previous=rows[-1].hash if rows else "0" * 64,
            hash=None,
        )
        rows.append(sealed(row))
    return rows


def sealed(row: AuditRow, *, previous: str | None = None) -> AuditRow:
    """The row with the line and the hash that its columns should have."""
    named = ("seq", "at", "db_user", "operator", "reason", "action", "subject")
    parts = [f'"{name}": {json.dumps(getattr(row, name), ensure_ascii=False)}' for name in named]
    line = "{" + ", ".join([*parts, f'"details": {row.details}']) + "}"
    before = row.previous if previous is None else previous
    return replace(
        row, line=line, previous=before, hash=sha256(f"{before}\n{line}".encode()).hexdigest()
    )


def edited(rows: Rows, rng: Random) -> tuple[str, Rows]:
    """The log after one edit that changes it, and which kind of edit that was."""
    while True:
        edit = rng.choice(EDITS)
        after = edit(list(rows), rng)
        if after != rows:
            return edit.__name__.strip("_"), after


def _flip_a_bit(rows: Rows, rng: Random) -> Rows:
    place, column = rng.randrange(len(rows)), rng.choice(COLUMNS)
    value = getattr(rows[place], column)
    if isinstance(value, int):
        rows[place] = replace(rows[place], seq=value ^ (1 << rng.randrange(16)))
    elif value:
        content = bytearray(value.encode())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        rows[place] = replace(rows[place], **{column: content.decode("utf-8", "replace")})
    return rows


def _empty_a_column(rows: Rows, rng: Random) -> Rows:
    place, column = rng.randrange(len(rows)), rng.choice(COLUMNS)
    rows[place] = replace(
        rows[place], **{column: rng.choice([None, "", "null"]) if column != "seq" else None}
    )
    return rows


def _remove_rows(rows: Rows, rng: Random) -> Rows:
    place = rng.randrange(len(rows))
    del rows[place : place + rng.randint(1, 3)]
    return rows


def _cut_the_end_off(rows: Rows, rng: Random) -> Rows:
    return rows[: rng.randrange(len(rows))]


def _move_a_row(rows: Rows, rng: Random) -> Rows:
    row = rows.pop(rng.randrange(len(rows)))
    rows.insert(rng.randrange(len(rows) + 1), row)
    return rows


def _swap_two_numbers(rows: Rows, rng: Random) -> Rows:
    one, other = rng.sample(range(len(rows)), 2)
    rows[one], rows[other] = (
        replace(rows[other], seq=rows[one].seq),
        replace(rows[one], seq=rows[other].seq),
    )
    return rows


def _repeat_a_row(rows: Rows, rng: Random) -> Rows:
    rows.insert(rng.randrange(len(rows) + 1), rng.choice(rows))
    return rows


def _put_in_a_row(rows: Rows, rng: Random) -> Rows:
    """One that is right in itself: it follows the row before it, with a hash of its own.

    Not behind the last one: that is an act like any other, by whoever the owner of the log is.
    """
    place = rng.randrange(len(rows) - 1)
    before = rows[place]
    made = replace(
        before, seq=(before.seq or 0) + rng.randint(0, 1), action="key.create", previous=before.hash
    )
    rows.insert(place + 1, sealed(made))
    return rows


def _rewrite_a_row(rows: Rows, rng: Random) -> Rows:
    """One row is written anew with the hash that it should have then."""
    place = rng.randrange(len(rows))
    rows[place] = sealed(_other_content(rows[place], rng))
    return rows


def _rewrite_the_rest(rows: Rows, rng: Random) -> Rows:
    """All rows from one on, each bound to the one before it: only a head that was kept elsewhere
    can tell.
    """
    first = rng.randrange(len(rows))
    rows[first] = sealed(_other_content(rows[first], rng))
    for place in range(first + 1, len(rows)):
        rows[place] = sealed(rows[place], previous=rows[place - 1].hash)
    return rows


def _other_content(row: AuditRow, rng: Random) -> AuditRow:
    return replace(
        row, **{rng.choice(["operator", "reason", "action", "subject", "db_user"]): "somebody else"}
    )


EDITS: Sequence[Callable[[Rows, Random], Rows]] = (
    _flip_a_bit,
    _flip_a_bit,
    _flip_a_bit,
    _empty_a_column,
    _remove_rows,
    _cut_the_end_off,
    _move_a_row,
    _swap_two_numbers,
    _repeat_a_row,
    _put_in_a_row,
    _rewrite_a_row,
    _rewrite_the_rest,
)
