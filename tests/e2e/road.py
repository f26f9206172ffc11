"""The whole road, started as a user starts it: `tollgate up`, with a home of its own and free
ports.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from engine.home import engine_home
from tests.gateway_process import free_port

REPOSITORY = Path(__file__).parents[2]
UP_WITHIN_S = 420.0  # with engine and model already made it takes under a minute
DOWN_WITHIN_S = 90.0
SETTINGS = ("PORT", "METRICS_PORT", "DASHBOARD_PORT", "ENGINE_PORT")


@dataclass(slots=True)
class Road:
    """A running `tollgate up`."""

    home: Path
    process: subprocess.Popen[bytes]
    variables: dict[str, str]
    up: dict[str, str]
    took_s: float

    @property
    def printed(self) -> str:
        """Its output."""
        return (self.home / "up.log").read_text()

    def tollgate(self, *arguments: str) -> str:
        """Run a command against the same home and return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "gateway.main", *arguments],
            env=self.variables,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def family(self) -> set[int]:
        """Process ids of everything it started that still lives, found by the home in their
        environment.
        """
        mark = f"TOLLGATE_HOME={self.home}".encode()
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.add(int(entry.name))
                except OSError:
                    continue
        return found

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it by signal and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=DOWN_WITHIN_S)


def start(home: Path, *arguments: str, **more: str) -> Road:
    """Run `tollgate up` until it has shown its tour, with `more` variables in its environment."""
    variables = {
        **{
            name: value
            for name, value in os.environ.items()
            if name != "OPENAI_API_KEY" and "TOLLGATE" not in name
        },
        "TOLLGATE_HOME": str(home),
        "TOLLGATE_ENGINE_HOME": str(engine_home(os.environ).root),
        **{f"TOLLGATE_{name}": str(free_port()) for name in SETTINGS},
        **more,
    }
    began_s = time.monotonic()
    with (home / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.main", "up", *arguments],
            env=variables,
            cwd=REPOSITORY,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    road = Road(home, process, variables, {}, 0.0)
    while "Ctrl-C stops everything" not in road.printed:
        assert process.poll() is None, f"tollgate up ended by itself:\n{road.printed}"
        if time.monotonic() - began_s > UP_WITHIN_S:
            road.stop(signal.SIGKILL)
            raise AssertionError(
                f"tollgate up was not ready in {UP_WITHIN_S:.0f} s:\n{road.printed}"
            )
        time.sleep(0.2)
    road.took_s = time.monotonic() - began_s
    road.up = json.loads((home / "up.json").read_text())
    return road
