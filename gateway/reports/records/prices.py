"""Answers the report `prices`: the rates of each deployment that are in force, that were and that
will be, with their source and date, and whether own GPUs were calibrated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any

from gateway.domain.calendar_months import next_month
from gateway.domain.policy.policy import Deployment, Policy
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.tokens import TokenKind
from gateway.errors import BadUsage
from gateway.reports.dimensions import Dimension, Split
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Dataset, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.policies import current_policy
from gateway.storage.policy.prices import calibration_from_row, price_from_row

# A price counts until the next one of its deployment.
_CHARGED = """
SELECT dated.deployment, dated.valid_from, lead(dated.valid_from) OVER (
           PARTITION BY dated.deployment ORDER BY dated.valid_from, dated.policy_version)
           AS valid_until,
       price.*
FROM finance.deployment_prices AS dated JOIN finance.prices AS price USING (price_id)
ORDER BY dated.deployment, dated.valid_from DESC, dated.policy_version DESC
"""
_COMING = """
SELECT entry.deployment, entry.model AS of_model, entry.valid_from, entry.daily_since,
       entry.daily_until, entry.reason, price.*
FROM finance.price_entries AS entry JOIN finance.prices AS price USING (price_id)
WHERE entry.valid_from > now() ORDER BY entry.valid_from, entry.entry_id
"""
_CALIBRATED = """
SELECT DISTINCT ON (deployment) deployment, calibration FROM finance.price_entries
WHERE origin = 'calibrated' AND valid_from <= now()
ORDER BY deployment, valid_from DESC, entry_id DESC
"""
_NOW = "SELECT now() AS now, (SELECT max(created_at) FROM finance.price_entries) AS newest"

MAIN_KINDS: Mapping[str, TokenKind] = {
    "input_usd_per_mtok": TokenKind.INPUT,
    "cached_input_usd_per_mtok": TokenKind.CACHED_INPUT,
    "cache_write_usd_per_mtok": TokenKind.CACHE_WRITE,
    "output_usd_per_mtok": TokenKind.OUTPUT,
}
COLUMNS = (
    Column(name="state", unit="", kind=ColumnKind.TEXT),
    Column(name="deployment", unit="", kind=ColumnKind.TEXT),
    Column(name="provider", unit="", kind=ColumnKind.TEXT),
    Column(name="model", unit="", kind=ColumnKind.TEXT),
    Column(name="valid_from", unit="UTC", kind=ColumnKind.TIME),
    Column(name="valid_until", unit="UTC", kind=ColumnKind.TIME),
    Column(name="service_tier", unit="", kind=ColumnKind.TEXT),
    Column(name="from_input_tokens", unit="tokens", kind=ColumnKind.COUNT),
    *(
        Column(name=name, unit="USD per million tokens", kind=ColumnKind.MONEY)
        for name in MAIN_KINDS
    ),
    Column(name="other_rates", unit="USD per million", kind=ColumnKind.TEXT),
    Column(name="calibration", unit="", kind=ColumnKind.TEXT),
    Column(name="source", unit="", kind=ColumnKind.TEXT),
    Column(name="price_id", unit="", kind=ColumnKind.TEXT),
)
FILTERS = (Dimension.DEPLOYMENT, Dimension.PROVIDER, Dimension.MODEL)
CURRENT, PAST, COMING = "current", "past", "coming"
_ORDER = (CURRENT, COMING, PAST)
_BEGINNING, _END = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def prices(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report: a row for each price, service tier and threshold of input tokens; the
    current prices first. With a month or days: those that counted in it.

    Raises `BadUsage` for a filter that a price does not have.
    """
    _require_known([name for name, _ in question.where])
    now = snapshot.row(_NOW)
    rows: list[tuple[Cell, ...]] = []
    if question.dataset is Dataset.REAL:
        rows = [row for row in _rows(snapshot, now["now"]) if _is_asked(question, row)]
    rows.sort(key=lambda row: _ORDER.index(str(row[0])))
    return Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=tuple(rows),
        total={},
        complete_until=now["newest"],
        notes=_notes(question),
    )


def _rows(snapshot: ReadSnapshot, now: datetime) -> Iterator[tuple[Cell, ...]]:
    """Yield the rows of charged prices, then those of coming ones."""
    policy = current_policy(snapshot)
    calibrations = _calibrations(snapshot, policy)
    for row in snapshot.rows(_CHARGED):
        is_gone = policy is not None and row["deployment"] not in policy.deployments
        is_over = row["valid_until"] is not None and row["valid_until"] <= now
        state = COMING if row["valid_from"] > now else PAST if is_over or is_gone else CURRENT
        known = calibrations.get(row["deployment"]) if state == CURRENT else None
        yield from _cells(row, state, row["deployment"], calibration=known)
    for row in snapshot.rows(_COMING):
        for name in _deployments_of(row, policy):
            yield from _cells({**row, "valid_until": None}, COMING, name)


def _deployments_of(entry: Row, policy: Policy | None) -> Sequence[str]:
    """Return the deployments that an entry of the price book will price: the named one, else all
    external ones of its model without a price of the policy.
    """
    if entry["deployment"] is not None:
        return (entry["deployment"],)
    every: Sequence[Deployment] = () if policy is None else tuple(policy.deployments.values())
    return [
        one.name
        for one in every
        if one.model == entry["of_model"] and one.price is None and not one.is_self_hosted
    ]


def _calibrations(snapshot: ReadSnapshot, policy: Policy | None) -> Mapping[str, str]:
    """Return in words whether each deployment with GPUs was calibrated."""
    measured = {
        row["deployment"]: calibration_from_row(row["calibration"])
        for row in snapshot.rows(_CALIBRATED)
    }
    found = {}
    for name, deployment in () if policy is None else policy.deployments.items():
        if deployment.gpu is None or not deployment.is_self_hosted:
            continue
        one = measured.get(name)
        if one is None:
            found[name] = "uncalibrated: the policy's declared speed"
        elif one.is_of(deployment.gpu, model=deployment.model):
            found[name] = f"calibrated on {one.measured_on}, error {one.held_out_error:.1%}"
        else:
            found[name] = f"uncalibrated: measured on {one.measured_on} with another model or GPU"
    return found


def _cells(
    row: Mapping[str, Any], state: str, deployment: str, *, calibration: str | None = None
) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each service tier and threshold of a price, the standard tier first."""
    price: Price = price_from_row(row)
    places = {(rate.service_tier or "", rate.from_input_tokens) for rate in price.rates}
    for tier, threshold in sorted(places):
        rates = {
            rate.kind: rate
            for rate in price.rates
            if ((rate.service_tier or ""), rate.from_input_tokens) == (tier, threshold)
        }
        main = [rates.pop(kind, None) for kind in MAIN_KINDS.values()]
        yield (
            state,
            deployment,
            price.provider,
            price.model,
            row["valid_from"],
            row["valid_until"],
            tier or "standard",
            threshold,
            *(None if rate is None else rate.usd_per_mtok for rate in main),
            _others(rates.values()) or None,
            calibration,
            _source(row, price),
            price.price_id,
        )


def _others(rates: Any) -> str:
    """Return the rarer rates of a price as text, in USD per million tokens or calls."""
    listed: list[Rate] = sorted(rates, key=lambda rate: rate.kind.value)
    return "; ".join(f"{rate.kind.value} {rate.usd_per_mtok:f}" for rate in listed)


def _source(row: Mapping[str, Any], price: Price) -> str:
    """Return the source of a price, with the part of the day that it holds for."""
    since: time | None = row.get("daily_since")
    if since is None:
        return price.source
    return f"{price.source}; daily from {since:%H:%M} to {row['daily_until']:%H:%M} UTC"


def _is_asked(question: Question, row: Sequence[Any]) -> bool:
    """Return True if a row has the wanted names and counted in the wanted time."""
    record = dict(zip((column.name for column in COLUMNS), row, strict=True))
    if any(record[str(name)] != wanted for name, wanted in question.where):
        return False
    first, after = _moments(question)
    return record["valid_from"] < after and (record["valid_until"] or _END) > first


def _moments(question: Question) -> tuple[datetime, datetime]:
    """Return the first moment of a question's time and the first one after it."""
    if question.month is not None:
        return _midnight(question.month), _midnight(next_month(question.month))
    return (question.moments[0], question.moments[1]) if question.moments else (_BEGINNING, _END)


def _midnight(day: date) -> datetime:
    """Return the first moment of a day in UTC."""
    return datetime.combine(day, time(), UTC)


def _require_known(splits: Sequence[Split]) -> None:
    """Raise `BadUsage` for a filter that a price does not have."""
    unknown = [str(split.value) for split in splits if split not in FILTERS]
    if unknown:
        raise BadUsage(
            f"Report prices cannot be filtered by {', '.join(unknown)}. Use: {', '.join(FILTERS)}."
        )


def _notes(question: Question) -> tuple[str, ...]:
    """Return the notes below the report."""
    if question.dataset is Dataset.DEMO:
        return ("Demo data: generated, not real; its prices are in no price book.",)
    return (
        "USD per million tokens; a calibrated or declared speed makes the price of own GPUs. A row "
        "holds for requests of at least from_input_tokens. other_rates of tools are per million "
        "calls.",
        "A request is charged by the price that was in force when it came, and keeps it. No entry "
        "is ever edited: a new rate is a new row. Next: tollgate price show MODEL",
    )


REPORT = ReportKind(
    name="prices",
    title="Prices",
    question="Which prices count, counted and will count, from which source?",
    by=None,
    run=prices,
)
