"""A real engine's load is found by our names for it, and a hung core is distinguished from a
busy one.
"""

import asyncio
import json
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_factories import eventually
from test_engine_real import IS_READY, RunningEngine, served

from gateway.domain.deployments.engine_load import EngineMetrics, load_between, read_page
from gateway.domain.policy.policy import Deployment
from gateway.main import SystemClock
from gateway.providers.engine_sampler import EngineSampler
from gateway.services.deployments.engine_load import EngineLoads
from gateway.wire.openai.usage import engine_queue_s
from gateway.wire.vllm_load import ASK_FORMAT, ASK_HEADER, LOAD_HEADER, read_load
from tests import factories
from tests.waiting import soon

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not IS_READY, reason="needs the real engine: python -m engine setup"),
]
PROBE = EngineSampler(SystemClock().now)
LONG: dict[str, Any] = {"max_tokens": 2000, "min_tokens": 2000, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine() -> Iterator[RunningEngine]:
    yield from served()


def deployment_of(engine: RunningEngine) -> Deployment:
    return factories.deployment(
        "qwen", base_url=f"{engine.url}/v1", model="tiny", is_self_hosted=True
    )


def look_at(engine: RunningEngine) -> EngineMetrics:
    page = PROBE.metrics_page(deployment_of(engine))
    assert page is not None
    return read_page(page, model="tiny")


def core_of(engine: RunningEngine) -> int:
    """The process that runs the model: a descendant of the one that serves."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(
                line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line
            )
            names[int(status.parent.name)] = (status.parent / "cmdline").read_text()
        except OSError:
            continue
        parents[int(fields["Pid"])] = int(fields["PPid"])

    def is_below(pid: int) -> bool:
        return pid == engine.process.pid or (pid in parents and is_below(parents[pid]))

    return next(pid for pid, name in names.items() if "EngineCore" in name and is_below(pid))


def health_status(engine: RunningEngine) -> int:
    with urllib.request.urlopen(f"{engine.url}/health", timeout=5) as health:
        status: int = health.status
        return status


@contextmanager
def at_work(engine: RunningEngine) -> Iterator[None]:
    """A long answer is made meanwhile."""
    asking = threading.Thread(target=lambda: engine.ask("Count down from 40", **LONG))
    asking.start()
    try:
        yield
    finally:
        asking.join()


def test_the_signals_of_a_real_engine_are_found(engine: RunningEngine) -> None:
    """A name that a later release changes would leave every wait at zero, and all load would go
    there.
    """
    before = look_at(engine)
    with at_work(engine):
        assert eventually(lambda: (look_at(engine).running or 0) > 0)
        assert eventually(lambda: (look_at(engine).kv_use or 0) > 0)
    assert eventually(lambda: look_at(engine).finished == (before.finished or 0) + 1)
    after = look_at(engine)
    of_others = {"room", "loaded"}  # of TensorRT-LLM, llama.cpp and Ollama; vLLM has no such figure
    found = msgspec.structs.asdict(after)
    assert {name for name, value in found.items() if value is None} == of_others
    load = load_between(before, after, seconds=5)
    assert load.prefill_s is not None
    assert load.prefill_s > 0
    assert load.tpot_s is not None
    assert load.tpot_s > 0
    assert (load.queue_s or 0) >= 0
    assert (load.finished_per_s, load.running) == (0.2, 0)
    assert load.block_size in (16, 128)


def test_an_answer_reports_its_engines_load_and_its_own_wait(engine: RunningEngine) -> None:
    """The header costs nothing, and the wait in the engine separates its queue from its model."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{engine.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", ASK_HEADER: ASK_FORMAT},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        noted = read_load(answer.headers[LOAD_HEADER])
        queue_s = engine_queue_s(json.dumps(json.load(answer)["metrics"]).encode())
    assert noted is not None
    assert noted.waiting == 0
    assert noted.kv_use is not None
    assert queue_s is not None
    assert 0 < queue_s < 5


async def test_a_hung_core_is_distinguished_from_a_busy_one(engine: RunningEngine) -> None:
    """Its web server answers all the while, /health with 200: only the figures stand still."""
    loads = EngineLoads(
        policy=lambda: factories.version(factories.policy(deployment_of(engine))),
        page=PROBE.metrics_page,
        clock=SystemClock(),
    )
    core = core_of(engine)
    watching = asyncio.create_task(loads.run())
    try:
        await soon(lambda: loads.of("qwen"), "a first look")
        loads.began("qwen")
        with at_work(engine):
            try:
                await soon(lambda: loads.looks_alive("qwen"), "progress")
                os.kill(core, signal.SIGSTOP)
                await soon(lambda: loads.looks_alive("qwen") is False, "a figure that stands still")
                assert await asyncio.to_thread(health_status, engine) == 200
            finally:
                os.kill(core, signal.SIGCONT)
            await soon(lambda: loads.looks_alive("qwen"), "progress again")
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
