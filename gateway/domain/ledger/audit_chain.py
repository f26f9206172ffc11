"""Verifies given rows of the audit log against their hash chain and against heads kept elsewhere,
and declares a row and an act.

A hash binds every line to the one before it: `hash = sha256(previous + "\n" + line)` in hex. Here
`line` is the row's stored text, so nothing depends on how two programs write a number. The columns
beside it serve queries, so they must agree with the line. A cut end, or a chain rewritten from some
row on, can only be found against a head kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

BEGINNING = "0" * 64  # the first row's previous hash


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One row as it is stored. `at` and `details` are text as Postgres writes it.

    None for a missing column.
    """

    seq: int | None
    at: str | None
    db_user: str | None
    operator: str | None
    reason: str | None
    action: str | None
    subject: str | None
    details: str | None
    line: str | None
    previous: str | None
    hash: str | None


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last row of a chain at some time: its number and its hash."""

    seq: int
    hash: str

    def __str__(self) -> str:
        """Return the form that `audit head` prints."""
        return f"{self.seq} {self.hash}"


@dataclass(frozen=True, slots=True)
class ChainFinding:
    """A problem and its row; `seq` is the number that the row has or should have."""

    seq: int
    what: str


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    seq: int
    at: str
    db_user: str
    operator: str | None
    reason: str | None
    action: str
    subject: str
    details: msgspec.Raw


_READER = msgspec.json.Decoder(_Line)
_TEXTS = ("at", "db_user", "operator", "reason", "action", "subject")


class ChainWalk:
    """Checks rows in the order of their numbers, one after the other, without keeping any."""

    def __init__(self, heads: Sequence[ChainHead] = ()) -> None:
        """Take the chain heads that were kept elsewhere, which the log must contain."""
        self.rows = 0
        self._heads = sorted(heads, key=lambda head: head.seq)
        self._kept: dict[int, set[str]] = {}
        for head in heads:
            self._kept.setdefault(head.seq, set()).add(head.hash)
        self._seq, self._hash = 0, BEGINNING

    @property
    def head(self) -> ChainHead | None:
        """Return the number and hash of the last checked row; None before the first."""
        return ChainHead(self._seq, self._hash) if self.rows else None

    def findings(self, rows: Iterable[AuditRow]) -> Iterator[ChainFinding]:
        """Yield all problems of a whole audit log; none if it is unchanged."""
        for row in rows:
            yield from self.check_row(row)
        yield from self.missing_at_end()

    def check_row(self, row: AuditRow) -> Iterator[ChainFinding]:
        """Yield the problems of the log's next row."""
        expected = self._seq + 1
        seq = expected if row.seq is None else row.seq
        for what in (*_order(row, expected), *_binding(row, self._hash), *_columns(row)):
            yield ChainFinding(seq, what)
        if self._kept.get(seq, {row.hash}) != {row.hash}:
            yield ChainFinding(
                seq,
                "it is not the row that the kept head names: from some row up to here all is new",
            )
        self.rows += 1
        # After a break the chain continues from the row as it is, so that each break is reported
        # once.
        self._seq, self._hash = seq, row.hash or ""

    def missing_at_end(self) -> Iterator[ChainFinding]:
        """Yield a problem for each head kept elsewhere whose row the log, now fully read, does not
        reach: its end was cut off.
        """
        for head in self._heads:
            if head.seq > self._seq:
                yield ChainFinding(
                    head.seq,
                    f"it is missing: a head was kept of it, and the log ends at {self._seq}",
                )


def read_head(text: str) -> ChainHead:
    """Return the chain head that the text `SEQ HASH` states. Raises `ValueError`."""
    seq, _, digest = text.strip().partition(" ")
    if (
        not seq.isascii()
        or not seq.isdigit()
        or len(digest) != len(BEGINNING)
        or not set(digest) <= _HEX
    ):
        raise ValueError(
            f"'{text.strip()[:80]}' is not a head: write SEQ HASH, as `tollgate audit head` "
            "prints it"
        )
    return ChainHead(int(seq), digest)


_HEX = frozenset("0123456789abcdef")


def _order(row: AuditRow, expected: int) -> Iterator[str]:
    """Yield the problem of a row without a number, or with another number than the expected one."""
    if row.seq is None:
        yield f"a row has no number where {expected} should be"
    elif row.seq < expected:
        yield f"it stands where {expected} should be: numbers only rise"
    elif row.seq == expected + 1:
        yield f"row {expected} before it is missing"
    elif row.seq > expected:
        yield f"rows {expected} to {row.seq - 1} before it are missing"


def _binding(row: AuditRow, expected: str) -> Iterator[str]:
    """Yield the problems of a row whose hash does not follow from its content and the row before
    it.
    """
    if row.previous != expected:
        yield "it does not follow the row before it: `previous` is not that row's hash"
    if row.hash != sha256(f"{row.previous}\n{row.line}".encode()).hexdigest():
        yield "its `hash` is not that of its `previous` and `line`"


def _columns(row: AuditRow) -> Iterator[str]:
    """Yield the problem of each column that differs from the row's hashed line."""
    try:
        line = _READER.decode(row.line or "")
    except msgspec.DecodeError:
        yield "its `line` cannot be read"
        return
    if line.seq != row.seq:
        yield f"`seq` is {row.seq}, and its `line` says {line.seq}"
    for name in _TEXTS:
        if getattr(row, name) != getattr(line, name):
            yield f"`{name}` is not what its `line` says"
    if (row.details or "").encode() != bytes(line.details):
        yield "`details` are not what its `line` says"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditAct:
    """One administrative act, for people to read.

    `operator` and `reason` are None if they were not given.
    """

    seq: int
    at: datetime
    db_user: str
    operator: str | None
    reason: str | None
    action: str
    subject: str
    details: dict[str, Any]
    line: str
    previous: str
    hash: str
