"""The watch looks at self-hosted engines alone, on one worker alone, and no fault ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pytest

from gateway.domain.deployments.engine_sample import EngineSample
from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.errors import DatabaseUnavailable
from gateway.services.deployments.engine_watch import EngineWatch
from tests import factories
from tests.fakes import FakeClock

POLICY = factories.version(
    factories.policy(
        factories.deployment("qwen", is_self_hosted=True),
        factories.deployment("gpt"),
        factories.deployment("llama", is_self_hosted=True),
    )
)


@dataclass
class FakeStore:
    """Keeps rounds; can be away or broken."""

    rounds: list[tuple[list[str], datetime]] = field(default_factory=list)
    forgot: list[datetime] = field(default_factory=list)
    failure: Exception | None = None

    def record(
        self, samples: Sequence[EngineSample], policy: PolicyVersion, *, at: datetime
    ) -> None:
        assert policy is POLICY
        if self.failure is not None:
            raise self.failure
        self.rounds.append(([sample.deployment for sample in samples], at))

    def forget(self, *, now: datetime) -> int:
        self.forgot.append(now)
        return 0


@dataclass
class FakeLeadership:
    """Leads or not, or cannot know."""

    leads: bool = True
    is_away: bool = False

    def is_mine(self) -> bool:
        if self.is_away:
            raise DatabaseUnavailable("Postgres is away.")
        return self.leads


@dataclass
class World:
    """A watch and all it sees."""

    policy: PolicyVersion | None = POLICY
    store: FakeStore = field(default_factory=FakeStore)
    leadership: FakeLeadership = field(default_factory=FakeLeadership)
    clock: FakeClock = field(default_factory=FakeClock)
    looked_at: list[str] = field(default_factory=list)
    after: list[datetime] = field(default_factory=list)

    def watch(self) -> EngineWatch:
        return EngineWatch(
            policy=lambda: self.policy,
            look_at=self._look_at,
            store=self.store,
            is_leader=self.leadership.is_mine,
            clock=self.clock,
            after_round=self.after.append,
        )

    def _look_at(self, deployment: Deployment) -> EngineSample:
        self.looked_at.append(deployment.name)
        return EngineSample(deployment=deployment.name, at=self.clock.now())


async def test_a_round_looks_at_every_engine_of_ours_and_at_no_provider() -> None:
    """A provider has no GPU of ours, and a probe is traffic to it."""
    world = World()
    await world.watch().run_once()
    assert sorted(world.looked_at) == ["llama", "qwen"]
    assert world.store.rounds == [(["qwen", "llama"], factories.NOW)]
    assert world.after == [factories.NOW]


async def test_only_the_leader_looks() -> None:
    """Ten workers must not probe ten times; without a policy there is nothing to look at."""
    for world in (World(leadership=FakeLeadership(leads=False)), World(policy=None)):
        await world.watch().run_once()
        assert (world.looked_at, world.store.rounds, world.after) == ([], [], [])


async def test_no_fault_ends_the_watch() -> None:
    """Postgres is away, or a later step has a bug: the next minute gets its turn, and no work
    uses half a round.
    """
    world = World()
    watch = world.watch()
    world.leadership.is_away = True
    await watch.run_once()
    world.leadership.is_away = False
    world.store.failure = DatabaseUnavailable("Postgres is away.")
    await watch.run_once()
    world.store.failure = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):  # the supervisor starts the loop again
        await watch.run_once()
    assert (world.store.rounds, world.after) == ([], [])
    world.store.failure = None
    await watch.run_once()
    assert len(world.store.rounds) == len(world.after) == 1


async def test_old_samples_are_dropped_now_and_then() -> None:
    """Each minute would be work for nothing; never would fill the disk."""
    world = World()
    watch = world.watch()
    for _ in range(13):
        await watch.run_once()
        world.clock.advance(3600)
    assert len(world.store.forgot) == 3
