"""Later bookings: in every total of money, beside the events, and out of the held amounts."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from sqlalchemy import text

from gateway.domain.ledger.resolution import StatedCost
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.money import usd_from_nusd
from gateway.reports.dimensions import UNALLOCATED, Dimension, TagKey
from gateway.reports.question import ask
from gateway.reports.questions.latency import MEASURES as LATENCIES
from gateway.reports.questions.overview import MEASURES as OVERVIEW
from gateway.reports.questions.spend import MEASURES as SPEND
from gateway.reports.questions.unsettled import SUSPECT, WHY
from gateway.reports.report import Dataset
from gateway.reports.reports import Reports
from gateway.reports.sources.aggregate import source_of
from gateway.reports.sources.facts import source_for
from gateway.storage.ledger import rollups
from gateway.storage.ledger.adjustments import (
    expire_holds,
    resolve,
)
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.reports.random_events import random_event
from tests.storage.factories import NOON, UNKNOWN, event, request_id

CUT = UNKNOWN | {"outcome": Outcome.UPSTREAM_CUT}
OF_MONEY = ("overview", "spend", "tokens", "destinations", "months", "events")


def usd(nusd: int) -> Decimal:
    return usd_from_nusd(nusd)


@pytest.mark.parametrize("name", OF_MONEY)
@pytest.mark.parametrize("is_summed_up", [True, False])
def test_every_report_of_money_shows_adjustments(
    finance: Reports, write: Write, database: Database, name: str, is_summed_up: bool
) -> None:
    """A total that leaves a correction out is the wrong total, whichever report it is read from."""
    write(event(1, cost_nusd=100), event(2, **CUT), event(3, **CUT))
    resolve(database, request_id(2), attempt=None, cost=30, reason="invoice")
    if is_summed_up:
        rollups.refresh(database)

    report = finance.run(name, ask(month="2026-11"))

    total = report.total
    assert (total["attempts"], total["cost_usd"]) == (3, usd(100))
    assert (total["adjustments_usd"], total["total_usd"], total["held_usd"]) == (
        usd(30),
        usd(130),
        usd(5000),
    )
    assert any(
        "1 adjustment(s) of $0.000000030 are in adjustments_usd" in note for note in report.notes
    ), report.notes
    assert any("(1 of 3) have an unknown cost" in note for note in report.notes)


def test_reports_without_adjustments_have_no_note_of_them(finance: Reports, write: Write) -> None:
    """A note that is always there is not read."""
    write(event(1, cost_nusd=100))
    report = finance.run("spend", ask())
    assert (report.total["adjustments_usd"], report.total["total_usd"]) == (Decimal(0), usd(100))
    assert not any("adjust" in note for note in report.notes)


def test_a_resolved_attempt_is_not_unknown_any_more(
    finance: Reports, write: Write, database: Database
) -> None:
    """The unknown share and its hold must fall when the work is done."""
    write(event(1, **CUT))
    before = finance.run("spend", ask())
    assert (before.total["unknown_attempts"], before.total["total_usd"]) == (1, None)
    resolve(
        database, request_id(1), attempt=None, cost=StatedCost.ZERO, reason="not on the invoice"
    )
    after = finance.run("spend", ask())
    assert (after.total["unknown_attempts"], after.total["held_usd"]) == (0, Decimal(0))
    assert (after.total["cost_usd"], after.total["total_usd"]) == (None, Decimal(0)), (
        "now known to be nothing"
    )


def test_a_correction_of_a_closed_month_stands_in_the_next(
    finance: Reports, write: Write, database: Database
) -> None:
    """A closed month never changes; its late correction is a row of its own in the month it was
    posted to.
    """
    write(event(1, team="closed", **CUT), event(2, team="closed", cost_nusd=100))
    with database.begin() as connection:
        connection.execute(text("UPDATE tollgate.periods SET state = 'closed'"))
    resolve(database, request_id(1), attempt=None, cost=30, reason="invoice")

    (november,) = finance.run("spend", ask(month="2026-11")).records()
    (december,) = finance.run("spend", ask(month="2026-12")).records()

    assert (november["cost_usd"], november["adjustments_usd"], november["total_usd"]) == (
        usd(100),
        0,
        usd(100),
    )
    assert (december["team"], december["attempts"]) == ("closed", 0)
    assert (december["cost_usd"], december["total_usd"]) == (Decimal(0), usd(30))
    months = {row["month"]: row["total_usd"] for row in finance.run("months", ask()).records()}
    assert months == {date(2026, 11, 1): usd(100), date(2026, 12, 1): usd(30)}


def test_an_expected_cost_is_flagged_as_one(
    finance: Reports, write: Write, database: Database
) -> None:
    """An average must never pass for an invoice."""
    write(event(1, at=NOON - timedelta(days=400), **CUT))
    expire_holds(database, ttl=timedelta(days=1))
    assert any(
        "1 of them stand at an expected cost" in note for note in finance.run("spend", ask()).notes
    )


@pytest.mark.parametrize(
    "by", ["team", "key", "end_user", "tag", "model", "region", "outcome", "day", "key,region"]
)
def test_events_and_adjustments_add_up_by_everything(
    finance: Reports, database: Database, rng: Random, by: str
) -> None:
    """An adjustment has all dimensions of its event; from a roll-up or not, to the nano-dollar."""
    known = [random_event(number, rng) for number in range(120)]
    ledger = Ledger(database)
    ledger.write(known[:60])
    rollups.refresh(database)
    ledger.write(known[60:])
    amounts: dict[object, int] = {}
    for one in known:
        if one.cost_nusd is None and rng.random() < 0.6:
            amounts[one.key] = rng.randrange(10**9)
            resolve(database, one.request_id, attempt=None, cost=amounts[one.key], reason="invoice")
        elif one.cost_nusd is not None and rng.random() < 0.2:
            amounts[one.key] = rng.randrange(-one.cost_nusd, 10**9)
            again = event(0, **_members(one) | {"cost_nusd": one.cost_nusd + amounts[one.key]})
            ledger.write_documents([encode_event(again)])
    splits = by.split(",")

    report = finance.run("spend", ask(by=splits))

    assert len(amounts) > 20
    assert report.total["adjustments_usd"] == usd(sum(amounts.values()))
    assert report.total["total_usd"] == usd(
        sum(one.cost_nusd or 0 for one in known) + sum(amounts.values())
    )
    held = sum(
        one.held_nusd or 0 for one in known if one.cost_nusd is None and one.key not in amounts
    )
    assert report.total["held_usd"] == usd(held)
    if splits == ["team"]:
        expected: dict[object, int] = defaultdict(int)
        for one in known:
            expected[one.team] += (one.cost_nusd or 0) + amounts.get(one.key, 0)
        found = {
            row["team"]: row["total_usd"]
            for row in report.records()
            if row["total_usd"] is not None
        }
        assert found == {team: usd(nusd) for team, nusd in expected.items() if team in found}
        assert len(found) >= len(expected) - 1
    else:
        assert (
            sum(row["adjustments_usd"] for row in report.records())
            == report.total["adjustments_usd"]
        )


def _members(one: UsageEvent) -> dict[str, Any]:
    return {name: getattr(one, name) for name in UsageEvent.__struct_fields__}


@pytest.mark.parametrize(
    ("splits", "view"),
    [
        (["team", "model", "outcome", "day"], "finance.spend_daily_detail"),
        (["team", "hour"], "finance.spend_hourly_detail"),
        (["team", "model", "outcome", "quarter"], "finance.spend_monthly_detail"),
        (["team", "cost_centre"], "finance.spend_daily_detail"),
        (["key"], "finance.spend_monthly_by_key"),
        (["end_user", "day"], "finance.spend_daily_by_end_user"),
        (["key", "end_user"], "finance.usage_events"),
        (["key", "region", "outcome"], "finance.spend_monthly_by_key"),
        (["key", "week"], "finance.spend_daily_by_key"),
        (["key", "hour"], "finance.spend_hourly_detail"),
        (["end_user", "provider"], "finance.spend_monthly_by_end_user"),
        (["end_user", "outcome"], "finance.usage_events"),
        (["tag", "team", "week", "deployment"], "finance.spend_daily_by_tag"),
        (["tag", "team", "month"], "finance.spend_monthly_by_tag"),
        (["tag", "key"], "finance.usage_events"),
    ],
)
def test_the_smallest_source_that_knows_enough_is_read(splits: list[str], view: str) -> None:
    """A year of a large company is read from its sums in milliseconds, and from its events in
    minutes.
    """
    assert source_of(ask(by=splits), SPEND, by=tuple(map(Dimension, splits))).view == view
    assert source_of(ask(where=dict.fromkeys(splits)), SPEND).view == view
    times = source_of(ask(by=splits), LATENCIES, by=tuple(map(Dimension, splits))).view
    has_times = view.endswith(("_detail", "_by_key"))
    assert times == (view if has_times else "finance.usage_events")
    demo = source_of(ask(by=splits, demo=True), SPEND, by=tuple(map(Dimension, splits))).view
    assert demo in (
        view.replace("finance.", "finance.demo_").replace("monthly", "daily"),
        "finance.demo_spend_hourly_detail" if view.endswith("_by_key") else "",
        "finance.demo_usage_events",
    )


@pytest.mark.parametrize(
    ("moment", "view"),
    [
        (NOON.replace(hour=0), "finance.spend_daily_detail"),
        (NOON, "finance.spend_hourly_detail"),
        (NOON.replace(minute=30), "finance.usage_events"),
    ],
)
def test_no_sum_lies_on_both_sides_of_a_moment(moment: datetime, view: str) -> None:
    """A budget's period begins at midnight in Delhi, which is no whole hour in UTC."""
    assert source_for(Dataset.REAL, by=[Dimension.TEAM], moments=[moment]).view == view


def test_a_tag_of_a_tagged_event_needs_events() -> None:
    """A sum by tag does not know an event's other tags."""
    tag, env, app = Dimension.TAG, TagKey("tag:env"), TagKey("tag:app")
    for by, filters in (([tag], [tag]), ([tag], [env]), ([env], [app]), ([env, app], [])):
        assert source_for(Dataset.REAL, by=by, filters=filters).view == "finance.usage_events"
    for by, filters in (([], [tag]), ([env], []), ([env], [env])):
        assert source_for(Dataset.REAL, by=by, filters=filters).view == "finance.spend_daily_by_tag"


def test_a_figure_that_cannot_be_subtracted_needs_events() -> None:
    """The events without a tag are a difference of sums, and so is the number of their teams."""
    env, unsplit = TagKey("tag:env"), ask(where={"tag:env": "prod"})
    assert source_of(ask(), OVERVIEW, by=(env,)).view == "finance.usage_events"
    assert source_of(ask(where={"tag:env": UNALLOCATED}), OVERVIEW).view == "finance.usage_events"
    assert source_of(unsplit, OVERVIEW).view == "finance.spend_monthly_by_tag"


def test_days_and_rates_need_sums_by_day() -> None:
    """A sum by month knows neither the day of a fact nor the rate of that day."""
    month = ask(month="2026-11")
    assert source_of(month, SPEND).view == "finance.spend_monthly_detail"
    for other in (
        ask(month="2026-11", currency="EUR"),
        ask(first="2026-11-01", last="2026-11-30"),
        ask(month="2026-11", where={"day": "2026-11-22"}),
    ):
        assert source_of(other, SPEND).view == "finance.spend_daily_detail"


def test_a_note_says_that_events_were_read(finance: Reports, write: Write) -> None:
    """Whoever waits learns the reason, and what would make it quicker."""
    write(event(1))
    slow, quick = (finance.run("spend", ask(by=by)) for by in (["key", "end_user"], ["key"]))
    assert "read from the events themselves" in " ".join(slow.notes)
    assert "read from the events themselves" not in " ".join(quick.notes)
    assert slow.total == quick.total


# ---- unsettled


def test_unsettled_lists_the_unsettled_attempts(
    finance: Reports, write: Write, database: Database
) -> None:
    """Reconciliation needs the key, the age, the team, the deployment, and the reason."""
    hour = timedelta(hours=1)
    write(
        event(1, **CUT),
        event(2, at=NOON - hour, **CUT | {"is_suspect": True, "held_nusd": 7}),
        event(3, at=NOON - 2 * hour, **CUT),
        event(4),
    )
    resolve(
        database, request_id(3, NOON - 2 * hour), attempt=None, cost=StatedCost.ZERO, reason="x"
    )

    report = finance.run("unsettled", ask())

    first, second = report.records()
    assert (first["request_id"], first["attempt"], first["held_usd"]) == (
        str(request_id(2, NOON - hour)),
        1,
        usd(7),
    )
    assert (first["why"], second["why"]) == (SUSPECT, WHY[Outcome.UPSTREAM_CUT])
    assert float(str(first["age_s"])) - float(str(second["age_s"])) == pytest.approx(3600)
    assert (report.total["attempts"], report.total["held_usd"]) == (2, usd(5007))
    assert any("reconcile resolve" in note for note in report.notes)
    assert finance.run("unsettled", ask(where={"team": "others"})).rows == ()
    (last,) = finance.run("unsettled", ask(limit=1, offset=1)).records()
    assert last["request_id"] == second["request_id"], "the next page goes on where this one ends"


def test_every_outcome_has_a_reason_for_being_unknown() -> None:
    """An outcome without words would break the report on the day it is needed."""
    assert set(WHY) == set(Outcome)


# ---- month status


def findings(finance: Reports, month: date) -> dict[str, str]:
    """The checks that found something, by name."""
    checks = finance.month_status(month).checks
    return {check.name: check.finding for check in checks if check.status != "ok"}


def test_a_clean_month_has_no_finding(finance: Reports, write: Write, database: Database) -> None:
    """The list must be able to be empty, or it will not be read."""
    now = datetime.now(UTC)  # a month that is over lacks a bill
    write(
        event(1, at=now),
        event(2, at=now, is_demo=True, **CUT),
        event(3, at=now - timedelta(days=60), **CUT),
    )
    status = finance.month_status(now.date().replace(day=1))
    assert findings(finance, status.month) == {}
    assert (status.state, status.has_findings) == ("open", False)
    assert all(not check.remedy for check in status.checks)


def test_the_open_items_of_a_month_are_named(
    finance: Reports, write: Write, database: Database
) -> None:
    """Each line is one thing somebody can do something about."""
    now = datetime.now(UTC)
    month = now.date().replace(day=1)
    write(
        event(1, at=now, **CUT),
        event(2, at=now, is_stand_in_price=True),
        event(3, at=now, is_suspect=True),
        event(4, at=now, price_id=None),
        event(5, at=now, is_self_hosted=True, deployment="qwen-eu"),
    )
    Ledger(database).write_documents([encode_event(event(2, at=now, cost_nusd=1)), b"junk"])
    with database.begin() as connection:
        connection.execute(
            text("UPDATE tollgate.dirty_hours SET noted_at = now() - interval '1 day'")
        )
        connection.execute(
            text(
                "INSERT INTO tollgate.journals (id, replica, heartbeat, state) VALUES "
                "(gen_random_uuid(), 'a', now() - interval '2 days', 'live'), "
                "(gen_random_uuid(), 'b', now(), 'lost')"
            )
        )
    assert findings(finance, month) == {
        "unsettled-events": "1 attempt(s) of unknown cost; $0.000005000 is held for them",
        "unknown-share": "20.00 % of 5 attempts",
        "unpriced-models": "1 attempt(s) without a price: gpt-5.5",
        "stand-in-prices": "1 attempt(s) charged at a stand-in price",
        "suspect-usage": "1 attempt(s) whose reported usage contradicts itself",
        "conflicting-events": "1 event(s) came again with other content",
        "missing-gpu-bills": "1 of 1 hour(s) of self-hosted GPUs have no known bill: qwen-eu",
        "dead-letters": "1 record(s) that may be of this month could not be booked",
        "silent-journals": "1 live, but not heard of since: they may hold events",
        "lost-journals": "1 lost in this time: their unwritten events are not in the ledger",
        "dirty-hours": "1 hour(s) wait to be summed up: totals are right but slow",
    }
    open_checks = [check for check in finance.month_status(month).checks if check.status != "ok"]
    assert all(check.remedy for check in open_checks)


def test_events_without_a_partition_are_found(
    finance: Reports, write: Write, database: Database
) -> None:
    """They count like all others; making their month later locks the writers out for a while."""
    write(event(1, at=NOON - timedelta(days=900)))
    checks = {check.name: check.status for check in finance.month_status(date(2024, 6, 1)).checks}
    assert checks["unpartitioned-events"] == "warn"
