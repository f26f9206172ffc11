"""Unknown attempts get the engine's unmetered tokens: all of them, never more than their holds."""

from __future__ import annotations

from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.deployments.engine_counters import (
    IdleWindow,
    Reading,
    Resolution,
    Tokens,
    UnknownAttempt,
    apportioned,
    made,
    resolve,
)
from gateway.domain.pricing.pricing import Price
from tests import factories

STARTED = factories.NOW - timedelta(days=1)
PRICE = factories.price("1", "4")  # 1,000 and 4,000 nano-dollars a token
EMBEDS = factories.price("1", None)


def reading(
    minute: int, prompt: int, generation: int, *, started: datetime | None = STARTED
) -> Reading:
    at = factories.NOW + timedelta(minutes=minute)
    return Reading(at=at, started_at=started, tokens=Tokens(prompt=prompt, generation=generation))


def unknown(
    number: int = 1, *, held_nusd: int = 10**9, price: Price = PRICE, **changes: Any
) -> UnknownAttempt:
    return UnknownAttempt(
        request_id=factories.request_id(random=number),
        attempt=1,
        held_nusd=held_nusd,
        price=price,
        **changes,
    )


def window(
    *attempts: UnknownAttempt, prompt: int, generation: int, metered: Tokens | None
) -> IdleWindow:
    readings = (
        reading(0, 1000, 100),
        reading(1, 1000 + prompt // 2, 100),
        reading(2, 1000 + prompt, 100 + generation),
    )
    return IdleWindow(deployment="qwen", readings=readings, metered=metered, unknown=attempts)


def costs(found: Resolution) -> list[tuple[int, int, int]]:
    return [(one.tokens.prompt, one.tokens.generation, one.cost_nusd) for one in found.resolved]


def test_one_unknown_attempt_gets_exactly_the_remaining_tokens() -> None:
    """The engine made 500 and 60, of which 480 and 50 were charged: the rest can only be that
    attempt's.
    """
    found = resolve(
        window(unknown(), prompt=500, generation=60, metered=Tokens(prompt=480, generation=50))
    )
    assert (costs(found), found.problem) == ([(20, 10, 60_000)], None)


def test_an_attempt_that_the_engine_never_began_costs_nothing() -> None:
    """Provably zero, now: not the hold any more."""
    found = resolve(
        window(unknown(), prompt=480, generation=50, metered=Tokens(prompt=480, generation=50))
    )
    assert (costs(found), found.problem) == ([(0, 0, 0)], None)


def test_several_share_by_their_holds_to_the_token() -> None:
    """Their individual shares are unknown: the larger hold could have generated more."""
    attempts = [
        unknown(1, held_nusd=3 * 10**8),
        unknown(2, held_nusd=10**8),
        unknown(3, held_nusd=10**8),
    ]
    found = resolve(
        window(*attempts, prompt=11, generation=4, metered=Tokens(prompt=0, generation=0))
    )
    assert [(prompt, generation) for prompt, generation, _ in costs(found)] == [
        (7, 2),
        (2, 1),
        (2, 1),
    ]


def test_embeddings_are_given_no_answer() -> None:
    """They write none: the written tokens belong to the other attempt."""
    attempts = [unknown(1, price=EMBEDS, writes_output=False), unknown(2)]
    found = resolve(
        window(*attempts, prompt=10, generation=9, metered=Tokens(prompt=0, generation=0))
    )
    assert costs(found) == [(5, 0, 5000), (5, 9, 41_000)]


def test_no_attempt_is_charged_more_than_was_held_for_it() -> None:
    """The hold is a promise to the paying team: an excess is not theirs, even if the sum would
    allow it.
    """
    attempts = [
        unknown(1, held_nusd=10_000, price=EMBEDS, writes_output=False),
        unknown(2, held_nusd=10_000),
    ]
    found = resolve(
        window(*attempts, prompt=4, generation=3, metered=Tokens(prompt=0, generation=0))
    )
    assert costs(found) == [(2, 0, 2000), (2, 3, 10_000)]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"prompt": 400, "generation": 60}, "the engine counts less than was metered"),
        ({"prompt": 500, "generation": 40}, "the engine counts less than was metered"),
        ({"prompt": 500, "generation": 60, "metered": None}, "lacks its token counts"),
        ({"prompt": 10**7, "generation": 60}, "others use this engine"),
    ],
)
def test_counters_that_do_not_add_up_resolve_nothing(changes: dict[str, Any], problem: str) -> None:
    """A wrong resolution would look as sure as a right one: the hold stands instead."""
    values = {"metered": Tokens(prompt=480, generation=50)} | changes
    found = resolve(window(unknown(), **values))
    assert found.resolved == ()
    assert found.problem is not None
    assert problem in found.problem


def test_output_that_no_attempt_can_have_made_resolves_nothing() -> None:
    """Only embeddings are unknown, and the engine wrote an answer to someone else."""
    found = resolve(
        window(
            unknown(writes_output=False),
            prompt=1,
            generation=1,
            metered=Tokens(prompt=0, generation=0),
        )
    )
    assert "no unknown one writes" in str(found.problem)
    unpriced = resolve(
        window(
            unknown(price=EMBEDS), prompt=1, generation=1, metered=Tokens(prompt=0, generation=0)
        )
    )
    assert "has no price for output" in str(unpriced.problem)


def test_embeddings_are_resolved_if_the_engine_made_no_output() -> None:
    """No answer is missing, so no other client was served: the remaining prompts are theirs."""
    left = window(
        unknown(price=EMBEDS, writes_output=False),
        prompt=7,
        generation=0,
        metered=Tokens(prompt=0, generation=0),
    )
    found = resolve(left)
    assert (costs(found), found.problem) == ([(7, 0, 7000)], None)


def test_attempts_that_used_all_of_their_holds_are_resolved() -> None:
    """The hold is the most they can have cost, so all of that is theirs; a nano-dollar more is
    somebody else's.
    """
    metered = Tokens(prompt=0, generation=0)
    found = resolve(window(unknown(held_nusd=11_000), prompt=3, generation=2, metered=metered))
    assert (costs(found), found.problem) == ([(3, 2, 11_000)], None)
    beyond = resolve(window(unknown(held_nusd=10_999), prompt=3, generation=2, metered=metered))
    assert "others use this engine" in str(beyond.problem)


@pytest.mark.parametrize(
    "readings",
    [
        # Without a process start one counter alone can show it: the other has passed its old count
        # already.
        (
            reading(0, 100, 10, started=None),
            reading(1, 50, 20, started=None),
            reading(2, 900, 90, started=None),
        ),
        (
            reading(0, 100, 10, started=None),
            reading(1, 200, 5, started=None),
            reading(2, 900, 90, started=None),
        ),
        (
            reading(0, 100, 10),
            reading(1, 50, 5),
            reading(2, 900, 90),
        ),  # it began again at 0 and passed the old count
        (reading(0, 100, 10), reading(1, 200, 20, started=STARTED + timedelta(seconds=1))),
        (reading(0, 100, 10), reading(1, 200, 20, started=None)),
        (reading(0, 100, 10),),
    ],
)
def test_a_restart_leaves_the_count_unknown(readings: tuple[Reading, ...]) -> None:
    """The tokens of a process after the last look died with it."""
    assert made(readings) is None
    found = resolve(
        IdleWindow(
            deployment="q", readings=readings, metered=Tokens(prompt=0, generation=0), unknown=()
        )
    )
    assert "restarted" in str(found.problem)


COUNTS = st.integers(0, 10**9)


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**12), min_size=1, max_size=20))
def test_a_split_is_whole_and_fair(amount: int, weights: list[int]) -> None:
    """Not one token more or less in total, and each share within one token of the exact one."""
    parts = apportioned(amount, weights)
    assert sum(parts) == amount
    base = weights if any(weights) else [1] * len(weights)
    for part, weight in zip(parts, base, strict=True):
        assert abs(part - Fraction(amount * weight, sum(base))) < 1


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.booleans()), min_size=1, max_size=8),
    COUNTS,
    COUNTS,
    COUNTS,
    COUNTS,
)
def test_a_window_is_resolved_whole_within_its_holds_or_not_at_all(
    holds: list[tuple[int, bool]],
    prompt: int,
    generation: int,
    metered_prompt: int,
    metered_generation: int,
) -> None:
    """Metered plus resolved equals the engine's tokens; no attempt costs more than its hold."""
    attempts = [
        unknown(n, held_nusd=held, writes_output=writes) for n, (held, writes) in enumerate(holds)
    ]
    metered = Tokens(prompt=metered_prompt, generation=metered_generation)
    found = resolve(window(*attempts, prompt=prompt, generation=generation, metered=metered))
    assert bool(found.resolved) == (found.problem is None)
    if found.problem is not None:
        return
    assert [one.attempt for one in found.resolved] == attempts
    assert sum(one.tokens.prompt for one in found.resolved) + metered_prompt == prompt
    assert sum(one.tokens.generation for one in found.resolved) + metered_generation == generation
    for one in found.resolved:
        assert 0 <= one.cost_nusd <= one.attempt.held_nusd
        assert one.cost_nusd == min(
            one.attempt.held_nusd, one.tokens.prompt * 1000 + one.tokens.generation * 4000
        )
        assert one.attempt.writes_output or one.tokens.generation == 0
