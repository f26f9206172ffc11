"""A candidate's prediction: rates, queues, the event's record, and its words."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.domain.deployments.engine_load import EngineLoad
from gateway.domain.routing.prediction_messages import arithmetic, degraded, missed
from gateway.domain.routing.predictions import Expected, queue_s, rates_of
from tests import factories

ONE = Expected(1_512_000.0, 1000.0, 128.0, 0.0, 0.5, 0.9, 0.02, 12.0, 3.0, 40.0)
BOUNDS = {"ttft_p95_s": 0.8, "max_cost_nusd": 1_000_000}


def test_rates_are_nano_dollars_a_token() -> None:
    """One dollar a million tokens is a thousand nano-dollars each: a factor here would turn an
    order, not a bill.
    """
    assert rates_of(factories.price("1", "4")) == ((0.0, 1000.0, 1000.0, 4000.0),)
    assert rates_of(factories.price("1", None, cached="0.25")) == ((0.0, 1000.0, 250.0, 0.0),)


@pytest.mark.parametrize(
    ("load", "mean_s", "late_s"),
    [
        (EngineLoad(), 0, 0),
        (EngineLoad(running=1, waiting=0, finished_per_s=0.5, sent_since=9), 0, 0),
        # Of four beyond its room the newcomer is the fourth: so many must end first.
        (EngineLoad(running=2, waiting=3, finished_per_s=2), 2, 3),
        (EngineLoad(running=2, waiting=3, finished_per_s=2, sent_since=5), 4.5, 6),
        (EngineLoad(running=2, waiting=3, finished_per_s=2, sent_since=5, age_s=2.5), 2, 3),
        (EngineLoad(running=2, waiting=3, finished_per_s=2, age_s=2), 0, 0),
        # No request waited at the last look, and nine have been sent since.
        (EngineLoad(running=1, waiting=0, room=2, finished_per_s=2, sent_since=9), 4.5, 6),
        (EngineLoad(running=1, waiting=0, room=4, finished_per_s=2, sent_since=2), 0, 0),
        # Long prompts leave room for two instead of the former four.
        (EngineLoad(running=2, waiting=3, room=4, finished_per_s=2), 2, 3),
        (EngineLoad(waiting=1), 1, 1),
        (EngineLoad(waiting=2, finished_per_s=0.0, queue_s=7.0), 7, 7),
        (EngineLoad(running=1, waiting=0, room=2, queue_s=7.0), 0, 0),
    ],
)
def test_a_queue_is_as_long_as_those_before_take(
    load: EngineLoad, mean_s: float, late_s: float
) -> None:
    """An idle engine finishes few because few come: a rate needs a known room, or a queue."""
    assert queue_s(load, ttft_s=0.5) == (mean_s, late_s)


def test_an_event_keeps_whole_numbers() -> None:
    """Floats with seventeen digits would fill the ledger with noise."""
    kept = replace(
        ONE, cost_nusd=1.6, cached_share=1 / 3, waiting=2.0, misses=("ttft_p95",)
    ).record()
    assert kept == {
        "cost_nusd": 2,
        "input_tokens": 1000,
        "output_tokens": 128,
        "ttft_s": 0.5,
        "ttft_p95_s": 0.9,
        "tpot_s": 0.02,
        "samples": 12,
        "cached_share": 0.33333,
        "waiting": 2,
        "misses": ["ttft_p95"],
    }


def test_nan_is_kept_as_unknown() -> None:
    """JSON has no NaN, and an event that cannot be written stops everything."""
    kept = replace(ONE, cost_nusd=nan, ttft_s=nan).record()
    assert (kept["cost_nusd"], kept["ttft_s"]) == (None, None)
    assert (
        arithmetic(kept)
        == "1,000 + 128 tokens = its cost is unknown; its duration is unknown (12 samples)"
    )


def test_the_arithmetic_can_be_followed_by_hand() -> None:
    """Whoever doubts an order takes a pencil."""
    price = factories.price("1", "4", cached="0.25")
    assert arithmetic(ONE.record(), price) == (
        "1,000 × 1 + 128 × 4 USD per million tokens = 0.001512 USD; 0.5 s + 127 × 0.02 s = "
        "3.04 s (12 samples)"
    )
    cached = replace(ONE, cached_share=0.4, samples=0.0).record()
    assert arithmetic(cached, price).startswith(
        "1,000 × 1 (40% of them cached, at 0.25) + 128 × 4 USD"
    )
    assert arithmetic(cached, price).endswith("(declared, no samples)")
    assert "cached" not in arithmetic(cached, factories.price("1", "4"))


def test_the_arithmetic_of_an_engine_uses_its_reported_queue() -> None:
    """Then its own report counts, not past attempts."""
    busy = replace(ONE, waiting=3.0, ttft_s=2000.0).record()
    assert arithmetic(busy) == (
        "1,000 + 128 tokens = 0.001512 USD; 2,000 s + 127 × 0.02 s = 2,003 s (by the engine's "
        "report, 3 waiting)"
    )
    assert " × 1 USD per million tokens" in arithmetic(busy, factories.price("1", None))


def test_fields_missing_from_an_old_event_are_unknown() -> None:
    """Events of another version are read too."""
    assert (
        arithmetic({})
        == "? + ? tokens = its cost is unknown; its duration is unknown (declared, no samples)"
    )
    assert list(missed({"misses": ["ttft_p95", "max_cost"]}, {})) == [
        "would take too long to its first token",
        "would cost its cost is unknown, its cost is unknown are allowed",
    ]


@pytest.mark.parametrize(
    ("misses", "ttft_p95_s", "expected"),
    [
        ([], 0.9, []),
        (["ttft_p95"], 2.1, ["would take 2.1 s to its first token, 0.8 s are allowed"]),
        (
            ["ttft_p95"],
            0.7,
            [
                "took too long to its first token before: 0.7 s now, and it counts again from "
                "0.64 s on"
            ],
        ),
        (["max_cost"], 0.1, ["would cost 0.001512 USD, 0.001 USD are allowed"]),
        (["context_window"], 0.1, ["does not fit into its context window"]),
    ],
)
def test_a_missed_bound_shows_the_prediction_and_the_bound(
    misses: list[str], ttft_p95_s: float, expected: list[str]
) -> None:
    """`missed` alone would send the admin looking for figures."""
    assert (
        list(missed(ONE.record() | {"misses": misses, "ttft_p95_s": ttft_p95_s}, BOUNDS))
        == expected
    )


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({}, None),
        (
            {
                "degraded": {"kind": "spill", "from": "qwen-eu"},
                "ranked": ["gpt-eu", "qwen-eu"],
                "bounds": BOUNDS,
                "expected": [{}, {"misses": ["ttft_p95"], "ttft_p95_s": 2.1}],
            },
            "spill: qwen-eu would take 2.1 s to its first token, 0.8 s are allowed",
        ),
        (
            {"degraded": {"kind": "route:small", "from": "qwen-eu"}},
            "degraded to route small: qwen-eu would miss a bound",
        ),
    ],
)
def test_degrading_is_never_silent(record: dict[str, Any], expected: str | None) -> None:
    """Who got another answer than usual must be able to learn why."""
    assert degraded(record) == expected
