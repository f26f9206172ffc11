"""Requests when a real engine dies or hangs: SIGSTOP, SIGCONT, SIGKILL, with one engine started
once.

Needs `python -m engine setup` to have run; skips cleanly if it has not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from engine_factories import REPOSITORY, eventually, free_port, python_variables

from engine import environment
from engine.home import engine_home
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway

HOME = engine_home(os.environ)
IS_READY = environment.installed_device(HOME) is not None
MESSAGES = [{"role": "user", "content": "Count down from 40"}]
PRICE = "{input_usd_per_mtok: 1, output_usd_per_mtok: 4}"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not IS_READY, reason="needs the real engine: python -m engine setup"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An engine that runs.

    Its core is a process of its own: the one that answers HTTP goes on when it hangs.
    """

    url: str
    process: subprocess.Popen[bytes]

    def cores(self) -> list[int]:
        """All processes of the engine but those that serve HTTP."""
        return [
            pid
            for pid in _descendants(self.process.pid)
            if b"EngineCore" in _name(pid) or b"Worker" in _name(pid)
        ]


def _name(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return b""


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text(encoding="utf-8").split()):
            found += [child, *_descendants(child)]
    return found


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    port = free_port()
    program = [sys.executable, "-m", "engine"]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [*program, "serve", "--port", str(port)], cwd=REPOSITORY, env=python_variables()
    )
    try:
        subprocess.run(
            [*program, "wait", "--url", url, "--timeout", "240"],
            cwd=REPOSITORY,
            env=python_variables(),
            check=True,
        )
        yield Served(url=url, process=process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def document(engine_url: str, other_url: str) -> str:
    """The engine first, another place behind it.

    A stream that stalls is cut after 12 s, long after it is seen.
    """
    timeouts = "{connect_s: 1, first_byte_s: 12, first_token_s: 12, idle_s: 12, total_s: 60}"
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: engine, provider: vllm, self_hosted: true, model: tiny, region: unknown, base_url: "{engine_url}/v1",
     price: {PRICE}, timeouts: {timeouts}}}
  - {{name: other, provider: openai_compatible, model: "fake/out:2", region: unknown, base_url: "{other_url}/v1",
     price: {PRICE}}}
routes: [{{name: r, deployments: [engine, other]}}]
teams: [{{name: payments, cost_centre: CC-1, data_class: internal, routes: [r]}}]
"""  # noqa: E501


def where(gateway: Gateway) -> tuple[str, str]:
    """Return the deployment and the attempt that answered a short request."""
    answer = httpx2.post(
        f"{gateway.base_url}/chat/completions",
        timeout=60,
        headers={"authorization": f"Bearer {gateway.key}"},
        json={"model": "r", "messages": MESSAGES, "max_tokens": 2},
    )
    assert answer.status_code == 200, answer.text
    return answer.headers["x-tollgate-deployment"], answer.headers["x-tollgate-attempts"]


def test_rows_46_and_48_a_hung_and_a_killed_engine_are_passed_over(
    served: Served, start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Its HTTP answers 200 while its core stands still; no request is sent there, and it is
    found again when it continues.
    """
    gateway = start_gateway(document(served.url, fake_upstream.url))
    assert where(gateway) == ("engine", "1")
    cores = served.cores()
    assert cores, "the engine's core is a process of its own"
    body = {
        "model": "r",
        "messages": MESSAGES,
        "stream": True,
        "max_tokens": 2000,
        "ignore_eos": True,
    }
    headers = {"authorization": f"Bearer {gateway.key}"}
    try:
        with httpx2.stream(
            "POST", f"{gateway.base_url}/chat/completions", json=body, headers=headers, timeout=60
        ) as stream:
            lines = stream.iter_lines()
            assert any('"content"' in line or '"reasoning"' in line for line in lines)
            for pid in cores:
                os.kill(pid, signal.SIGSTOP)
            assert httpx2.get(f"{served.url}/health", timeout=5).status_code == 200
            last = [line for line in lines if line.startswith("data: ")][-1]
        assert json.loads(last[6:])["error"]["code"] == "upstream_timeout"
        assert where(gateway) == ("other", "1")  # passed over, not tried
    finally:
        for pid in cores:
            os.kill(pid, signal.SIGCONT)
    assert eventually(lambda: where(gateway) == ("engine", "1"), deadline_s=30)
    for pid in cores:
        os.kill(pid, signal.SIGKILL)
    assert {where(gateway)[0] for _ in range(8)} == {"other"}
