"""Answers the report `shadow`: the requests that rules, limits and routes in shadow mode would have
affected if they were enforced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, cast, func, literal, select, union_all
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH

from gateway.reports.dimensions import Columns, Dimension
from gateway.reports.question import Question
from gateway.reports.report import Column, ColumnKind, Dataset, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.aggregate import ATTEMPTS, total_of, total_row
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import EVENTS, facts
from gateway.reports.sources.facts import events as events_of
from gateway.reports.sources.notes import notes_on, read_freshness
from gateway.storage.postgres.schema import finance_views

COLUMNS = (
    Column(name="shadow", unit="", kind=ColumnKind.TEXT),
    Column(name="team", unit="", kind=ColumnKind.TEXT),
    Column(name="route", unit="", kind=ColumnKind.TEXT),
    Column(name="name", unit="", kind=ColumnKind.TEXT),
    Column(name="would", unit="", kind=ColumnKind.TEXT),
    Column(name="requests", unit="", kind=ColumnKind.COUNT),
)
_TOTAL = (ATTEMPTS,)
_SHADOW_DENIALS = "$.candidates[*] ? (@.deployment == $name).shadow[*]"
_RULE_ID = "[(]([^()]+)[)]$"  # a rule's message ends with its id and field in brackets


def shadow(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report with a row for each rule, limit or route in shadow mode that would have an
    effect; none if nothing is in shadow mode.
    """
    row = EVENTS[question.dataset].c
    conditions = question.conditions(row)
    asked = [_rules(row).where(*conditions), _routes(row).where(*conditions)]
    limits = _limits(question)
    if limits is not None:
        asked.append(limits)
    found = union_all(*asked).subquery("found")
    others = (column for column in found.c if column.name not in ("shadow", "requests"))
    rows = snapshot.rows(select(found).order_by(found.c.shadow, found.c.requests.desc(), *others))
    source = events_of(question.dataset)
    chosen = facts(source, question.conditions, has_adjustments=False)
    total = total_row(snapshot, _TOTAL, chosen, source=source)
    fresh = read_freshness(snapshot, question)
    return Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=tuple(tuple(row[column.name] for column in COLUMNS) for row in rows),
        total=total_of(total, _TOTAL),
        complete_until=fresh.complete_until,
        notes=(*_notes(has_limits=limits is not None), *notes_on(question, total, fresh)),
    )


def _rules(row: Columns) -> Select[Any]:
    """Return the SELECT of the rules that would have denied the deployment that was used."""
    denials = func.jsonb_path_query(
        row.decision,
        cast(_SHADOW_DENIALS, JSONPATH),
        func.jsonb_build_object("name", row.deployment),
        type_=JSONB,
    ).column_valued("denial", joins_implicitly=True)
    return _effects(
        row,
        kind="rule",
        name=func.substring(denials[1].astext, _RULE_ID),
        would=literal("deny ") + row.deployment,
    )


def _routes(row: Columns) -> Select[Any]:
    """Return the SELECT of the routes that would have sent the request to another place."""
    ranked = row.decision["shadow_ranked"]
    first = ranked[0].astext
    would = func.coalesce(literal("send to ") + first, "refuse") + ", not " + row.deployment
    return _effects(row, kind="route", name=row.route, would=would).where(
        row.decision.has_key("shadow_ranked"), first.is_distinct_from(row.deployment)
    )


def _effects(
    row: Columns, *, kind: str, name: ColumnElement[Any], would: ColumnElement[Any]
) -> Select[Any]:
    """Return the SELECT that counts the requests that each element in shadow mode would have
    affected.
    """
    groups = row.team, row.route, name, would
    return select(
        literal(kind).label("shadow"),
        row.team,
        row.route,
        name.label("name"),
        would.label("would"),
        func.count(row.request_id.distinct()).label("requests"),
    ).group_by(*groups)


def _limits(question: Question) -> Select[Any] | None:
    """Return the SELECT of the limits in shadow mode; None if the counts lack a dimension or the
    data are demo data.
    """
    if question.dataset is not Dataset.REAL:
        return None
    row = finance_views.refusals.c
    conditions = [row.code.like("shadow:%"), *question.happened(row.hour)]
    for dimension, wanted in question.where:
        if dimension not in (Dimension.TEAM, Dimension.ROUTE) or wanted is None:
            return None
        conditions.append(dimension.of(row) == wanted)
    name, would = row.rules[1], literal("refuse (") + func.substr(row.code, 8) + ")"
    requests = cast(func.sum(row.requests), BigInteger)
    return (
        select(
            literal("limit").label("shadow"),
            row.team,
            row.route,
            name.label("name"),
            would.label("would"),
            requests.label("requests"),
        )
        .where(*conditions)
        .group_by(row.team, row.route, name, would)
    )


def _notes(*, has_limits: bool) -> Iterator[str]:
    """Yield the notes below the report on shadow mode."""
    yield (
        "Rules and routes cover requests that were sent; requests refused for another reason are "
        "left out."
    )
    if not has_limits:
        yield "Limits are counted by team and route alone, so they are not in this answer."


REPORT = ReportKind(
    name="shadow",
    title="Effects of shadow mode",
    question="What would rules, limits and routes in shadow have done?",
    by=None,
    run=shadow,
    usd_alone="it counts requests and has no money",
)
