"""Runs the `tollgate` command: reads the settings once, and builds the command's toolbox from them
when it is first used.

`gateway.composition` opens stores and reports, and `gateway.serving` runs a serving process. Both
are imported in functions, as is the command line: `tollgate --help` answers before they are loaded.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.settings import Settings


class SystemClock:
    """The real time of this machine."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.now(UTC)

    # Called several times for each request: a function of C costs a fifth of one of Python.
    monotonic = staticmethod(time.perf_counter)


def run() -> None:
    """Run the `tollgate` command line, and exit with its code."""
    _leave_no_core()
    # What the imports make stays: looking for garbage among it took a tenth of the time.
    gc.set_threshold(50_000, 20, 100)
    try:
        from gateway.cli.app import run_cli
    except KeyboardInterrupt:
        sys.exit(130)  # Ctrl-C during the imports
    sys.exit(run_cli(lambda: build_toolbox(_settings())))


def _leave_no_core() -> None:
    """Let no crash of this process or its children write a core file: it has the pepper, provider
    keys and prompts. The hard limit stays, for whoever debugs.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _settings() -> Settings:
    """Read the settings, after a warning on standard error for each misspelt or unknown name."""
    from gateway.settings import misspelt, read, unknown_in_file

    for warning in (*misspelt(os.environ), *unknown_in_file(os.environ.get("TOLLGATE_CONFIG"))):
        with suppress(OSError):  # a full device must not keep the gateway from starting
            print(warning, file=sys.stderr)
    return read()


def build_toolbox(settings: Settings) -> Toolbox:
    """Return the dependencies of all commands, over these settings."""
    from gateway.composition import toolbox_of

    return toolbox_of(settings, clock=SystemClock(), serve=_serve)


def _serve(settings: Settings, allows_demo_keys: bool) -> None:
    """Run the gateway for `tollgate serve`; its modules are imported only now, so that other
    commands start fast.
    """
    from gateway.serving.start import serve

    serve(settings, clock=SystemClock(), allows_demo_keys=allows_demo_keys)


if __name__ == "__main__":
    run()
