"""Install the clients, run the cells, print the table; with `--write` put it into the guide.

python -m tests.clients [--only NAME,NAME] [--write]

With TOLLGATE_CLIENTS_BUDGET_USD=50 each team has a hard budget: the same cells must be served.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import pytest

from bench.stand import machine
from bench.stand.page import replace_between
from tests.clients import install
from tests.clients.matrix import CLIENTS, Call, Cell, cells
from tests.clients.table import Outcome, lines

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "clients.md"
TESTS = Path(__file__).with_name("every_client.py")
CELLS = tuple(cells())
MARKS = ("<!-- clients:begin -->", "<!-- clients:end -->")


class Collector:
    """A pytest plugin that keeps the outcome of each cell."""

    def __init__(self) -> None:
        self.outcomes: dict[Cell, Outcome] = {}
        self._cells = {str(cell): cell for cell in CELLS}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test recorded about its cell."""
        noted = dict(report.user_properties)
        cell = self._cells.get(str(noted.get("cell")))
        if cell is None or not (report.when == "call" or report.skipped):
            return
        calls = {call: str(noted[call]) for call in Call if call in noted}
        skipped = None
        if report.skipped and isinstance(report.longrepr, tuple):
            skipped = report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed and not calls:
            skipped = str(report.longrepr).strip().splitlines()[-1]
        self.outcomes[cell] = Outcome(calls=calls, skipped=skipped)


def main() -> int:
    """Run the chosen clients; return 0 if each call succeeded."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.clients", description=(__doc__ or "").splitlines()[0]
    )
    names = [client.name for client in CLIENTS]
    parser.add_argument("--only", help=f"clients, with commas between them: {', '.join(names)}")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    chosen = parser.parse_args()
    only = chosen.only.split(",") if chosen.only else names
    if unknown := sorted(set(only) - set(names)):
        parser.error(f"no client {unknown[0]}; there are {', '.join(names)}")
    if chosen.write and chosen.only:
        parser.error("--write needs the whole matrix; leave --only out")
    began_s = time.monotonic()
    collector = Collector()
    wanted = [f"{TESTS}::test_a_client[{cell}]" for cell in CELLS if cell.client.name in only]
    ledger = f"{TESTS}::test_the_ledger_holds_the_backends_answers_and_nothing_else"
    status = pytest.main(
        ["-q", "--tb=short", "-p", "no:cacheprovider", *wanted, ledger], plugins=[collector]
    )
    versions = {
        client.name: install.version_of(client) for client in CLIENTS if client.name in only
    }
    date = time.strftime("%Y-%m-%d", time.gmtime())
    table = list(lines(collector.outcomes, versions, date=date))
    print("\n".join(table))
    if chosen.write:
        took_s = time.monotonic() - began_s
        facts = [
            f"- machine: {machine.describe()}",
            f"- commit: {machine.commit()}",
            f"- date: {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}",
            "- command: python -m tests.clients --write",
            f"- took: {took_s:.0f} s, with the clients installed",
        ]
        replace_between(PAGE, *MARKS, lines=[*facts, "", *table])
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
