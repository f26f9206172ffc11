"""Unit costs, costs of tokens, routing savings, movers and meter quality by the cost centres of the
day, and in another currency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random

import pytest

from gateway.domain.allocation.currency import new_rate
from gateway.domain.money import usd_from_nusd
from gateway.domain.pricing.pricing import Line, Price, Rate
from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from gateway.reports.question import ask
from gateway.reports.report import Cell, Report
from gateway.reports.reports import Reports
from gateway.storage.allocation.currencies import CurrencyStore
from gateway.storage.ledger import rollups
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import Database
from tests.allocation.applied_policies import apply, centre
from tests.reports.conftest import Write
from tests.storage.factories import event

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
REPORTS = ("unit-costs", "token-costs", "routing-savings", "movers", "meter-quality")
DECISION = {"candidates": [{"deployment": name, "obstacles": []} for name in ("dear", "gpt-eu")]}
SHARED = (centre("CC-1207", "0.7"), centre("CC-3100", "0.3"))


def columns(report: Report, name: str) -> dict[str, Cell]:
    """The cells of a column by cost centre."""
    return {str(row["cost_centre"]): row[name] for row in report.records()}


def usd(own: int, other: int) -> dict[str, Cell]:
    """Amounts of nano-dollars by cost centre."""
    return {"CC-1207": usd_from_nusd(own), "CC-3100": usd_from_nusd(other)}


def test_money_is_shared_and_counts_are_not(
    finance: Reports, write: Write, database: Database
) -> None:
    """Names of owners and kinds stay known in each part, or its money would vanish."""
    apply(database, {"payments": SHARED})
    rates = (
        Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal(1)),
        Rate(kind=TokenKind.OUTPUT, usd_per_mtok=Decimal(20)),
    )
    price = Price(provider="p", model="m", source="test", rates=rates)
    PriceStore(database).record_in_force({"dear": price}, policy_version=1, at=NOON.replace(day=1))
    write(
        event(1, decision=DECISION, tags={"task": "t-1"}),
        event(2, decision=DECISION, tags={}, end_user=None),
    )
    for _ in ("from events", "from sums"):
        found = {
            name: finance.run(name, ask(month="2026-11", by=["cost_centre"])) for name in REPORTS
        }
        units = found["unit-costs"]
        assert columns(units, "end_user_usd") == usd(420_000, 180_000)
        assert columns(units, "task_usd") == usd(420_000, 180_000)
        assert columns(units, "end_users") == {"CC-1207": 1, "CC-3100": 0}
        assert columns(units, "requests") == {"CC-1207": 2, "CC-3100": 0}
        assert columns(units, "usd_per_request") == {"CC-1207": Decimal("0.00042"), "CC-3100": None}
        kinds = found["token-costs"].records()
        assert [(row["cost_centre"], row["kind"], row["tokens"]) for row in kinds] == [
            ("CC-1207", "output", 100),
            ("CC-1207", "input", 800),
            ("CC-3100", "output", 0),
            ("CC-3100", "input", 0),
        ]
        assert [row["total_usd"] for row in kinds] == [
            usd_from_nusd(nusd) for nusd in (700_000, 140_000, 300_000, 60_000)
        ]
        routed = found["routing-savings"]
        assert columns(routed, "compared_attempts") == {"CC-1207": 2, "CC-3100": 0}
        # 1,000 input tokens at 1 USD and 50 output tokens at 20 USD a million: 2,000,000 nUSD.
        assert columns(routed, "default_saving_usd") == usd(1_960_000, 840_000)
        assert columns(found["movers"], "change_usd") == usd(840_000, 360_000)
        quality = found["meter-quality"]
        assert columns(quality, "final_attempts") == {"CC-1207": 2, "CC-3100": 0}
        assert columns(quality, "final_usd") == usd(840_000, 360_000)
        one = finance.run("unit-costs", ask(month="2026-11", where={"cost_centre": "CC-3100"}))
        assert one.total["end_user_usd"] == usd_from_nusd(180_000)
        rollups.refresh(database)


@pytest.mark.parametrize("by", [["team"], ["cost_centre"], ["tag"]])
def test_the_parts_add_up_in_euros(
    finance: Reports, write: Write, database: Database, rng: Random, by: list[str]
) -> None:
    """Each at the rate of its day; the kinds of tokens add up to the cost of their row."""
    apply(database, {"payments": (centre("CC-1207", "0.613"), centre("CC-3100", "0.387"))})
    store = CurrencyStore(database)
    for day in (1, 20):
        rate = Decimal(rng.randrange(1_000_000, 3_000_000)) / 1_000_000
        store.add(
            new_rate(currency="EUR", first_day=date(2026, 11, day), usd_per_unit=rate, source="ECB")
        )
    events = []
    for number in range(40):
        costs = [rng.randrange(10**9) for _ in range(3)]
        kinds = (TokenKind.INPUT, TokenKind.OUTPUT, TokenKind.REASONING)
        events.append(
            event(
                number,
                at=NOON - timedelta(days=rng.randrange(10)),
                team=rng.choice(["payments", "search"]),
                lines=tuple(
                    Line(kind=kind, tokens=9, usd_per_mtok=Decimal(1), cost_nusd=cost)
                    for kind, cost in zip(kinds, costs, strict=True)
                ),
                cost_nusd=sum(costs),
                tags=dict(rng.sample([("task", "t"), ("session", "s")], rng.randrange(3))),
                decision={"candidates": [{"deployment": "gpt-eu", "obstacles": []}]},
            )
        )
    write(*events)
    spend = finance.run("spend", ask(month="2026-11", by=by, currency="EUR"))
    for name in REPORTS:
        report = finance.run(name, ask(month="2026-11", by=by, currency="EUR"))
        assert not [one.name for one in report.columns if "usd" in one.name], name
        assert report.total["total_eur"] == spend.total["total_eur"], name
        assert added(report.records(), "total_eur") == report.total["total_eur"], name
    kinds_of = finance.run("token-costs", ask(month="2026-11", by=by, currency="EUR")).records()
    assert {row["kind"] for row in kinds_of} == {"input", "output", "reasoning"}
    routed = finance.run("routing-savings", ask(month="2026-11", by=by, currency="EUR"))
    assert routed.total["compared_eur"] == routed.total["dearest_eur"] == spend.total["cost_eur"]
    for row in (*routed.records(), routed.total):
        assert row["dearest_saving_eur"] == row["default_saving_eur"] == 0
    assert added(routed.records(), "default_eur") == routed.total["default_eur"]


def added(rows: Sequence[Mapping[str, Cell]], name: str) -> Decimal:
    """The sum of a column."""
    return sum((Decimal(str(row[name] or 0)) for row in rows), Decimal(0))


def test_the_reasons_of_a_change_are_shared(
    finance: Reports, write: Write, database: Database
) -> None:
    """A cost centre that bears 30 % of the money bears the tokens too: else all would be volume."""
    apply(database, {"payments": SHARED}, at=datetime(2026, 8, 1, tzinfo=UTC))
    september, october = (datetime(2026, month, 20, 12, tzinfo=UTC) for month in (9, 10))
    for number, (at, tokens, nusd) in enumerate(
        [(september, 1000, 10_000_000), (october, 1500, 30_000_000)]
    ):
        usage = TokenUsage(input_tokens=tokens, output_tokens=0)
        write(event(number, at=at, usage=usage, cost_nusd=nusd, lines=()))
    for _ in ("from events", "from sums"):
        found = finance.run("spend", ask(month="2026-10", by=["cost_centre"], why=True))
        assert columns(found, "volume_usd") == usd(3_500_000, 1_500_000)
        assert columns(found, "price_usd") == usd(10_500_000, 4_500_000)
        assert found.notes[0].startswith("The largest change: cost centre CC-1207, $0.01 more")
        (whole,) = finance.run("spend", ask(month="2026-10", why=True)).records()
        for name in ("previous_usd", "total_usd", "change_usd", "volume_usd", "price_usd"):
            assert found.total[name] == whole[name], name
        compared = finance.run(
            "spend", ask(month="2026-10", by=["cost_centre"], compare="previous")
        )
        assert columns(compared, "change_usd") == columns(found, "change_usd")
        (one,) = finance.run(
            "spend", ask(month="2026-10", where={"cost_centre": "CC-3100"}, why=True)
        ).records()
        assert one["volume_usd"] == usd_from_nusd(1_500_000)
        rollups.refresh(database)
