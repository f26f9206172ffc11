"""The crash demo can fail: a planted loss, a double, an overcharge and a hold too small are each
found.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from bench.books.demo_crash_books import compare

ENTRIES = [{"request_id": f"r{n}", "prompt": 10, "generated": 5 * n} for n in range(4)]


def event(number: int, **changes: Any) -> dict[str, Any]:
    """Return the event that a correct ledger has for entry `number`."""
    values: dict[str, Any] = {
        "request_id": f"r{number}",
        "team": "payments",
        "usage_source": "provider",
        "input_tokens": 10,
        "output_tokens": 5 * number,
        "cost_usd": Decimal(10 + 20 * number).scaleb(-6),
        "held_usd": None,
    }
    return values | changes


def unknown(number: int, held_usd: str) -> dict[str, Any]:
    return event(
        number,
        usage_source="unknown",
        input_tokens=None,
        output_tokens=None,
        cost_usd=None,
        held_usd=Decimal(held_usd),
    )


def test_a_ledger_that_holds_everything_is_good() -> None:
    """Final, derived, unknown, and one that never reached the upstream."""
    derived = event(2, usage_source="derived", output_tokens=8, cost_usd=Decimal("0.000042"))
    found = compare(
        ENTRIES, [event(0), event(1), derived, unknown(3, "0.00007"), unknown(9, "0.1")]
    )
    assert (found.is_good, found.wrong) == (True, [])
    assert (found.exact, found.derived, found.unknown, found.not_reached) == (2, 1, 2, 1)
    assert found.held_usd == Decimal("0.10007")
    team = found.teams["payments"]
    assert (team.made, team.charged, team.made_for_unknown) == (10 + 15 + 20 + 25, 10 + 15 + 18, 25)


@pytest.mark.parametrize(
    ("events", "lost", "doubled", "wrong"),
    [
        ([event(0), event(1), event(2)], 1, 0, 0),
        ([event(0), event(1), event(2), event(3), event(3)], 0, 1, 0),
        ([event(0), event(1), event(2), event(3), unknown(9, "1"), unknown(9, "1")], 0, 1, 0),
        (
            [
                event(0),
                event(1),
                event(2),
                event(3, output_tokens=16, cost_usd=Decimal("0.000074")),
            ],
            0,
            0,
            1,
        ),
        (
            [
                event(0),
                event(1),
                event(2),
                event(3, output_tokens=14, cost_usd=Decimal("0.000066")),
            ],
            0,
            0,
            1,
        ),
        ([event(0), event(1), event(2), event(3, cost_usd=Decimal("0.00006"))], 0, 0, 1),
        ([event(0), event(1), event(2), unknown(3, "0.000069")], 0, 0, 1),
    ],
)
def test_planted_faults_are_found(
    events: list[dict[str, Any]], lost: int, doubled: int, wrong: int
) -> None:
    """A demo that always says zero shows nothing."""
    found = compare(ENTRIES, events)
    assert (found.lost, found.doubled, len(found.wrong), found.is_good) == (
        lost,
        doubled,
        wrong,
        False,
    )
