"""Runs the micro-benchmark `engine/inside/roofline.py` in the engine's own environment."""

import json
import os
import subprocess
from typing import Any

from engine.environment import installed_device
from engine.errors import EngineError, UsageError
from engine.home import PACKAGE, engine_home

LIMIT_S = 300.0
PROGRAM = PACKAGE / "inside" / "roofline.py"


def require_environment() -> None:
    """Raise `UsageError` unless the engine's environment, which has torch, is installed."""
    if installed_device(engine_home(os.environ)) is None:
        raise UsageError(
            "--roofline needs torch, which is in the engine's environment. Install it with: "
            "tollgate engine setup"
        )


def measure_roofline() -> dict[str, Any]:
    """Return this machine's matrix rate and memory bandwidth. Raises `EngineError`."""
    argv = [str(engine_home(os.environ).python), str(PROGRAM)]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=LIMIT_S, check=True, cwd=PACKAGE.parent
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or ["no message"]
        raise EngineError(f"The micro-benchmark failed: {last[0]}") from error
    except (subprocess.TimeoutExpired, OSError, ValueError) as error:
        raise EngineError(f"The micro-benchmark failed: {error}") from error
    return found
