"""Reads the traffic, the charges and the GPU bills of a range, for the comparison of own GPUs with
an API; compares nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Select, case, func, select

from gateway.domain.money import nusd_from_usd
from gateway.domain.policy.policy import Policy
from gateway.domain.pricing.break_even import TokenMix
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.selfhost import GpuRate
from gateway.reports.question import Question
from gateway.reports.selfhost.engines import own_gpus, prices_in_force
from gateway.reports.sources.closes import closed_at
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.gpu_days import gpu_conditions
from gateway.reports.sources.policies import current_policy
from gateway.storage.postgres.schema import finance_views


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTraffic:
    """The traffic of one route at one deployment, and what it was charged."""

    requests: int = 0
    mix: TokenMix = field(default_factory=TokenMix)
    cost_nusd: int = 0

    def __add__(self, other: ServedTraffic) -> ServedTraffic:
        """Return two traffics together."""
        return ServedTraffic(
            requests=self.requests + other.requests,
            mix=self.mix + other.mix,
            cost_nusd=self.cost_nusd + other.cost_nusd,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeBill:
    """The GPU bill of one deployment in the range, and its GPU hours."""

    nusd: int
    gpu_hours: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRange:
    """Everything that the comparison reads: the traffic by route and deployment, and the bills.

    `days` are those from the first hour with traffic or a bill to the end of the range, or now. Of
    a closed month policy, prices and speeds are those of its close, at `closed_at`.
    """

    policy: Policy
    gpus: Mapping[str, GpuRate]
    prices: Mapping[str, Price]
    served: Mapping[tuple[str, str], ServedTraffic]
    bills: Mapping[str, RangeBill]
    days: Decimal
    closed_at: datetime | None = None

    def is_own(self, name: str) -> bool:
        """Return True if a deployment of the policy is self-hosted."""
        return name in self.policy.deployments and self.policy.deployments[name].is_self_hosted

    def served_by(self, deployment: str) -> ServedTraffic:
        """Return a deployment's traffic of all routes."""
        found = [one for (_, name), one in self.served.items() if name == deployment]
        return sum(found, ServedTraffic())


def read_range(snapshot: ReadSnapshot, question: Question) -> ComparedRange | None:
    """Return what a question's comparison needs; None without a policy."""
    closed = closed_at(snapshot, question)
    policy = current_policy(snapshot, closed)
    if policy is None:
        return None
    detail, cost = finance_views.spend_hourly_detail.c, finance_views.gpu_cost.c
    served = dict(_served(snapshot, question, is_closed=closed is not None))
    bills = {
        row["deployment"]: RangeBill(nusd=nusd_from_usd(row["usd"]), gpu_hours=row["gpu_hours"])
        for row in snapshot.rows(_bills(question))
    }
    spans = [
        snapshot.row(select(func.min(hour).label("first")).where(*conditions))["first"]
        for hour, conditions in (
            (detail.hour, question.happened(detail.hour)),
            (cost.hour, list(gpu_conditions(cost, question))),
        )
    ]
    firsts = [first for first in spans if first is not None]
    return ComparedRange(
        policy=policy,
        gpus=own_gpus(snapshot, policy, closed),
        prices=prices_in_force(snapshot, closed),
        served=served,
        bills=bills,
        days=_days(snapshot, min(firsts), question) if firsts else Decimal(0),
        closed_at=closed,
    )


def _served(
    snapshot: ReadSnapshot, question: Question, *, is_closed: bool
) -> Iterator[tuple[tuple[str, str], ServedTraffic]]:
    """Yield the traffic and charges of each route and deployment, corrections included; of a closed
    month without the facts posted to later ones.
    """
    row, later = finance_views.spend_hourly_detail.c, finance_views.adjustments.c
    month = [question.month] if is_closed else []
    corrected = {
        (one["route"], one["deployment"]): one["usd"]
        for one in snapshot.rows(
            select(later.route, later.deployment, func.sum(later.amount_usd).label("usd"))
            .where(
                later.route.is_not(None),
                *question.happened(later.occurred_at),
                *(later.posted_period == one for one in month),
            )
            .group_by(later.route, later.deployment)
        )
    }
    sums = {
        "requests": func.sum(case((row.usage_source != "none", row.attempts), else_=0)),
        "input": func.coalesce(func.sum(row.input_tokens), 0),
        "cached": func.coalesce(func.sum(row.cached_input_tokens), 0),
        "output": func.coalesce(func.sum(row.output_tokens), 0),
        "usd": func.coalesce(func.sum(row.cost_usd), 0),
    }
    traffic = (
        select(row.route, row.deployment, *(value.label(name) for name, value in sums.items()))
        .where(*question.happened(row.hour), *(row.posted_period == one for one in month))
        .group_by(row.route, row.deployment)
    )
    for one in snapshot.rows(traffic):
        key = (one["route"], one["deployment"])
        yield (
            key,
            ServedTraffic(
                requests=int(one["requests"]),
                mix=TokenMix(
                    input_tokens=int(one["input"] - one["cached"]),
                    cached_input_tokens=int(one["cached"]),
                    output_tokens=int(one["output"]),
                ),
                cost_nusd=nusd_from_usd(one["usd"] + corrected.get(key, Decimal(0))),
            ),
        )


def _bills(question: Question) -> Select[Any]:
    """Return the SELECT of the known bill and GPU hours of each deployment."""
    row = finance_views.gpu_cost.c
    return (
        select(
            row.deployment,
            func.sum(row.bill_usd).label("usd"),
            func.sum(row.gpu_hours).label("gpu_hours"),
        )
        .where(row.bill_usd.is_not(None), *gpu_conditions(row, question))
        .group_by(row.deployment)
    )


def _days(snapshot: ReadSnapshot, first: datetime, question: Question) -> Decimal:
    """Return the days from a first hour to the end of the question's time, or until now."""
    end = "now()"
    if question.month is not None:
        end = "least(now(), (CAST(:month AS timestamp) + interval '1 month') AT TIME ZONE 'UTC')"
    elif question.days is not None:
        end = "least(now(), (CAST(:last AS timestamp) + interval '1 day') AT TIME ZONE 'UTC')"
    found = snapshot.row(
        # An hour at least: the first hour may have begun just now.
        f"SELECT extract(epoch FROM greatest({end} - CAST(:first AS timestamptz), "  # noqa: S608 - constants
        "interval '1 hour')) / 86400 AS days",
        first=first,
        month=question.month,
        last=None if question.days is None else question.days[1],
    )
    return Decimal(found["days"])
