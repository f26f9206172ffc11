"""Starts the engine of a profile through `python -m engine serve`, on a port of its own, and ends
it after the block.
"""

import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from engine import environment, vllm_command
from engine import home as homes
from engine.errors import EngineError, UnknownStateError, UsageError
from engine.progress import StageProgress
from engine.serving.profile import read_profile

START_LIMIT_S = 900.0
STOP_LIMIT_S = 60.0
LOG_LINES = 12


def require_engine() -> None:
    """Raise `UsageError` unless an engine can be started on this machine."""
    home = homes.engine_home(os.environ)
    if vllm_command.program(os.environ) is None and environment.installed_device(home) is None:
        raise UsageError(
            f"There is no complete engine environment in {home.venv}. Make it with: python -m "
            "engine setup. A server that runs already needs none: --url URL."
        )


def profile_gpus(profile: str) -> int:
    """Return the GPUs that a profile's engine uses. Raises `UsageError` or `EngineError`."""
    found = read_profile(profile).profile
    return found.tensor_parallel_size * found.pipeline_parallel_size * found.data_parallel_size


@contextmanager
def engine_of(profile: str, *, model: str | None, progress: StageProgress) -> Iterator[str]:
    """Serve a profile for the block and yield the engine's address.

    Raises: EngineError: the engine ended before it was ready. UnknownStateError: it was not ready
        in time.
    """
    port = _free_port()
    argv = [sys.executable, "-P", "-m", "engine", "serve", "--profile", profile, "--must-start"]
    argv += ["--port", str(port), *(("--model", model) if model else ())]
    with tempfile.TemporaryDirectory(prefix="tollgate-bench-") as folder:
        log = Path(folder) / "engine.log"
        with log.open("wb") as written:
            process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=written)
        assert process.stdout is not None
        try:
            progress.say("start", f"Starting the engine of {profile} on port {port}.")
            _wait_for_block(process.stdout, profile, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()  # its guard ends the engine
                process.wait()
            process.stdout.close()


def _wait_for_block(output: IO[bytes], profile: str, log: Path) -> None:
    """Wait for the deployment block, which `serve` prints once the engine answers a request."""
    if not select.select([output], [], [], START_LIMIT_S)[0]:
        raise UnknownStateError(
            f"The engine of {profile} was not ready within {START_LIMIT_S:.0f} s; last lines of its"
            f" log:\n{_tail(log)}"
        )
    if not output.readline():
        raise EngineError(f"The engine of {profile} did not start:\n{_tail(log)}")


def _tail(log: Path) -> str:
    """Return the last lines of an engine's log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join([line for line in lines if line.strip()][-LOG_LINES:])


def _free_port() -> int:
    """Return a port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
