"""Declares the copy on disk of a worker's last policy snapshot, and checks its age before it serves
while Postgres is away; does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from gateway.domain.policy.api_keys import KeyRecord
from gateway.domain.pricing.pricing import Price


class NotUsable(ValueError):
    """The last snapshot must not be served from; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSnapshot:
    """The policy's source text, its prices, the live keys and the ejected deployments.

    No pepper: without it no key can be verified. `good_at` is when Postgres was asked, by the wall
    clock: the only one that continues while no process runs.
    """

    good_at: datetime
    version: int
    sha256: str
    document: str
    prices: Mapping[str, Price]
    keys: tuple[KeyRecord, ...]
    ejected: Mapping[str, str]


def usable_age_s(good_at: datetime, *, now: datetime, outage_s: float) -> float:
    """Return the age in seconds of the snapshot on disk, if it may still serve while Postgres is
    away. Raises `NotUsable`.
    """
    age_s = (now - good_at).total_seconds()
    if age_s < 0:
        raise NotUsable(
            f"it is from the future ({good_at:%Y-%m-%d %H:%M:%S} UTC): look at this machine's clock"
        )
    if age_s > outage_s:
        raise NotUsable(
            f"it is of {good_at:%Y-%m-%d %H:%M:%S} UTC and serves for {outage_s:,.0f} s: too old"
        )
    return age_s
