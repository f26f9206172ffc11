"""The gauges of engines at `/metrics`: over real sockets, an engine whose page the test writes, and
a pressure that an autoscaler can follow.
"""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from gateway.providers.engine_sampler import EngineSampler
from gateway.services.deployments.engine_load import FORGET_S, IDLE_EVERY_S, EngineLoads
from gateway.telemetry.engine_gauges import EngineGauges
from tests import factories
from tests.attacks.odd_engine import OddEngine, http, odd_engine
from tests.fakes import FakeClock

TTFT = "vllm:time_to_first_token_seconds_bucket"


class Gateway:
    """A worker's samples of one engine, and its metrics."""

    def __init__(self, engine: OddEngine) -> None:
        self.engine, self.clock = engine, FakeClock()
        own = factories.deployment("qwen", is_self_hosted=True, base_url=engine.url)
        policy = factories.version(factories.policy(factories.deployment("gpt"), own))
        self.loads = EngineLoads(
            policy=lambda: policy,
            page=EngineSampler(self.clock.now).metrics_page,
            clock=self.clock,
        )
        self.registry = CollectorRegistry()
        self.registry.register(EngineGauges(self.loads.signals))

    async def look(
        self, *, running: int = 0, waiting: int = 0, kv_use: float = 0.0, answers: int = 0
    ) -> None:
        """Let the next sample of the engine see this page, ten seconds later."""
        page = (
            f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"
            f"vllm:kv_cache_usage_perc {kv_use}\n"
            f'{TTFT}{{le="1.0"}} {answers}\n{TTFT}{{le="+Inf"}} {answers}\n'
        )
        self.engine.page = http(page.encode())
        await self.sample()

    async def sample(self) -> None:
        self.clock.advance(IDLE_EVERY_S)
        self.loads.start_due_samples()
        await self.loads.wait_for_samples()

    def families(self) -> dict[str, Metric]:
        return {family.name: family for family in self.registry.collect()}

    def gauge(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(
            f"tollgate_engine_{name}", {"deployment": "qwen", **labels}
        )


async def test_pressure_rises_with_a_queue_and_falls_after_it() -> None:
    """KEDA and an HPA scale by it: absent is unknown, 1.0 is full, and a queue lies above."""
    with odd_engine() as engine:
        gateway = Gateway(engine)
        assert gateway.gauge("pressure") is None
        await gateway.look(running=4, kv_use=0.2)
        assert gateway.gauge("pressure") == 0.2  # four may be few or many: the room is not known
        await gateway.look(running=8, waiting=8, kv_use=0.4)
        assert gateway.gauge("pressure") == 2.0
        assert (gateway.gauge("queue"), gateway.gauge("running")) == (8, 8)
        await gateway.look(running=8, waiting=4, kv_use=0.4)
        assert gateway.gauge("pressure") == 1.5
        await gateway.look(running=8, kv_use=0.4)
        assert gateway.gauge("pressure") == 1.0
        await gateway.look(running=2, kv_use=0.1)
        assert gateway.gauge("pressure") == 0.25
        await gateway.look()
        assert (gateway.gauge("pressure"), gateway.gauge("kv_use_ratio")) == (0.0, 0.0)


async def test_a_silent_engine_is_down_and_has_no_figures() -> None:
    """A zero would have the autoscaler remove the replicas of an engine that gives no sample."""
    with odd_engine() as engine:
        gateway = Gateway(engine)
        await gateway.look(running=1, kv_use=0.5)
        assert (gateway.gauge("up"), gateway.gauge("pressure")) == (1.0, 0.5)
    await gateway.sample()
    assert (gateway.gauge("up"), gateway.gauge("pressure")) == (0.0, None)
    gateway.clock.advance(FORGET_S + 1)
    assert gateway.gauge("up") is None


async def test_an_engine_without_figures_is_up_all_the_same() -> None:
    """Its page answers, and shows nothing that is known."""
    with odd_engine(b"hello\n") as engine:
        gateway = Gateway(engine)
        await gateway.sample()
        assert (gateway.gauge("up"), gateway.gauge("pressure")) == (1.0, None)


async def test_quantiles_are_of_the_last_minute() -> None:
    """The answers of an hour ago say nothing about the engine now."""
    with odd_engine() as engine:
        gateway = Gateway(engine)
        await gateway.look(answers=1000)
        assert gateway.gauge("ttft_seconds", quantile="0.5") is None
        await gateway.look(answers=1010)
        assert gateway.gauge("ttft_seconds", quantile="0.5") == pytest.approx(0.5)
        assert gateway.gauge("ttft_seconds", quantile="0.95") == pytest.approx(0.95)
        for _ in range(7):
            await gateway.look(answers=1010)
        assert gateway.gauge("ttft_seconds", quantile="0.5") is None
