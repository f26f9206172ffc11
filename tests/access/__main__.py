"""Asks thousands of random requests as the readers of some teams, and prints each foreign row.

    python -m tests.access --requests 10000 [--seed N]

Afterwards it takes the condition out of one view after the other, and checks that it finds the
foreign rows then. Exit code 1: a foreign row, or a view whose condition is not missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from sqlalchemy import text

from gateway.reports.reports import Reports, open_reports
from gateway.reports.scope import WHOLE_ORGANISATION, Scope
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from tests.access.drawn_requests import draw, problem_of
from tests.access.planted import OWN, fill

# The views whose rows a random report shows; without its condition each of them is a leak. Not
# `cost_centre_shares`, which is joined to a team's own rows alone: `test_team_views` looks at its
# condition.
MUTATED = (
    "usage_events",
    "demo_usage_events",
    "spend_hourly_detail",
    "spend_daily_detail",
    "demo_spend_daily_detail",
    "spend_daily_by_key",
    "spend_daily_by_end_user",
    "spend_daily_by_tag",
    "adjustments",
    "budgets",
    "refusals",
    "policy_versions",
    "reallocations",
)
EACH_MUTANT = 2_000  # requests until a mutant has survived
STEP = 500


def main() -> int:
    """Fill both databases, ask, try the mutants, and return the exit code."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory()))
        home.chmod(0o711)
        server = stack.enter_context(EmbeddedPostgres(home))
        urls = [_filled(server.start(), name) for name in ("planted", "twin")]
        seen = stack.enter_context(open_reports(urls[0], scope=Scope.of_teams(OWN)))
        twin = stack.enter_context(open_reports(urls[1], scope=WHOLE_ORGANISATION))
        problems = _ask(seen, twin, given.requests, given.seed)
        owner = Database(urls[0])
        survived = [name for name in MUTATED if not _is_found(owner, seen, twin, name, given.seed)]
        owner.close()
    print(
        f"{given.requests:,} requests, seed {given.seed}: {len(problems):,} with a foreign row. "
        f"{len(MUTATED) - len(survived)} of {len(MUTATED)} views without their condition found."
    )
    for line in (*problems[:20], *(f"not found: {name}" for name in survived)):
        print(f"  {line}")
    return 1 if problems or survived else 0


def _filled(url: str, name: str) -> str:
    """Create, migrate and fill a database of the server, and return its URL."""
    server = Database(url)
    with server.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(
            text(f"CREATE DATABASE {name}")
        )
    server.close()
    own = url.replace(f"/{server.name.rpartition('/')[2]}?", f"/{name}?")
    database = Database(own)
    migrations.upgrade(database)
    fill(database, has_foreign=name == "planted")
    database.close()
    return own


def _ask(seen: Reports, twin: Reports, requests: int, seed: int) -> list[str]:
    """Ask random requests and return the problems, with a line of progress now and then."""
    rng, problems, began_s = Random(seed), [], time.monotonic()
    for number in range(1, requests + 1):
        problem = problem_of(draw(rng), seen, twin)
        if problem is not None:
            problems.append(problem)
        if number % STEP == 0:
            rate = number / (time.monotonic() - began_s)
            print(
                f"{number:,} of {requests:,}, {len(problems)} problems, {rate:.0f} a second",
                file=sys.stderr,
            )
    return problems


def _is_found(owner: Database, seen: Reports, twin: Reports, view: str, seed: int) -> bool:
    """Return True if random requests find the foreign rows of a view without its condition."""
    with owner.begin() as connection:
        before = connection.execute(
            text("SELECT pg_get_viewdef(CAST(:view AS regclass))"), {"view": f"team.{view}"}
        ).scalar_one()
        connection.execute(
            text("SELECT tollgate.show_to_teams(CAST(:view AS regclass), 'true')"),
            {"view": f"finance.{view}"},
        )
    rng = Random(seed)
    found = any(problem_of(draw(rng), seen, twin) for _ in range(EACH_MUTANT))
    with owner.begin() as connection:
        connection.exec_driver_sql(
            f"CREATE OR REPLACE VIEW team.{view} WITH (security_barrier) AS {before}"
        )
    word = "found" if found else "NOT FOUND"
    print(f"team.{view} without its condition: {word}", file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())
