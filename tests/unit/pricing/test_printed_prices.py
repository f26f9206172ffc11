"""The list's prices at a deployment's place against the figures that providers' pages print.

Each row of `printed_prices.csv` names its page and the day on which a stored copy of it was read.
`by` is `provider` for a page of the provider itself, `other` for somebody else's page about it, and
`list` for a file of prices. `factor` is the premium that the page states for the place, and the
figure is the printed one times it.
"""

from __future__ import annotations

import csv
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from gateway.domain.pricing.pricing import Price, UnknownTier
from gateway.domain.pricing.tokens import TokenKind
from gateway.storage.policy.price_list import builtin_price

with (Path(__file__).parent / "printed_prices.csv").open(encoding="utf-8", newline="") as opened:
    FIGURES = list(csv.DictReader(opened))
PROVIDERS = sorted({row["provider"] for row in FIGURES})


def price_at(row: dict[str, str]) -> Price | None:
    """Return the price that an answer to a deployment of a row is charged by."""
    price = builtin_price(
        provider=row["provider"],
        model=row["model"],
        base_url=row["address"],
        region=row["region"],
        at=datetime.fromisoformat(row["moment"]),
    )
    return None if price is None else price.at(row["geo"] or None)


def listed_rate(row: dict[str, str]) -> Decimal | None:
    """Return the rate that is charged for a row's kind of tokens, None if there is none."""
    price = price_at(row)
    try:
        tier = None if price is None else price.for_tier(row["tier"])
    except UnknownTier:
        return None
    kind, tokens = TokenKind(row["kind"]), int(row["input_tokens"])
    return None if tier is None else tier.rate(kind, input_tokens=tokens)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_deployment_is_charged_what_the_page_prints(provider: str) -> None:
    """A difference of a tenth on each request of a region is the largest silent one."""
    rows = [row for row in FIGURES if row["provider"] == provider and row["judged"] == "priced"]
    differing = [
        (row["model"], row["address"], row["tier"], row["kind"], row["usd_per_mtok"], rate)
        for row in rows
        if (rate := listed_rate(row)) != Decimal(row["usd_per_mtok"])
    ]
    assert not differing
    assert not any(price.is_estimated for row in rows if (price := price_at(row)) is not None)


def test_what_the_list_lacks_is_not_charged_for_less() -> None:
    """A model or a kind of tokens without a rate has no price or that of plain tokens."""
    rows = [row for row in FIGURES if row["judged"] == "unlisted"]
    assert rows
    assert {listed_rate(row) for row in rows} == {None}


def test_there_are_enough_figures_with_their_sources() -> None:
    """At least 200 of 8 providers and 25 pages, and 40 with the factor of a place."""
    assert len(FIGURES) >= 200
    assert len(PROVIDERS) >= 8
    assert len({row["page"] for row in FIGURES}) >= 25
    assert sum(row["by"] == "provider" for row in FIGURES) >= 150
    assert sum(row["factor"] != "1" for row in FIGURES) >= 40
    for row in FIGURES:
        assert (
            row["page"].startswith("https://")
            or " 1.110.2: " in row["page"]
            or (row["page"].startswith("azure-genai-prices 0.2.0: "))
        )
        assert date.fromisoformat(row["seen"]) <= date(2026, 11, 28)
        assert row["judged"] in ("priced", "unlisted")
        assert row["by"] in ("provider", "other", "list")
