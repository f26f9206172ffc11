"""Times `tollgate reconcile import` of a large export, and measures its memory.

    python -m bench.bill_import [--lines 1000000] [--home FOLDER] [--write]

A separate embedded Postgres gets the export by the command itself, each time in a process of its
own: a tenth of the lines, all of them, and the same file again. The lines are hourly, as clouds
export them, so that the sums by day, key, model and kind of token are equally many each time. The
run fails if the sum of the import is wrong, if the repeat changes anything, or if ten times the
lines take over 1.2 times the memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from bench.stand import machine
from bench.stand.page import write_result

DAYS, KEYS, MODELS = 30, 100, ("claude-a", "claude-b", "claude-c")
USAGE = ("input-tokens", "cache-read-input-token-count", "output-tokens")
PLACES = DAYS * KEYS * len(MODELS) * len(USAGE)
FIRST = date(2026, 10, 1)
MOST_MEMORY_RATIO = 1.2
HEADER = (
    "lineItem/UsageStartDate,lineItem/UsageAccountId,lineItem/LineItemType,lineItem/ProductCode,"
    "lineItem/UsageType,lineItem/UsageAmount,pricing/unit,lineItem/UnblendedCost,"
    "lineItem/CurrencyCode,lineItem/IamPrincipal\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """One run of the command: its record, seconds, and largest memory in MiB."""

    record: Mapping[str, Any]
    took_s: float
    peak_mib: float


def main() -> int:
    """Import the export three times; return 1 on a finding."""
    parser = argparse.ArgumentParser(prog="python -m bench.bill_import")
    parser.add_argument("--lines", type=int, default=1_000_000, help="1,000,000 if left out")
    parser.add_argument("--home", type=Path, help="where Postgres and the files are kept")
    parser.add_argument("--write", action="store_true", help="write into docs/lab/bench")
    chosen = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="tollgate-bench-", dir=chosen.home))
    home.chmod(0o711)
    try:
        table, findings = _measured(home, chosen.lines)
    finally:
        shutil.rmtree(home)
    facts = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": " ".join(["python -m bench.bill_import", *sys.argv[1:]]),
        "load average at the end": f"{os.getloadavg()[0]:.1f}",
    }
    lines = [*(f"- {name}: {value}" for name, value in facts.items()), "", *table]
    print("\n".join(lines))
    for finding in findings:
        print(f"WRONG: {finding}", file=sys.stderr)
    if chosen.write and not findings:
        write_result("bill-import", lines)
    return 1 if findings else 0


def _measured(home: Path, lines: int) -> tuple[list[str], Sequence[str]]:
    """Return the table of the runs and the findings."""
    few, all_of_them = home / "few.csv", home / "all.csv"
    _write(few, lines // 10)
    whole_usd = _write(all_of_them, lines)
    _tollgate(home, "db", "upgrade")
    runs = {
        "a tenth of the lines": (few, _import(home, few)),
        "all lines": (all_of_them, _import(home, all_of_them)),
        "the same file again": (all_of_them, _import(home, all_of_them)),
    }
    (_, small), (_, large), (_, again) = runs.values()
    findings = [
        *([] if large.record["rows"] == lines else ["lines are missing"]),
        *([] if large.record["amount_usd"] == whole_usd else ["the sum is wrong"]),
        *([] if again.record["import_id"] is None else ["the repeat changed something"]),
        *(
            []
            if large.peak_mib <= MOST_MEMORY_RATIO * small.peak_mib
            else ["memory grows with the lines"]
        ),
    ]
    return [
        f"| `reconcile import --kind aws-cur`, {PLACES:,} sums by day, key, model and kind | lines "
        "| file | took | lines a second | most memory |",
        "|---|--:|--:|--:|--:|--:|",
        *(
            f"| {name} | {run.record['rows']:,} | {path.stat().st_size / 2**20:,.0f} MiB "
            f"| {run.took_s:.1f} s | {run.record['rows'] / run.took_s:,.0f} "
            f"| {run.peak_mib:,.0f} MiB |"
            for name, (path, run) in runs.items()
        ),
    ], findings


def _write(path: Path, lines: int) -> Decimal:
    """Write an export with so many lines; return its sum in USD."""
    total = 0
    with path.open("w") as out:
        out.write(HEADER)
        for number in range(lines):
            place, hour = number % PLACES, number // PLACES % 24
            day = FIRST + timedelta(days=place % DAYS)
            key = place // DAYS % KEYS
            model = MODELS[place // (DAYS * KEYS) % len(MODELS)]
            usage = USAGE[place // (DAYS * KEYS * len(MODELS))]
            micro_usd = number % 99_991
            total += micro_usd
            out.write(
                f"{day}T{hour:02}:00:00Z,410000000017,Usage,AmazonBedrock,USE1-{model}-{usage},"
                f"{number % 977}.5,1K tokens,{micro_usd // 10**6}.{micro_usd % 10**6:06},USD,"
                f"principal-{key:03}\n"
            )
    return Decimal(total).scaleb(-6)


def _import(home: Path, path: Path) -> Imported:
    """Import a file in a process of its own."""
    began_s = time.monotonic()
    out, peak_mib = _tollgate(
        home,
        *("reconcile", "import", str(path), "--provider", "bedrock", "--kind", "aws-cur"),
        *("--format", "json"),
    )
    took_s = time.monotonic() - began_s
    return Imported(record=json.loads(out, parse_float=Decimal), took_s=took_s, peak_mib=peak_mib)


def _tollgate(home: Path, *arguments: str) -> tuple[str, float]:
    """Run a command; return its output and the largest memory of its own process in MiB.

    Raises `RuntimeError` if it fails.
    """
    command = [str(Path(sys.executable).parent / "tollgate"), *arguments]
    environment = os.environ | {"TOLLGATE_HOME": str(home / "tollgate")}
    with (
        tempfile.TemporaryFile(dir=home) as out,
        subprocess.Popen(command, stdout=out, env=environment) as process,
    ):
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}")
        out.seek(0)
        return out.read().decode(), usage.ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
