"""The speed of `tollgate demo-data` for a whole organisation, with its sums and a check of them.

    python -m bench.demo_data [--events 2000000] [--as-ledger] [--write]

A separate embedded Postgres, on the disk of `--home`, gets the organisation by the command's own
service. The run fails if the number of events or one hour's sums are wrong, or if a second run adds
an event.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.stand import machine
from bench.stand.page import write_result
from gateway.cli.up.write_organisation import WrittenOrganisation, write_organisation
from gateway.main import build_toolbox
from gateway.services.demo.organisation import OrganisationSize
from gateway.settings import Settings
from gateway.storage.ledger import rollups
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database

LEAST_PER_S = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the service: its result, and the seconds until the last event was committed and
    until its hours and days were summed up.
    """

    written: WrittenOrganisation
    events_s: float
    whole_s: float


def main() -> int:
    """Write the organisation twice and check it; return 1 on a finding."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo_data", description="The speed of `tollgate demo-data`."
    )
    parser.add_argument("--events", type=int, default=2_000_000, help="2,000,000 if left out")
    parser.add_argument("--months", type=int, default=6)
    parser.add_argument("--teams", type=int, default=60)
    parser.add_argument("--as-ledger", action="store_true", help="real events, and their usage")
    parser.add_argument("--home", type=Path, help="where Postgres keeps its files")
    parser.add_argument("--write", action="store_true", help="write into docs/lab/bench")
    chosen = parser.parse_args()
    size = OrganisationSize(chosen.months, chosen.events, chosen.teams)
    home = Path(tempfile.mkdtemp(prefix="tollgate-bench-", dir=chosen.home))
    home.chmod(0o711)
    try:
        lines, findings = _measured(size, home, is_ledger=chosen.as_ledger)
    finally:
        shutil.rmtree(home)
    command = " ".join(["python -m bench.demo_data", *sys.argv[1:]])
    facts = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": command,
        "load average at the end": f"{os.getloadavg()[0]:.1f}",
    }
    lines = [*(f"- {name}: {value}" for name, value in facts.items()), *lines]
    print("\n".join(lines))
    for finding in findings:
        print(f"WRONG: {finding}", file=sys.stderr)
    if chosen.write and not findings:
        write_result("demo-data", lines)
    return 1 if findings else 0


def _measured(
    size: OrganisationSize, home: Path, *, is_ledger: bool
) -> tuple[list[str], Sequence[str]]:
    """Return the lines of the page and the findings of both runs."""
    toolbox = build_toolbox(Settings(home=home))
    with toolbox.open_owner() as database:
        migrations.upgrade(database)
    with toolbox.open_booking() as database:
        first = _run(database, size, is_ledger=is_ledger)
        began_s = time.monotonic()
        since = datetime.combine(first.written.calendar.first, datetime.min.time(), UTC)
        differing = rollups.sum_wrong_hours_again(database, since=since)
        check_s = time.monotonic() - began_s
        again = _run(database, size, is_ledger=is_ledger)
    findings = [
        *([] if first.written.new_events == size.events else ["events are missing"]),
        *([f"{differing} hours have wrong sums"] if differing else []),
        *([] if again.written.new_events == 0 else ["the second run added events"]),
    ]
    return [
        f"- {size.name}, {'as a ledger, ' if is_ledger else ''}{first.written.calendar.days} days; "
        f"a bar of {LEAST_PER_S:,} events a second",
        "",
        "| step | took | events a second |",
        "|---|--:|--:|",
        _row("all events committed, and most hours summed up meanwhile", size, first.events_s),
        _row("the same, and every hour and day summed up", size, first.whole_s),
        _row("each hour's sums compared with its events", size, check_s),
        _row("again: nothing to add", size, again.whole_s),
    ], findings


def _run(database: Database, size: OrganisationSize, *, is_ledger: bool) -> Run:
    """Write the organisation once."""
    ends: list[float] = []

    def on_progress(events: int) -> None:
        ends.append(time.monotonic())
        if sys.stderr.isatty():
            print(f"\r{events:,}", end="", file=sys.stderr)

    began_s = time.monotonic()
    written = write_organisation(
        database,
        size,
        last_day=(datetime.now(UTC) - timedelta(days=1)).date(),
        builtin=builtin_price,
        is_ledger=is_ledger,
        on_progress=on_progress,
    )
    whole_s = time.monotonic() - began_s
    return Run(written=written, events_s=ends[-1] - began_s, whole_s=whole_s)


def _row(what: str, size: OrganisationSize, took_s: float) -> str:
    """Return a row of the page's table."""
    return f"| {what} | {took_s:.1f} s | {size.events / took_s:,.0f} |"


if __name__ == "__main__":
    sys.exit(main())
