"""The demo's invoices: metered usage plus the listed gaps, to the nano-dollar, in the shapes that
the providers export.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from gateway.domain.money import nusd_from_usd
from gateway.services.demo.catalogue import DESTINATIONS
from gateway.services.demo.exports import DemoFile
from gateway.services.demo.files import demo_files
from gateway.services.demo.invoices import PlantedGap, invoices_of, plant_gaps
from gateway.services.demo.metered import add_up, metered
from gateway.wire.bills.gpu_bill import parse_gpu_bill
from tests.unit.demo.demo_traffic import SIZE, all_events, traffic

PLANTED = {"unmetered", "timing", "aborted", "missing_bill", "price", "fee", "rounding"}


@pytest.fixture(scope="module")
def files() -> dict[str, DemoFile]:
    """Return the files by name."""
    made = traffic()
    found = demo_files(SIZE, made.calendar, metered(all_events()), made.prices)
    return {file.name: file for file in found}


@pytest.fixture(scope="module")
def gaps() -> list[PlantedGap]:
    """Return the planted gaps, from invoices of their own."""
    made = traffic()
    prices = {name: dated[-1].price for name, dated in made.prices.items()}
    return plant_gaps(invoices_of(metered(all_events())), made.calendar, prices)


def ledger_nusd(provider: str) -> int:
    """Return the cost of a provider's attempts, in nano-dollars."""
    return sum(event.cost_nusd or 0 for event in all_events() if event.provider == provider)


def money(text: str | Decimal) -> int:
    """Return USD as nano-dollars."""
    return nusd_from_usd(Decimal(text))


def results(file: DemoFile) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each bucket of a page with each of its results."""
    page = json.loads(file.text, parse_float=Decimal)
    assert page["has_more"] is False
    for bucket in page["data"]:
        for result in bucket["results"]:
            yield bucket, result


def billed_nusd(provider: str, files: dict[str, DemoFile]) -> int:
    """Return the sum of a provider's invoice, read from its file."""
    if provider == "openai":
        return sum(money(one["amount"]["value"]) for _, one in results(files["openai-costs.json"]))
    if provider == "anthropic":
        cents = (Decimal(one["amount"]) for _, one in results(files["anthropic-cost.json"]))
        return sum(money(one / 100) for one in cents)
    text = files[f"{provider}-usage-and-costs.csv"].text
    return sum(money(row["amount"]) for row in csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize(
    "provider", sorted({place.provider for place in DESTINATIONS.values() if place.gpu is None})
)
def test_an_invoice_is_the_metered_cost_and_the_listed_gaps(
    provider: str, files: dict[str, DemoFile], gaps: list[PlantedGap]
) -> None:
    """An unlisted gap would look like a fault of the reconciliation."""
    listed = sum(gap.nusd for gap in gaps if gap.provider == provider)
    assert billed_nusd(provider, files) == ledger_nusd(provider) + listed


def test_each_kind_of_gap_is_planted_and_listed(
    files: dict[str, DemoFile], gaps: list[PlantedGap]
) -> None:
    """A person who practises compares the result with the text."""
    assert {gap.cause for gap in gaps} == PLANTED
    assert sum(gap.nusd for gap in gaps if gap.cause == "timing") == 0
    text = files["README.txt"].text
    for gap in gaps:
        assert f"{gap.cause}: " in text
        assert gap.text in text
    for file in files.values():
        verb = "apply" if file.kind == "policy" else "import"
        assert file.kind == "readme" or f"{verb} {file.name}" in text


def test_openai_usage_adds_up_to_the_ledger(
    files: dict[str, DemoFile], gaps: list[PlantedGap]
) -> None:
    """Quantities are compared before money."""
    billed = Counter[str]()
    for bucket, one in results(files["openai-usage.json"]):
        assert bucket["end_time"] - bucket["start_time"] == 86_400
        assert one["input_tokens"] == one["input_cached_tokens"] + one["input_uncached_tokens"]
        billed[one["model"]] += one["input_tokens"] + one["output_tokens"]
    counted = Counter[str]()
    for event in all_events():
        if event.provider == "openai":
            counted[event.model] += event.used_tokens or 0
    for gap in gaps:
        if gap.provider == "openai":
            counted[gap.model] += gap.tokens
    assert billed == counted


def test_a_missing_day_has_no_bucket(files: dict[str, DemoFile], gaps: list[PlantedGap]) -> None:
    """A day with an empty bucket would be one without usage."""
    (day,) = {gap.first for gap in gaps if gap.cause == "missing_bill"}
    for name in ("anthropic-usage.json", "anthropic-cost.json"):
        days = [bucket["starting_at"][:10] for bucket in json.loads(files[name].text)["data"]]
        assert str(day) not in days
        assert len(days) == traffic().calendar.days - 1


def test_the_gpu_bill_is_one_that_the_product_imports(files: dict[str, DemoFile]) -> None:
    """Each hour of the history is billed once for each own deployment."""
    lines = parse_gpu_bill(
        files["gpu-bill.csv"].text.encode(), name="gpu-bill.csv", known={"qwen-eu", "llama-eu"}
    )
    calendar = traffic().calendar
    assert len(lines) == 2 * calendar.days
    assert min(line.begin.date() for line in lines) == calendar.first
    assert sum(len(line.hours) for line in lines) == 2 * 24 * calendar.days
    day = next(line for line in lines if line.deployment == "qwen-eu")
    assert day.amount_nusd == money(Decimal("3.10") * 2 * 24)


def test_usage_adds_up_over_slices() -> None:
    """Slices arrive in any order, and a day may lie in two."""
    total: dict[tuple[date, str], Any] = {}
    for part in (all_events()[7_000:], all_events()[:7_000]):
        add_up(total, metered(part))
    whole = metered(all_events())
    assert {key: (one.requests, one.amounts) for key, one in total.items()} == {
        key: (one.requests, one.amounts) for key, one in whole.items()
    }
