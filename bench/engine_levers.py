"""Measures the gain of each lever of a self-hosted engine with the real vLLM on this machine's CPU.

    python -m bench.engine_levers [LEVER …] [--rounds N] [--write]

Without a LEVER all are measured (about half an hour on two cores). `--write` renews their sections
of docs/engine-report.md. Each figure is a ratio within one run, and each lever is switched by a
profile and shows in the engine's own metrics.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.engine_report import section
from bench.levers import experiments

LEVERS: Mapping[str, Callable[[Path, int], list[str]]] = {
    "batching": experiments.batching,
    "prefix-caching": experiments.prefix_caching,
    "speculation": experiments.speculation,
    "int8": experiments.int8,
    "chunked-prefill": experiments.chunked_prefill,
    "static-batches": experiments.static_batches,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the asked levers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("levers", nargs="*", metavar="LEVER", help=", ".join(LEVERS))
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--models", type=Path, help="keep the random models in this folder")
    parser.add_argument("--write", action="store_true", help="into docs/engine-report.md")
    options = parser.parse_args(arguments)
    if unknown := set(options.levers) - set(LEVERS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(LEVERS)}")
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.levers or LEVERS:
            lines = LEVERS[name](options.models or Path(scratch), options.rounds)
            command = f"python -m bench.engine_levers {name} --rounds {options.rounds}"
            section(name, lines, command=command, write=options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
