"""A change of the beginning of a budget's period opened an empty budget: a team with a time zone
spent its limit once for each zone that its policy named.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import count
from uuid import uuid4

import pytest
from msgspec import structs

from gateway.domain.budgets.budgets import (
    BudgetPeriod,
    BudgetRule,
    BudgetScope,
    Hold,
    SliceGranted,
)
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.routing.replay import Place
from gateway.services.policy.plan import PlanContext, plan
from gateway.storage.budgets.budgets import BudgetLeaseTable, BudgetStore, budget_mistakes
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests import factories
from tests.storage.budget_books import ask, declare, rows, spending, team_rule

ZONES = ["Europe/Berlin", "America/New_York", "Asia/Tokyo", "Pacific/Kiritimati", "UTC"]
TURNS = count(1)
CENTRE = {"scope": BudgetScope.COST_CENTRE, "team": None, "owner": "CC-1", "rule_id": "centre"}


def now(database: Database) -> datetime:
    """Return Postgres's time."""
    found: datetime = rows(database, "SELECT now()")[0][0]
    return found.astimezone(UTC)


def take(database: Database, rule: BudgetRule, amount: int, *, at: datetime) -> SliceGranted:
    """Ask for a slice of the rule's window at a moment, as a worker of its own."""
    span, table = rule.period_at(at), BudgetLeaseTable(database)
    asked = ask(
        next(TURNS),
        amount,
        account_id=rule.rule_id,
        rule_id=rule.rule_id,
        starts_at=span.starts_at,
        ends_at=span.ends_at,
    )
    (answer,) = table.exchange(uuid4(), [asked])
    table.close()
    return answer


def spend(
    database: Database, rule: BudgetRule, amount: int, *, at: datetime, under: datetime
) -> UsageEvent:
    """Write an attempt of a moment that is charged to the rule's window of another moment."""
    hold = Hold(rule.rule_id, rule.period_at(under).starts_s, amount)
    event = spending(next(TURNS), amount, hold, at=at)
    ledger = Ledger(database)
    ledger.write_documents([encode_event(event)])
    ledger.close()
    return event


@pytest.mark.parametrize("changes", [{}, CENTRE], ids=["team", "cost centre"])
@pytest.mark.parametrize("is_written", [True, False], ids=["spent", "leased"])
def test_no_zone_gives_another_limit(
    database: Database, changes: dict[str, object], is_written: bool
) -> None:
    """Finding 4: USD 3.20 of 1 in one month. The written part and the leased one count alike."""
    rule, at = team_rule(1000, **changes), now(database)
    declare(database, rule)
    if is_written:
        spend(database, rule, 1000, at=at, under=at)
    else:
        assert take(database, rule, 1000, at=at).granted_nusd == 1000
    for zone in (*ZONES, *ZONES):
        moved = replace(rule, time_zone=zone)
        declare(database, moved)
        answer = take(database, moved, 1, at=at)
        assert (answer.granted_nusd, answer.spent_nusd + answer.leased_nusd) == (0, 1000), zone
    listed = rows(database, "SELECT remaining_usd FROM finance.budgets WHERE ends_at > now()")
    assert {int(row[0]) for row in listed} == {0}
    assert budget_mistakes(database) == ()


@pytest.mark.parametrize("before", sorted(BudgetPeriod))
@pytest.mark.parametrize("after", sorted(BudgetPeriod))
def test_a_named_budget_of_another_period_keeps_what_it_spent(
    database: Database, before: BudgetPeriod, after: BudgetPeriod
) -> None:
    """The name is its identity: the spending of a moment ago is inside every new window."""
    rule, at = team_rule(1000, rule_id="named", period=before), now(database)
    declare(database, rule)
    spend(database, rule, 700, at=at, under=at)
    moved = replace(rule, period=after)
    declare(database, moved)
    answer = take(database, moved, 301, at=at)
    assert (answer.granted_nusd, answer.spent_nusd) == (0, 700)
    assert take(database, moved, 300, at=at).granted_nusd == 300


def test_only_what_lies_in_the_new_window_is_taken_over(database: Database) -> None:
    """Who used up a month in its first weeks keeps the next month, though its first hours overlap
    the old one: exact, but for attempts of the five minutes before.
    """
    rule, at = team_rule(1000, period=BudgetPeriod.DAY), now(database)
    declare(database, rule)
    moved = replace(rule, time_zone="Asia/Tokyo")
    later = moved.period_at(at).ends_at
    assert later is not None
    span = rule.period_at(later)
    for cost, intended_at in [
        (100, later - timedelta(hours=6)),
        (20, later - timedelta(minutes=4)),
        (3, later),
    ]:
        spend(database, rule, cost, at=intended_at, under=later)
    declare(database, moved)
    answer = take(database, moved, 1, at=later)
    assert answer.starts_s == moved.period_at(later).starts_s != span.starts_s
    assert answer.spent_nusd == 23
    late = spend(database, rule, 40, at=later - timedelta(hours=5), under=later)
    assert take(database, moved, 1, at=later).spent_nusd == 63, "written later: never too little"
    ledger = Ledger(database)
    ledger.write([structs.replace(late, cost_nusd=30)])
    ledger.close()
    assert take(database, moved, 1, at=later).spent_nusd == 63, "its correction is outside too"
    assert budget_mistakes(database) == ()


def test_a_grant_is_taken_over_with_its_spending(database: Database) -> None:
    """Else a change of the zone would refuse who was granted more."""
    rule, at = team_rule(1000), now(database)
    declare(database, rule)
    BudgetStore(database).grant("payments/month", 500, expires_at=None, reason="x", now=at)
    spend(database, rule, 1200, at=at, under=at)
    moved = replace(rule, time_zone="Asia/Tokyo")
    declare(database, moved)
    answer = take(database, moved, 301, at=at)
    assert (answer.granted_nusd, answer.limit_nusd) == (0, 1500)
    assert take(database, moved, 300, at=at).granted_nusd == 300


def test_replicas_that_open_windows_at_once_share_one_limit(database: Database) -> None:
    """Neither window is there when the exchanges begin: the second one to open sees the first."""
    at = now(database)
    for number in range(10):
        rules = [team_rule(1000, rule_id=f"budget-{number}", time_zone=zone) for zone in ZONES[:3]]
        declare(database, rules[0], document=f"{number}")
        with ThreadPoolExecutor(len(rules)) as replicas:
            taken = list(replicas.map(lambda rule: take(database, rule, 800, at=at), rules))
        assert sorted(answer.granted_nusd for answer in taken) == [0, 0, 800]


def test_the_list_shows_it_as_soon_as_the_policy_is_applied(database: Database) -> None:
    """No request has opened the new window yet."""
    rule, at = team_rule(1000), now(database)
    declare(database, rule)
    spend(database, rule, 900, at=at, under=at)
    moved = replace(rule, time_zone="Asia/Tokyo")
    declare(database, moved)
    found = rows(
        database,
        "SELECT spent_usd * 1e9, taken_over_usd * 1e9, remaining_usd * 1e9 FROM finance.budgets "
        f"WHERE starts_at = '{moved.period_at(at).starts_at.isoformat()}'",
    )
    assert [tuple(int(figure) for figure in row) for row in found] == [(0, 900, 100)]


@pytest.mark.parametrize("used_nusd", [0, 800_000_000])
def test_the_plan_names_it_under_what_hurts(used_nusd: int) -> None:
    """The plan called a change that emptied every budget harmless."""
    before, after = (
        factories.policy(
            teams={
                "payments": factories.team(budgets=(team_rule(10**9, time_zone=zone),)),
            }
        )
        for zone in ("UTC", "Europe/Berlin")
    )
    made = plan(
        factories.version(before),
        factories.version(after, number=8),
        around=PlanContext(
            live_keys={},
            traffic={},
            unresolved={},
            prices={},
            place=Place(gateway_region="unknown", day=date(2026, 11, 22)),
            used_nusd={"payments/month": used_nusd},
        ),
        replay=None,
        now=datetime(2026, 11, 22, 12, tzinfo=UTC),
    )
    (found,) = [hurt for hurt in made.hurts if hurt.kind == "budget"]
    assert found.message.startswith("payments/month starts at another moment: takes over USD 0.")
    assert found.is_note == (used_nusd == 0)
