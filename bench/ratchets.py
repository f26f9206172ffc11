"""Prints the figures that no change may let grow twice in a row: size, times, instructions, memory.

    python -m bench.ratchets      # or `make ratchets`; three minutes on two cores

Sizes and instructions depend on the commit alone. Times and memory depend on the machine, which
the last line names. The seconds of `make test` are those of this checkout's last green run.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

from bench.in_process import instructions
from bench.overhead import finish_load, start_load
from bench.stand import machine
from bench.stand.gateways import Stand, StandError

ROOT = Path(__file__).parents[1]
PRODUCT = ("gateway", "engine", "dashboard", "migrations")
GENERATED = "Generated"  # the first word of the docstring of a table of facts
LOAD_S = 20
STARTS = 7


def main() -> int:
    """Print a row for each figure; 3 if one could not be measured."""
    try:
        for name, value in _figures():
            print(f"{name:<52}{value:>20}", flush=True)
    except (StandError, OSError, subprocess.CalledProcessError) as problem:
        print(problem, file=sys.stderr)
        return 3
    print(machine.describe())
    return 0


def _figures() -> Iterator[tuple[str, str]]:
    product = [
        path
        for name in PRODUCT
        for kind in ("py", "sql")
        for path in (ROOT / name).rglob(f"*.{kind}")
    ]
    written = [path for path in product if not _is_generated(path)]
    yield "commit", machine.commit()
    yield "product: lines", f"{_lines(written):,}"
    yield "product: files", f"{len(written):,}"
    yield "product: lines of generated tables", f"{_lines(product) - _lines(written):,}"
    yield "all Python: lines", f"{_lines(_tracked()):,}"
    yield from _seconds_of_tests()
    yield "plain chat: instructions", f"{instructions(has_budgets=False):,.0f}"
    yield "chat under four budgets: instructions", f"{instructions(has_budgets=True):,.0f}"
    yield f"gateway after {LOAD_S} s of load: PSS", f"{_loaded_pss_mib():.0f} MiB"
    for command in (("--help",), ("report", "list")):
        yield f"tollgate {' '.join(command)}: CPU", f"{median(_starts_s(command)):.2f} s"


def _is_generated(path: Path) -> bool:
    return path.read_text(encoding="utf-8").startswith(f'"""{GENERATED}')


def _lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def _tracked() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in done.stdout.splitlines()]


def _seconds_of_tests() -> Iterator[tuple[str, str]]:
    """Yield the seconds of the parts of `make test`, from the marks that it left."""
    marks = [ROOT / ".venv" / f"test.{name}" for name in ("begun", "installed", "passed")]
    if not all(mark.exists() for mark in marks):
        yield "make test", "not run here"
        return
    begun, installed, passed = (mark.stat().st_mtime for mark in marks)
    yield "make test: installation", f"{installed - begun:.0f} s"
    yield "make test: pytest", f"{passed - installed:.0f} s" if passed > installed else "failed"


def _loaded_pss_mib() -> float:
    """Return the memory of a gateway after as much load as ten connections give."""
    with Stand() as stand:
        gateway = stand.add_gateway("ratchets")
        loads = [
            start_load(gateway, kind, connections=10, seconds=LOAD_S)
            for kind in ("plain", "paced-vllm")
        ]
        for load in loads:
            finish_load(load)
        return machine.pss_mib(gateway.pids())


def _starts_s(command: tuple[str, ...]) -> Iterator[float]:
    """Yield the CPU seconds of some starts of a command, after one that warms the caches up."""
    program = Path(sys.executable).with_name("tollgate")
    for number in range(STARTS + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([program, *command], stdout=subprocess.DEVNULL, env=os.environ, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if number:
            yield after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
