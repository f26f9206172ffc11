"""The parts of a run: processes, the ports they listen on, and their end, in reverse order."""

from __future__ import annotations

import socket
import subprocess
import urllib.error
import urllib.request
from contextlib import ExitStack
from types import TracebackType
from typing import Self

END_WITHIN_S = 40.0  # longer than the gateway's drain


class Assembly:
    """Parts that are started one after the other and ended together, even if one of them does not
    start.

    `_build` starts them and registers each one's end with `_stack`.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _build(self) -> None:
        raise NotImplementedError


def free_ports(count: int) -> list[int]:
    """Return different ports that are free at the moment."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def answers(url: str | urllib.request.Request) -> bool:
    """Return True if the address answers with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and kill it if it does not."""
    process.terminate()
    try:
        process.wait(END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
