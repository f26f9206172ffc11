"""What a worker knows: the current policy, its prices and the live keys, as one value swapped at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from gateway.domain.api_keys import KeyRecord, Pepper
from gateway.domain.policy import PolicyVersion
from gateway.domain.pricing import Price
from gateway.domain.routing import Decision
from gateway.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Read once per request, so that a request keeps the version it began with.

    `prices` is by deployment, `peppers` by fingerprint, `keys` by key id. Remembered under this snapshot: in
    `checked` keys that were found right, by a hash of theirs; in `decisions` what was decided, by all it depends on.
    """

    policy: PolicyVersion
    prices: Mapping[str, Price]
    keys: Mapping[str, KeyRecord]
    peppers: Mapping[str, Pepper]
    checked: dict[bytes, KeyRecord] = field(default_factory=dict, compare=False, repr=False)
    decisions: dict[tuple[object, ...], Decision] = field(default_factory=dict, compare=False, repr=False)


class SnapshotSource(Protocol):
    """Loads what changed from the database; runs in a thread."""

    def load(self, before: Snapshot | None) -> Snapshot | None:
        """Return the snapshot now, None where no policy was applied yet. Raises `DatabaseUnavailable`."""

    def wait(self, timeout_s: float) -> None:
        """Return when something changed or the time is over. Raises `DatabaseUnavailable`."""


@dataclass(slots=True)
class SnapshotHolder:
    """The current snapshot and how old it is."""

    current: Snapshot | None = None
    refreshed_at: datetime | None = None
    problem: str | None = field(default="the first snapshot has not been loaded yet")

    def require(self) -> Snapshot:
        """The current snapshot. Raises `Unavailable` saying what an operator does about it."""
        if self.current is None:
            raise Unavailable(f"The gateway is not ready: {self.problem}. Try again shortly.", retry_after_s=2)
        return self.current


def problems(holder: SnapshotHolder, *, is_full: bool, is_draining: bool) -> list[str]:
    """Why this replica should not take traffic, each with its mend; empty when it may.

    Postgres being away is no reason while the journal takes events: that is a warning, of `domain.ledger_health`.
    """
    found = []
    if holder.current is None:
        found.append(f"No policy is loaded: {holder.problem}.")
    if is_full:
        found.append(
            "The journal is full: bring Postgres back or make room on its disk (docs/runbooks/journal-filling.md); "
            "nothing is lost meanwhile."
        )
    if is_draining:
        found.append("This replica is shutting down: send traffic to another one.")
    return found
