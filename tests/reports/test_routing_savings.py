"""The same tokens at other deployments: each attempt priced again by the arithmetic of receipts."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from decimal import Decimal
from random import Random

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.money import usd_from_nusd
from gateway.domain.pricing.pricing import Price, Rate, cost_nusd, lines
from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from gateway.reports.dimensions import Dimension, Split
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.reports.sources.aggregate import OF_EVENTS
from gateway.storage.ledger import rollups
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.reports.random_events import parts_of
from tests.reports.test_report_contents import UNKNOWN
from tests.storage.factories import NOON, event

NAMES = ("gpt-eu", "claude-eu", "qwen-eu", "unpriced")
SPLITS: tuple[Split, ...] = (Dimension.ROUTE, Dimension.TEAM, Dimension.DAY, Dimension.TAG)
CHANGED = NOON - timedelta(days=1)  # the day from which one price is another


def price(model: str, usd: int, *kinds: TokenKind, long_usd: int | None = None) -> Price:
    """A price that costs `usd` for input and four times that for output, and more for long ones."""
    rates = [
        Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal(usd)),
        Rate(kind=TokenKind.OUTPUT, usd_per_mtok=Decimal(4 * usd)),
        *(Rate(kind=kind, usd_per_mtok=Decimal(usd) / 10) for kind in kinds),
    ]
    if long_usd is not None:
        rates.append(
            Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal(long_usd), from_input_tokens=5_000)
        )
    rates.append(Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal(9 * usd), service_tier="priority"))
    return Price(provider="p", model=model, source="test", rates=tuple(rates))


BEFORE = {
    "gpt-eu": price("gpt", 3, TokenKind.CACHED_INPUT, TokenKind.REASONING, long_usd=7),
    "claude-eu": price("claude", 5, TokenKind.CACHE_WRITE),
    "qwen-eu": price("qwen", 1),
}
AFTER = BEFORE | {"claude-eu": price("claude", 2)}


def priced(number: int, rng: Random) -> UsageEvent:
    """One attempt with a decision between some deployments, at the price of one of them."""
    at = NOON - timedelta(hours=rng.randrange(48))
    prices = AFTER if at >= CHANGED else BEFORE
    served = rng.choice(list(BEFORE))
    whole, output = rng.randrange(10_000), rng.randrange(2_000)
    usage = TokenUsage(
        input_tokens=whole,
        cached_input_tokens=rng.choice([None, whole // 2]),
        cache_write_tokens=rng.choice([None, whole // 4]),
        output_tokens=output,
        reasoning_tokens=rng.choice([None, output // 3]),
    )
    receipt = lines(usage, prices[served])
    others = rng.sample([name for name in NAMES if name != served], rng.randrange(4))
    listed = rng.sample([served, *others], len(others) + 1)
    barred = rng.choice([None, *others])
    candidates = [
        {"deployment": name, "obstacles": [["residency", "x"]] if name == barred else []}
        for name in listed
    ]
    candidates.append({"deployment": "unpriced", "obstacles": [], "route": "smaller"})
    unknown = UNKNOWN if rng.random() < 0.1 else {}
    fields = {
        "usage": usage,
        "lines": receipt,
        "cost_nusd": cost_nusd(receipt),
        "deployment": served,
        "decision": {"candidates": candidates},
        "team": rng.choice(["a", "b"]),
        "route": rng.choice(["assistant", "embed"]),
        "tags": rng.choice([{}, {"env": "prod"}, {"env": "prod", "app": "bot"}]),
    }
    return event(number, at=at, **fields | unknown)


def elsewhere(one: UsageEvent) -> tuple[Decimal, Decimal] | None:
    """The costs of an attempt at the dearest and the first eligible deployment; None if unknown."""
    if one.cost_nusd is None:
        return None
    prices = AFTER if one.occurred_at >= CHANGED else BEFORE
    costs = []
    for candidate in one.decision["candidates"]:
        name = candidate["deployment"]
        if candidate["obstacles"] or "route" in candidate:
            continue
        if name not in prices:
            return None
        costs.append(
            usd_from_nusd(one.cost_nusd)
            if name == one.deployment
            else unrounded(one.usage, prices[name])
        )
    return (max(costs), costs[0])


def unrounded(usage: TokenUsage, at: Price) -> Decimal:
    """The cost of tokens at a price, rounded once and not by line."""
    whole = sum((line.tokens * line.usd_per_mtok for line in lines(usage, at)), Decimal(0))
    return (whole / 1_000_000).quantize(Decimal("1e-9"), "ROUND_HALF_UP")


def test_each_attempt_is_priced_again(
    finance: Reports, write: Write, database: Database, rng: Random
) -> None:
    """Dates, context tiers, fallbacks, obstacles: all as the receipts' arithmetic has them."""
    store = PriceStore(database)
    store.record_in_force(BEFORE, policy_version=1, at=NOON - timedelta(days=9))
    store.record_in_force(AFTER, policy_version=2, at=CHANGED)
    events = [priced(number, rng) for number in range(150)]
    write(*events[:90])
    rollups.refresh(database)
    write(*events[90:])
    for by in SPLITS:
        report = finance.run("routing-savings", ask(by=[str(by)]))
        groups: dict[object, list[tuple[UsageEvent, int]]] = defaultdict(list)
        for one in events:
            for value, times in parts_of(one, by):
                groups[value].append((one, times))
        for row in report.records():
            assert figures(row) == expected(groups[row[by.value]]), (by, row)
        assert figures(report.total) == expected([(one, 1) for one in events])
        for name in ("compared_attempts", "compared_usd", "dearest_saving_usd", "total_usd"):
            parts = [Decimal(str(row[name] or 0)) for row in report.records()]
            assert sum(parts) == report.total[name], (by, name)
    assert report.notes.count(OF_EVENTS) == 1
    compared = report.total["compared_attempts"]
    assert f"Compared are {compared} of 150 attempts." in report.notes


def figures(row: object) -> list[object]:
    """The figures that are computed again."""
    assert isinstance(row, dict)
    names = ("compared_attempts", "compared_usd", "dearest_usd", "default_usd")
    return [row[name] for name in names]


def expected(parts: list[tuple[UsageEvent, int]]) -> list[object]:
    """The same figures, from events."""
    known = [(one, found, times) for one, times in parts if (found := elsewhere(one)) is not None]
    if not known:
        return [0, None, None, None]
    return [
        sum(times for _, _, times in known),
        sum(usd_from_nusd(one.cost_nusd or 0) * times for one, _, times in known),
        sum(found[0] * times for _, found, times in known),
        sum(found[1] * times for _, found, times in known),
    ]


def test_without_prices_or_candidates_nothing_is_guessed(finance: Reports, write: Write) -> None:
    """A deployment without a dated price has no cost there, and neither has an old record."""
    other = {"candidates": [{"deployment": "other", "obstacles": []}]}
    write(event(1, decision=other), event(2, decision={}), event(3, decision={"candidates": 7}))
    (row,) = finance.run("routing-savings", ask()).records()
    assert figures(row) == [0, None, None, None]
    assert (row["dearest_saving_usd"], row["cost_usd"]) == (None, Decimal("0.0018"))


def test_a_call_of_a_tool_is_not_compared(
    finance: Reports, write: Write, database: Database
) -> None:
    """Another provider's price of a search is not known from the tokens."""
    PriceStore(database).record_in_force(BEFORE, policy_version=1, at=NOON - timedelta(days=9))
    price_of_search = Rate(kind=TokenKind.WEB_SEARCH, usd_per_mtok=Decimal(10_000))
    usage = TokenUsage(input_tokens=10, output_tokens=1, web_search_calls=2)
    at = Price(
        provider="p", model="m", source="s", rates=(*BEFORE["gpt-eu"].rates, price_of_search)
    )
    receipt = lines(usage, at)
    decision = {"candidates": [{"deployment": "gpt-eu", "obstacles": []}]}
    write(
        event(1, usage=usage, lines=receipt, cost_nusd=cost_nusd(receipt), decision=decision),
        event(2, decision=decision),
    )
    (row,) = finance.run("routing-savings", ask()).records()
    assert (row["compared_attempts"], row["dearest_saving_usd"]) == (1, Decimal(0))
