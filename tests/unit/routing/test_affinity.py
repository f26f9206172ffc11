"""A session stays with its replica; one that leaves moves its own sessions alone; none is filled
over its share.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.domain.routing.affinity import most_in_flight, named_session, session_of, spread
from tests import factories

SESSIONS = st.text(max_size=40)
MEMBERS = st.lists(st.text(min_size=1, max_size=12), max_size=12, unique=True)
NAMES = [f"qwen-{letter}" for letter in "abcdefghij"]


@st.composite
def loaded(draw: st.DrawFn) -> tuple[list[str], dict[str, int]]:
    """Return members with their load; some have no known load."""
    members = draw(MEMBERS)
    return members, draw(
        st.dictionaries(st.sampled_from([*members, "another"]), st.integers(0, 50))
    )


@given(SESSIONS, loaded())
def test_every_member_is_tried_once(
    session: str, given_load: tuple[list[str], dict[str, int]]
) -> None:
    """Whom the hash does not like is still there when the others have failed."""
    members, in_flight = given_load
    assert sorted(spread(session, members, in_flight)) == sorted(members)


@given(SESSIONS, MEMBERS, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_how_members_are_listed(
    session: str, members: list[str], rng: Random
) -> None:
    """Two workers may read one policy in another order, and a cache is warm in one place."""
    shuffled = rng.sample(members, len(members))
    assert spread(session, shuffled, {}) == spread(session, members, {})


@given(SESSIONS, MEMBERS.filter(bool), st.data())
def test_a_member_that_leaves_moves_its_own_sessions_alone(
    session: str, members: list[str], data: st.DataObject
) -> None:
    """A restarted replica may cool its own cache and no other one."""
    gone = data.draw(st.sampled_from(members))
    before = spread(session, members, {})
    after = spread(session, [member for member in members if member != gone], {})
    assert after == tuple(member for member in before if member != gone)


@pytest.mark.parametrize("count", [2, 3, 7, 10])
def test_sessions_are_shared_out_evenly(count: int) -> None:
    """Over 10,000 sessions no member is more than 10 % over or under its part: 3 of its own
    standard deviations.
    """
    members = NAMES[:count]
    first = Counter(spread(f"session-{number}", members, {})[0] for number in range(10_000))
    assert set(first) == set(members)
    assert max(abs(had * count / 10_000 - 1) for had in first.values()) < 0.1


def test_the_second_choices_of_sessions_are_spread_too() -> None:
    """A full member's sessions must not all go to one neighbour: it would be full next."""
    orders = (spread(f"session-{number}", NAMES, {}) for number in range(10_000))
    second = Counter(order[1] for order in orders if order[0] == NAMES[0])
    assert len(second) == len(NAMES) - 1
    assert max(second.values()) < 2 * min(second.values())


@given(SESSIONS, loaded())
def test_full_members_come_last_and_in_the_same_order(
    session: str, given_load: tuple[list[str], dict[str, int]]
) -> None:
    """At a quarter over the mean, the newcomer counted in, a warm cache is not worth the wait; one
    is never full.
    """
    members, in_flight = given_load
    load = [in_flight.get(member, 0) for member in members]
    full = {
        m
        for m, had in zip(members, load, strict=True)
        if had * 4 * len(members) >= 5 * (sum(load) + 1)
    }
    ordered = spread(session, members, in_flight)
    by_hash = spread(session, members, {})
    if len(members) > 1:
        is_full = [
            had >= most_in_flight(sum(load), len(members))
            for had in (in_flight.get(m, 0) for m in ordered)
        ]
        assert is_full == sorted(is_full)
        assert not all(is_full)
        kept = [member for member, late in zip(ordered, is_full, strict=True) if not late]
        late = [member for member, late in zip(ordered, is_full, strict=True) if late]
        assert kept == [member for member in by_hash if member in kept]
        assert late == [member for member in by_hash if member in late]
        assert set(late) <= full, "rounded up: nobody is full below a quarter over the mean"


def arrivals(
    rng: Random, members: Sequence[str], sessions: Sequence[str], steps: int
) -> tuple[int, int]:
    """Let requests come and end at random; return how many stayed at their session's replica,
    and their total.
    """
    in_flight: Counter[str] = Counter()
    running: list[str] = []
    at_home = sent = 0
    for _ in range(steps):
        if running and rng.random() < 0.48:
            in_flight[running.pop(rng.randrange(len(running)))] -= 1
            continue
        session = rng.choice(sessions)
        chosen = spread(session, members, in_flight)[0]
        bound = most_in_flight(in_flight.total(), len(members))
        in_flight[chosen] += 1
        running.append(chosen)
        assert in_flight[chosen] <= bound
        sent += 1
        at_home += chosen == spread(session, members, {})[0]
    return at_home, sent


@given(st.randoms(use_true_random=False), st.integers(1, 8), st.integers(1, 40))
def test_no_replica_exceeds_the_load_bound(rng: Random, members: int, sessions: int) -> None:
    """One session that is the whole load would otherwise queue at one replica while the others
    idle.
    """
    arrivals(rng, NAMES[:members], [f"s{number}" for number in range(sessions)], 200)


def test_most_requests_find_their_session_again(rng: Random) -> None:
    """A bound that sends everybody away keeps no cache warm: with many sessions 4 of 5 stay at
    home.
    """
    at_home, sent = arrivals(rng, NAMES[:4], [f"s{number}" for number in range(500)], 20_000)
    assert at_home / sent > 0.8


def test_every_process_comes_to_the_same_order() -> None:
    """Workers do not talk about it, and Python's own hash is another one in each of them."""
    program = (
        "from gateway.domain.routing.affinity import spread\n"
        f"print([spread(f's{{n}}', {NAMES!r}, {{}}) for n in range(50)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{[spread(f's{n}', NAMES, {}) for n in range(50)]}\n".encode()}


def test_the_order_never_changes() -> None:
    """Another hash in a later version would cool every cache at its rollout: then say so in its
    notes.
    """
    assert spread("s-2", NAMES[:4], {}) == ("qwen-c", "qwen-d", "qwen-a", "qwen-b")


def test_a_request_without_a_session_is_its_keys() -> None:
    """An application that names none has one prompt of its own: its key keeps that together."""
    request = factories.request()
    assert session_of(request) == request.caller.key_id


@given(st.text(min_size=1, max_size=5000) | st.just("\ud800"))
def test_a_session_is_short_and_says_nothing(named: str) -> None:
    """Callers put names, addresses and whole tokens there, and half letters: none of it may come
    into a record.
    """
    request = replace(factories.request(), session=named)
    found = session_of(request)
    assert len(found) == 16
    assert set(found) <= set("0123456789abcdef")
    assert found == session_of(replace(request, request_id=factories.request_id(random=7)))
    assert session_of(replace(request, session=f"{named}.")) != found
    assert named_session(None, "", named, "another") == found
    assert named_session(None, "") is None
