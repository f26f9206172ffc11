"""Settles attempts of unknown usage at self-hosted engines, by adjustments from the engine's own
token counters between two idle moments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

import structlog

from gateway.domain.deployments.engine_counters import IdleWindow, Resolved, resolve
from gateway.domain.policy.policy import Policy, PolicyVersion
from gateway.domain.routing.decide import origin_of

log = structlog.get_logger()

MOST_REMEMBERED = 10_000


class ResidualStore(Protocol):
    """Finds idle windows of engines and books adjustments;
    `storage.deployments.engine_residuals.EngineResiduals` implements it.
    """

    def windows(self, deployments: Sequence[str], *, now: datetime) -> Sequence[IdleWindow]:
        """Return finished, fully written windows between an engine's idle moments that contain
        unknown attempts.

        Raises `DatabaseUnavailable`.
        """

    def book(self, window: IdleWindow, resolved: Sequence[Resolved]) -> int:
        """Book a settling adjustment for each attempt of a window. Raises `DatabaseUnavailable`."""


class EngineResolution:
    """The job that settles unknown attempts. It runs on the leader in a thread, after each round of
    samples.
    """

    def __init__(self, store: ResidualStore, *, policy: Callable[[], PolicyVersion | None]) -> None:
        """Make the job; `policy` returns the current version, None before the first."""
        self._store, self._policy = store, policy
        self._warned: set[UUID] = set()

    def settle(self, now: datetime) -> None:
        """Settle each unknown attempt that can be settled now; warn once about each that cannot.

        Raises `DatabaseUnavailable`.
        """
        policy = self._policy()
        names = [] if policy is None else alone(policy.policy)
        for window in self._store.windows(names, now=now) if names else ():
            resolution = resolve(window)
            if resolution.problem is None:
                count = self._store.book(window, resolution.resolved)
                log.info("unknown_resolved", deployment=window.deployment, attempts=count)
            else:
                self._warn(window, resolution.problem)

    def _warn(self, window: IdleWindow, problem: str) -> None:
        """Log once why the unknown attempts of a window cannot be settled."""
        new = {attempt.request_id for attempt in window.unknown} - self._warned
        if not new:
            return
        if len(self._warned) > MOST_REMEMBERED:
            self._warned.clear()
        self._warned |= new
        log.warning(
            "unknown_not_resolved",
            deployment=window.deployment,
            attempts=len(window.unknown),
            problem=problem,
            begin=window.readings[0].at.isoformat() if window.readings else None,
        )


def alone(policy: Policy) -> list[str]:
    """Return the self-hosted deployments with token counters of their own: no other deployment
    serves that model there.
    """
    own = [deployment for deployment in policy.deployments.values() if deployment.is_self_hosted]
    places = Counter((origin_of(deployment.base_url), deployment.model) for deployment in own)
    return [
        deployment.name
        for deployment in own
        if places[origin_of(deployment.base_url), deployment.model] == 1
    ]
