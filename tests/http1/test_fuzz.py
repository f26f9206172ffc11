"""A fixed number of the fuzz run's cases, and each finding of it as a case of its own."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.http1.checks import check_bytes, check_socket, read, seen
from tests.http1.mutated_answers import Case, case
from tests.http1.strict_reading import Unreadable, strictly
from tests.providers.recorded_answers import MALFORMED, RECORDED

SEEDS = st.integers(0, 2**32)


@settings(max_examples=300)
@given(seed=SEEDS)
def test_any_bytes_have_one_meaning_in_any_split(seed: int) -> None:
    """A split that changes an answer, or a lenient reading, would put bytes into another answer."""
    rng = Random(seed)
    check_bytes(case(rng), rng, Counter())


@settings(max_examples=150)
@given(seed=SEEDS)
async def test_any_bytes_on_a_socket_end_in_an_answer_or_an_error(seed: int) -> None:
    """Reads that are cancelled and repeated lose nothing, and a reused connection starts clean."""
    rng = Random(seed)
    await check_socket(case(rng), rng, Counter())


@pytest.mark.parametrize("breaks", [b"\r\n", b"\n\n", b"\r"])
def test_line_breaks_behind_an_answer_mean_nothing_in_any_split(breaks: bytes) -> None:
    """Found by `make fuzz`: the packets decided whether the connection could be reused."""
    raw = RECORDED["plain"].raw
    check_bytes(Case(raw=raw + breaks), Random(1), Counter())
    assert seen(read([raw + breaks], None)) == seen(read([raw, breaks], None))
    assert read([raw, breaks], None).may_keep_alive
    assert not read([raw, breaks + b"X"], None).may_keep_alive


@pytest.mark.parametrize("name", RECORDED)
def test_the_second_reading_understands_each_recorded_answer(name: str) -> None:
    """A reading that refused everything would agree with any client."""
    one = RECORDED[name]
    reading = strictly(one.raw, is_closed=one.ends_at_close)
    assert (reading.status, reading.body) == (one.status, one.body)


@pytest.mark.parametrize("name", ["two lengths", "a list of two lengths"])
def test_the_second_reading_refuses_two_lengths(name: str) -> None:
    """Two readers of one such answer may see different borders."""
    with pytest.raises(Unreadable):
        strictly(MALFORMED[name], is_closed=True)
