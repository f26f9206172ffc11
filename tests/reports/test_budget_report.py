"""The report `budgets` and a caller's own budgets: the figures of `finance.budgets`, no more and no
less.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from gateway.domain.budgets.budgets import Account, BudgetKind, BudgetPeriod, BudgetScope, Hold
from gateway.domain.budgets.demo import DEMO_BUDGETS
from gateway.domain.money import nusd_from_usd
from gateway.errors import BadUsage
from gateway.reports.json_and_csv import to_csv, to_json, usage_me_to_json
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.services.demo_teams import TEAMS
from gateway.storage.budgets.budgets import BudgetLeaseTable, BudgetStore
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.storage.budget_books import ask as ask_slice
from tests.storage.budget_books import declare, team_rule
from tests.storage.factories import event

NOW = datetime(2036, 11, 20, 12, tzinfo=UTC)  # far ahead: grants end by the database's clock
USD = 10**9
MONTH = team_rule(100 * USD)
SOFT_DAY = team_rule(USD, rule_id="payments/day", period=BudgetPeriod.DAY, kind=BudgetKind.SOFT)
EACH_PROJECT = team_rule(
    10 * USD,
    rule_id="payments/project:*/week",
    scope=BudgetScope.PROJECT,
    owner="*",
    period=BudgetPeriod.WEEK,
)
EACH_KEY = team_rule(2 * USD, rule_id="keys", scope=BudgetScope.KEY, owner="*")
CENTRE = team_rule(
    50 * USD,
    rule_id="cost_centre:CC-1/month",
    scope=BudgetScope.COST_CENTRE,
    team=None,
    owner="CC-1",
    time_zone="Europe/Berlin",
)
RULES = (MONTH, SOFT_DAY, EACH_PROJECT, EACH_KEY, CENTRE)


@pytest.fixture
def leases(database: Database) -> Iterator[BudgetLeaseTable]:
    """Return the store that leases slices to workers."""
    opened = BudgetLeaseTable(database)
    yield opened
    opened.close()


def charged(
    number: int, cost_nusd: int, *rules: tuple[Any, str], at: datetime = NOW, **changes: Any
) -> Any:
    """An event that is charged to some accounts, in their periods of the moment."""
    holds = tuple(Hold(account, rule.period_at(at).starts_s, 0) for rule, account in rules)
    return event(number, at=at, cost_nusd=cost_nusd, lines=(), holds=holds, **changes)


def view(database: Database, account: str) -> dict[str, Any]:
    """The row of the finance view for the running period."""
    with database.begin() as connection:
        found = connection.execute(
            text(
                "SELECT * FROM finance.budgets WHERE account = :account ORDER BY starts_at "
                "DESC NULLS LAST LIMIT 1"
            ),
            {"account": account},
        )
        return dict(found.mappings().one())


def test_a_callers_budgets_are_those_of_the_finance_view(
    database: Database, finance: Reports, write: Write, leases: BudgetLeaseTable
) -> None:
    """A developer who sees other figures than finance opens a ticket for nothing."""
    declare(database, *RULES)
    span = MONTH.period_at(NOW)
    write(
        charged(
            1,
            3 * USD + 7,
            (MONTH, "payments/month"),
            (SOFT_DAY, "payments/day"),
            (EACH_KEY, "keys:k1"),
        )
    )
    leases.exchange(
        uuid4(),
        [ask_slice(1, 4 * USD, starts_at=span.starts_at, ends_at=span.ends_at, held_nusd=USD)],
    )
    BudgetStore(database).grant("payments/month", 5 * USD, expires_at=None, reason="x", now=NOW)
    accounts = (
        Account(account_id="cost_centre:CC-1/month", rule=CENTRE),
        Account(account_id="keys:k1", rule=EACH_KEY),
        Account(account_id="payments/day", rule=SOFT_DAY),
        Account(account_id="payments/month", rule=MONTH),
        Account(account_id="payments/project:new/week", rule=EACH_PROJECT),
    )

    usage = finance.usage_me(team="payments", key_id="k1", now=NOW, accounts=accounts)

    assert [own.budget for own in usage.budgets] == [account.account_id for account in accounts]
    names = ("limit_usd", "granted_usd", "spent_usd", "held_usd", "leased_usd", "remaining_usd")
    for own in usage.budgets[:-1]:
        row = view(database, own.budget)
        assert [getattr(own, name) for name in names] == [row[name] for name in names]
        assert (own.kind, own.period) == (row["kind"], row["period"])
    hard = usage.budgets[3]
    assert (hard.spent_usd, hard.remaining_usd) == (Decimal("3.000000007"), Decimal("97.999999993"))
    never_used = usage.budgets[4]
    ten, none = Decimal(10), Decimal(0)
    assert (never_used.limit_usd, never_used.spent_usd, never_used.remaining_usd) == (
        ten,
        none,
        ten,
    )
    assert never_used.resets_at == datetime(2036, 11, 24, tzinfo=UTC)
    body = json.loads(usage_me_to_json(usage, limits=[{"limit": "payments"}]))
    assert body["budgets"][0]["resets_at"] == "2036-11-30T23:00:00.000Z"
    assert (
        body["budgets"][3]["grant"] == "tollgate budget grant payments/month AMOUNT_USD --reason …"
    )
    assert body["limits"] == [{"limit": "payments"}]


def test_a_new_period_of_a_callers_budget_begins_with_all_of_its_limit(
    database: Database, finance: Reports, write: Write
) -> None:
    """Yesterday's spending is not today's, nor that of a day which began when another budget's
    month did.
    """
    declare(database, *RULES)
    first = MONTH.period_at(NOW).starts_at
    write(
        charged(1, 7, (SOFT_DAY, "payments/day")),
        charged(2, 9, (SOFT_DAY, "payments/day"), at=first),
    )
    accounts = [
        Account(account_id="payments/day", rule=SOFT_DAY),
        Account(account_id="payments/month", rule=MONTH),
    ]
    tomorrow = NOW + timedelta(days=1)
    own, _ = finance.usage_me(team="payments", key_id="k1", now=tomorrow, accounts=accounts).budgets
    assert (own.spent_usd, own.remaining_usd, own.limit_usd) == (Decimal(0), Decimal(1), Decimal(1))
    assert own.resets_at == datetime(2036, 11, 22, tzinfo=UTC)


def test_without_a_budget_a_caller_gets_an_empty_list(finance: Reports) -> None:
    """An empty list, not a missing field."""
    usage = finance.usage_me(team="payments", key_id="k1", now=NOW)
    assert json.loads(usage_me_to_json(usage))["budgets"] == []


def test_the_most_used_budget_comes_first(
    database: Database, finance: Reports, write: Write
) -> None:
    """That is the one that will refuse; `*` has a row for each that was used."""
    declare(database, *RULES)
    now = database_now(database)
    accounts = (
        (MONTH, "payments/month"),
        (EACH_KEY, "keys:k1"),
        (EACH_PROJECT, "payments/project:checkout/week"),
    )
    write(charged(1, USD, *accounts, at=now))

    report = finance.run("budgets", ask())

    assert [row["budget"] for row in report.records()] == [
        "keys:k1",
        "payments/project:checkout/week",
        "payments/month",
        "cost_centre:CC-1/month",
        "payments/day",
    ]
    first = report.records()[0]
    assert (first["used_share"], first["remaining_usd"], first["owner"]) == (
        Decimal("0.5"),
        Decimal(1),
        "k1",
    )
    assert (report.total, report.name) == ({}, "budgets")
    assert all(
        column.unit for column in report.columns if column.name.endswith(("_usd", "_share", "_at"))
    )
    assert to_csv(report).splitlines()[0].startswith("budget,kind,period,limit_usd,")
    assert json.loads(to_json(report))["rows"][0]["spent_usd"] == 1


@pytest.mark.parametrize(
    ("where", "budgets"),
    [
        ({"team": "payments"}, 4),
        ({"project": "checkout"}, 1),
        ({"key": "k1"}, 1),
        ({"cost_centre": "CC-1"}, 1),
        ({"team": "nobody"}, 0),
    ],
)
def test_budgets_can_be_filtered_by_owner(
    database: Database, finance: Reports, write: Write, where: dict[str, str | None], budgets: int
) -> None:
    """A team's page shows its own."""
    declare(database, *RULES)
    accounts = ((EACH_KEY, "keys:k1"), (EACH_PROJECT, "payments/project:checkout/week"))
    write(charged(1, USD, *accounts, at=database_now(database)))
    assert len(finance.run("budgets", ask(where=where)).rows) == budgets


def test_a_filter_that_no_budget_can_match_is_refused(finance: Reports) -> None:
    """An empty table would say that there is no such budget."""
    with pytest.raises(BadUsage, match="cannot be filtered by model"):
        finance.run("budgets", ask(where={"model": "gpt-5.5"}))
    with pytest.raises(BadUsage, match="cannot be split"):
        finance.run("budgets", ask(by=["team"]))


def test_a_month_has_the_periods_that_began_in_it_by_their_own_clock(
    database: Database, finance: Reports, write: Write
) -> None:
    """November in Berlin begins in October, UTC."""
    declare(database, *RULES)
    write(charged(1, USD, (CENTRE, "cost_centre:CC-1/month"), (MONTH, "payments/month"), at=NOW))
    found = finance.run("budgets", ask(month="2036-11")).records()
    assert {row["budget"] for row in found} == {"cost_centre:CC-1/month", "payments/month"}
    assert finance.run("budgets", ask(month="2036-10")).rows == ()


def test_a_period_that_the_policy_has_cut_short_runs_no_more(
    database: Database, finance: Reports, write: Write
) -> None:
    """Only one period of a budget is charged at a time: the one of the rule in force."""
    declare(database, MONTH)
    write(charged(1, USD, (MONTH, "payments/month"), at=NOW))
    moved = team_rule(100 * USD, time_zone="Asia/Tokyo")
    declare(database, moved)
    (one,) = finance.budgets(NOW)
    assert (one.starts_at, one.spent_usd) == (moved.period_at(NOW).starts_at, Decimal(0))
    everything = finance.budgets(NOW, has_past=True)
    assert [(each.spent_usd, each.is_running) for each in everything] == [
        (Decimal(0), True),
        (Decimal(1), False),
    ]


def test_forecasts_count_each_owners_own_spending(
    database: Database, finance: Reports, write: Write
) -> None:
    """A key's rate is not its team's; an unknown cost counts at its hold, an adjustment in its
    own period.
    """
    project = team_rule(
        USD, rule_id="payments/project:*/month", scope=BudgetScope.PROJECT, owner="*"
    )
    declare(database, MONTH, EACH_KEY, project)
    accounts = ((MONTH, "payments/month"),)
    both = (*accounts, (EACH_KEY, "keys:k1"))
    write(
        charged(
            1, 10 * USD, *accounts, at=NOW - timedelta(days=9), key_id="k2"
        ),  # before the week that counts
        charged(2, USD, *both, at=NOW - timedelta(days=1), key_id="k1"),
        charged(3, 2 * USD, *accounts, at=NOW - timedelta(days=1), key_id="k2"),
        charged(4, 5 * USD, at=NOW - timedelta(days=1), team="search", key_id="k3", project="ads"),
        charged(
            5,
            7,
            (project, "payments/project:ads/month"),
            at=NOW - timedelta(days=1),
            project="ads",
            key_id="k2",
        ),
    )
    found = {one.budget: one for one in finance.budgets(NOW)}
    hours_since, hours_left = 6 * 24 + 12, 10 * 24 + 12
    assert found["payments/month"].recent_usd == Decimal("3.000000007")
    assert found["payments/project:ads/month"].recent_usd == Decimal("0.000000007"), (
        "not another team's project"
    )
    assert found["payments/month"].forecast_usd == Decimal(
        13 * USD + (3 * USD + 7) * hours_left // hours_since
    ).scaleb(-9)
    assert found["keys:k1"].forecast_usd == Decimal(USD + USD * hours_left // hours_since).scaleb(
        -9
    )


def test_the_budgets_of_demo_data_are_their_own(
    database: Database, finance: Reports, write: Write
) -> None:
    """A made-up figure beside a real limit would stop somebody's work, and an empty page would show
    finance nothing.
    """
    assert "add budgets to a team" in finance.run("budgets", ask()).notes[0]
    declare(database, MONTH)
    assert finance.run("budgets", ask(demo=True)).rows == (), "no demo data, no demo budgets"
    now = database_now(database)
    spending = {"payments": Decimal("63.000000001"), "research": Decimal(130), "support": None}
    write(
        *(
            charged(number, nusd_from_usd(amount), at=now, team=team, is_demo=True)
            for number, (team, amount) in enumerate(spending.items(), 1)
            if amount is not None
        ),
        charged(9, 7 * USD, at=now - timedelta(days=32), team="support", is_demo=True),
    )
    demo = finance.run("budgets", ask(demo=True)).records()
    assert [
        (row["budget"], row["limit_usd"], row["spent_usd"], row["remaining_usd"], row["used_share"])
        for row in demo
    ] == [
        ("research/month", 130, 130, 0, 1),
        ("payments/month", 90, spending["payments"], Decimal("26.999999999"), Decimal("0.7")),
    ], "a demo team has its budget if it has events of this month"
    real = finance.run("budgets", ask()).records()
    assert [(row["budget"], row["spent_usd"]) for row in real] == [("payments/month", 0)]


def test_each_demo_team_has_a_budget() -> None:
    """A team that were renamed in one table alone would have no bar."""
    assert DEMO_BUDGETS.keys() == {team.name for team in TEAMS}


def database_now(database: Database) -> datetime:
    """The report's own clock is Postgres's."""
    with database.begin() as connection:
        now: datetime = connection.execute(text("SELECT now()")).scalar_one()
    return now
