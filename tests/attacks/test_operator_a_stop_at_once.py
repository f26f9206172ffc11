"""A SIGTERM in the first milliseconds of serving was dropped: the gateway went on until SIGKILL.

Found by an attacker who simulated an operator of a failing system, on 2026-11-23: 3 of 3 within 2
ms of "serving".
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.gateway_process import REPOSITORY, FakeUpstreamProcess, StartGateway
from tests.integration.policy import small
from tests.waiting import eventually


@pytest.mark.parametrize("after_ms", [0.5, 1, 2, 5])
def test_a_stop_just_after_the_start_ends_the_gateway(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess, after_ms: float
) -> None:
    """A rollout that is reverted at once sends the signal at that moment."""
    gateway = start_gateway(small(fake_upstream.url))
    gateway.stop()
    log = gateway.log_path.with_suffix(".second.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.main", "serve"],
            env=dict(gateway.variables),
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        eventually(lambda: b'"serving"' in log.read_bytes(), "the line", within_s=60)
        time.sleep(after_ms / 1000)
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()
        log.unlink()
