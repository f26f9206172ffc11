"""Declares the metered usage that is compared with a bill: sums by day and deployment, and the
attempts that may explain a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import NamedTuple
from uuid import UUID

from gateway.domain.policy.policy import Billing

NOT_STATED = Billing()


class MeteredAt(NamedTuple):
    """A deployment and the model that it served."""

    deployment: str
    model: str


class Owner(NamedTuple):
    """A team and its cost centre."""

    team: str
    cost_centre: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredSum:
    """The usage of one day, deployment, model, kind and team, with the distinct rates in USD per
    million that it was charged by.

    `token_kind` is empty for costs booked without known usage: resolutions and expected costs.
    """

    day: date
    at: MeteredAt
    token_kind: str
    owner: Owner
    quantity: int
    cost_nusd: int
    rates: frozenset[Decimal] = frozenset()
    lines: int = 0  # of attempts: each is rounded to the nano-dollar


@dataclass(frozen=True, slots=True, kw_only=True)
class OddAttempts:
    """The attempts of one day, deployment, model and team that did not end as `ok` and may have
    used tokens; `request_ids` are some of them.
    """

    day: date
    at: MeteredAt
    owner: Owner
    attempts: int
    request_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverMidnight:
    """An attempt that ended on a later day than that of its request.

    `lines` are its tokens and nano-dollars by kind.
    """

    day: date
    at: MeteredAt
    request_id: UUID
    lines: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredUsage:
    """All metered usage at one provider in some days, without self-hosted and demo usage.

    `billing` is the statement of the policy about each deployment; one that it does not name is not
    stated. `stated` are the deployments that it names, with or without usage in these days.
    `premiums` are the factors that the provider charges at some places, each with these.
    """

    sums: Sequence[MeteredSum]
    odd: Sequence[OddAttempts]
    over_midnight: Sequence[OverMidnight]
    billing: Mapping[str, Billing]
    stated: Sequence[MeteredAt] = ()
    premiums: Mapping[Decimal, str] = field(default_factory=dict)

    def billing_of(self, at: MeteredAt) -> Billing:
        """Return the statement of the policy about a deployment's bills."""
        return self.billing.get(at.deployment, NOT_STATED)
