"""Reads the prices and the GPUs of a policy's deployments, for reports that compare own GPUs with
an API; computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.domain.policy.policy import Policy
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.selfhost import GpuRate, at_measured_speed
from gateway.errors import NothingFound
from gateway.reports.sources.connection import ReadSnapshot
from gateway.storage.policy import price_list
from gateway.storage.policy.prices import calibration_from_row, price_from_row

_IN_FORCE = """
SELECT DISTINCT ON (dated.deployment) dated.deployment, price.*
FROM finance.deployment_prices AS dated JOIN finance.prices AS price USING (price_id)
WHERE greatest(dated.valid_from, price.created_at) <= coalesce(CAST(:at AS timestamptz), now())
ORDER BY dated.deployment, dated.valid_from DESC
"""
_CALIBRATED = """
SELECT DISTINCT ON (deployment) deployment, calibration FROM finance.price_entries
WHERE origin = 'calibrated'
  AND greatest(valid_from, created_at) <= coalesce(CAST(:at AS timestamptz), now())
ORDER BY deployment, valid_from DESC, entry_id DESC
"""
# An override of a model counts before its imported list price.
_OF_MODEL = """
SELECT price.* FROM finance.price_entries AS entry JOIN finance.prices AS price USING (price_id)
WHERE entry.model = :model AND entry.deployment IS NULL
  AND greatest(entry.valid_from, entry.created_at) <= coalesce(CAST(:at AS timestamptz), now())
  AND entry.daily_since IS NULL
ORDER BY entry.origin = 'override' DESC, entry.valid_from DESC, entry.entry_id DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPrice:
    """The price of an API, and the model's name for it."""

    model: str
    price: Price


def prices_in_force(snapshot: ReadSnapshot, at: datetime | None = None) -> Mapping[str, Price]:
    """Return the price by which each deployment is charged now, or was at a moment as the book then
    said, by its name.
    """
    return {row["deployment"]: price_from_row(row) for row in snapshot.rows(_IN_FORCE, at=at)}


def own_gpus(
    snapshot: ReadSnapshot, policy: Policy, at: datetime | None = None
) -> Mapping[str, GpuRate]:
    """Return the GPUs of each self-hosted deployment with a `gpu` block, at their calibrated speed
    if this engine was calibrated (until a moment, if one is given), else at the declared one.
    """
    calibrated = {
        row["deployment"]: calibration_from_row(row["calibration"])
        for row in snapshot.rows(_CALIBRATED, at=at)
    }
    found: dict[str, GpuRate] = {}
    for name, deployment in policy.deployments.items():
        gpu, measured = deployment.gpu, calibrated.get(name)
        if gpu is None or not deployment.is_self_hosted:
            continue
        is_current = measured is not None and measured.is_of(gpu, model=deployment.model)
        found[name] = at_measured_speed(gpu, measured) if measured and is_current else gpu
    return found


def api_price(
    snapshot: ReadSnapshot, name: str, *, policy: Policy, prices: Mapping[str, Price], now: datetime
) -> NamedPrice:
    """Return the price of an API at a moment: of a deployment's name, else of a model of the price
    book, else of the built-in list.

    Raises `NothingFound` if none of them has the name.
    """
    deployment = policy.deployments.get(name)
    if deployment is not None and name in prices:
        return NamedPrice(model=deployment.model, price=prices[name])
    rows: Any = snapshot.rows(_OF_MODEL, model=name, at=now)
    if rows:
        return NamedPrice(model=name, price=price_from_row(rows[0]))
    for key in price_list.models_named(name):
        listed = price_list.listed_price(key, now)
        if listed is not None:
            return NamedPrice(model=name, price=listed)
    external = sorted(one.name for one in policy.deployments.values() if not one.is_self_hosted)
    raise NothingFound(
        f"'{name}' is neither a deployment with a price, nor a model of the price book or the "
        f"built-in list. Deployments: {', '.join(external) or 'none'}. Next: tollgate price show "
        f"{name}"
    )
