"""The time of each page's default view, and of each single split and filter, on a large month.

    python -m bench.finance [--events 10000000] [--teams 60] [--home DIR] [--write]

`tollgate demo-data` writes an organisation of one month into a Postgres of its own; the product's
job sums it up. Then each question is asked some times, and each of its statements is explained. It
fails if a question for which a roll-up exists reads the ledger. With `--home` the database stays
and is used again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import psycopg

from bench.stand import machine
from bench.stand.explained import Statement, noted, plan_of, reads_of_ledger
from bench.stand.page import replace_between
from gateway.reports import REPORTS, TIME, Dimension, Question, ask
from gateway.reports.sources.connection import ROLE, ReadSnapshot
from gateway.storage.ledger import rollups
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "performance.md"
MARKS = (
    "<!-- finance:begin, written by `python -m bench.finance --write` -->",
    "<!-- finance:end -->",
)
TRIES = 20
MEDIAN_S, P95_S = 1.0, 2.0
# The questions of each page when it opens, as report and splits.
DEFAULT_VIEWS: Mapping[str, Sequence[tuple[str, Sequence[str]]]] = {
    "Spend": (
        ("overview", ()),
        ("spend", ("team",)),
        ("spend", ("day", "team")),
        ("destinations", ("day", "destination")),
        ("destinations", ("destination", "provider", "region", "deployment")),
        ("tokens", ("day",)),
    ),
    "Latency": (("latency", ("route", "deployment")), ("latency", ("day", "deployment"))),
    "Retries": (("retries", ("route",)),),
    "Months": (("months", ()),),
}
SPLITS = tuple(Dimension)
# The filters of a page; the others are split by, or are the month itself.
FILTERS = tuple(
    one
    for one in Dimension
    if one not in (*TIME, Dimension.DESTINATION, Dimension.OUTCOME, Dimension.USAGE_SOURCE)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The times of one question in seconds, and the events that its statements read."""

    name: str
    rows: int
    median_s: float
    p95_s: float
    events_read: int


def main() -> int:
    """Make the month, ask everything; return 1 if a limit is missed or the ledger is read."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.finance", description="Reports and pages on a large month."
    )
    parser.add_argument("--events", type=int, default=10_000_000, help="events (10,000,000)")
    parser.add_argument("--teams", type=int, default=60, help="teams (60)")
    parser.add_argument("--home", type=Path, help="keep the database here, and use it again")
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    chosen = parser.parse_args()
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
        timed = list(_ask_all(database, month))
    facts = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": f"python -m bench.finance --events {chosen.events} "
        f"--teams {chosen.teams} --write",
    }
    lines = [
        *(f"- {name}: {value}" for name, value in facts.items()),
        f"- {made}",
        "",
        *_table(timed),
    ]
    print("\n".join(lines))
    wrong = [
        one for one in timed if one.median_s > MEDIAN_S or one.p95_s > P95_S or one.events_read
    ]
    for one in wrong:
        print(
            f"WRONG: {one.name}: {one.median_s:.2f} s, p95 {one.p95_s:.2f} s, "
            f"{one.events_read:,} events read",
            file=sys.stderr,
        )
    if chosen.write:
        replace_between(PAGE, *MARKS, lines=lines)
    return 1 if wrong else 0


def _make(home: Path, url: str, events: int, teams: int) -> str:
    """Write the organisation and sum it up, unless the database has it; return a line on both."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
    variables = own | {"TOLLGATE_HOME": str(home), "TOLLGATE_DATABASE_URL": url}

    def command(*words: str) -> None:
        argv = [sys.executable, "-m", "gateway.main", *words]
        subprocess.run(argv, cwd=REPOSITORY, env=variables, stdout=sys.stderr, check=True)

    command("db", "upgrade")
    began_s = time.monotonic()
    size = ("--months", "1", "--events", str(events), "--teams", str(teams))
    with psycopg.connect(url) as connection:
        has_any = connection.execute("SELECT FROM tollgate.usage_events LIMIT 1").fetchone()
    if has_any is None:
        command("demo-data", *size, "--as-ledger", "--out", str(home / "files"))
    written_s = time.monotonic() - began_s
    database = Database(url)
    began_s = time.monotonic()
    # Every day is over: demo data end with yesterday.
    rollups.refresh(database)
    database.close()
    summed_s = time.monotonic() - began_s
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        found = connection.execute("SELECT count(*) FROM tollgate.usage_events").fetchone()
    assert found is not None
    return (
        f"{found[0]:,} events of {teams} teams in one month; written in {written_s:.0f} s, "
        f"summed up in {summed_s:.0f} s"
    )


def _month(url: str) -> str:
    """Return the month with the most events."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT to_char(posted_period, 'YYYY-MM') FROM tollgate.spend_rollup_by_day "
            "GROUP BY 1 ORDER BY sum(attempts) DESC LIMIT 1"
        ).fetchone()
    assert found is not None
    return str(found[0])


def _ask_all(database: Database, month: str) -> Iterator[Timed]:
    """Yield the times of each page's default questions, each split and each filter."""
    for page, questions in DEFAULT_VIEWS.items():
        for report, by in questions:
            asked = ask(month=month, by=by or None)
            yield _timed(
                database, f"{page}: {report} by {', '.join(by) or 'nothing'}", report, asked
            )
    for split in SPLITS:
        yield _timed(database, f"split by {split}", "spend", ask(month=month, by=[split]))
    for name in FILTERS:
        with database.engine.connect() as connection:
            parts = ask(month=month, by=[name])
            first = REPORTS["spend"].run(ReadSnapshot(connection), parts).rows[0][0]
        asked = ask(month=month, by=["day"], where={name: str(first)})
        yield _timed(database, f"filter by {name}", "spend", asked)


def _timed(database: Database, name: str, report: str, question: Question) -> Timed:
    """Ask a question some times, then explain each of its statements."""
    times = []
    statements: list[Statement] = []
    for _ in range(TRIES):
        statements.clear()
        with database.engine.connect() as connection:
            snapshot = ReadSnapshot(
                connection.execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )
            )
            began_s = time.perf_counter()
            with noted(connection, statements):
                found = REPORTS[report].run(snapshot, question)
            times.append(time.perf_counter() - began_s)
    with database.engine.connect() as connection:
        reads = [
            one
            for statement, values in statements
            if " AS newest" not in statement  # one event, from the end of an index
            for one in reads_of_ledger(plan_of(connection, statement, values))
        ]
    print(f"{name}: {median(times):.3f} s", file=sys.stderr, flush=True)
    return Timed(
        name=name,
        rows=len(found.rows),
        median_s=median(times),
        p95_s=sorted(times)[int(0.95 * (len(times) - 1) + 0.5)],
        events_read=sum(one.rows for one in reads),
    )


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
