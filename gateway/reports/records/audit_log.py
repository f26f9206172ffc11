"""Answers the report `audit`: each administrative act with its person, time and reason, newest
first; and checks the hash chain of the whole log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import Select, func, select

from gateway.domain.ledger.audit_chain import AuditRow, ChainFinding, ChainHead, ChainWalk
from gateway.errors import BadUsage
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Dataset, Report, listed_note
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.connection import ReadSnapshot
from gateway.storage.policy.audit import AUDIT_ROWS
from gateway.storage.postgres.schema import finance_views

BATCH = 5_000
MOST_FINDINGS = 1_000  # in a rewritten chain every row is wrong
COLUMNS = (
    Column(name="seq", unit="", kind=ColumnKind.COUNT),
    Column(name="at", unit="UTC", kind=ColumnKind.TIME),
    *(
        Column(name=name, unit="", kind=ColumnKind.TEXT)
        for name in ("action", "subject", "operator", "db_user", "reason", "details", "hash")
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditChain:
    """The result of checking the whole log: its rows, its head and the problems, at most
    `MOST_FINDINGS`. The head is None in an empty log.
    """

    rows: int
    head: ChainHead | None
    findings: Sequence[ChainFinding]


def audit(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report: one page of the administrative acts, newest first.

    The total covers all pages; no limit, no rows. Raises `BadUsage` for a filter.
    """
    if question.where:
        raise BadUsage(
            "Report audit has no filter but the time. By action or subject: tollgate audit list "
            "--action key. --subject ID"
        )
    rows = () if question.limit is None else tuple(audit_rows(snapshot, question))
    counted = select(func.count().label("acts"), func.max(_LOG.at).label("newest"))
    total = snapshot.row(counted.where(*question.happened(_LOG.at)))
    return Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=rows,
        total={"acts": total["acts"]},
        complete_until=total["newest"],
        notes=_notes(question, acts=total["acts"], rows=len(rows)),
    )


def audit_rows(snapshot: ReadSnapshot, question: Question) -> Iterator[tuple[Cell, ...]]:
    """Yield the page's acts one by one, newest first; all of them if there is no limit."""
    if question.dataset is Dataset.REAL:
        yield from map(_cells, snapshot.each(_page(question), batch=BATCH))


def audit_chain(snapshot: ReadSnapshot) -> AuditChain:
    """Return the result of checking every row of the log against the one before it."""
    walk = ChainWalk()
    rows = (AuditRow(**row) for row in snapshot.each(_CHAIN, batch=BATCH))
    findings = walk.findings(rows)
    shown = tuple(islice(findings, MOST_FINDINGS))
    for _ in findings:
        pass  # the walk counts the rows that are left
    return AuditChain(rows=walk.rows, head=walk.head, findings=shown)


_LOG = finance_views.audit_log.c
_CHAIN = AUDIT_ROWS.format(log="finance.audit_log")


def _page(question: Question) -> Select[Any]:
    """Return the SELECT of one page of acts, newest first."""
    return (
        select(*(_LOG[column.name] for column in COLUMNS))
        .where(*question.happened(_LOG.at))
        .order_by(_LOG.seq.desc())
        .limit(question.limit)
        .offset(question.offset)
    )


def _cells(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    """Return an act's cells; its details are JSON text."""
    details = row["details"]
    text = None if details is None else json.dumps(details, ensure_ascii=False)
    return tuple(text if column.name == "details" else row[column.name] for column in COLUMNS)


def _notes(question: Question, *, acts: int, rows: int) -> tuple[str, ...]:
    """Return the notes below the report."""
    if question.dataset is Dataset.DEMO:
        return ("The audit log is of this database as a whole; switch to real data.",)
    is_page = question.limit is not None and rows != acts
    listed = listed_note("Acts", count=acts, first=question.offset + 1, rows=rows)
    return (
        *((listed,) if is_page else ()),
        "Each row is bound to the one before it by its hash. tollgate audit verify checks them, "
        "also against a head that was kept elsewhere.",
    )


REPORT = ReportKind(
    name="audit",
    title="Audit log",
    question="Who changed what, when and why?",
    by=None,
    run=audit,
    each_row=audit_rows,
)
