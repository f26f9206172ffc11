"""Breaks a real vLLM behind a real gateway and writes the times into docs/engine-report.md.

Run `python -m bench.engine_faults` to print them, with `--write` to renew the page. The run is
tests/engines/test_engine_faults.py, so each figure is of a run whose promises held. It needs
`python -m engine setup` and takes three minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.engine_report import section

ROOT = Path(__file__).parents[1]
RUN = ("-m", "pytest", "-q", "-p", "no:xdist", "tests/engines/test_engine_faults.py")
ROWS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "hang of the core (SIGSTOP), `/health` 200": (
        ("hang_moved_s", "all waiting requests were answered elsewhere, s after the stop"),
        ("hang_left_s", "new requests did not try the engine, s after the stop"),
        ("hang_cut_s", "the stream that had begun ended with its error event (idle_s: 15), s"),
        ("hang_back_s", "the engine was used again, s after it went on"),
    ),
    "crash of the HTTP process (SIGKILL)": (
        ("leader_cut_s", "the stream ended with its error event, s after the kill"),
        ("leader_left_s", "new requests did not try the engine, s after the restart began"),
        ("leader_back_s", "the restarted engine was used again, s after that"),
    ),
    "core killed while serving (SIGKILL, as out of memory)": (
        ("core_cut_s", "the stream ended with its error event, s after the kill"),
        ("core_left_s", "new requests did not try the engine, s after the restart began"),
        ("core_back_s", "the restarted engine was used again, s after that"),
    ),
    "core killed while loading": (
        ("loading_noticed_s", "the next start was announced, s after the kill"),
        ("loading_back_s", "the engine was used again, s after that"),
    ),
    "overload: 16 requests, room for 6": (
        ("overload_refused", "requests refused with 503 `overloaded` and `Retry-After`"),
        ("overload_refused_s", "the last of them after, s (with the gateway's own retry)"),
    ),
}


def main() -> int:
    """Run the faults and print their section; return the run's exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.engine_faults", description="Break a real vLLM behind a gateway."
    )
    parser.add_argument("--write", action="store_true", help="write docs/engine-report.md")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        variables = os.environ | {"TOLLGATE_TEST_ENGINES": "1", "TOLLGATE_FAULTS_OUT": str(out)}
        done = subprocess.run([sys.executable, *RUN], cwd=ROOT, env=variables, check=False)
        if done.returncode != 0:
            return done.returncode
        figures: dict[str, float] = json.loads(out.read_text(encoding="utf-8"))
    load = f"- load average of the 15 minutes before its end: {os.getloadavg()[2]:.1f}"
    command = "python -m bench.engine_faults --write"
    section("faults", [load, "", *table(figures)], command=command, write=chosen.write)
    return 0


def table(figures: Mapping[str, float]) -> list[str]:
    """Return the table of faults and their times."""
    lines = ["| fault | reaction | measured |", "|---|---|--:|"]
    for fault, rows in ROWS.items():
        lines += [f"| {fault} | {words} | {figures[name]:g} |" for name, words in rows]
    return lines


if __name__ == "__main__":
    sys.exit(main())
