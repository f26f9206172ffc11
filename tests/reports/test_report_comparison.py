"""Shares of the total and changes against an earlier time, which finance reads first."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.pricing.tokens import TokenUsage
from gateway.errors import BadUsage
from gateway.reports.question import Question, ask
from gateway.reports.questions.why import Spending, explained
from gateway.reports.reports import Reports
from gateway.storage.ledger import adjustments
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.reports.test_report_contents import UNKNOWN
from tests.storage.factories import event

USD = 1_000_000_000
# Of two months that are over: the present one is compared by its complete days.
SEPTEMBER, OCTOBER = datetime(2026, 9, 30, 23, tzinfo=UTC), datetime(2026, 10, 1, 1, tzinfo=UTC)


def spent(number: int, team: str, usd: int, at: datetime) -> UsageEvent:
    """Return an event of a team that cost so much."""
    return event(number, team=team, cost_nusd=usd * USD, lines=(), at=at)


def test_shares_are_of_the_whole(finance: Reports, write: Write) -> None:
    """Six decimals, of cost and adjustments together."""
    write(spent(1, "search", 1, OCTOBER), spent(2, "payments", 2, OCTOBER))
    report = finance.run("spend", ask(by=["team"]))
    assert report.columns[-1].name == "share"
    assert {row["team"]: row["share"] for row in report.records()} == {
        "payments": Decimal("0.666667"),
        "search": Decimal("0.333333"),
    }
    assert report.total["share"] == 1


def test_a_share_of_nothing_is_no_share(finance: Reports, write: Write) -> None:
    """0 of 0 is not 0 %."""
    write(spent(1, "search", 0, OCTOBER))
    assert [row["share"] for row in finance.run("spend", ask()).records()] == [None]


def test_a_month_is_compared_with_the_one_before(finance: Reports, write: Write) -> None:
    """Teams that came and teams that went are both part of the change."""
    write(
        spent(1, "payments", 4, SEPTEMBER),
        spent(2, "gone", 3, SEPTEMBER),
        spent(3, "payments", 5, OCTOBER),
        spent(4, "new", 2, OCTOBER),
    )
    report = finance.run("spend", ask(month="2026-10", by=["team"], compare="previous"))
    changes = {
        row["team"]: (row["total_usd"], row["previous_usd"], row["change_usd"], row["change_share"])
        for row in report.records()
    }
    assert changes == {
        "payments": (5, 4, 1, Decimal("0.25")),
        "new": (2, 0, 2, None),
        "gone": (0, 3, -3, -1),
    }
    total = report.total
    assert (total["total_usd"], total["previous_usd"], total["change_usd"]) == (7, 7, 0)
    assert sum(Decimal(str(row["change_usd"])) for row in report.records()) == 0
    assert any("the whole month 2026-09" in note for note in report.notes)


@pytest.mark.parametrize("name", ["spend", "movers"])
def test_a_month_runs_by_the_clock(finance: Reports, write: Write, name: str) -> None:
    """A month that is over is whole, also if nothing was recorded since."""
    running = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    over = (running - timedelta(days=1)).replace(day=1)
    write(spent(1, "search", 1, over))

    def is_compared_in_part(month: datetime) -> bool:
        compare = "previous" if name == "spend" else None  # movers always compare
        asked = ask(month=f"{month:%Y-%m}", by=["team"], compare=compare)
        found = finance.run(name, asked).comparison
        assert found is not None
        return found.is_part

    assert is_compared_in_part(running)
    assert not is_compared_in_part(over)


def test_days_are_compared_with_the_same_days_of_the_month_before(
    finance: Reports, write: Write
) -> None:
    """A running month beside a whole one looks like a saving that is none."""
    write(
        spent(1, "payments", 4, datetime(2026, 9, 3, 9, tzinfo=UTC)),
        spent(2, "payments", 9, SEPTEMBER),
        spent(3, "payments", 5, datetime(2026, 10, 3, 9, tzinfo=UTC)),
    )
    asked = ask(first="2026-10-01", last="2026-10-29", by=["team"], compare="month")
    report = finance.run("spend", asked)
    assert (report.total["total_usd"], report.total["previous_usd"]) == (5, 4)


def test_an_unknown_cost_has_no_change(finance: Reports, write: Write) -> None:
    """Unknown less something is unknown, not a saving."""
    write(spent(1, "search", 1, SEPTEMBER), event(2, team="search", at=OCTOBER, **UNKNOWN))
    (row,) = finance.run("spend", ask(month="2026-10", by=["team"], compare="previous")).records()
    assert (row["previous_usd"], row["change_usd"], row["change_share"]) == (1, None, None)


def test_a_month_takes_what_is_posted_and_days_take_what_happened(
    finance: Reports, write: Write, database: Database
) -> None:
    """A correction is in the month of its request and on its day, until that month is closed."""
    write(spent(1, "search", 1, SEPTEMBER), spent(2, "search", 2, OCTOBER))
    adjusted = event(3, team="search", at=SEPTEMBER, **UNKNOWN)
    write(adjusted)
    adjustments.resolve(
        database, adjusted.request_id, attempt=None, cost=5 * USD, reason="from the invoice"
    )
    by_month = finance.run("spend", ask(month="2026-09", by=["month"])).records()
    by_day = finance.run(
        "spend", ask(first="2026-09-30", last="2026-10-01", by=["day", "month"])
    ).records()
    assert [(row["month"], row["total_usd"]) for row in by_month] == [("2026-09", 6)]
    assert [(row["day"], row["month"], row["total_usd"]) for row in by_day] == [
        (date(2026, 9, 30), "2026-09", 6),
        (date(2026, 10, 1), "2026-10", 2),
    ]


def test_why_names_team_model_volume_and_price(finance: Reports, write: Write) -> None:
    """The first question about a month is why it costs more, and the parts must add up to it."""

    def used(number: int, team: str, model: str, tokens: int, usd: int, at: datetime) -> UsageEvent:
        usage = TokenUsage(input_tokens=tokens, output_tokens=0)
        return event(
            number, team=team, model=model, usage=usage, cost_nusd=usd * USD, lines=(), at=at
        )

    write(
        used(1, "payments", "big", 100, 10, SEPTEMBER),
        used(2, "payments", "big", 150, 30, OCTOBER),
        used(3, "search", "small", 10, 1, SEPTEMBER),
        used(4, "search", "new", 7, 2, OCTOBER),
    )
    report = finance.run("spend", ask(month="2026-10", why=True))
    assert [row[:2] for row in report.rows] == [
        ("payments", "big"),
        ("search", "new"),
        ("search", "small"),
    ]
    found = {row["model"]: row for row in report.records()}
    parts = ("change_usd", "volume_usd", "price_usd", "other_usd")
    assert [found["big"][name] for name in parts] == [20, 5, 15, 0]
    assert [found["new"][name] for name in parts] == [2, 2, 0, 0]
    assert [found["small"][name] for name in parts] == [-1, -1, 0, 0]
    assert (report.total["change_usd"], report.total["previous_usd"]) == (21, 11)
    assert report.notes[0].startswith("The largest change: team payments, model big, $20")
    assert report.notes[0].endswith("mostly by price.")


@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32))
def test_the_parts_of_any_change_add_up(seed: int) -> None:
    """Finance adds the columns in a spreadsheet."""
    rng = Random(seed)

    def some() -> Spending:
        cost = rng.choice([None, Decimal(rng.randrange(10**12)) * Decimal("1e-9")])
        adjusted = Decimal(rng.randrange(-(10**9), 10**9)) * Decimal("1e-9")
        return Spending(
            tokens=rng.choice([None, Decimal(0), Decimal(rng.randrange(1, 10**9))]),
            cost_usd=cost,
            total_usd=None if cost is None else cost + adjusted,
        )

    parts = explained(some(), some())
    amounts = [parts[name] for name in ("volume_usd", "price_usd", "other_usd")]
    assert sum(amounts) == parts["change_usd"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"month": "2026-11", "first": "2026-11-01", "last": "2026-11-02"}, "either --month"),
        ({"first": "2026-11-01"}, "go together"),
        ({"first": "2026-11-02", "last": "2026-11-01"}, "before it begins"),
        ({"first": "2026-11-31", "last": "2026-12-01"}, "not a day"),
        ({"compare": "last"}, "previous, month, year, whole"),
        ({"where": {"week": "47"}}, "2026-W47"),
        ({"where": {"hour": "2026-11-01 10:00"}}, "2026-11-20T10:00Z"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_right_words(
    asked: dict[str, object], told: str
) -> None:
    """A report about another time than the one meant is worse than an error."""
    with pytest.raises(BadUsage, match=told):
        ask(**asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "asked", "told"),
    [
        ("spend", ask(compare="previous"), "All months have no time before them"),
        ("spend", ask(month="2026-11", by=["day"], compare="year"), "cannot be compared"),
        ("latency", ask(month="2026-11", compare="previous"), "cannot be compared"),
        ("months", ask(month="2026-11", compare="previous"), "cannot be compared"),
        ("tokens", ask(month="2026-11", why=True), "report spend --why"),
        ("spend", ask(month="2026-11", why=True, by=["team", "week"]), "cannot be compared"),
        ("budgets", ask(first="2026-11-01", last="2026-11-02"), "whole periods"),
    ],
)
def test_what_has_no_counterpart_is_not_compared(
    finance: Reports, name: str, asked: Question, told: str
) -> None:
    """An ignored option would be read as an answer."""
    with pytest.raises(BadUsage, match=told):
        finance.run(name, asked)
