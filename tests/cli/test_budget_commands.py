"""`tollgate budget` at the terminal: the state of budgets, the meaning of a name, and a grant's
record.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from sqlalchemy import text

from gateway.cli.budget import expiry
from gateway.domain.budgets.budgets import BudgetKind, BudgetPeriod, BudgetScope, Hold
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.errors import BadUsage
from gateway.storage.budgets.budgets import BudgetLeaseTable
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.storage.budget_books import ask, declare, rows, team_rule
from tests.storage.factories import event

# Far ahead: a grant ends by the database's own clock, and must not have ended whenever these tests
# run.
NOW = datetime(2036, 11, 20, 12, tzinfo=UTC)
MONTH, NEXT_MONTH = datetime(2036, 10, 31, 23, tzinfo=UTC), datetime(2036, 11, 30, 23, tzinfo=UTC)
DAY = datetime(2036, 11, 19, 23, tzinfo=UTC)
WORKER = UUID("01973b2e-6c1f-7c3a-9d3f-0242ac120002")
BERLIN = {"time_zone": "Europe/Berlin"}
USD = 10**9
RULES = (
    team_rule(100 * USD, **BERLIN),
    team_rule(
        5 * USD, rule_id="payments/day", period=BudgetPeriod.DAY, kind=BudgetKind.SOFT, **BERLIN
    ),
    team_rule(20 * USD, rule_id="pilot", team="search", owner="search", period=BudgetPeriod.ONCE),
    team_rule(
        10 * USD,
        rule_id="payments/project:*/week",
        scope=BudgetScope.PROJECT,
        owner="*",
        period=BudgetPeriod.WEEK,
    ),
    team_rule(
        900 * USD,
        rule_id="cost_centre:CC-9/month",
        scope=BudgetScope.COST_CENTRE,
        team=None,
        owner="CC-9",
        **BERLIN,
    ),
)


@pytest.fixture
def till(cli: Cli, database: Database) -> Iterator[Cli]:
    """A command line at noon of 20 November 2036, on budgets that were spent from, leased and left
    alone.
    """
    declare(database, *RULES)
    ledger, leases = Ledger(database), BudgetLeaseTable(database)
    JournalTable(database).register(WORKER, replica="gateway-1")
    month = Hold("payments/month", int(MONTH.timestamp()), 2 * USD)
    day = Hold("payments/day", int(DAY.timestamp()), 0)
    ledger.write(
        [
            event(1, at=NOW - timedelta(days=10), cost_nusd=USD, lines=(), holds=(month,)),
            event(2, at=NOW - timedelta(days=2), cost_nusd=1_300_000_000, lines=(), holds=(month,)),
            event(
                3,
                at=NOW - timedelta(hours=6),
                cost_nusd=300_000_000,
                lines=(),
                holds=(day, month),
                route="embed",
            ),
            event(
                4,
                at=NOW - timedelta(hours=5),
                cost_nusd=None,
                lines=(),
                holds=(day, month),
                held_nusd=200_000_000,
                usage=TokenUsage(),
                usage_source=UsageSource.UNKNOWN,
            ),
        ]
    )
    asked = ask(1, 4 * USD, starts_at=MONTH, ends_at=NEXT_MONTH, held_nusd=USD)
    leases.exchange(WORKER, [asked])
    yield Cli(replace(cli.toolbox, now=lambda: NOW))
    leases.close()
    ledger.close()


def listed(till: Cli, *arguments: str) -> dict[str, dict[str, Any]]:
    """Return the output of `budget list` as JSON, by budget."""
    return {
        row["budget"]: row
        for row in json.loads(till.ok("budget", "list", *arguments, "--format", "json"))
    }


def test_the_list_is_exact_and_has_every_declared_budget(till: Cli) -> None:
    """A decision on money needs limit, spent, left and forecast; an unused budget has all of its
    limit.
    """
    ran = till("budget", "list")
    assert ran.code == 0, ran
    assert [" ".join(line.split()) for line in ran.out.splitlines()] == [
        "budget kind period limit granted spent held leased left used forecast resets",
        "cost_centre:CC-9/month hard month $900.00 $0.00 $0.00 $0.00 $0.00 $900.00 0.0 % $0.00 "
        "1 Dec 00:00 Europe/Berlin",
        "payments/day soft day $5.00 $0.00 $0.50 $0.00 $0.00 $4.50 10.0 % $0.92 21 Nov 00:00 "
        "Europe/Berlin",
        "payments/month hard month $100.00 $0.00 $2.80 $1.00 $4.00 $93.20 2.8 % $5.70 1 Dec "
        "00:00 Europe/Berlin",
        "pilot hard once $20.00 $0.00 $0.00 $0.00 $0.00 $20.00 0.0 % — never",
    ]


def test_programs_read_every_digit_and_utc(till: Cli) -> None:
    """A script that alerts must not parse `1 Dec 00:00 Europe/Berlin`; the forecast is the one of
    the documentation.
    """
    # 1.80 in the 156 hours since 14 November, and 251 hours to go: 2.80 + 1.80 × 251 / 156.
    assert listed(till)["payments/month"] == {
        "budget": "payments/month",
        "kind": "hard",
        "period": "month",
        "limit_usd": 100,
        "granted_usd": 0,
        "spent_usd": 2.8,
        "held_usd": 1,
        "leased_usd": 4,
        "taken_over_usd": 0,
        "remaining_usd": 93.2,
        "used_share": 0.028,
        "forecast_usd": 5.696153846,
        "starts_at": "2036-10-31T23:00:00.000Z",
        "resets_at": "2036-11-30T23:00:00.000Z",
        "time_zone": "Europe/Berlin",
        "scope": "team",
        "team": "payments",
        "owner": "payments",
        "is_current": True,
        "is_running": True,
    }
    (row,) = csv.DictReader(
        io.StringIO(till.ok("budget", "list", "--team", "search", "--format", "csv"))
    )
    assert (row["budget"], row["remaining_usd"], row["forecast_usd"], row["resets_at"]) == (
        "pilot",
        "20.000000000",
        "",
        "",
    )


def test_small_money_is_never_nothing(till: Cli, database: Database) -> None:
    """A tenth of a cent spent is not $0.00, and a thousandth of a budget is not 0 %."""
    hold = Hold("pilot", 0, 1)
    Ledger(database).write(
        [event(9, at=NOW, team="search", cost_nusd=1234, lines=(), holds=(hold,))]
    )
    (line,) = (line for line in till.ok("budget", "list").splitlines() if line.startswith("pilot"))
    assert "$0.000001234" in line
    assert "< 0.1 %" in line


def test_past_and_undeclared_budgets_are_asked_for(till: Cli, database: Database) -> None:
    """They are history: hidden by default, and shown on request."""
    ledger = Ledger(database)
    past = Hold("payments/month", int(datetime(2036, 9, 30, 22, tzinfo=UTC).timestamp()), 1)
    ledger.write([event(8, at=NOW - timedelta(days=40), cost_nusd=7, lines=(), holds=(past,))])
    declare(database, *RULES[1:])
    assert "payments/month" not in listed(till)
    rows_found = json.loads(
        till.ok("budget", "list", "--all", "--team", "payments", "--format", "json")
    )
    old = [
        (row["starts_at"][:10], row["is_current"], row["forecast_usd"])
        for row in rows_found
        if "month" in row["budget"]
    ]
    assert old == [("2036-10-31", False, None), ("2036-09-30", False, None)]


def test_without_a_budget_the_list_teaches_the_first(cli: Cli) -> None:
    """An empty table is a dead end."""
    ran = cli("budget", "list")
    assert (ran.code, ran.out) == (0, "")
    assert "add budgets to a team in the policy" in ran.err
    assert json.loads(cli.ok("budget", "list", "--format", "json")) == []


def alert(database: Database) -> None:
    """Raise an alert at 2 % of the month that no worker has taken yet."""
    with database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO tollgate.budget_alerts (account_id, starts_at, threshold, rule_id, "
                "scope, team, owner, kind, period, time_zone, limit_nusd, granted_nusd, "
                "spent_nusd, raised_at) VALUES ('payments/month', "
                ":starts_at, 0.02, 'payments/month', 'team', 'payments', 'payments', 'hard', "
                "'month', 'Europe/Berlin', 100, 0, 2000000000, :now)"
            ),
            {"starts_at": MONTH, "now": NOW},
        )
        connection.execute(
            text(
                "INSERT INTO tollgate.alert_deliveries (alert_id, channel, tries, next_try_at, "
                "last_error) SELECT alert_id, 'webhook', 1, :now, 'no answer' "
                "FROM tollgate.budget_alerts"
            ),
            {"now": NOW},
        )


def test_one_budget_is_shown_in_full(till: Cli, database: Database) -> None:
    """The person asked for more money sees the spenders, the leases, and the earlier grants."""
    till.ok("budget", "grant", "payments/month", "5", "--reason", "launch week")
    alert(database)
    shown = json.loads(till.ok("budget", "show", "payments/month", "--format", "json"))
    assert (shown["rule"], shown["rate_since"], shown["recent_usd"]) == (
        "payments/month",
        "2036-11-14T00:00:00.000Z",
        1.8,
    )
    assert shown["spenders"] == [
        {"route": "assistant", "key_id": "k123456789", "attempts": 3, "spent_usd": 2.5},
        {"route": "embed", "key_id": "k123456789", "attempts": 1, "spent_usd": 0.3},
    ]
    (lease,) = shown["leases"]
    assert (lease["replica"], lease["journal"], lease["leased_usd"], lease["held_usd"]) == (
        "gateway-1",
        str(WORKER),
        4,
        1,
    )
    (given,) = shown["grants"]
    assert (given["amount_usd"], given["reason"], given["is_expired"]) == (5, "launch week", False)
    assert [period["spent_usd"] for period in shown["periods"]] == [2.8]
    (raised,) = shown["alerts"]
    assert (raised["threshold"], raised["spent_usd"], raised["delivered_at"]) == (0.02, 2, None)
    printed = till.ok("budget", "show", "payments/month")
    for words in (
        "of        team payments\n",
        "period    month, from 1 Nov 00:00 Europe/Berlin to 1 Dec 00:00 Europe/Berlin\n",
        "left      $98.20\n",
        "spent     $2.80, 2.7 % of limit and grants\n",
        "forecast  $5.70 at the end of the period: the spending so far plus the present "
        "rate, $1.80 since 2036-11-14",
        "2.0 %    $2.00  2036-11-20 12:00:00 UTC  not yet: no answer\n",
        "launch week",
        "Leased by gateways\n",
        "Spent by route and key (UTC days)\n",
    ):
        assert words in printed
    pilot = till.ok("budget", "show", "pilot")
    assert "forecast  none: it never ends" in pilot
    assert "Grants: none" in pilot
    assert "spent_usd" in till.ok("budget", "show", "pilot", "--format", "csv")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("search", 0, "pilot"),
        ("search/once", 0, "pilot"),
        ("payments/day", 0, "payments/day"),
        ("payments", 2, "'payments' can mean several budgets: payments/day, payments/month."),
        ("payments/mont", 1, "Near: payments/month"),
        ("zzz", 1, "tollgate budget list --all has all of them"),
    ],
)
def test_a_short_name_matches_one_budget_or_is_refused(
    till: Cli, name: str, code: int, words: str
) -> None:
    """Money must not go to the budget that somebody did not mean."""
    shown, granted = (
        till("budget", "show", name),
        till("budget", "grant", name, "1", "--reason", "x"),
    )
    assert (shown.code, granted.code) == (code, code)
    assert words in (shown.out if code == 0 else shown.err)
    assert words in (granted.out if code == 0 else granted.err)


def test_a_grant_records_person_reason_and_end(
    till: Cli, database: Database, database_url: str
) -> None:
    """An auditor asks for it; and the granting person sees the change at once."""
    ran = till(
        "budget", "grant", "payments/month", "12.5", "--reason", " launch ", "--format", "json"
    )
    assert ran.code == 0, ran
    granted = json.loads(ran.out)
    ((grant_id, account, amount, expires, reason, author),) = rows(
        database,
        "SELECT CAST(grant_id AS text), account_id, amount_nusd, expires_at, reason, author "
        "FROM tollgate.budget_grants",
    )
    login = urlsplit(till.ok("db", "url", "--as", "admin")).username
    assert (account, amount, expires, reason, author) == (
        "payments/month",
        12_500_000_000,
        NEXT_MONTH,
        "launch",
        login,
    )
    before = {
        "limit_usd": 100,
        "granted_usd": 0,
        "spent_usd": 2.8,
        "held_usd": 1,
        "leased_usd": 4,
        "remaining_usd": 93.2,
    }
    assert granted == {
        "grant_id": grant_id,
        "budget": "payments/month",
        "amount_usd": 12.5,
        "starts_at": "2036-10-31T23:00:00.000Z",
        "expires_at": "2036-11-30T23:00:00.000Z",
        "reason": "launch",
        "author": login,
        "before": before,
        "after": before | {"granted_usd": 12.5, "remaining_usd": 105.7},
    }


def test_a_grant_says_before_and_after_in_words(till: Cli) -> None:
    """The admin's eye checks the amount, the budget and the end."""
    ran = till("budget", "grant", "search", "0.5", "--reason", "demo", "--expires", "3d")
    assert ran.code == 0, ran
    assert "amount_usd  $0.50" in ran.out
    assert "It ends 23 Nov 12:00 UTC." in ran.err
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["before", "$20.00", "$0.00", "$0.00", "$0.00", "$0.00", "$20.00"] in lines
    assert ["after", "$20.00", "$0.50", "$0.00", "$0.00", "$0.00", "$20.50"] in lines
    assert (
        "It stays as long as the budget does."
        in till("budget", "grant", "search", "0.5", "--reason", "demo").err
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("payments/month", "0"),
        ("payments/month", "--", "-1"),
        ("payments/month", "nan"),
        ("payments/month", "1e400"),
        ("payments/month", "0.0000000001"),
        ("payments/month", "9000000001"),
        ("payments/month", "1,5"),
        ("payments/month", "5", "--expires", "soon"),
        ("payments/month", "5", "--expires", "2036-11-20T11:59"),
        ("payments/month", "5", "--expires", "2036-12-02"),
        ("payments/month", "5", "--reason", " "),
    ],
)
def test_a_slip_of_the_keyboard_grants_nothing(
    till: Cli, database: Database, arguments: tuple[str, ...]
) -> None:
    """Invalid amounts, past moments, no reason: an error, and nothing is booked."""
    ran = till("budget", "grant", "--reason", "x", *arguments)
    assert ran.code == 2, ran
    assert "Nothing was granted" in ran.err
    assert rows(database, "SELECT * FROM tollgate.budget_grants") == []


def test_an_end_is_a_length_or_a_moment() -> None:
    """UTC unless it says otherwise, as everywhere at the terminal."""
    assert expiry("12h", NOW) == NOW + timedelta(hours=12)
    assert expiry("2w", NOW) == NOW + timedelta(weeks=2)
    assert expiry("2036-11-27", NOW) == datetime(2036, 11, 27, tzinfo=UTC)
    assert expiry("2036-11-27T18:00+01:00", NOW) == datetime(2036, 11, 27, 17, tzinfo=UTC)
    for wrong in ("", "3m", "0d", "27.11.2036", "tomorrow"):
        with pytest.raises(BadUsage, match="Nothing was granted"):
            expiry(wrong, NOW)


def test_a_database_that_is_away_is_no_answer(cli_at: Callable[[str], Cli]) -> None:
    """Exit 3: it could not be found out."""
    away = cli_at("postgresql://nobody@127.0.0.1:1/none")
    for arguments in (("list",), ("show", "x"), ("grant", "x", "1", "--reason", "y")):
        assert away("budget", *arguments).code == 3
