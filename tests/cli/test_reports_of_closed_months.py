"""Finding 20: reports of a closed month changed with a later policy (`selfhost-vs-api`) and with a
true-up that was approved later (`forecast`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from gateway.reports.registry import REPORTS
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.month_findings import CHECKS
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.cli.test_selfhost_reports import POLICY, served

# Lists of acts and declarations, and of the work that is left, with its age. A later act is a
# row, or takes one away; none has a figure of the month.
LISTS = {"audit-log", "prices", "unsettled"}
BY_DAY = "Some of these days lie in closed months."  # the note of a report that goes by days


@dataclass
class Books:
    """A closed month of two own deployments and an API."""

    cli: Cli
    policy: Path
    month: str

    def shown(self, *when: str) -> dict[str, str]:
        """Return every report's bytes."""
        asked = when or ("--month", self.month)
        found = {}
        for name in REPORTS:
            ended = self.cli("report", name, *asked, "--format", "json")
            found[name] = f"{ended.code} {ended.out}"
        return found

    def change_policy(self) -> None:
        """Apply another GPU rate, other hours, another idle rule, another price and a zone."""
        document = yaml.safe_load(self.policy.read_text())
        for deployment in document["deployments"]:
            if "gpu" in deployment:
                deployment["gpu"] |= {"usd_per_gpu_hour": 9, "hours": "always", "count": 4}
                deployment["idle_cost"] = {"rule": "even"}
            else:
                deployment["price"] = {"input_usd_per_mtok": 7, "output_usd_per_mtok": 70}
        document["teams"][0] |= {"time_zone": "Asia/Tokyo", "cost_centre": "CC-2"}
        self.policy.write_text(yaml.safe_dump(document))
        self.cli.ok("policy", "apply", str(self.policy), "--yes", "--no-wait")

    def approve_a_fee(self) -> None:
        """Import a bill of the closed month and approve its fee: a true-up of the open month."""
        bill = self.policy.with_name("partner.csv")
        bill.write_text(
            f"day,account,model,token_kind,quantity,amount,currency\n{self.month}-05,C-1,,,,250,USD\n"
        )
        of = ("--provider", "openai_compatible")
        self.cli.ok("reconcile", "import", str(bill), *of, "--kind", "csv", "--yes")
        approved = ("--month", self.month, "--cause", "fee", "--reason", "x", "--yes")
        self.cli.ok("reconcile", "approve", *of, *approved)

    def add_a_price(self) -> None:
        """Add a price of the API's model that counts from before the closed month."""
        first = f"{self.month}-01"
        terms = ("--input", "400", "--output", "2400", "--effective-from", first)
        self.cli.ok("price", "add", "m-large", *terms, "--source", "x", "--reason", "x", "--yes")

    def add_a_rate(self) -> None:
        """Add a rate of a currency of today."""
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        self.cli.ok(
            "currency", "add", "EUR", "--usd-per-unit", "9", "--from", today, "--source", "x"
        )

    def reallocate(self) -> None:
        """Propose to move money between cost centres of the open month."""
        month = f"{datetime.now(UTC):%Y-%m}"
        way = ("--from", "CC-1", "--to", "CC-9", "--amount-usd", "0.5", "--reason", "x")
        self.cli.ok("reallocation", "add", "--month", month, *way)


ACTS = (
    Books.change_policy,
    Books.approve_a_fee,
    Books.add_a_price,
    Books.add_a_rate,
    Books.reallocate,
)


@pytest.fixture
def books(cli: Cli, tmp_path: Path, database_url: str) -> Books:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    cli.ok("policy", "apply", str(policy), "--yes", "--no-wait")
    last = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    begin = (last - timedelta(days=1)).replace(day=5, hour=12)
    database = Database(database_url)
    ledger = Ledger(database)
    ledger.write(
        [
            *(served(n, "assistant", "big", begin) for n in range(3)),
            served(3, "drafts", "big", begin),
            *(served(n, "assistant", "hosted", begin) for n in (4, 5)),
            served(7, "assistant", "hosted", datetime.now(UTC)),
        ]
    )
    ledger.close()
    database.close()
    bill = tmp_path / "bill.csv"
    bill.write_text(
        "deployment,from,to,gpu_hours,amount,currency,invoice_id\n"
        f"big,{begin:%Y-%m-%dT%H:00Z},{begin + timedelta(hours=2):%Y-%m-%dT%H:00Z},4,12,USD,A\n"
    )
    cli.ok("engine", "bill", "import", str(bill), "--yes")
    month = f"{begin:%Y-%m}"
    accepted = [word for check in CHECKS for word in ("--accept", f"{check.name}=x")]
    cli.ok("month", "close", month, "--yes", *accepted)
    return Books(cli=cli, policy=policy, month=month)


def test_no_report_of_a_closed_month_changes(books: Books) -> None:
    """Every report that there is, after each act that is allowed later, but for those whose notes
    say that they go by days.
    """
    before = books.shown()
    assert sum(text.startswith("0 ") for text in before.values()) > len(REPORTS) / 2
    changed = []
    for act in ACTS:
        act(books)
        now = books.shown()
        changed += [
            (act.__name__, before[name], now[name])
            for name in REPORTS
            if now[name] != before[name] and name not in LISTS and BY_DAY not in before[name]
        ]
    assert changed == []


def test_days_of_a_closed_month_say_that_they_may_change(books: Books) -> None:
    """Asked for by its days, a correction counts on the day of its attempt, whenever it came."""
    days = ("--from", f"{books.month}-01", "--to", f"{books.month}-28")
    before = books.cli.ok("report", "spend", *days, "--format", "json")
    books.approve_a_fee()
    after = books.cli.ok("report", "spend", *days, "--format", "json")
    assert before != after
    assert "closed months" in before
    assert "closed months" in after
