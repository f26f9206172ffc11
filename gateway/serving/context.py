"""Declares the values that all parts of a serving process share (settings, stores, clock, metrics,
snapshot, drain), and makes the generator of request ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

from gateway.api.edge import Drain
from gateway.composition import ServingStores
from gateway.domain.ids import RANDOM_BYTES, uuid7
from gateway.domain.policy.api_keys import Pepper
from gateway.domain.policy.policy import PolicyVersion
from gateway.reports.reports import Reports
from gateway.services.ports import Clock
from gateway.services.snapshot.snapshot import SnapshotHolder
from gateway.settings import Settings
from gateway.telemetry.log_writer import LogWriter
from gateway.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessContext:
    """The given values, and the objects that are made first.

    `drain` reports whether the process is stopping.
    """

    settings: Settings
    stores: ServingStores
    reports: Reports
    peppers: tuple[Pepper, ...]
    clock: Clock
    allows_demo_keys: bool
    metrics: Metrics
    holder: SnapshotHolder
    log_writer: LogWriter
    drain: Drain
    new_id: Callable[[], UUID]

    def policy(self) -> PolicyVersion | None:
        """Return the policy version in force, None before the first."""
        return None if self.holder.current is None else self.holder.current.policy


def request_ids(clock: Clock) -> Callable[[], UUID]:
    """Return a function that makes a UUIDv7 of the current time.

    It asks the kernel for randomness only now and then.
    """

    def draw() -> Iterator[bytes]:
        while True:
            drawn = os.urandom(RANDOM_BYTES * 256)
            yield from (drawn[at : at + RANDOM_BYTES] for at in range(0, len(drawn), RANDOM_BYTES))

    random = draw()
    return lambda: uuid7(int(clock.now().timestamp() * 1000), next(random))
