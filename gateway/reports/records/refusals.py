"""Answers the report `refusals`: the requests that were decided against, by error code, team,
project, key, route and time, each with the remedy. They leave no event, only hourly counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Subquery, cast, func, literal_column, select

from gateway.errors import BadUsage
from gateway.reports.dimensions import TIME, Columns, Dimension, Split
from gateway.reports.question import Question
from gateway.reports.report import Column, ColumnKind, Dataset, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.notes import read_newest
from gateway.storage.postgres.schema import finance_views

SHARE_DIGITS = Decimal("0.000001")
CODE = Column(name="code", unit="", kind=ColumnKind.TEXT)
COLUMNS = (
    Column(name="rule", unit="", kind=ColumnKind.TEXT),
    Column(name="rules", unit="", kind=ColumnKind.TEXT),
    Column(name="requests", unit="requests", kind=ColumnKind.COUNT),
    Column(name="share", unit="of requests", kind=ColumnKind.SHARE),
    Column(name="last_hour", unit="UTC", kind=ColumnKind.TIME),
    Column(name="remedy", unit="", kind=ColumnKind.TEXT),
)
KNOWN = (Dimension.TEAM, Dimension.PROJECT, Dimension.KEY, Dimension.ROUTE, *TIME)
REMEDIES: Mapping[str, str] = {
    "budget_exhausted": "tollgate budget show BUDGET; raise limit_usd in the policy, or: tollgate "
    "budget grant BUDGET AMOUNT_USD --reason …",
    "residency_denied": "tollgate policy explain --team T --route R names the rule; add a "
    "deployment in an allowed region, or change the rule",
    "rate_limited": "raise requests_per_minute or tokens_per_minute of the team in the policy",
    "concurrency_limited": "raise concurrent of the team in the policy, or add capacity",
    "unpriced_model": "tollgate price add --deployment D …, or a price in the policy",
    "context_length_exceeded": "send shorter prompts, or give the route a deployment with a larger "
    "context_window",
    "not_supported": "tollgate policy explain names the missing operation or capability of the "
    "route's deployments",
    "invalid_request": "the caller must change the request; its answer names the field",
    "overloaded": "add capacity to the route's deployments; callers may retry after the named time",
    "unavailable": "tollgate doctor names the part that does not answer",
    "idempotency_mismatch": "the caller must use another Idempotency-Key for another request",
    "idempotency_conflict": "the caller must wait for the first request with this Idempotency-Key",
    "invalid_api_key": "the key has expired, is paused or of the demo, or its team is gone: "
    "tollgate key list",
    "route_not_allowed": "add the route to the team's routes in the policy",
}
OTHER_REMEDY = "see docs/reference/errors.md"
_DEFAULT: tuple[Split, ...] = (Dimension.TEAM, Dimension.ROUTE)


def refusals(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report: a row for each code, group and set of rules; the newest time first if the
    first split is one, else the most requests.

    Raises `BadUsage` for a split or a filter that the counts do not know.
    """
    by = _DEFAULT if question.by is None else question.by
    _require_known((*by, *(name for name, _ in question.where)))
    rows = snapshot.rows(_counted(question, by)) if question.dataset is Dataset.REAL else ()
    requests = sum(int(row["requests"]) for row in rows)
    return Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=(CODE, *(split.report_column for split in by), *COLUMNS),
        rows=tuple(_cells(row, by, requests) for row in rows),
        total={"requests": requests},
        complete_until=read_newest(snapshot, question.dataset),
        notes=_notes(question, requests),
    )


def _counted(question: Question, by: Sequence[Split]) -> Any:
    """Return the SELECT of the counts in their groups."""
    source = _source()
    row, groups = source.c, [_value(split, source.c).label(str(split.label)) for split in by]
    requests = cast(func.sum(row.requests), BigInteger).label("requests")
    rules = func.array_to_string(row.rules, literal_column("' '")).label("rules")
    ordered: list[Any] = [requests.desc(), row.code, row.rule, rules, *groups]
    if by and by[0] in TIME:
        ordered.insert(0, groups[0].desc())
    return (
        select(row.code, *groups, row.rule, rules, requests, func.max(row.hour).label("last_hour"))
        .where(*question.happened(row.hour), *_conditions(question, row))
        .group_by(row.code, *groups, row.rule, row.rules)
        .order_by(*ordered)
    )


def _source() -> Subquery:
    """Return the counts of enforced refusals, with the name of their time that dimensions use."""
    row = finance_views.refusals.c
    counted = select(*row, row.hour.label("occurred_at")).where(row.code.not_like("shadow:%"))
    return counted.subquery("refusal")


def _value(split: Split, row: Columns) -> ColumnElement[Any]:
    """Return the SQL of a dimension's value; months are those in which requests came."""
    assert isinstance(split, Dimension), "a tag was refused before"
    return split.of(row, as_posted=False)


def _conditions(question: Question, row: Columns) -> list[ColumnElement[bool]]:
    """Return the SQL conditions of the question's filters."""
    found = []
    for split, wanted in question.where:
        is_day = split is Dimension.DAY and wanted is not None
        value = date.fromisoformat(str(wanted)) if is_day else wanted
        found.append(_value(split, row) == value)
    return found


def _cells(row: Row, by: Sequence[Split], requests: int) -> tuple[Any, ...]:
    """Return the cells of one row of the report."""
    part = (Decimal(row["requests"]) / requests).quantize(SHARE_DIGITS) if requests else None
    return (
        row["code"],
        *(row[str(split.label)] for split in by),
        row["rule"],
        row["rules"] or None,
        row["requests"],
        part,
        row["last_hour"],
        REMEDIES.get(row["code"], OTHER_REMEDY),
    )


def _require_known(splits: Sequence[Split]) -> None:
    """Raise `BadUsage` for a dimension that the counts of refusals do not have."""
    unknown = [str(split.value) for split in splits if split not in KNOWN]
    if unknown:
        raise BadUsage(
            f"Report refusals does not know {', '.join(unknown)}: a refused request leaves a count "
            f"by hour, team, project, key and route. Use: {', '.join(KNOWN)}."
        )


def _notes(question: Question, requests: int) -> tuple[str, ...]:
    """Return the notes below the report."""
    if question.dataset is Dataset.DEMO:
        return ("Demo data: generated, not real; it has no refused requests.",)
    return (
        *(() if requests else ("No request was refused in this time.",)),
        "Counts by hour (UTC) of requests that were decided against: nothing was sent and nothing "
        "is charged. A wrong key is not counted: it belongs to no team. Of a team and hour 1,000 "
        "rows are kept apart; the rest is under the rule `other`. The effects of shadow mode are "
        "in report shadow.",
    )


REPORT = ReportKind(
    name="refusals",
    title="Refused requests",
    question="Which requests were refused, why, and what is the remedy?",
    by=_DEFAULT,
    run=refusals,
)
