"""A closed month keeps its shares, idle cost, rates, re-allocations and true-ups: the hash covers
them, no later change reaches them, and a report as closed shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import errors
from sqlalchemy import text

from gateway.domain.allocation.currency import new_rate
from gateway.domain.policy.idle_cost import IdleRule
from gateway.errors import OperatorError
from gateway.reports.json_and_csv import to_csv, to_json
from gateway.reports.question import ask
from gateway.reports.reports import Reports, open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.storage.allocation.currencies import CurrencyStore
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.months import MonthStore
from gateway.storage.postgres.database import Database
from tests.allocation.applied_policies import Idle, apply, centre
from tests.storage.factories import event
from tests.storage.ledger.months.test_month_states import AUGUST, SEPTEMBER, close, moment

FIRST_OF_AUGUST = datetime(2026, 8, 1, tzinfo=UTC)
SHARES = {"payments": (centre("CC-1207", "0.75"), centre("CC-3100", "0.25"))}
RULES: Idle = {"qwen-eu": (IdleRule.EVEN, {"payments": Decimal(1)})}
ROLES = ("tollgate_gateway", "tollgate_admin", "tollgate_finance", None)  # None: the owner
ADD_HOUR = """
INSERT INTO tollgate.gpu_hours (deployment, hour, policy_version, gpu_type, gpu_count,
  usd_per_gpu_hour, basis, watched_ms, up_ms, billed_ms, bill_nusd)
VALUES ('qwen-eu', '2026-08-05 12:00+00', 1, 'H200', 1, 3, 'seen', 3600000, 3600000, 3600000,
  1000000000)
"""
ADD_TRUE_UP = """
INSERT INTO tollgate.adjustments (adjustment_id, posted_period, occurred_at, amount_nusd, kind,
  reason, author)
VALUES (gen_random_uuid(), :posted, '2026-08-05', 7, 'true_up', 'x', 'x') RETURNING adjustment_id
"""
NOTE_TRUE_UP = """
INSERT INTO tollgate.true_ups (adjustment_id, provider, account, day, model, token_kind, cause,
  evidence) VALUES (:id, 'openai', 'a', '2026-08-05', 'gpt-5.5', 'input', 'fee', 'x')
"""
REALLOCATE = """
INSERT INTO tollgate.reallocations (reallocation_id, month, from_cost_centre, to_cost_centre,
  amount_nusd, reason, author_login)
VALUES ('00000000-0000-0000-0000-000000000001', '2026-08-01', 'CC-1207', 'CC-9', 5, 'x', 'ada');
INSERT INTO tollgate.reallocation_approvals (reallocation_id, reason)
VALUES ('00000000-0000-0000-0000-000000000001', 'x')
"""
REFUSED = {
    "a share": "INSERT INTO tollgate.policy_cost_centres VALUES (1, 'new', '0001-01-01', 'CC', 1)",
    "an idle rule": "INSERT INTO tollgate.policy_idle_rules VALUES (1, 'new', 'even', '{}')",
    "a policy": "INSERT INTO tollgate.policies (sha256, document, author, message, is_demo, "
    "applied_at) VALUES ('x', 'x', 'x', '', false, '2026-08-31 23:59:59+00')",
    "a rate": "INSERT INTO tollgate.currency_rates (currency, first_day, usd_per_unit, source) "
    "VALUES ('EUR', '2026-08-31', 2, 'x')",
    "a true-up": "INSERT INTO tollgate.true_ups SELECT adjustment_id, 'openai', 'a', '2026-08-05', "
    "'m', 'k', 'fee', 'x' FROM tollgate.adjustments WHERE kind = 'resolution'",
}
# The part of the hash, the table, its column, the value in the close, and another one.
CHANGED = (
    ("shares", "policy_cost_centres", "cost_centre", "CC-3100", "CC-4"),
    ("idle", "policy_idle_rules", "rule", "even", "reserved"),
    ("idle", "closed_idle_costs", "team", "payments", "search"),
    ("currencies", "currency_rates", "source", "ECB", "a friend"),
    ("true-ups", "true_ups", "model", "gpt-5.5", "gpt-4"),
    ("adjustments", "adjustments", "cost_centre", "CC-9", "CC-8"),  # a re-allocation
)


def rate(database: Database, currency: str, usd: str, day: date) -> None:
    CurrencyStore(database).add(
        new_rate(currency=currency, first_day=day, usd_per_unit=Decimal(usd), source="ECB")
    )


def run(database: Database, sql: str) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql(sql)


def fill(database: Database) -> None:
    """Put one fact of each kind into August, and close it."""
    apply(database, SHARES, idle=RULES, at=FIRST_OF_AUGUST)
    Ledger(database).write([event(1, at=moment(AUGUST), cost_nusd=1000)])
    run(database, ADD_HOUR)
    run(database, REALLOCATE)
    rate(database, "EUR", "1.25", AUGUST)
    with database.begin() as connection:
        true_up = connection.execute(text(ADD_TRUE_UP), {"posted": AUGUST}).scalar_one()
        connection.execute(text(NOTE_TRUE_UP), {"id": true_up})
        connection.exec_driver_sql(
            "INSERT INTO tollgate.adjustments (adjustment_id, team, cost_centre, posted_period, "
            "occurred_at, amount_nusd, kind, reason, author) VALUES (gen_random_uuid(), "
            "'payments', 'CC-1207', '2026-08-01', '2026-08-05', 1, 'resolution', 'x', 'x')"
        )
    close(database, AUGUST)


@pytest.fixture(scope="module")
def august_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """A database whose August is closed, for the tests that change nothing."""
    from tests.postgres import _Database

    with _Database(postgres_url, "tollgate_closed_allocation", template=migrated_template) as url:
        database = Database(url)
        fill(database)
        database.close()
        yield url


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", REFUSED)
def test_a_closed_month_refuses_a_later_allocation(
    august_url: str, role: str | None, name: str
) -> None:
    """It would change the cost centres, idle cost or currencies of a report that was signed."""
    refusals: tuple[type[psycopg.Error], ...] = (errors.CheckViolation, errors.RestrictViolation)
    if role is not None:
        refusals += (errors.InsufficientPrivilege,)
    with psycopg.connect(august_url) as connection:
        if role is not None:
            connection.execute(f'SET ROLE "{role}"'.encode())
        with pytest.raises(refusals):
            connection.execute(REFUSED[name].encode())


@pytest.mark.parametrize(("part", "table", "column", "old", "new"), CHANGED)
def test_the_hash_covers_every_kind_of_fact(
    august_url: str, part: str, table: str, column: str, old: str, new: str
) -> None:
    """The owner can switch a trigger off; the hash is what shows it."""
    database, found = Database(august_url), []
    for before, after in ((old, new), (new, old)):
        with database.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE tollgate.{table} DISABLE TRIGGER USER")
            changed = connection.execute(
                text(f"UPDATE tollgate.{table} SET {column} = :after WHERE {column} = :before"),
                {"before": before, "after": after},
            )
            assert changed.rowcount == 1
            connection.exec_driver_sql(f"ALTER TABLE tollgate.{table} ENABLE TRIGGER USER")
        (one,) = MonthStore(database).verify(AUGUST)
        found.append(one.differing)
    database.close()
    assert found == [[part], []]


# What the close of a month reads from its tables; a later release adds columns to them.
HASHED = (
    *("usage_events", "adjustments", "closed_gpu_hours", "closed_idle_costs", "true_ups", "prices"),
    *("currency_rates", "policy_cost_centres", "policy_idle_rules", "policies"),
)


def test_a_column_that_a_later_release_adds_changes_no_earlier_hash(database: Database) -> None:
    """An upgrade would else make every signed month look tampered with."""
    fill(database)
    (before,) = MonthStore(database).closes(AUGUST)
    assert {part.name for part in before.parts if part.rows == 0} <= {"rates"}
    for table in HASHED:
        run(database, f"ALTER TABLE tollgate.{table} ADD COLUMN added text DEFAULT 'x'")
    (after,) = MonthStore(database).verify(AUGUST)
    assert (after.differing, after.close.sha256) == ([], before.sha256)


def shown(reports: Reports, *, currency: str | None = None) -> list[str]:
    """Return reports of August as it was closed, as JSON and CSV."""
    found = []
    for by in (["cost_centre"], ["team"], ["deployment", "day"], ["provider"]):
        question = ask(month="2026-08", as_closed=True, by=by, currency=currency)
        report = reports.run("spend", question)
        found += [to_json(report), to_csv(report)]
    return found


def test_a_report_as_closed_keeps_cost_centres_idle_cost_and_currencies(
    database: Database, database_url: str
) -> None:
    """Also after a new policy, a first rate, a correction of idle weights and a GPU bill."""
    fill(database)
    with open_reports(database_url, scope=WHOLE_ORGANISATION) as reports:
        before = shown(reports), shown(reports, currency="EUR")
        by_centre = ask(month="2026-08", as_closed=True, by=["cost_centre"])
        rows = reports.run("spend", by_centre).records()
        got = {row["cost_centre"]: row["cost_usd"] * 10**9 for row in rows if row["cost_usd"]}
        assert got == {"CC-1207": 750, "CC-3100": 250}
        assert sum(row["idle_usd"] for row in rows) == 1
        running = idle_of(reports, "team")
        apply(database, {"payments": (centre("CC-77"),)}, at=datetime(2026, 9, 1, tzinfo=UTC))
        rate(database, "EUR", "2", SEPTEMBER)
        rate(database, "CHF", "1.5", AUGUST)
        Ledger(database).write([event(2, at=moment(AUGUST), cost_nusd=1)])
        assert (shown(reports), shown(reports, currency="EUR")) == before
        assert idle_of(reports, "team") == running == {"payments": 1}
        assert reports.run("spend", ask(month="2026-08", currency="CHF")).total["total_chf"]
        with pytest.raises(OperatorError, match=r"no rate of CHF.* when this version was closed"):
            shown(reports, currency="CHF")
        with pytest.raises(OperatorError, match="closed month has its rate of CHF"):
            rate(database, "CHF", "1.6", AUGUST)
    assert [one.differing for one in MonthStore(database).verify(AUGUST)] == [[]]


def idle_of(reports: Reports, by: str) -> dict[Any, Any]:
    """Return the idle cost of August now."""
    report = reports.run("spend", ask(month="2026-08", by=[by]))
    return {row[by]: row["idle_usd"] for row in report.records() if row["idle_usd"]}


def test_an_idle_rule_that_goes_by_use_stays_as_it_was_closed(
    database: Database, database_url: str
) -> None:
    """A late event of another team changes the weights of the day, and no closed month."""
    used: dict[str, Any] = {"deployment": "qwen-eu", "provider": "vllm", "is_self_hosted": True}
    apply(database, {}, idle={"qwen-eu": (IdleRule.PROPORTIONAL, {})}, at=FIRST_OF_AUGUST)
    Ledger(database).write([event(1, at=moment(AUGUST), cost_nusd=10**8, **used)])
    run(database, ADD_HOUR)
    close(database, AUGUST)
    late = event(2, at=moment(AUGUST), team="search", cost_nusd=10**8, **used)
    Ledger(database).write([late])
    with open_reports(database_url, scope=WHOLE_ORGANISATION) as reports:
        assert idle_of(reports, "team") == {"payments": Decimal("0.9")}
        MonthStore(database).reopen(AUGUST, reason="the late event belongs to it")
        assert idle_of(reports, "team") == dict.fromkeys(("payments", "search"), Decimal("0.4"))


def test_an_unchanged_policy_without_shares_says_what_to_do(database: Database) -> None:
    """A policy of an earlier release gets its shares by a second apply; not in a closed month."""
    from gateway.domain.policy.allocation import PolicyAllocation
    from gateway.storage.policy.policies import PolicyStore

    apply(database, {}, at=FIRST_OF_AUGUST)
    Ledger(database).write([event(1, at=moment(AUGUST))])
    close(database, AUGUST)
    with pytest.raises(OperatorError, match="Change the document"):
        PolicyStore(database).apply(
            document="version: 1",
            sha256="x",
            author="ada",
            message="",
            is_demo=False,
            expected_version=None,
            allocation=PolicyAllocation(cost_centres=SHARES, idle={}),
        )


def test_finance_closes_reopens_and_verifies(database: Database, database_url: str) -> None:
    """The login of finance needs no administrator for its own work."""
    Ledger(database).write([event(1, at=moment(AUGUST))])
    narrow = Database(database_url, role="tollgate_finance")
    assert close(narrow, AUGUST).version == 1
    MonthStore(narrow).reopen(AUGUST, reason="a test")
    assert close(narrow, AUGUST).version == 2
    assert [one.differing for one in MonthStore(narrow).verify(AUGUST)] == [[], []]
    narrow.close()
