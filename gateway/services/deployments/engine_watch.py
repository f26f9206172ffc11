"""Samples every self-hosted engine once a minute, and stores whether it is up and its token
counters, for GPU hours and unknown attempts; routing does not use it.

One worker does this for all. If it ends, another takes over at its next turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from gateway.domain.deployments.engine_sample import EngineSample
from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.errors import OperatorError
from gateway.services.ports import Clock

log = structlog.get_logger()

LOOK_EVERY_S = 60.0
FORGET_EVERY = timedelta(hours=6)


class SampleStore(Protocol):
    """Stores samples and the GPU hours that they prove;
    `storage.deployments.engine_samples.EngineSamples` implements it.
    """

    def record(
        self, samples: Sequence[EngineSample], policy: PolicyVersion, *, at: datetime
    ) -> None:
        """Store one round of samples, and add the time that they prove to the engines' GPU hours.
        Raises `DatabaseUnavailable`.
        """

    def forget(self, *, now: datetime) -> int:
        """Delete samples that are too old to be needed."""


class EngineWatch:
    """Samples the engines of the current policy version; `policy` returns None before the first.

    `look_at` asks one engine and raises nothing. After each stored round, `after_round` is called
    with the leader's time.
    """

    def __init__(
        self,
        *,
        policy: Callable[[], PolicyVersion | None],
        look_at: Callable[[Deployment], EngineSample],
        store: SampleStore,
        is_leader: Callable[[], bool],
        clock: Clock,
        after_round: Callable[[datetime], None] = lambda now: None,
    ) -> None:
        """Make the job that samples self-hosted engines; `run` starts it."""
        self._policy, self._look_at, self._store = policy, look_at, store
        self._is_leader, self._clock, self._after_round = is_leader, clock, after_round
        self._forgot_at: datetime | None = None

    async def run(self) -> None:
        """Sample all self-hosted engines once a minute, until cancelled."""
        while True:
            began_s = self._clock.monotonic()
            await self.run_once()
            await asyncio.sleep(max(LOOK_EVERY_S - (self._clock.monotonic() - began_s), 1.0))

    async def run_once(self) -> None:
        """Take one round of samples if this worker leads; else do nothing."""
        policy = self._policy()
        if policy is None:
            return
        try:
            if not await asyncio.to_thread(self._is_leader):
                return
            await self._watch_once(policy)
        except OperatorError as problem:
            log.warning("engines_not_recorded", problem=problem.message)

    async def _watch_once(self, policy: PolicyVersion) -> None:
        """Sample all self-hosted engines at once and store the round; delete old samples from time
        to time.
        """
        at = self._clock.now()
        own = [
            deployment
            for deployment in policy.policy.deployments.values()
            if deployment.is_self_hosted
        ]
        samples = await asyncio.gather(
            *(asyncio.to_thread(self._look_at, deployment) for deployment in own)
        )
        await asyncio.to_thread(self._store.record, samples, policy, at=at)
        await asyncio.to_thread(self._after_round, at)
        if self._forgot_at is None or at - self._forgot_at >= FORGET_EVERY:
            await asyncio.to_thread(self._store.forget, now=at)
            self._forgot_at = at
