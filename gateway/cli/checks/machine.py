"""Runs `engine/preflight.py` as a program and returns its findings about this machine, for
`tollgate doctor` and for `tollgate up`, which stops at an obstacle.

It is started as a program, because `make run` uses the same file before anything is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.domain.checks import Check, Status
from gateway.errors import BadUsage

if TYPE_CHECKING:
    from gateway.cli.toolbox import Options

LIMIT_S = 60.0  # seconds; it takes a tenth of a second on an idle machine


def require(options: Options, *, has_engine_elsewhere: bool) -> None:
    """Run the preflight and print its warnings. Raises `BadUsage` with every obstacle to running
    here.
    """
    found = checks(options, *(("--no-engine",) if has_engine_elsewhere else ()))
    lines = {
        status: [_text(check) for check in found if check.status is status] for status in Status
    }
    if lines[Status.FAIL]:
        raise BadUsage("\n".join(lines[Status.FAIL]))
    for line in lines[Status.WARN]:
        print(line, flush=True)


def checks(options: Options, *arguments: str) -> list[Check]:
    """Return the preflight's findings about this machine under these settings; empty in an
    installation without the preflight.
    """
    spec = find_spec("engine")
    files = (
        [Path(place, "preflight.py") for place in (spec.submodule_search_locations or ())]
        if spec
        else []
    )
    if not files or not files[0].exists():
        return []
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(files[0]), "--format", "json", *arguments],
            env={**os.environ, **_variables(options)},
            stdout=subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as broken:
        # No reason to stop: a problem that it would find fails later, with its own message.
        return [Check("preflight", Status.WARN, f"this machine could not be checked: {broken}")]
    return [
        Check(one["check"], Status(one["status"]), one["finding"], one["what_to_do"])
        for one in found
    ]


def machine_checks(options: Options) -> Iterator[Check]:
    """Yield `doctor`'s checks of this machine. The engine's needs count only if an engine was
    installed, and then warn at most.
    """
    has_engine = (options.engine_home / "venv.stamp.json").exists()
    for check in checks(options, "--no-ports", *(() if has_engine else ("--no-engine",))):
        is_for_engine = check.name in ("platform", "cpu", "memory")
        if check.finding:
            yield (
                replace(check, status=Status.WARN)
                if is_for_engine and check.status is Status.FAIL
                else check
            )


def _variables(options: Options) -> dict[str, str]:
    """Return the settings in force as environment variables for the preflight, whether they come
    from a variable or from a file.
    """
    return {
        "TOLLGATE_HOME": str(options.home),
        "TOLLGATE_ENGINE_HOME": str(options.engine_home),
        "TOLLGATE_HOST": options.host,
        "TOLLGATE_PORT": str(options.port),
        "TOLLGATE_METRICS_HOST": options.metrics_host,
        "TOLLGATE_METRICS_PORT": str(options.metrics_port),
        "TOLLGATE_DASHBOARD_HOST": options.dashboard_host,
        "TOLLGATE_DASHBOARD_PORT": str(options.dashboard_port),
        "TOLLGATE_ENGINE_PORT": str(options.engine_port),
    }


def _text(check: Check) -> str:
    """Return a finding with its remedy below it, as text for people."""
    remedy = check.remedy.replace("\n", "\n    ")
    return f"{check.name}: {check.finding}" + (f"\n    {remedy}" if remedy else "")
