"""Idle GPU cost is borne by the rule of the policy in a column of its own, and its parts add up to
the whole to the nano-dollar.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from sqlalchemy import text

from gateway.domain.policy.allocation import allocation_of
from gateway.domain.policy.idle_cost import IdleRule
from gateway.errors import PolicyRejected
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.storage.postgres.database import Database
from gateway.wire.parsed_policy import parse
from gateway.wire.policy import effective
from tests.allocation.applied_policies import Idle, apply, centre
from tests.policy.documents import EXAMPLE
from tests.reports.conftest import Write
from tests.storage.factories import event

MIDNIGHT = datetime(2026, 11, 20, tzinfo=UTC)
CENTRES = {"payments": (centre("CC-1207"),), "search": (centre("CC-3100"),)}
PROPORTIONAL: Idle = {"qwen-eu": (IdleRule.PROPORTIONAL, {})}
_HOUR = """
INSERT INTO tollgate.gpu_hours (deployment, hour, policy_version, gpu_type, gpu_count,
  usd_per_gpu_hour, basis, watched_ms, up_ms, billed_ms, bill_nusd)
VALUES (:deployment, :hour, 1, 'H200', 1, 3, 'seen', 3600000, 3600000, 3600000, :nusd)
"""
_PARTS = """
SELECT hour, deployment, team, cost_centre, round(idle_usd * 1000000000) AS nusd
FROM finance.idle_costs('2026-11-01', '2026-12-01')
"""


def billed(database: Database, *hours: int, nusd: int = 10**9, name: str = "qwen-eu") -> None:
    with database.begin() as connection:
        for hour in hours:
            at = MIDNIGHT + timedelta(hours=hour)
            connection.execute(text(_HOUR), {"deployment": name, "hour": at, "nusd": nusd})


def own(number: int, *, hour: int = 0, **changes: Any) -> Any:
    at = MIDNIGHT + timedelta(hours=hour, minutes=5)
    fixed: dict[str, Any] = {"deployment": "qwen-eu", "provider": "vllm", "is_self_hosted": True}
    return event(number, at=at, **fixed | changes)


def idle_by(finance: Reports, *by: str, **question: Any) -> dict[Any, Decimal]:
    report = finance.run("spend", ask(**{"month": "2026-11", "by": list(by)} | question))
    found = {
        tuple(row[name] for name in by) if len(by) > 1 else row[by[0]]: row["idle_usd"]
        for row in report.records()
    }
    assert sum(found.values()) == report.total["idle_usd"]  # type: ignore[arg-type]
    return {name: cell for name, cell in found.items() if cell}  # type: ignore[misc]


def test_without_a_rule_it_is_shown_without_a_team(
    finance: Reports, write: Write, database: Database
) -> None:
    """The owner of the GPUs must see the cost without a payer; no team's cost changes by it."""
    billed(database, 0, 1)
    write(own(1, cost_nusd=4 * 10**8))
    assert idle_by(finance, "team") == {"unallocated": Decimal("1.6")}
    assert idle_by(finance, "deployment") == {"qwen-eu": Decimal("1.6")}
    assert idle_by(finance, "hour") == {
        "2026-11-20T00:00Z": Decimal("0.6"),
        "2026-11-20T01:00Z": Decimal(1),
    }
    total = finance.run("spend", ask(month="2026-11")).total
    assert (total["cost_usd"], total["total_usd"]) == (Decimal("0.4"), Decimal("0.4"))
    assert idle_by(finance, "team", where={"team": "payments"}) == {}
    assert idle_by(finance, "team", month=None, first="2026-11-21", last="2026-11-30") == {}


def test_proportional_goes_by_the_charges_of_the_day(
    finance: Reports, write: Write, database: Database
) -> None:
    """A night without requests is borne by the teams that used the day."""
    apply(database, CENTRES, idle=PROPORTIONAL)
    billed(database, 0, 3)
    write(
        own(1, cost_nusd=3 * 10**8),
        own(2, cost_nusd=10**8, team="search", cost_centre="CC-3100"),
    )
    assert idle_by(finance, "team") == {"payments": Decimal("1.2"), "search": Decimal("0.4")}
    assert idle_by(finance, "cost_centre") == {
        "CC-1207": Decimal("1.2"),
        "CC-3100": Decimal("0.4"),
    }
    billed(database, 24)
    assert idle_by(finance, "team")["unallocated"] == 1


def test_reserved_and_even_go_by_the_policy(
    finance: Reports, write: Write, database: Database
) -> None:
    """A reserved share is paid without a request; the rest stays open."""
    shares = {"payments": Decimal("0.6"), "search": Decimal("0.3")}
    each = dict.fromkeys(("payments", "search", "growth"), Decimal(1))
    rules: Idle = {"reserved": (IdleRule.RESERVED, shares), "even": (IdleRule.EVEN, each)}
    apply(database, CENTRES, idle=rules)
    billed(database, 0, name="reserved")
    billed(database, 0, name="even")
    assert idle_by(finance, "deployment", "team") == {
        ("reserved", "payments"): Decimal("0.6"),
        ("reserved", "search"): Decimal("0.3"),
        ("reserved", "unallocated"): Decimal("0.1"),
        ("even", "growth"): Decimal("0.333333334"),
        ("even", "payments"): Decimal("0.333333333"),
        ("even", "search"): Decimal("0.333333333"),
    }
    assert idle_by(finance, "cost_centre") == {
        "CC-1207": Decimal("0.933333333"),
        "CC-3100": Decimal("0.633333333"),
        "unallocated": Decimal("0.433333334"),
    }


def test_a_shared_team_shares_its_idle_cost(finance: Reports, database: Database) -> None:
    """By the shares of the hour's day, exactly."""
    shared = {"payments": (centre("CC-1207", "0.7"), centre("CC-3100", "0.3"))}
    apply(database, shared, idle={"qwen-eu": (IdleRule.RESERVED, {"payments": Decimal(1)})})
    billed(database, 0)
    assert idle_by(finance, "cost_centre") == {
        "CC-1207": Decimal("0.7"),
        "CC-3100": Decimal("0.3"),
    }


def test_a_later_rule_changes_no_earlier_day(finance: Reports, database: Database) -> None:
    """Idle cost of days that are over is not moved."""
    even: Idle = {"qwen-eu": (IdleRule.EVEN, {"payments": Decimal(1)})}
    apply(database, CENTRES, idle=even, at=MIDNIGHT + timedelta(hours=30))
    billed(database, 0, 24)
    assert idle_by(finance, "day", "team") == {
        (date(2026, 11, 20), "unallocated"): 1,
        (date(2026, 11, 21), "payments"): 1,
    }


def test_an_unknown_bill_is_unknown_and_not_0(
    finance: Reports, write: Write, database: Database
) -> None:
    """Own engines without a known bill may well be idle."""
    write(own(1))
    report = finance.run("spend", ask(month="2026-11"))
    assert report.total["idle_usd"] is None
    assert {row["idle_usd"] for row in report.records()} == {None}
    write(event(2, team="search"))
    external = finance.run("spend", ask(month="2026-11", where={"team": "search"}))
    assert external.total["idle_usd"] == 0


def test_the_parts_of_any_hours_add_up(
    finance: Reports, write: Write, database: Database, rng: Random
) -> None:
    """For any bills, charges and rules, each hour's parts add up to its idle cost in whole
    nano-dollars, and each differs from its exact share by less than one.
    """
    teams = ("payments", "search", "growth", "ops")
    whole = Decimal(1)
    shares = {"payments": Decimal("0.333"), "search": Decimal("0.1111"), "ops": Decimal("0.2")}
    rules: Idle = {
        "a": (IdleRule.PROPORTIONAL, {}),
        "b": (IdleRule.RESERVED, shares),
        "c": (IdleRule.EVEN, dict.fromkeys(teams, whole)),
    }
    apply(database, {team: (centre(f"CC-{team}"),) for team in teams}, idle=rules)
    events, number = [], 0
    for name in (*rules, "d"):
        for hour in rng.sample(range(72), 8):
            billed(database, hour, nusd=rng.randrange(10**9), name=name)
            for team in rng.sample(teams, rng.randrange(4)):
                number += 1
                at, nusd = rng.choice([hour, hour + 1]), rng.randrange(10**8)
                centre_of = f"CC-{team}"
                events.append(
                    own(
                        number,
                        hour=at,
                        deployment=name,
                        team=team,
                        cost_nusd=nusd,
                        cost_centre=centre_of,
                    )
                )
    write(*events)
    parts: dict[tuple[Any, Any], dict[Any, int]] = defaultdict(dict)
    with database.begin() as connection:
        rows = connection.execute(text(_PARTS)).all()
        idle = {
            (row.hour, row.deployment): int(row.nusd)
            for row in connection.execute(
                text(
                    "SELECT hour, deployment, round(idle_usd * 1000000000) AS nusd FROM "
                    "finance.gpu_cost WHERE idle_usd > 0"
                )
            )
        }
        used = defaultdict(Decimal)
        for row in connection.execute(text("SELECT * FROM finance.gpu_applied")):
            used[row.deployment, row.hour.date(), row.team] += row.applied_usd
    for row in rows:
        assert row.nusd == int(row.nusd) >= 0
        parts[row.hour, row.deployment][row.team] = int(row.nusd)
    assert {place: sum(found.values()) for place, found in parts.items()} == idle
    for (hour, name), found in parts.items():
        weights: dict[Any, Decimal] = {
            "a": {team: used[name, hour.date(), team] for team in teams},
            "b": shares | {None: 1 - sum(shares.values())},
            "c": dict.fromkeys(teams, whole),
            "d": {None: whole},
        }[name]
        total = sum(weights.values()) or Decimal(1)
        if not sum(weights.values()):
            weights = {None: whole}
        for team, nusd in found.items():
            assert abs(nusd - idle[hour, name] * weights.get(team, Decimal(0)) / total) < 1
    assert sum(idle.values()) == finance.run("gpu", ask()).total["idle_usd"] * 10**9  # type: ignore[operator]
    assert sum(idle_by(finance, "team").values()) * 10**9 == sum(idle.values())


RULED = EXAMPLE.replace(
    "    context_window: 32768\n", "    context_window: 32768\n    idle_cost: {}\n"
)


@pytest.mark.parametrize(
    ("block", "weights"),
    [
        ("{rule: proportional}", {}),
        ("{rule: even}", {"payments": 1, "search": 1}),
        ("{rule: reserved, shares: {search: 0.4}}", {"search": Decimal("0.4")}),
    ],
)
def test_the_policy_declares_the_rule(block: str, weights: dict[str, Any]) -> None:
    """`even` is about the teams whose routes have the deployment."""
    policy = parse(RULED.replace("idle_cost: {}", f"idle_cost: {block}")).policy
    rule = policy.deployments["qwen-eu"].idle_cost.rule
    assert allocation_of(policy).idle == {"qwen-eu": (rule, weights)}
    assert effective(policy)["deployments"][0]["idle_cost"]["rule"] == rule


def test_the_default_rule_shows() -> None:
    """A policy without the field allocates nothing."""
    policy = parse(EXAMPLE).policy
    assert policy.deployments["qwen-eu"].idle_cost.rule is IdleRule.SHOW
    assert allocation_of(policy).idle == {}


@pytest.mark.parametrize(
    ("block", "finding"),
    [
        ("{rule: reserved}", "asks for 'shares'"),
        ("{rule: reserved, shares: {}}", "asks for 'shares'"),
        ("{rule: even, shares: {search: 1}}", "count only with 'rule: reserved'"),
        ("{rule: reserved, shares: {serach: 1}}", "did you mean 'search'?"),
        ("{rule: reserved, shares: {search: 0.7, payments: 0.6}}", "add up to 1.3"),
        ("{rule: reserved, shares: {search: 0}}", "above 0"),
        ("{rule: most}", "'most'"),
        ("{rul: even}", "rul"),
    ],
)
def test_a_rule_without_sense_is_refused(block: str, finding: str) -> None:
    """With its line and field, before it counts."""
    with pytest.raises(PolicyRejected) as refused:
        parse(RULED.replace("idle_cost: {}", f"idle_cost: {block}"))
    assert finding in " ".join(map(str, refused.value.findings))


def test_an_external_deployment_has_no_idle_cost() -> None:
    """Its GPUs are another company's."""
    text_of = EXAMPLE.replace(
        "    region: eu\n", "    region: eu\n    idle_cost: {rule: even}\n", 1
    )
    with pytest.raises(PolicyRejected) as refused:
        parse(text_of)
    assert "GPUs of your own" in " ".join(map(str, refused.value.findings))
