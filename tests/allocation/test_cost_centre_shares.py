"""Reports split a team's money by the cost centres of each day, and the parts add up to the whole
exactly, from events and from sums alike.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from gateway.domain.ledger.resolution import StatedCost
from gateway.domain.money import usd_from_nusd
from gateway.domain.policy.cost_centres import shares_on
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.main import build_toolbox
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.settings import Settings
from gateway.storage.ledger import rollups
from gateway.storage.ledger.adjustments import resolve
from gateway.storage.postgres.database import Database
from tests.allocation.applied_policies import apply, centre
from tests.cli.conftest import Cli
from tests.policy.documents import EXAMPLE
from tests.reports.conftest import Write
from tests.storage.factories import event, request_id

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
MOVED = (
    centre("CC-1207"),
    centre("CC-1207", "0.7", date(2026, 11, 10)),
    centre("CC-3100", "0.3", date(2026, 11, 10)),
    centre("CC-3100", "1", date(2026, 11, 20)),
)
SHARED = (centre("CC-1207", "0.7"), centre("CC-3100", "0.3"))
UNKNOWN: dict[str, Any] = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
    "held_nusd": 70,
}


def on(day: int) -> datetime:
    return NOON.replace(day=day)


def by_centre(finance: Reports, column: str = "cost_usd", **question: Any) -> dict[str, Any]:
    report = finance.run("spend", ask(**{"month": "2026-11", "by": ["cost_centre"]} | question))
    found = {str(row["cost_centre"]): row[column] for row in report.records()}
    known = [cell for cell in found.values() if cell is not None]
    assert sum(known) == (report.total[column] or 0)
    return found


def test_each_day_goes_by_its_own_shares(
    finance: Reports, write: Write, database: Database
) -> None:
    """A team that moves on the 20th must not take its costs of the 1st along."""
    apply(database, {"payments": MOVED})
    write(
        event(1, at=on(5), cost_nusd=1000),
        event(2, at=on(15), cost_nusd=101),
        event(3, at=on(25), cost_nusd=10, cost_centre="CC-3100"),
        event(4, at=on(15), cost_nusd=7, team="other", cost_centre="CC-1207"),
    )
    wanted = {"CC-1207": "0.0000010777", "CC-3100": "0.0000000403"}
    for _ in ("from events", "from sums"):
        assert by_centre(finance) == {name: Decimal(usd) for name, usd in wanted.items()}
        assert by_centre(finance, "attempts") == {"CC-1207": 3, "CC-3100": 1}
        one = finance.run("spend", ask(month="2026-11", where={"cost_centre": "CC-3100"}))
        assert one.total["cost_usd"] == Decimal(wanted["CC-3100"])
        rollups.refresh(database)


def test_a_later_policy_changes_no_earlier_day(
    finance: Reports, write: Write, database: Database
) -> None:
    """A new split must not move the costs of days that are over, or of a closed month."""
    write(event(1, at=on(5), cost_nusd=1000), event(2, at=on(12), cost_nusd=100))
    apply(database, {"payments": SHARED}, at=on(3))
    before = by_centre(finance)
    assert before == {"CC-1207": Decimal("0.00000077"), "CC-3100": Decimal("0.00000033")}
    apply(database, {"payments": (centre("CC-9"),)}, at=on(13))
    assert by_centre(finance) == before


def test_the_last_policy_of_a_day_counts(
    finance: Reports, write: Write, database: Database
) -> None:
    """Two applies of one day would else charge a cost centre by the minute."""
    write(event(1, at=on(5), cost_nusd=1000))
    apply(database, {"payments": (centre("CC-1207"),)}, at=on(5))
    apply(database, {"payments": SHARED}, at=on(5) + timedelta(hours=3))
    assert by_centre(finance) == {"CC-1207": Decimal("7E-7"), "CC-3100": Decimal("3E-7")}


def test_an_unknown_cost_is_unknown_at_each_cost_centre(
    finance: Reports, write: Write, database: Database
) -> None:
    """A share of an unknown cost is not 0."""
    apply(database, {"payments": SHARED})
    write(event(1, **UNKNOWN))
    assert by_centre(finance) == {"CC-1207": None, "CC-3100": None}
    assert by_centre(finance, "held_usd") == {
        "CC-1207": usd_from_nusd(49),
        "CC-3100": usd_from_nusd(21),
    }
    resolve(database, request_id(1), attempt=None, cost=StatedCost.HOLD, reason="invoice")
    assert by_centre(finance, "total_usd") == {
        "CC-1207": usd_from_nusd(49),
        "CC-3100": usd_from_nusd(21),
    }


def test_other_reports_count_each_request_once(
    finance: Reports, write: Write, database: Database
) -> None:
    """A request of a shared team is one request, and its latency is measured once."""
    apply(database, {"payments": SHARED})
    write(event(1), event(2))
    overview = finance.run("overview", ask(month="2026-11", by=["cost_centre"]))
    assert [(row["cost_centre"], row["requests"]) for row in overview.records()] == [
        ("CC-1207", 2),
        ("CC-3100", 0),
    ]
    assert sum(row["cost_usd"] for row in overview.records()) == overview.total["cost_usd"]  # type: ignore[misc]
    for name in ("latency", "retries", "savings", "tokens"):
        report = finance.run(name, ask(month="2026-11", by=["cost_centre"]))
        assert sum(int(str(row["attempts"])) for row in report.records()) == 2


@pytest.mark.parametrize("by", [["cost_centre"], ["cost_centre", "tag"], ["day", "cost_centre"]])
def test_the_parts_of_any_shares_add_up(
    finance: Reports, write: Write, database: Database, rng: Random, by: list[str]
) -> None:
    """For any shares, moves and events; each part is the domain's share of that day."""
    teams = {}
    for name in ("payments", "search", "growth"):
        starts = [None, *sorted(rng.sample(range(1, 30), 2))]
        parts: list[Any] = []
        for start in starts:
            first = Decimal(rng.randrange(1, 1000)) / 1000
            day = None if start is None else date(2026, 11, start)
            names = rng.sample(["CC-1", "CC-2", "CC-3"], 2)
            parts += [centre(names[0], str(first), day), centre(names[1], str(1 - first), day)]
        teams[name] = tuple(parts)
    apply(database, teams, at=datetime(2026, 11, 1, tzinfo=UTC))
    wanted: dict[str, Decimal] = {}
    events = []
    for number in range(60):
        team, day = rng.choice(sorted(teams)), on(rng.randrange(1, 31))
        shares = shares_on(teams[team], day.date())
        own = min(shares, key=lambda name: (-shares[name], name))
        nusd = rng.randrange(10**9)
        tags = dict(rng.sample([("env", "prod"), ("app", "bot"), ("x", "y")], rng.randrange(4)))
        events.append(event(number, at=day, team=team, cost_centre=own, cost_nusd=nusd, tags=tags))
        for name, share in shares.items():
            part = Decimal(share.numerator) / share.denominator * usd_from_nusd(nusd)
            wanted[name] = wanted.get(name, Decimal(0)) + part
    write(*events)
    for _ in ("from events", "from sums"):
        report = finance.run("spend", ask(month="2026-11", by=by))
        found: dict[str, Decimal] = {}
        for row in report.records():
            name = str(row["cost_centre"])
            found[name] = found.get(name, Decimal(0)) + Decimal(str(row["cost_usd"] or 0))
        assert found == wanted
        assert sum(found.values()) == report.total["cost_usd"]
        rollups.refresh(database)


def test_an_apply_stores_the_shares(tmp_path: Path, database: Database, database_url: str) -> None:
    """Postgres reads no policy document, so the shares come with the apply; again adds nothing."""
    cli = Cli(build_toolbox(Settings(home=tmp_path / "home", database_url=database_url)))
    cli.ok("db", "upgrade")
    parts = "[{name: CC-1207, share: 0.7}, {name: CC-3100, share: 0.3}]"
    file = tmp_path / "policy.yaml"
    file.write_text(
        EXAMPLE.replace("cost_centre: CC-1207", f"cost_centre: {parts}").replace(
            "    context_window: 32768\n",
            "    context_window: 32768\n    idle_cost: {rule: even}\n",
        )
    )
    for _ in ("first", "again"):
        cli.ok("policy", "apply", str(file), "--yes", "--message", "shares")
    with database.begin() as connection:
        shares = connection.execute(
            text(
                "SELECT team, event_cost_centre, cost_centre, share FROM "
                "finance.cost_centre_shares ORDER BY team, cost_centre"
            )
        ).all()
        rules = connection.execute(
            text("SELECT deployment, rule, weights FROM finance.idle_rules")
        ).all()
    assert [tuple(row) for row in shares] == [
        ("payments", "CC-1207", "CC-1207", Decimal("0.7")),
        ("payments", "CC-1207", "CC-3100", Decimal("0.3")),
        ("search", "CC-0042", "CC-0042", Decimal(1)),
    ]
    assert [tuple(row) for row in rules] == [("qwen-eu", "even", {"payments": "1", "search": "1"})]


def test_shares_that_come_later_are_seen_and_add_up(database: Database, database_url: str) -> None:
    """The administration may insert shares, but not change a split unseen or beyond the whole."""
    insert = (
        "INSERT INTO tollgate.policy_cost_centres (policy_version, team, first_day, cost_centre, "
        "share) VALUES (1, %s, '0001-01-01', 'CC-9', %s)"
    )
    acts = "SELECT action, details FROM tollgate.audit_log WHERE action LIKE 'policy%'"
    apply(database, {"payments": SHARED})
    with psycopg.connect(database_url) as connection:
        assert [row[0] for row in connection.execute(acts)] == ["policy.apply"]
        connection.execute("SET ROLE tollgate_admin")
        connection.execute(insert, ("payments", "0.1"))
        with pytest.raises(psycopg.errors.CheckViolation, match="do not add up to 1"):
            connection.commit()
    with psycopg.connect(database_url) as connection:
        connection.execute(insert, ("search", "1"))
        connection.commit()
        assert connection.execute(acts).fetchall()[1:] == [("policy.allocate", {"entries": 1})]
