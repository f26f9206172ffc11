"""The GPU bill adds up: hours × rate = bill = applied + idle + variance, for any hours."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from gateway.domain.deployments.engine_sample import EngineSample
from gateway.domain.money import usd_from_nusd
from gateway.domain.policy.policy import PolicyVersion
from gateway.domain.pricing.selfhost import BilledHours, GpuRate
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.errors import BadUsage
from gateway.reports.json_and_csv import to_json
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.storage.deployments.engine_samples import EngineSamples
from gateway.storage.postgres.database import Database
from tests import factories
from tests.reports.conftest import Write
from tests.reports.test_recent_receipt import adjust
from tests.storage.factories import event, request_id

MIDNIGHT = datetime(2026, 11, 20, tzinfo=UTC)
GPU = GpuRate(
    type="H200",
    count=2,
    usd_per_gpu_hour=Decimal("3.10"),
    input_tok_per_s=Decimal(1000),
    output_tok_per_s=Decimal(100),
    target_utilisation=Decimal("0.5"),
)
UNKNOWN: dict[str, Any] = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
    "held_nusd": 70,
}


def policy(
    gpu: GpuRate | None = GPU, *, number: int = 1, names: tuple[str, ...] = ("qwen-eu",)
) -> PolicyVersion:
    own = [factories.deployment(name, is_self_hosted=True, gpu=gpu) for name in names]
    return factories.version(factories.policy(*own), number=number)


def runs(
    database: Database,
    *,
    hours: float,
    begin: datetime = MIDNIGHT,
    under: PolicyVersion | None = None,
    name: str = "qwen-eu",
) -> None:
    """The engine is seen up for so long."""
    store, version = EngineSamples(database), under or policy()
    for at in (begin, begin + timedelta(hours=hours)):
        up = EngineSample(deployment=name, at=at, is_up=True, started_at=begin - timedelta(days=9))
        store.record([up], version, at=at)


def own(number: int, *, at: datetime = MIDNIGHT, **changes: Any) -> Any:
    return event(
        number,
        at=at,
        **{"deployment": "qwen-eu", "provider": "vllm", "is_self_hosted": True} | changes,
    )


def test_a_day_adds_up_to_the_nano_dollar(
    finance: Reports, write: Write, database: Database
) -> None:
    """The teams' charges plus the uncharged rest is the bill: finance books both."""
    runs(database, hours=24)
    write(*(own(n, at=MIDNIGHT + timedelta(hours=n), cost_nusd=10**9 + n) for n in range(24)))
    write(
        own(99, deployment="hosted", is_self_hosted=False), own(98, is_demo=True, cost_nusd=10**15)
    )

    report = finance.run("gpu", ask(month="2026-11"))

    (row,) = report.records()
    assert row == {
        "day": MIDNIGHT.date(),
        "deployment": "qwen-eu",
        "gpu_hours": 48,
        "usd_per_gpu_hour": Decimal("3.10"),
        "bill_usd": Decimal("148.8"),
        "applied_usd": Decimal("24.000000276"),
        "idle_usd": Decimal("124.799999724"),
        "variance_usd": 0,
        "applied_without_bill_usd": 0,
        "up_hours": 24,
        "hours_without_bill": 0,
        "empty_usd": Decimal("124.747999716"),
        "underfilled_usd": Decimal("0.052000008"),
        "estimated_usd": Decimal("148.8"),
        "imported_usd": None,
    }
    assert {
        name: report.total[name] for name in report.total if report.total[name] != row[name]
    } == {}
    assert json.loads(to_json(report), parse_float=str)["rows"][0]["idle_usd"] == "124.799999724"


def test_more_applied_than_billed_is_shown_as_a_negative_variance(
    finance: Reports, write: Write, database: Database
) -> None:
    """A standard cost that is too high must be seen; a zero would hide that teams pay more than the
    machine costs.
    """
    runs(database, hours=1)
    write(own(1, cost_nusd=7_000_000_000))
    (row,) = finance.run("gpu", ask()).records()
    assert (row["bill_usd"], row["applied_usd"]) == (Decimal("6.2"), Decimal(7))
    assert (row["idle_usd"], row["variance_usd"]) == (0, Decimal("-0.8"))


def test_a_bill_that_is_not_known_is_not_zero(
    finance: Reports, write: Write, database: Database
) -> None:
    """Charges of hours without a look have their own column, so that the rest still adds up."""
    write(own(1, cost_nusd=5), own(2, at=MIDNIGHT + timedelta(hours=30), cost_nusd=7))
    runs(database, hours=1)

    report = finance.run("gpu", ask())

    unseen, seen = report.records()
    assert (
        unseen["bill_usd"],
        unseen["idle_usd"],
        unseen["variance_usd"],
        unseen["applied_usd"],
    ) == (None,) * 4
    assert (unseen["applied_without_bill_usd"], unseen["hours_without_bill"]) == (
        Decimal("0.000000007"),
        1,
    )
    assert seen["applied_usd"] == Decimal("0.000000005")
    assert report.total["applied_without_bill_usd"] == Decimal("0.000000007")
    assert "In 1 hour(s) with requests the GPU bill is not known" in " ".join(report.notes)


def test_corrections_count_in_the_hour_of_their_request(
    finance: Reports, write: Write, database: Database, database_url: str
) -> None:
    """An attempt resolved later was work of then; while it is unknown its share is idle."""
    runs(database, hours=1)
    write(own(1, **UNKNOWN))
    before = finance.run("gpu", ask()).records()[0]
    adjust(
        database_url,
        request_id(1, MIDNIGHT),
        attempt=1,
        amount_nusd=10**9,
        kind="engine_counters",
        settles=True,
    )
    after = finance.run("gpu", ask()).records()[0]
    assert (before["applied_usd"], before["idle_usd"]) == (0, Decimal("6.2"))
    assert (after["applied_usd"], after["idle_usd"]) == (1, Decimal("5.2"))


def test_reports_of_spend_name_the_omitted_idle_cost(
    finance: Reports, write: Write, database: Database
) -> None:
    """Whoever compares GPUs with a provider must see both halves of the GPUs' cost."""
    write(own(1, cost_nusd=10**9))
    assert "Idle GPU cost not included: not known" in " ".join(finance.run("spend", ask()).notes)
    runs(database, hours=2)
    notes = {
        "month": finance.run("spend", ask(month="2026-11")).notes,
        "team": finance.run("spend", ask(month="2026-11", where={"team": "payments"})).notes,
        "other month": finance.run("spend", ask(month="2026-10")).notes,
    }
    whole, column = "Idle GPU cost: $11.40 of a GPU bill of $12.40", "idle_usd has it by"
    assert f"{whole}; tollgate report gpu shows it. {column}" in " ".join(notes["month"])
    assert f"{whole} of all teams together; tollgate report gpu" in " ".join(notes["team"])
    others = finance.run("tokens", ask(month="2026-11")).notes
    assert "Idle GPU cost not included: $11.40" in " ".join(others)
    assert "Idle" not in " ".join(notes["other month"])


def test_the_gpus_of_the_demo_have_no_bill(
    finance: Reports, write: Write, database: Database
) -> None:
    """A made-up hour in a real bill, or a real one in the demo, would be the end of trust in
    both.
    """
    runs(database, hours=1)
    write(own(1, is_demo=True, cost_nusd=10**9))
    demo = finance.run("gpu", ask(demo=True))
    assert (demo.rows, demo.total["bill_usd"]) == ((), None)
    assert "have no bill" in demo.notes[0]
    assert finance.run("gpu", ask()).total["applied_usd"] == 0


def test_a_gpu_belongs_to_no_team(finance: Reports) -> None:
    """A filter that does nothing would give one team the bill of all."""
    with pytest.raises(BadUsage, match="cannot be filtered by team"):
        finance.run("gpu", ask(where={"team": "payments", "deployment": "qwen-eu"}))
    with pytest.raises(BadUsage, match="cannot be split"):
        finance.run("gpu", ask(by=["team"]))
    assert finance.run("gpu", ask(where={"deployment": "qwen-eu", "day": "2026-11-20"})).rows == ()


def test_any_history_adds_up(
    finance: Reports, write: Write, database: Database, rng: Random
) -> None:
    """Random uptimes, rates, gaps and charges over two days and the turn of a month."""
    store = EngineSamples(database)
    begin = datetime(2026, 11, 30, tzinfo=UTC)
    rates = [
        GPU,
        replace(GPU, usd_per_gpu_hour=Decimal("0.333333333333")),
        replace(GPU, hours=BilledHours.ALWAYS),
        None,
    ]
    versions = [
        policy(rng.choice(rates), number=number + 1, names=("a", "b")) for number in range(17)
    ]
    at = begin
    for number in range(150):
        at += timedelta(milliseconds=rng.randrange(1, 2_400_000))
        looks = [
            EngineSample(
                deployment=name,
                at=at,
                is_up=rng.random() < 0.8,
                started_at=rng.choice([None, at - timedelta(seconds=rng.randrange(9000))]),
            )
            for name in ("a", "b")
            if rng.random() < 0.95
        ]
        store.record(looks, versions[number // 9], at=at)
    events = [
        own(
            n,
            at=begin + timedelta(milliseconds=rng.randrange(2 * 86_400_000)),
            deployment=rng.choice("ab"),
            cost_nusd=rng.randrange(5 * 10**9),
        )
        for n in range(200)
    ]
    write(*events)

    reports = [finance.run("gpu", ask(month=month)) for month in ("2026-11", "2026-12", "all")]

    rows = [row for report in reports[:2] for row in report.records()]
    key = lambda row: (row["day"], row["deployment"])  # noqa: E731 - a sort key
    assert sorted(rows, key=key) == sorted(reports[2].records(), key=key)
    for row in [row for row in rows if row["bill_usd"] is not None] + [
        dict(report.total) for report in reports
    ]:
        assert row["applied_usd"] + row["idle_usd"] + row["variance_usd"] == row["bill_usd"]
        assert row["idle_usd"] >= 0 >= row["variance_usd"]
    for row in rows:
        if row["usd_per_gpu_hour"] is not None and row["bill_usd"] is not None:
            assert abs(row["gpu_hours"] * row["usd_per_gpu_hour"] - row["bill_usd"]) < Decimal(
                "0.0000001"
            )
    charged: dict[Any, int] = defaultdict(int)
    for one in events:
        charged[one.occurred_at.date(), one.deployment] += one.cost_nusd
    applied = {
        key(row): (row["applied_usd"] or 0) + row["applied_without_bill_usd"] for row in rows
    }
    assert {k: v for k, v in applied.items() if v} == {
        k: usd_from_nusd(v) for k, v in charged.items()
    }
