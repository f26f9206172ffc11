"""Looks at the load of a real engine, and keeps it at work."""

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from running_engine import RunningEngine

from gateway.domain.deployments.engine_load import EngineMetrics, read_page
from gateway.domain.policy.policy import Deployment
from gateway.main import SystemClock
from gateway.providers.engine_sampler import EngineSampler
from tests import factories

PROBE = EngineSampler(SystemClock().now)
LONG: dict[str, Any] = {"max_tokens": 1000, "min_tokens": 1000, "ignore_eos": True}


def deployment_of(engine: RunningEngine) -> Deployment:
    return factories.deployment(
        "qwen", base_url=f"{engine.url}/v1", model="tiny", is_self_hosted=True
    )


def look_at(engine: RunningEngine) -> EngineMetrics:
    page = PROBE.metrics_page(deployment_of(engine))
    assert page is not None
    return read_page(page, model="tiny")


def cores_of(engine: RunningEngine) -> list[int]:
    """All processes of the engine but those that serve HTTP, which go on when these hang."""
    found = below(engine.process.pid)
    return [pid for pid in found if b"EngineCore" in _name(pid) or b"Worker" in _name(pid)]


def below(pid: int) -> list[int]:
    """Return the pids of all processes below this one; its threads come and go meanwhile."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, (task / "children").read_text(encoding="utf-8").split()):
                found += [child, *below(child)]
    return found


def _name(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return b""


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
