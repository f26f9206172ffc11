"""Opens an export of the ledger: its columns, its rows and the watermark of the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.reports.exports.watermark import (
    Watermark,
    current_watermark,
    parse_watermark,
    require_same_database,
)
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, Export, Report
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.notes import read_newest

Rows = Iterator[tuple[Cell, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportKind:
    """The definition of an export: columns, rows in a stable order, and their expected number.

    `rows` take the question and the watermark after which they are. `expected` is quick to ask; it
    is None if that number is not known before.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Callable[[ReadSnapshot, Question, Watermark | None], Rows]
    expected: Callable[[ReadSnapshot, Question], int | None]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerExport:
    """An open export. `expected` is the number of its rows; None: not known before."""

    export: Export
    watermark: str
    expected: int | None


def open_export(
    snapshot: ReadSnapshot, kind: ExportKind, question: Question, *, since: str | None
) -> LedgerExport:
    """Return an export of a question's rows after a watermark.

    Raises `BadUsage`, or `NothingFound` if the watermark is of another database.
    """
    after = None if since is None else parse_watermark(since)
    now = current_watermark(snapshot)
    if after is not None:
        require_same_database(after, now)
    report = Report(
        name=kind.name,
        title=kind.title,
        dataset=question.dataset,
        columns=kind.columns,
        rows=(),
        total={},
        complete_until=read_newest(snapshot, question.dataset),
        notes=kind.notes,
    )
    return LedgerExport(
        export=Export(report=report, rows=kind.rows(snapshot, question, after)),
        watermark=str(now),
        expected=kind.expected(snapshot, question) if after is None else None,
    )
