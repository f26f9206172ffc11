"""The time of each page's default view, and of each single split and filter, on a large month.

    python -m bench.finance [--events 10000000] [--teams 60] [--home DIR] [--only WORD] [--write]

The service of `tollgate demo-data` writes an organisation of the last whole month into a Postgres
of its own; the product's job sums it up. Then each page is asked some times, with all its
questions, and each statement is explained. It fails if a limit is missed, or if a page with a
single split or filter reads events.
Combinations that no sums hold read the events of a team and some days: their limit is 15 s, and
none of their statements may scan a whole partition. With `--home` the database stays and is used
again; with `--only` just the names with this word are asked.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from statistics import median

import psycopg

from bench.stand import machine
from bench.stand.explained import Statement, noted, plan_of, reads_of_ledger
from bench.stand.page import write_result
from gateway.cli.up.write_organisation import write_organisation
from gateway.main import build_toolbox
from gateway.reports.dimensions import TIME, Dimension
from gateway.reports.question import Question, ask
from gateway.reports.registry import REPORTS
from gateway.reports.sources.connection import ROLE, snapshot_of
from gateway.services.demo.organisation import OrganisationSize
from gateway.settings import Settings
from gateway.storage.ledger import rollups
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres

TRIES, OF_FILTERS, OF_COMBINATIONS = 10, 5, 2
MEDIAN_S, P95_S = 1.0, 2.0
COMBINATION_S = 15.0
# The questions of each page when it opens, as report and splits.
Asked = tuple[str, Sequence[str]]
PAGES: Mapping[str, Sequence[Asked]] = {
    "Overview": (
        ("spend", ("team",)),
        ("spend", ("team",)),  # the days that are over, beside those of the month before
        ("spend", ("day",)),
        ("spend", ("model",)),
        ("forecast", ("team",)),
    ),
    "Teams": (("spend", ("team",)), ("spend", ("team",)), ("spend", ("day", "team"))),
    "Models and providers": (
        ("destinations", ("provider",)),
        ("destinations", ("provider",)),
        ("destinations", ("day", "provider")),
    ),
    "Latency": (("latency", ("route", "deployment")), ("latency", ("day", "deployment"))),
}
# Pages whose bar has few filters, or none.
OTHER_PAGES: Mapping[str, Sequence[Asked]] = {
    "Budgets and forecast, forecast": (("forecast", ("team",)),),
    "Budgets and forecast, months ahead": (("outlook", ()),),
    "Budgets and forecast, spikes": (("spikes", ("team",)),),
    "Self-hosted economics": (
        ("gpu", ()),
        ("gpu-bill", ()),
        ("spend", ("team",)),
        ("selfhost-vs-api", ()),
    ),
    "Requests": (("events", ()),),
    "Meter quality": (("meter-quality", ("provider",)),),
    "Refusals": (("refusals", ()), ("refusals", ("day",)), ("refusals", ("team",))),
    "Residency": (("residency", ()),),
    "Prices": (("prices", ()),),
    "Audit": (("audit", ()),),
    "Close and export": (("closes", ()),),
}
REPORTS_ALONE: Sequence[Asked] = (
    ("retries", ("route",)),
    ("months", ()),
    ("unit-costs", ("team",)),
    ("movers", ("team",)),
    ("savings", ("model",)),
    ("tokens", ("day",)),
)
SPLITS = (*Dimension, "tag:feature", "tag:customer")
# Waiting times are not counted by end user and tag: these pages read events.
UNTIMED = (Dimension.END_USER, Dimension.TAG)
OF_NO_MONTH = "outlook"
COMBINED = "one team, one week: "
# The newest event, or a page of 100 and the one after it, is read from the end of an index.
ALMOST_NONE = 101
# Combinations that no sums hold, as report, splits and a filter, of one team in one week.
COMBINATIONS: Sequence[tuple[str, Sequence[str], str | None]] = (
    ("spend", ("key", "end_user"), None),
    ("spend", ("tag", "key"), None),
    ("spend", ("tag:feature", "tag:env"), None),
    ("savings", ("tag", "end_user"), None),
    ("latency", ("end_user",), None),
    ("latency", ("route", "deployment"), "tag"),
    ("token-costs", (), None),
    ("routing-savings", ("route",), None),
)
# The filters of a page; the others are split by, or are the month itself.
FILTERS = tuple(
    one
    for one in Dimension
    if one not in (*TIME, Dimension.DESTINATION, Dimension.OUTCOME, Dimension.USAGE_SOURCE)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The times of one page or question in seconds, and the events that its statements read."""

    name: str
    rows: int
    median_s: float
    p95_s: float
    events_read: int
    scans: int
    is_combination: bool

    @property
    def is_wrong(self) -> bool:
        """Return True if a limit was missed, or if events were read that need not be."""
        if self.is_combination:
            return self.p95_s > COMBINATION_S or self.scans > 0
        return self.median_s > MEDIAN_S or self.p95_s > P95_S or self.events_read > 0


def main() -> int:
    """Make the month, ask everything; return 1 if a limit is missed or the ledger is read."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.finance", description="Reports and pages on a large month."
    )
    parser.add_argument("--events", type=int, default=10_000_000, help="events (10,000,000)")
    parser.add_argument("--teams", type=int, default=60, help="teams (60)")
    parser.add_argument("--home", type=Path, help="keep the database here, and use it again")
    parser.add_argument("--only", default="", help="ask only the names with this word")
    parser.add_argument("--write", action="store_true", help="into docs/lab/bench")
    chosen = parser.parse_args()
    gc.set_threshold(50_000, 20, 100)  # as in the processes of the product
    with ExitStack() as stack:
        home = chosen.home or Path(tempfile.mkdtemp(prefix="tollgate-finance-", dir="/tmp"))
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o711)  # as root, Postgres runs as another user
        if chosen.home is None:
            stack.callback(shutil.rmtree, home, ignore_errors=True)
        url = stack.enter_context(EmbeddedPostgres(home)).start()
        made = _make(home, url, chosen.events, chosen.teams)
        database = Database(url, role=ROLE)
        stack.callback(database.close)
        month = _month(url)
        timed = list(_ask_all(database, month, only=chosen.only))
    facts = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": f"python -m bench.finance --events {chosen.events} "
        f"--teams {chosen.teams} --write",
        "load average at the end": f"{os.getloadavg()[0]:.1f}",
    }
    lines = [
        *(f"- {name}: {value}" for name, value in facts.items()),
        f"- {made}",
        "",
        *_table(timed),
    ]
    print("\n".join(lines))
    wrong = [one for one in timed if one.is_wrong]
    for one in wrong:
        print(
            f"WRONG: {one.name}: {one.median_s:.2f} s, p95 {one.p95_s:.2f} s, "
            f"{one.events_read:,} events read, {one.scans} whole partitions",
            file=sys.stderr,
        )
    if chosen.write:
        write_result("finance", lines)
    return 1 if wrong else 0


def _make(home: Path, url: str, events: int, teams: int) -> str:
    """Write the organisation and sum it up, unless the database has it; return a line on both."""
    toolbox = build_toolbox(Settings(home=home, database_url=url))
    with toolbox.open_owner() as database:
        migrations.upgrade(database)
    began_s = time.monotonic()
    with psycopg.connect(url) as connection:
        has_any = connection.execute("SELECT FROM tollgate.usage_events LIMIT 1").fetchone()
    written = "kept from an earlier run"
    if has_any is None:
        with toolbox.open_booking() as database:
            write_organisation(
                database,
                OrganisationSize(1, events, teams),
                last_day=_end_of_last_month(),
                builtin=builtin_price,
                is_ledger=True,
                on_progress=lambda events: print(f"{events:,}", end="\r", file=sys.stderr),
            )
        written = f"written and summed up in {time.monotonic() - began_s:.0f} s"
    database = Database(url)
    began_s = time.monotonic()
    # Every day is over.
    summed = rollups.refresh(database)
    database.close()
    summed_s = time.monotonic() - began_s
    with psycopg.connect(url, autocommit=True) as connection:
        if summed or has_any is None:
            connection.execute("VACUUM ANALYZE")
        found = connection.execute("SELECT count(*) FROM tollgate.usage_events").fetchone()
    assert found is not None
    return (
        f"{found[0]:,} events of {teams} teams in one month; {written}; what was not summed up "
        f"yet took {summed_s:.0f} s"
    )


def _end_of_last_month() -> date:
    """Return the last day of the last month that is over, so that it can be closed too."""
    return datetime.now(UTC).date().replace(day=1) - timedelta(days=1)


def _month(url: str) -> str:
    """Return the month with the most events."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT to_char(posted_period, 'YYYY-MM') FROM tollgate.spend_rollup_by_day "
            "GROUP BY 1 ORDER BY sum(attempts) DESC LIMIT 1"
        ).fetchone()
    assert found is not None
    return str(found[0])


def _ask_all(database: Database, month: str, *, only: str) -> Iterator[Timed]:
    """Yield the times of each page, split, filter and combination whose name has a word."""
    for name, asked, tries in _all_asked(database, month):
        if only in name:
            yield _timed(database, name, asked, tries=tries)


def _all_asked(
    database: Database, month: str
) -> Iterator[tuple[str, Sequence[tuple[str, Question]], int]]:
    """Yield everything to ask: its name, its reports with their questions, and the tries."""
    for page, questions in {**PAGES, **OTHER_PAGES}.items():
        yield (
            f"page {page}",
            [
                (report, ask(month=None if report == OF_NO_MONTH else month, by=by or None))
                for report, by in questions
            ],
            TRIES,
        )
    for report, by in REPORTS_ALONE:
        yield f"report {report}", [(report, ask(month=month, by=by or None))], TRIES
    for split in SPLITS:
        yield f"spend by {split}", [("spend", ask(month=month, by=[split]))], TRIES
    for page, questions in PAGES.items():
        for name in FILTERS:
            if page == "Latency" and name in UNTIMED:
                continue
            where: dict[str, str | None] = {str(name): _largest(database, month, name)}
            yield (
                f"page {page}, filter by {name}",
                [(report, ask(month=month, by=by, where=where)) for report, by in questions],
                OF_FILTERS,
            )
    team: dict[str, str | None] = {"team": _largest(database, month, Dimension.TEAM)}
    first, last = f"{month}-09", f"{month}-15"
    for report, by, filtered in COMBINATIONS:
        where = dict(team)
        if filtered is not None:
            where[filtered] = _largest(database, month, Dimension(filtered))
        question = ask(first=first, last=last, by=by, where=where)
        ending = "" if filtered is None else f", a {filtered}"
        split = f" by {', '.join(by)}" if by else ""
        combination = f"{COMBINED}{report}{split}{ending}"
        yield combination, [(report, question)], OF_COMBINATIONS


def _largest(database: Database, month: str, name: Dimension) -> str:
    """Return the value of a dimension that costs most."""
    with database.engine.connect() as connection:
        found = REPORTS["spend"].run(snapshot_of(connection), ask(month=month, by=[name]))
    return str(found.rows[0][0])


def _timed(
    database: Database, name: str, asked: Sequence[tuple[str, Question]], *, tries: int
) -> Timed:
    """Ask questions together some times, then explain each of their statements."""
    times = []
    statements: list[Statement] = []
    for _ in range(tries):
        statements.clear()
        began_s = time.perf_counter()
        rows = [_answered(database, *one, statements=statements) for one in asked]
        times.append(time.perf_counter() - began_s)
    with database.engine.connect() as connection:
        reads = [
            one
            for statement, values in statements
            for one in reads_of_ledger(plan_of(connection, statement, values))
            if one.rows > ALMOST_NONE
        ]
    found = Timed(
        name=name,
        rows=sum(rows),
        median_s=median(times),
        p95_s=sorted(times)[int(0.95 * (len(times) - 1) + 0.5)],
        events_read=sum(one.rows for one in reads),
        scans=sum(one.is_whole for one in reads),
        is_combination=name.startswith(COMBINED),
    )
    print(
        f"{name}: {found.median_s:.3f} s, {found.p95_s:.3f} s, {found.events_read:,} read",
        file=sys.stderr,
        flush=True,
    )
    return found


def _answered(
    database: Database, report: str, question: Question, *, statements: list[Statement]
) -> int:
    """Ask one question, note its statements, and return the number of its rows."""
    with database.engine.connect() as connection:
        snapshot = snapshot_of(connection)
        with noted(connection, statements):
            return len(REPORTS[report].run(snapshot, question).rows)


def _table(timed: Sequence[Timed]) -> list[str]:
    """Return the table of all questions."""
    return [
        "| question | rows | median | p95 | events read |",
        "|---|--:|--:|--:|--:|",
        *(
            f"| {one.name} | {one.rows:,} | {one.median_s:.2f} s | {one.p95_s:.2f} s | "
            f"{one.events_read:,} |"
            for one in timed
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
