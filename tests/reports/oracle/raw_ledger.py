"""Reads the ledger's own tables as facts, for the oracle of the reports. It uses no view of the
schema `finance` but that of the GPU hours, and no code of `gateway.reports`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from fractions import Fraction
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

EVENTS: LiteralString = "SELECT * FROM tollgate.usage_events WHERE NOT is_demo"
ADJUSTMENTS: LiteralString = """
SELECT booked.*, bill.provider, bill.model FROM tollgate.adjustments AS booked
LEFT JOIN tollgate.true_ups AS bill USING (adjustment_id) WHERE booked.kind <> 'late_bill'
"""
POLICIES: LiteralString = (
    "SELECT version, (applied_at AT TIME ZONE 'UTC')::date AS day FROM tollgate.policies "
    "ORDER BY version"
)
CENTRES: LiteralString = "SELECT * FROM tollgate.policy_cost_centres"
PRICES: LiteralString = "SELECT price_id, rates FROM tollgate.prices"
RATES: LiteralString = "SELECT * FROM tollgate.currency_rates ORDER BY rate_id"
IDLE: LiteralString = "SELECT hour, deployment, idle_usd, bill_usd FROM finance.gpu_cost"
# The names of the dimensions of an event that stand in a column of the same name.
PLAIN = ("team", "project", "cost_centre", "end_user", "route", "model", "provider", "deployment")
OTHERS = ("region", "outcome", "usage_source")
# The waiting times, each with its column.
TIMES = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "gap": "max_gap_s",
    "queue": "queue_s",
    "overhead": "overhead_s",
    "duration": "duration_s",
}
Row = Mapping[str, Any]
Centres = Mapping[str, Fraction]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One event, adjustment or hour of idle GPU time: its dimensions and its figures.

    Amounts are in nano-dollars, `seconds` are waiting times and the bound on TTFT. No mapping has a
    member for a value that is absent.
    """

    kind: str
    at: datetime
    posted: date
    names: Mapping[str, str]
    tags: Mapping[str, str] = field(default_factory=dict)
    nusd: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """All facts of a ledger, the cost centres of teams by day, and rates by currency and day."""

    facts: Sequence[Fact]
    policies: Sequence[tuple[int, date]]
    centres: Mapping[tuple[int, str], Mapping[date, Centres]]
    rates: Mapping[str, Mapping[date, Fraction]]
    billed_hours: Sequence[tuple[datetime, str]]

    def shares(self, team: str, day: date) -> Centres:
        """Return the shares of a team's cost centres on a day; empty if no policy names any."""
        versions = [version for version, applied in self.policies if applied <= day]
        dated = self.centres.get((versions[-1], team), {}) if versions else {}
        if not dated:
            return {}
        begun = [first for first in dated if first <= day]
        return dated[max(begun) if begun else min(dated)]

    def per_usd(self, currency: str, day: date) -> Fraction:
        """Return the units of a currency that a dollar was worth on a day. Raises `ValueError`
        without a rate.
        """
        return 1 / self.rates[currency][max(d for d in self.rates[currency] if d <= day)]


def read_books(url: str) -> Books:
    """Return the facts of a ledger and all that allocates and converts them."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        events, adjustments, policies, centres, prices, rates, idle = (
            connection.execute(one).fetchall()
            for one in (EVENTS, ADJUSTMENTS, POLICIES, CENTRES, PRICES, RATES, IDLE)
        )
    listed = {row["price_id"]: row["rates"] for row in prices}
    settled = {(a["request_id"], a["attempt"]) for a in adjustments if a["settles"]}
    of_request = {(e["request_id"], e["attempt"]): e for e in events}
    facts = [
        _event(one, is_open=_key(one) not in settled, rates=listed.get(one["price_id"], ()))
        for one in events
    ]
    facts += [_adjustment(one, of_request.get(_key(one))) for one in adjustments]
    facts += [_idle(one) for one in idle if one["idle_usd"]]
    dated: dict[tuple[int, str], dict[date, dict[str, Fraction]]] = defaultdict(dict)
    for row in centres:
        shares = dated[row["policy_version"], row["team"]].setdefault(row["first_day"], {})
        shares[row["cost_centre"]] = Fraction(row["share"])
    by_currency: dict[str, dict[date, Fraction]] = defaultdict(dict)
    for row in rates:
        by_currency[row["currency"]][row["first_day"]] = Fraction(row["usd_per_unit"])
    return Books(
        facts=facts,
        policies=[(row["version"], row["day"]) for row in policies],
        centres=dated,
        rates=by_currency,
        billed_hours=[
            (one["hour"].astimezone(UTC), one["deployment"])
            for one in idle
            if one["bill_usd"] is not None
        ],
    )


def _key(row: Row) -> tuple[object, object]:
    return row["request_id"], row["attempt"]


def _names(event: Row | None) -> dict[str, str]:
    """Return the dimensions that an event has; none without an event."""
    if event is None:
        return {}
    found = {name: event[name] for name in (*PLAIN, *OTHERS) if event[name] is not None}
    where = "self-hosted" if event["is_self_hosted"] else "external"
    return found | {"key": event["key_id"], "destination": where}


def _event(row: Row, *, is_open: bool, rates: Sequence[Row]) -> Fact:
    whole, cached, written = (
        row[f"{name}_tokens"] for name in ("input", "cached_input", "cache_write")
    )
    output, reasoning = row["output_tokens"], row["reasoning_tokens"]
    cost, saving = row["cost_nusd"], _saving_nusd(row, rates)
    bounds = row["decision"].get("bounds", {})
    ttft_bound, cost_bound = bounds.get("ttft_p95_s"), bounds.get("max_cost_nusd")
    has_ttft = ttft_bound is not None and row["ttft_s"] is not None
    has_cost = cost_bound is not None and cost is not None
    counts: dict[str, int | None] = {
        "attempts": 1,
        "requests": int(row["attempt"] == 1),
        "failed_attempts": int(row["outcome"] != "ok"),
        "retry_attempts": int(row["attempt"] > 1),
        "unknown_attempts": int(row["cost_nusd"] is None and is_open),
        "derived_attempts": int(row["usage_source"] in ("derived", "estimated")),
        "unreported_attempts": int(whole is None),
        "final_attempts": int(row["usage_source"] in ("provider", "none")),
        "running_attempts": int(row["usage_source"] == "derived"),
        "estimated_attempts": int(row["usage_source"] == "estimated"),
        "unreported_usage_attempts": int(row["usage_source"] == "unknown"),
        "answers": int(row["outcome"] == "ok"),
        "error_attempts": int(row["outcome"] not in ("ok", "client_gone", "gateway_stopped")),
        "degraded_attempts": int(row["degraded"] is not None),
        "ttft_measured": int(row["ttft_s"] is not None),
        "ttft_not_measured": int(row["ttft_s"] is None),
        "ttft_bound_attempts": int(has_ttft),
        "ttft_missed": int(has_ttft and row["ttft_s"] > ttft_bound),
        "cost_bound_attempts": int(has_cost),
        "cost_missed": int(has_cost and cost > cost_bound),
        "unknown_saving_attempts": int(saving is None),
        "split_input_tokens": None if cached is None else whole,
        "input_tokens": whole,
        "cached_input_tokens": cached,
        "cache_write_tokens": written,
        "output_tokens": output,
        "reasoning_tokens": reasoning,
        "uncached_input_tokens": None if whole is None else whole - (cached or 0) - (written or 0),
        "plain_output_tokens": None if output is None else output - (reasoning or 0),
        "total_tokens": None if whole is None or output is None else whole + output,
    }
    nusd: dict[str, int | None] = {
        "cost_usd": cost,
        "held_usd": row["held_nusd"] if cost is None and is_open else None,
        "retry_usd": cost if row["attempt"] > 1 else None,
        "failed_usd": cost if row["outcome"] != "ok" else None,
        "final_usd": cost if row["usage_source"] in ("provider", "none") else None,
        "derived_usd": cost if row["usage_source"] in ("derived", "estimated") else None,
        "self_hosted_cost_usd": cost if row["is_self_hosted"] else None,
        "external_cost_usd": None if row["is_self_hosted"] else cost,
        "cache_saving_usd": saving,
    }
    seconds = {name: row[column] for name, column in TIMES.items()} | {"ttft_bound": ttft_bound}
    return Fact(
        kind="event",
        at=row["occurred_at"],
        posted=row["posted_period"],
        names=_names(row),
        tags=row["tags"],
        nusd={name: amount for name, amount in nusd.items() if amount is not None},
        counts={name: count for name, count in counts.items() if count is not None},
        seconds={name: one for name, one in seconds.items() if one is not None},
    )


def _saving_nusd(row: Row, rates: Sequence[Row]) -> int | None:
    """Return how much less the cached tokens of an event cost than plain input: at the rate that
    it paid for plain input, or else at that of its price. None if it is unknown.
    """
    if row["cost_nusd"] is None or row["cached_input_tokens"] is None:
        return None
    cached = [line for line in row["lines"] if line["kind"].startswith("cache")]
    if not cached:
        return 0
    paid = [line["usd_per_mtok"] for line in row["lines"] if line["kind"] == "input"]
    steps = [
        (rate["from_input_tokens"], rate["usd_per_mtok"])
        for rate in rates
        if rate["kind"] == "input" and rate["from_input_tokens"] <= row["input_tokens"]
    ]
    if not paid and not steps:
        return None
    usd_per_mtok = Fraction(str(paid[0] if paid else max(steps)[1]))
    plain = round(1000 * usd_per_mtok * sum(line["tokens"] for line in cached))  # half-even
    return plain - sum(line["cost_nusd"] for line in cached)


def _adjustment(row: Row, event: Row | None) -> Fact:
    own = {name: row[name] for name in ("team", "cost_centre") if row[name] is not None}
    bill = {name: row[name] for name in ("provider", "model") if row[name]}
    if bill:
        bill["destination"] = "external"
    names = bill | {n: v for n, v in _names(event).items() if n not in ("team", "cost_centre")}
    return Fact(
        kind="adjustment",
        at=row["occurred_at"],
        posted=row["posted_period"],
        names=names | own,
        tags={} if event is None else event["tags"],
        nusd={"adjustments_usd": row["amount_nusd"]},
    )


def _idle(row: Row) -> Fact:
    hour = row["hour"].astimezone(UTC)
    return Fact(
        kind="idle",
        at=hour,
        posted=hour.date().replace(day=1),
        names={"deployment": row["deployment"], "destination": "self-hosted"},
        nusd={"idle_usd": int(row["idle_usd"].scaleb(9))},
    )
