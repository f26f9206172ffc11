"""The judge of policies that change under load can find: good books are good, and each planted
fault is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from bench.books.apply_books import (
    Applied,
    Books,
    Call,
    Entry,
    Terms,
    judge,
    latest_s,
    not_found,
    plants,
    spanning,
)

LEFT = Terms(
    sha256="a" * 64,
    upstream="http://left",
    deployment="left",
    provider="vllm",
    region="eu-de",
    model="one",
    cost_centre="CC-1",
    input_usd_per_mtok=Decimal("0.1537"),
    output_usd_per_mtok=Decimal("0.6101"),
)
RIGHT = Terms(
    sha256="b" * 64,
    upstream="http://right",
    deployment="right",
    provider="openai_compatible",
    region="us-east",
    model="other",
    cost_centre="CC-2",
    input_usd_per_mtok=Decimal("1.2503"),
    output_usd_per_mtok=Decimal("9.9991"),
)
# By hand, in nano-dollars. Left: 2,305.5 for 15 tokens is 2,306, 3,050.5 for 5 is 3,050. Right:
# 12,503 and 69,993.7.
LEFT_USD, RIGHT_USD = "0.000005356", "0.000082497"


def call(number: int, terms: Terms, *, version: int, begun_s: float, cost_usd: str) -> Call:
    """Return the record of a correctly answered caller."""
    return Call(
        is_stream=number % 2 == 0,
        begun_s=begun_s,
        late_s=0.0,
        ended_s=begun_s + 1,
        status=200,
        request_id=f"r{number}",
        version=version,
        deployment=terms.deployment,
        provider=terms.provider,
        region=terms.region,
        cost_usd=(cost_usd, cost_usd),
    )


def event(entry: Entry, terms: Terms, *, version: int, cost_usd: str) -> Mapping[str, Any]:
    """Return the event that a correct ledger has."""
    return {
        "request_id": entry.request_id,
        "policy_version": version,
        "deployment": terms.deployment,
        "provider": terms.provider,
        "region": terms.region,
        "model": terms.model,
        "cost_centre": terms.cost_centre,
        "input_tokens": entry.prompt,
        "output_tokens": entry.generated,
        "cost_usd": Decimal(cost_usd),
        "decision": {"policy": terms.sha256, "ranked": ["left", "right"]},
    }


def books() -> Books:
    """Three requests: the first still runs when the second document is in force."""
    entries = (
        Entry(upstream="http://left", request_id="r1", prompt=15, generated=5),
        Entry(upstream="http://right", request_id="r2", prompt=10, generated=7),
        Entry(upstream="http://right", request_id="r3", prompt=10, generated=7),
    )
    return Books(
        calls=(
            call(1, LEFT, version=1, begun_s=99.8, cost_usd=LEFT_USD),
            call(2, RIGHT, version=2, begun_s=100.2, cost_usd=RIGHT_USD),
            call(3, RIGHT, version=2, begun_s=101.5, cost_usd=RIGHT_USD),
        ),
        events=(
            event(entries[0], LEFT, version=1, cost_usd=LEFT_USD),
            event(entries[1], RIGHT, version=2, cost_usd=RIGHT_USD),
            event(entries[2], RIGHT, version=2, cost_usd=RIGHT_USD),
        ),
        entries=entries,
        terms={1: LEFT, 2: RIGHT},
        applied=(Applied(version=2, stored_s=99.5, reported_s=0.2, ended_s=100.0, took_s=1.5),),
    )


def test_requests_of_one_version_each_are_good() -> None:
    """One that began before a change is none of its business: it keeps the version it began
    with.
    """
    assert judge(books()) == []
    assert not_found(books()) == []
    assert spanning(books()) == 1
    assert latest_s(books()) == pytest.approx(0.3)


def test_a_cost_is_rounded_by_the_kind_and_half_to_even() -> None:
    """The judge computes money by itself: with the gateway's own code it would agree with its
    mistakes.
    """
    assert LEFT.cost_usd(Entry(upstream="", request_id="", prompt=15, generated=5)) == Decimal(
        LEFT_USD
    )
    assert RIGHT.cost_usd(Entry(upstream="", request_id="", prompt=10, generated=7)) == Decimal(
        RIGHT_USD
    )


@pytest.mark.parametrize(
    ("name", "kind", "planted"), [pytest.param(*one, id=one[0]) for one in plants(books())]
)
def test_planted_faults_are_found_and_named(name: str, kind: str, planted: Books) -> None:
    """A run that always says zero mixed shows nothing."""
    assert any(finding.kind == kind and "r2" in finding.detail for finding in judge(planted)), name


def test_an_old_version_is_late_only_after_the_new_one_is_reported_live() -> None:
    """The two-second promise begins once the command has reported that the version is live."""
    late = replace(books().calls[0], begun_s=100.1, ended_s=100.4)
    stale = replace(books(), calls=(late, *books().calls[1:]))
    assert [finding.kind for finding in judge(stale)] == ["stale"]
    silent = replace(stale, applied=(replace(stale.applied[0], reported_s=None),))
    assert judge(silent) == []
    assert latest_s(stale) == pytest.approx(0.6)


def test_an_answer_of_no_version_is_mixed() -> None:
    """An unknown version has no terms to be judged by."""
    odd = replace(books(), calls=(replace(books().calls[0], version=9),))
    assert [finding.kind for finding in judge(odd)] == ["mixed"]


def test_a_run_without_an_answer_has_only_failures() -> None:
    """Nothing can be planted in it, and it must not pass for that."""
    dead = Books(
        calls=(Call(is_stream=False, begun_s=1, late_s=0, problem="refused"),),
        events=(),
        entries=(),
        terms={},
    )
    assert [finding.kind for finding in judge(dead)] == ["failed"]
    assert list(plants(dead)) == []
    assert (spanning(dead), latest_s(dead)) == (0, 0.0)
