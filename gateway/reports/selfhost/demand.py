"""Measures the demand of the last days for `tollgate engine plan`: requests a day, lengths, cached
share, growth and peak; plans nothing.

It reads single events, because lengths are quantiles over requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Float, Integer, Select, cast, distinct, func, select

from gateway.errors import NothingFound
from gateway.reports.question import Question
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.facts import EVENTS
from gateway.reports.sources.policies import current_policy

DAYS_PER_MONTH = 30.4375
LEAST_DAYS_OF_GROWTH = 14
LEAST_GROWTH, MOST_GROWTH = -0.99, 10.0  # of the demand file
DEFAULT_TTFT_MS, DEFAULT_TPOT_MS = 1000, 50  # a reader's patience, if nothing was ever measured
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthQuantiles:
    """Two quantiles of a length in tokens, over requests."""

    p50: int
    p95: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDemand:
    """The demand of some days. `growth_per_month` and `cached_share` are shares.

    `start` is the first month of a plan, `YYYY-MM`. `slo` has `ttft_ms` and `tpot_ms`. `notes` say
    how sure the figures are.
    """

    requests_per_day: float
    prompt_tokens: LengthQuantiles
    output_tokens: LengthQuantiles
    cached_share: float
    growth_per_month: float
    peak_to_mean: float
    start: str
    slo: dict[str, int]
    notes: tuple[str, ...]


def measured_demand(snapshot: ReadSnapshot, question: Question, *, days: int) -> MeasuredDemand:
    """Return the demand of the requests with an answer in the last `days`, of all deployments or of
    those that the question filters.

    Raises `NothingFound` if there was none.
    """
    now: datetime = snapshot.row("SELECT now() AS now")["now"]
    since = now - days * _DAY
    found = snapshot.row(_figures(question, since))
    if not found["requests"]:
        raise NothingFound(
            f"No request with known tokens in the last {days} day(s): there is no demand to "
            "measure. Take more --days, or write the demand file by hand: tollgate engine plan "
            "--help"
        )
    hours = snapshot.rows(_by_hour(question, since))
    span = max(now - found["first"], _DAY) / _DAY
    per_day = found["requests"] / span
    growth, growth_note = _growth(hours, first=found["first"], now=now)
    slo, slo_note = _slo(snapshot, question, found)
    return MeasuredDemand(
        requests_per_day=round(per_day, 3),
        prompt_tokens=LengthQuantiles(p50=found["prompt_p50"], p95=found["prompt_p95"]),
        output_tokens=LengthQuantiles(p50=found["output_p50"], p95=found["output_p95"]),
        cached_share=round(float(found["cached_share"] or 0), 4),
        growth_per_month=growth,
        peak_to_mean=round(max(max(row["requests"] for row in hours) / (per_day / 24), 1.0), 2),
        start=f"{now:%Y-%m}",
        slo=slo,
        notes=(
            f"{found['requests']:,} request(s) with an answer in {span:.1f} day(s), until "
            f"{now:%Y-%m-%d %H:%M} UTC.",
            growth_note,
            slo_note,
        ),
    )


def _figures(question: Question, since: datetime) -> Select[Any]:
    """Return the SELECT of the counts, lengths and latencies since a moment."""
    row = EVENTS[question.dataset].c
    split_input = func.nullif(
        func.sum(row.input_tokens).filter(row.cached_input_tokens.is_not(None)), 0
    )
    figures: list[ColumnElement[Any]] = [
        func.count(distinct(row.request_id)).label("requests"),
        func.min(row.occurred_at).label("first"),
        *(
            cast(func.percentile_disc(quantile).within_group(tokens), Integer).label(
                f"{name}_p{round(quantile * 100)}"
            )
            for name, tokens in (("prompt", row.input_tokens), ("output", row.output_tokens))
            for quantile in (0.5, 0.95)
        ),
        (func.sum(row.cached_input_tokens) / split_input).label("cached_share"),
        *(
            cast(func.percentile_disc(0.95).within_group(seconds), Float).label(name)
            for name, seconds in (("ttft_s", row.ttft_s), ("tpot_s", row.tpot_s))
        ),
    ]
    return select(*figures).where(row.occurred_at >= since, *_answered(question))


def _by_hour(question: Question, since: datetime) -> Select[Any]:
    """Return the SELECT of the requests of each hour since a moment."""
    row = EVENTS[question.dataset].c
    hour = func.date_trunc("hour", row.occurred_at, "UTC")
    return (
        select(hour.label("hour"), func.count(distinct(row.request_id)).label("requests"))
        .where(row.occurred_at >= since, *_answered(question))
        .group_by(hour)
    )


def _answered(question: Question) -> list[ColumnElement[bool]]:
    """Return the conditions of events that an engine would have to serve: both lengths are known,
    and there was an output.
    """
    row = EVENTS[question.dataset].c
    return [row.input_tokens > 0, row.output_tokens > 0, *question.conditions(row)]


def _growth(hours: Sequence[Row], *, first: datetime, now: datetime) -> tuple[float, str]:
    """Return the growth per month by the two halves of the time, and a note on it; 0 if the time is
    too short.
    """
    if now - first < LEAST_DAYS_OF_GROWTH * _DAY:
        return 0.0, (f"Growth is 0: it takes {LEAST_DAYS_OF_GROWTH} days of traffic to measure it.")
    middle = first + (now - first) / 2
    halves = [0, 0]
    for row in hours:
        halves[row["hour"] >= middle] += row["requests"]
    half_days = (now - first) / _DAY / 2
    ratio = max(halves[1], 1) / max(halves[0], 1)
    growth = ratio ** (DAYS_PER_MONTH / half_days) - 1
    bounded = round(min(max(growth, LEAST_GROWTH), MOST_GROWTH), 4)
    return bounded, (
        f"Growth is by the two halves of {2 * half_days:.0f} days: {halves[0]:,} and then "
        f"{halves[1]:,} request(s)."
    )


def _slo(snapshot: ReadSnapshot, question: Question, found: Row) -> tuple[dict[str, int], str]:
    """Return the latencies to keep, and a note on their source: the tightest bound of the policy's
    routes, else the 95th percentile of the traffic.
    """
    policy = current_policy(snapshot)
    wanted = {value for _, value in question.where}
    routes = () if policy is None else policy.routes.values()
    bounds = [
        route.ttft_p95_s
        for route in routes
        if route.ttft_p95_s is not None and (not wanted or route.name in wanted)
    ]
    ttft_ms = _ms(min(bounds)) if bounds else _ms(found["ttft_s"]) or DEFAULT_TTFT_MS
    tpot_ms = _ms(found["tpot_s"]) or DEFAULT_TPOT_MS
    sources = [
        "the policy's tightest ttft_p95_ms" if bounds else _source(found["ttft_s"]),
        _source(found["tpot_s"]),
    ]
    return {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms}, (
        f"The SLO is no measurement of what is needed: ttft_ms is {sources[0]}, tpot_ms is "
        f"{sources[1]}."
    )


def _ms(seconds: float | None) -> int:
    """Return seconds as whole milliseconds, at least 1; 0 if unknown."""
    return 0 if seconds is None else max(round(seconds * 1000), 1)


def _source(seconds: float | None) -> str:
    """Return the source of a latency without a bound."""
    return "a default" if seconds is None else "the p95 of this traffic"
