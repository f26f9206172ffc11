"""Starts gateways by forking a process that has imported them: importing takes each of some hundred
gateways two seconds of CPU, more than most of their tests do.

A forked gateway is a process like any other, with its own environment, log and exit code. It keeps
only the imported modules and the interpreter's own variables (`PYTHONPATH`, `PYTHONHASHSEED`).

`python -m tests.forked_gateways` is the process that is forked. It takes one order a line on its
standard input: `{"variables", "log"}` starts a gateway and is answered by its pid, `{"poll"}` by
the exit code of a pid, or null while it runs.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from tests.bare_environment import BARE

REPOSITORY = Path(__file__).resolve().parents[1]
LOOK_EVERY_S = 0.01


class ForkedGateway:
    """A gateway that was forked, with the members of `subprocess.Popen` that tests use."""

    def __init__(self, forker: GatewayForker, pid: int) -> None:
        """Name a process that `forker` started."""
        self._forker, self.pid = forker, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; a signal's number is negative."""
        if self.returncode is None:
            self.returncode = self._forker.order({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the exit code. Raises `subprocess.TimeoutExpired`."""
        end_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("tollgate serve", timeout)
            time.sleep(LOOK_EVERY_S)
        return code

    def send_signal(self, how: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, how)


class GatewayForker:
    """The process that is forked; it starts with its first order."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def start(self, variables: Mapping[str, str], log: Path) -> ForkedGateway:
        """Start `tollgate serve` with these variables; its output is appended to the log."""
        return ForkedGateway(self, self.order({"variables": dict(variables), "log": str(log)}))

    def order(self, order: Mapping[str, Any]) -> Any:
        """Give an order and return its answer."""
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.forked_gateways"],
                    cwd=REPOSITORY,
                    env={**BARE, "PYTHONUNBUFFERED": "1"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            pipes = self._process
            assert pipes.stdin is not None
            assert pipes.stdout is not None
            pipes.stdin.write(json.dumps(order).encode() + b"\n")
            pipes.stdin.flush()
            return json.loads(pipes.stdout.readline())

    def close(self) -> None:
        """End the process that is forked; its gateways go on."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(30)


def main() -> None:
    """Carry out orders until they end; in a forked process, be a gateway."""
    import pydantic.v1  # noqa: F401 - FastAPI imports it at its first route

    import gateway.cli.app
    import gateway.serving.start  # noqa: F401 - what each gateway would import
    from gateway.main import run

    gc.collect()
    gc.freeze()
    unread = b""
    while more := os.read(0, 65_536):  # no buffer, which a fork would copy
        *lines, unread = (unread + more).split(b"\n")
        for order in map(json.loads, lines):
            if "poll" in order:
                pid, status = os.waitpid(order["poll"], os.WNOHANG)
                answer = os.waitstatus_to_exitcode(status) if pid else None
            elif (answer := os.fork()) == 0:
                _be_a_gateway(order["variables"], order["log"])
                run()
            os.write(1, json.dumps(answer).encode() + b"\n")


def _be_a_gateway(variables: Mapping[str, str], log: str) -> None:
    """Take the environment, files and arguments of `tollgate serve`."""
    os.environ.clear()
    os.environ.update(variables)
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
    for place, file in enumerate((nothing, output, output)):
        os.dup2(file, place)
    os.close(nothing)
    os.close(output)
    sys.argv = ["tollgate", "serve"]


if __name__ == "__main__":
    main()
