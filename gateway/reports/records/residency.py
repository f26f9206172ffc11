"""Answers the report `residency`: the regions that each team's data was sent to by class, with the
rule of the class, and the requests that rules refused. It decides nothing again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger, Select, cast, func, select

from gateway.domain.policy.policy import Policy, ResidencyRule
from gateway.errors import BadUsage
from gateway.reports.dimensions import TIME, Dimension
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Dataset, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.facts import source_for
from gateway.reports.sources.notes import read_newest
from gateway.reports.sources.policies import current_policy
from gateway.storage.postgres.schema import finance_views

SHARE_DIGITS = Decimal("0.000001")
COLUMNS = (
    Column(name="decision", unit="", kind=ColumnKind.TEXT),
    Column(name="team", unit="", kind=ColumnKind.TEXT),
    Column(name="data_class", unit="", kind=ColumnKind.TEXT),
    Column(name="region", unit="", kind=ColumnKind.TEXT),
    Column(name="destination", unit="", kind=ColumnKind.TEXT),
    Column(name="deployment", unit="", kind=ColumnKind.TEXT),
    Column(name="route", unit="", kind=ColumnKind.TEXT),
    Column(name="rules", unit="", kind=ColumnKind.TEXT),
    Column(name="attempts", unit="attempts", kind=ColumnKind.COUNT),
    Column(name="share", unit="of attempts", kind=ColumnKind.SHARE),
    Column(name="refused_requests", unit="requests", kind=ColumnKind.COUNT),
)
_OF_PLACE = (Dimension.REGION, Dimension.DESTINATION, Dimension.DEPLOYMENT)
FILTERS = (Dimension.TEAM, *_OF_PLACE, *TIME)


def residency(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report: the sent attempts by team, class and place, most first, then the refused
    requests by team, class, route and rules.

    Raises `BadUsage` for another filter than team, place and time.
    """
    _require_known(question)
    policy = current_policy(snapshot)
    sent = snapshot.rows(_sent(question))
    refused = snapshot.rows(_refused(question)) if _has_refusals(question) else ()
    attempts = sum(int(row["attempts"]) for row in sent)
    return Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=(
            *(_sent_cells(row, attempts, policy) for row in sent),
            *(_refused_cells(row) for row in refused),
        ),
        total={
            "attempts": attempts,
            "refused_requests": sum(int(row["requests"]) for row in refused),
        },
        complete_until=read_newest(snapshot, question.dataset),
        notes=_notes(question, attempts),
    )


def _sent(question: Question) -> Select[Any]:
    """Return the SELECT of the sent attempts, from the sums by day or hour."""
    filters = [dimension for dimension, _ in question.where]
    source = source_for(question.dataset, filters=filters, moments=question.moments)
    row = source.rows.c
    groups = [row.team, row.data_class, *(one.of(row).label(one.value) for one in _OF_PLACE)]
    attempts = cast(func.sum(row.attempts), BigInteger).label("attempts")
    return (
        select(*groups, attempts)
        .where(*question.conditions(row))
        .group_by(row.team, row.data_class, row.region, row.is_self_hosted, row.deployment)
        .order_by(attempts.desc(), *groups)
    )


def _refused(question: Question) -> Select[Any]:
    """Return the SELECT of the requests that residency rules refused, from the hourly counts."""
    view = finance_views.refusals.c
    row = select(*view, view.hour.label("occurred_at")).subquery("refusal").c
    requests = cast(func.sum(row.requests), BigInteger).label("requests")
    groups = row.team, row.data_class, row.route, row.rules
    filters = [
        one.of(row, as_posted=False) == _day_of(one, wanted)
        for one, wanted in question.where
        if isinstance(one, Dimension)
    ]
    return (
        select(*groups, requests)
        .where(row.code == "residency_denied", *question.happened(row.hour), *filters)
        .group_by(*groups)
        .order_by(requests.desc(), *groups)
    )


def _day_of(dimension: Dimension, wanted: str | None) -> Any:
    """Return the wanted value of a dimension as SQL compares it: a day as a date."""
    return date.fromisoformat(wanted) if dimension is Dimension.DAY and wanted else wanted


def _has_refusals(question: Question) -> bool:
    """Return True if the question can have refused requests: they went to no place."""
    is_of_a_place = any(dimension in _OF_PLACE for dimension, _ in question.where)
    return question.dataset is Dataset.REAL and not is_of_a_place


def _sent_cells(row: Row, attempts: int, policy: Policy | None) -> tuple[Cell, ...]:
    """Return the cells of attempts that were sent to one place."""
    share = (Decimal(row["attempts"]) / attempts).quantize(SHARE_DIGITS) if attempts else None
    place = [row[one.value] for one in _OF_PLACE]
    rule = _class_rules(policy).get(row["data_class"])
    head = ("sent", row["team"], row["data_class"], *place)
    return (*head, None, rule, row["attempts"], share, None)


def _refused_cells(row: Row) -> tuple[Cell, ...]:
    """Return the cells of requests that rules refused."""
    rules = " ".join(row["rules"]) or None
    nowhere = (None,) * len(_OF_PLACE)
    head = ("refused", row["team"], row["data_class"], *nowhere, row["route"], rules)
    return (*head, None, None, row["requests"])


def _class_rules(policy: Policy | None) -> Mapping[str, str]:
    """Return the rule of each data class of the policy in force, in words."""
    classes = {} if policy is None else policy.classes
    return {label.name.lower(): rule_text(rule) for label, rule in classes.items()}


def rule_text(rule: ResidencyRule) -> str:
    """Return a residency rule in words: `class:restricted: only eu, own engines only`."""
    parts = []
    if rule.regions is not None and "any" not in rule.regions:
        parts.append(f"only {_listed(rule.regions)}")
    if rule.self_hosted_only:
        parts.append("own engines only")
    if rule.deny_regions:
        parts.append(f"never {_listed(rule.deny_regions)}")
    if rule.deny_providers:
        parts.append(f"not by {_listed(rule.deny_providers)}")
    for name, places in (("at rest", rule.at_rest), ("telemetry", rule.telemetry)):
        if places is not None and "any" not in places:
            parts.append(f"{name} in {_listed(places)}")
    if rule.max_retention_days is not None:
        parts.append(f"kept {rule.max_retention_days} days at most")
    text = ", ".join(parts) or "any place"
    return f"{rule.rule_id}: {text}{' (shadow)' if rule.is_shadow else ''}"


def _listed(names: Sequence[str] | frozenset[str]) -> str:
    """Return names as words, `eu or us`; `nowhere` without any."""
    return " or ".join(sorted(names)) or "nowhere"


def _require_known(question: Question) -> None:
    """Raise `BadUsage` for a filter that data classes are not summed by."""
    unknown = [str(one.value) for one, _ in question.where if one not in FILTERS]
    if unknown:
        raise BadUsage(
            f"Report residency cannot be filtered by {', '.join(unknown)}. Use: "
            f"{', '.join(FILTERS)}."
        )


def _notes(question: Question, attempts: int) -> tuple[str, ...]:
    """Return the notes below the report."""
    if question.dataset is Dataset.DEMO:
        return ("Demo data: generated, not real; it was sent nowhere, and nothing was refused.",)
    return (
        *(() if attempts else ("No attempts in this time.",)),
        "rules of a sent attempt is the rule of its class in the policy in force; rules of a "
        "refused request are those that kept each deployment away.",
        "tollgate audit residency --team T --month M decides each attempt again under its own "
        "policy version.",
    )


REPORT = ReportKind(
    name="residency",
    title="Places of data",
    question="Which regions did each team's data go to, by which rule, and what was refused?",
    by=None,
    run=residency,
)
