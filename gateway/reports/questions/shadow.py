"""The effect that rules, limits and routes in shadow mode would have if they were enforced."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.reports.dimensions import Dimension
from gateway.reports.question import Question
from gateway.reports.report import Column, ColumnKind, Dataset, Report
from gateway.reports.sources.aggregate import ATTEMPTS, figures_of, total_of
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import events as events_of
from gateway.reports.sources.facts import facts
from gateway.reports.sources.notes import SURENESS, notes_on, read_freshness

TITLE = "Effects of shadow mode"
COLUMNS = (
    Column(name="shadow", unit="", kind=ColumnKind.TEXT),
    Column(name="team", unit="", kind=ColumnKind.TEXT),
    Column(name="route", unit="", kind=ColumnKind.TEXT),
    Column(name="name", unit="", kind=ColumnKind.TEXT),
    Column(name="would", unit="", kind=ColumnKind.TEXT),
    Column(name="requests", unit="", kind=ColumnKind.COUNT),
)
_TOTAL = (ATTEMPTS,)
# A rule's message ends with its id and field in brackets.
_RULES = """
SELECT 'rule' AS shadow, team, route, substring(denial ->> 1 FROM '[(]([^()]+)[)]$') AS name,
       'deny ' || deployment AS would, count(DISTINCT request_id) AS requests
FROM {events} AS event
CROSS JOIN LATERAL jsonb_path_query(
    decision, '$.candidates[*] ? (@.deployment == $name).shadow[*]', jsonb_build_object('name',
      deployment)) AS denial
WHERE {condition} GROUP BY 2, 3, 4, 5
"""
_ROUTES = """
SELECT 'route' AS shadow, team, route, route AS name,
       coalesce('send to ' || (decision -> 'shadow_ranked' ->> 0), 'refuse') || ', not ' ||
         deployment AS would,
       count(DISTINCT request_id) AS requests
FROM {events} AS event
WHERE {condition} AND decision ? 'shadow_ranked' AND decision -> 'shadow_ranked' ->> 0 IS DISTINCT
  FROM deployment
GROUP BY 2, 3, 4, 5
"""
_LIMITS = """
SELECT 'limit' AS shadow, team, route, rules[1] AS name, 'refuse (' || substr(code, 8) || ')' AS
  would,
       CAST(sum(requests) AS bigint) AS requests
FROM finance.refusals AS event
WHERE code LIKE 'shadow:%' AND {condition} GROUP BY 2, 3, 4, 5
"""


def shadow(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return a row for each element in shadow mode with its effect; none if nothing is in shadow
    mode.
    """
    condition, values = question.condition()
    asked = [
        sql.format(events=question.dataset.events, condition=condition) for sql in (_RULES, _ROUTES)
    ]
    limits = _limits_condition(question)
    if limits is not None:
        asked.append(_LIMITS.format(condition=limits))
    statement = " UNION ALL ".join(asked)
    order = "1, requests DESC, 2, 3, 4, 5"
    rows = snapshot.rows(f"SELECT * FROM ({statement}) AS found ORDER BY {order}", **values)  # noqa: S608
    chosen = facts(events_of(question.dataset), condition, has_adjustments=False)
    total = snapshot.row(f"SELECT {figures_of(_TOTAL)}, {SURENESS} {chosen}", **values)
    fresh = read_freshness(snapshot, question)
    return Report(
        name="shadow",
        title=TITLE,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=tuple(tuple(row[column.name] for column in COLUMNS) for row in rows),
        total=total_of(total, _TOTAL),
        complete_until=fresh.complete_until,
        notes=(*_notes(has_limits=limits is not None), *notes_on(question, total, fresh)),
    )


def _limits_condition(question: Question) -> str | None:
    """Return the condition for limit counts; None if they lack a dimension or the data are demo
    data.
    """
    if question.dataset is not Dataset.REAL:
        return None
    parts = ["true"]
    if question.month is not None:
        parts.append("hour >= CAST(:month AS date) AT TIME ZONE 'UTC'")
        parts.append("hour < (CAST(:month AS date) + interval '1 month') AT TIME ZONE 'UTC'")
    for position, (dimension, wanted) in enumerate(question.where):
        if dimension not in (Dimension.TEAM, Dimension.ROUTE) or wanted is None:
            return None
        parts.append(f"{dimension.sql} = :value_{position}")
    return " AND ".join(parts)


def _notes(*, has_limits: bool) -> Iterator[str]:
    yield (
        "Rules and routes cover requests that were sent; requests refused for another reason are "
        "left out."
    )
    if not has_limits:
        yield "Limits are counted by team and route alone, so they are not in this answer."
