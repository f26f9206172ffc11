"""Authentication: decided in memory, one answer for every wrong key, and 503 if the validity is
unknown.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.api.authenticate import authenticate, caller_of
from gateway.domain.checks import Status
from gateway.domain.policy.api_keys import Pepper
from gateway.domain.request.request import Caller
from gateway.errors import InvalidApiKey, KeyNotSeen, RequestError, Unavailable
from gateway.services.budgets.postgres_time import PostgresTime
from gateway.services.snapshot.snapshot import (
    MOST_REMEMBERED,
    STALE_AFTER_S,
    SnapshotHolder,
    problems,
    snapshot_checks,
)
from tests.factories import NOW, PEPPER, holder, key, key_record, snapshot, team
from tests.factories import policy as a_policy
from tests.fakes import FakeClock

MINE = key(1)


def known(**changes: object) -> SnapshotHolder:
    return holder(snapshot(key_record(MINE, **changes)))


def ageing(clock: FakeClock, *, outage_s: float = 900.0, **changes: object) -> SnapshotHolder:
    """A holder that was refreshed just now and grows older with the clock."""
    return SnapshotHolder(
        current=snapshot(key_record(MINE, **changes)),
        refreshed_at=clock.now(),
        problem=None,
        clock=clock,
        outage_s=outage_s,
        refreshed_s=clock.monotonic(),
    )


def caller(
    sent: str | None,
    to: SnapshotHolder,
    *,
    header: str = "authorization",
    allows_demo: bool = False,
) -> Caller:
    headers = [] if sent is None else [(header.encode(), sent.encode("latin-1"))]
    return authenticate(headers, to, now=lambda: NOW, allows_demo=allows_demo)


def refused(sent: str | None, to: SnapshotHolder) -> RequestError:
    with pytest.raises(RequestError) as caught:
        caller(sent, to)
    return caught.value


@pytest.mark.parametrize(
    ("header", "sent"),
    [
        ("authorization", f"Bearer {MINE}"),
        ("authorization", f"bearer  {MINE} "),
        ("authorization", MINE),
        ("x-api-key", MINE),
        ("api-key", MINE),
    ],
)
def test_a_key_is_accepted_in_every_spelling(header: str, sent: str) -> None:
    """OpenAI clients send Bearer, Anthropic's x-api-key, Azure's api-key."""
    found = caller(sent, known(project="checkout"), header=header)
    assert found == Caller(key_id=key_record(MINE).key_id, team="payments", project="checkout")


def test_every_wrong_key_gets_the_same_answer() -> None:
    """The answer must reveal nothing about a key to a person without it."""
    same_id_other_secret = key_record(MINE)
    wrong = holder(snapshot(key_record(key(2)), same_id_other_secret))
    forged = MINE[:14] + key(3)[14:]
    answers = {
        (error.code, error.message)
        for error in (
            refused("Bearer nonsense", wrong),
            refused("Bearer " + key(9), wrong),
            refused("Basic abc", wrong),
            refused("Bearer " + MINE[:-1] + "x", wrong),
            refused("Bearer " + forged, wrong),
            refused("Bearer ", wrong),
        )
    }
    assert len(answers) == 1
    assert next(iter(answers))[0] == InvalidApiKey.code


def test_a_paused_key_gets_its_own_error() -> None:
    """Its holder did nothing wrong and must know whom to ask; who has another key in its name hears
    nothing of it.
    """
    paused = known(is_paused=True)
    error = refused("Bearer " + MINE, paused)
    assert isinstance(error, InvalidApiKey)
    assert f"The API key {key_record(MINE).key_id} is paused." in error.message
    assert "paused" not in refused("Bearer " + MINE[:14] + key(3)[14:], paused).message


def test_no_key_says_how_to_send_one() -> None:
    """The first call of a newcomer."""
    error = refused(None, known())
    assert isinstance(error, InvalidApiKey)
    assert "Authorization: Bearer" in error.message


def test_a_right_id_with_a_wrong_digest_is_refused() -> None:
    """The id alone opens nothing."""
    assert isinstance(refused("Bearer " + MINE, known(digest=bytes(32))), InvalidApiKey)


def test_an_unknown_key_is_not_judged_by_a_stale_snapshot() -> None:
    """The key may have been made since: a database fault is never an auth fault."""
    clock = FakeClock()
    stale, never = ageing(clock), holder(snapshot(key_record(MINE)), refreshed_at=None)
    clock.advance(STALE_AFTER_S + 1)
    for held in (stale, never):
        error = refused("Bearer " + key(9), held)
        assert isinstance(error, Unavailable)
        assert error.retry_after_s == 5
        assert caller("Bearer " + MINE, held).team == "payments"


def test_a_failed_look_is_enough_for_an_unknown_key_to_wait() -> None:
    """The key may have been made in the very second in which Postgres went away."""
    held = ageing(FakeClock())
    assert isinstance(refused("Bearer " + key(9), held), InvalidApiKey)
    held.problem = "Postgres cannot be reached"
    assert isinstance(refused("Bearer " + key(9), held), Unavailable)


def test_a_key_that_may_be_new_needs_a_later_look() -> None:
    """Only a look as late as its first use knows it; a typo and a known key's wrong secret need
    none.
    """
    held = ageing(FakeClock(), digest=bytes(32))
    found = [type(refused("Bearer " + sent, held)) for sent in (key(9), "nonsense", MINE)]
    assert found == [KeyNotSeen, InvalidApiKey, InvalidApiKey]


@pytest.mark.parametrize(
    ("answers", "is_made", "expected"),
    [(True, True, "payments"), (True, False, KeyNotSeen), (False, True, Unavailable)],
)
async def test_postgres_is_asked_before_a_key_is_refused(
    answers: bool, is_made: bool, expected: str | type[RequestError]
) -> None:
    """A key works as soon as it is made; and in an outage, from its first moment on, none is called
    invalid.
    """
    clock, new = FakeClock(), key(9)
    held = ageing(clock)
    asked = []

    async def confirm() -> bool:
        asked.append(new)
        records = [key_record(MINE)] + ([key_record(new)] if is_made else [])
        if answers:
            held.take(snapshot(*records), good_at=clock.now(), good_s=clock.monotonic())
        return answers

    held.confirm = confirm
    sent = [(b"api-key", new.encode())]
    try:
        result: object = (await caller_of(sent, held, now=clock.now, allows_demo=False)).team
    except RequestError as error:
        result = type(error)
    assert (result, asked) == (expected, [new])
    assert (
        await caller_of([(b"api-key", MINE.encode())], held, now=clock.now, allows_demo=False)
    ).team == "payments"
    assert len(asked) == 1


def test_the_wall_clock_does_not_make_a_snapshot_older_or_younger() -> None:
    """A clock that was set back for an hour would call valid new keys unknown for that hour."""
    clock = FakeClock()
    held = ageing(clock)
    clock.advance(STALE_AFTER_S + 1)
    for now in (NOW - timedelta(hours=1), NOW, NOW + timedelta(hours=1)):
        with pytest.raises(Unavailable):
            authenticate(
                [(b"api-key", key(9).encode())], held, now=lambda at=now: at, allows_demo=False
            )


def test_an_expired_snapshot_authenticates_no_key() -> None:
    """A known key may have been revoked; the error names the operator's remedy."""
    clock = FakeClock()
    held = ageing(clock, outage_s=600)
    clock.advance(600)
    assert caller("Bearer " + MINE, held).team == "payments"
    clock.advance(0.001)
    for sent in (MINE, key(9), "nonsense"):
        error = refused("Bearer " + sent, held)
        assert isinstance(error, Unavailable)
        assert "last read from Postgres at 2026-11-20 12:00:00 UTC" in error.message
        assert "serve for 600 s without it" in error.message
        assert "must bring Postgres back; no restart is needed" in error.message
    assert held.current is not None
    held.take(held.current, good_at=NOW, good_s=clock.monotonic())
    assert caller("Bearer " + MINE, held).team == "payments"


def test_a_key_expires_while_postgres_is_away() -> None:
    """Expiry is known here: an outage is no reason to let a key live on."""
    clock = FakeClock()
    held = ageing(clock, expires_at=NOW + timedelta(seconds=60))
    held.problem = "Postgres cannot be reached"
    sent = [(b"api-key", MINE.encode())]
    assert authenticate(sent, held, now=clock.now, allows_demo=False).team == "payments"
    clock.advance(60)
    with pytest.raises(InvalidApiKey, match="has expired"):
        authenticate(sent, held, now=clock.now, allows_demo=False)


@pytest.mark.parametrize("off", [timedelta(hours=2), timedelta(hours=-3)])
def test_a_key_expires_by_postgres_time(off: timedelta) -> None:
    """Attack of 2026-11-29: a wrong clock refused valid keys, or served expired ones."""
    clock = FakeClock()
    held = ageing(clock, expires_at=NOW + timedelta(seconds=60))
    sent = [(b"api-key", MINE.encode())]
    wrong = clock.now() + off
    held.postgres_time = PostgresTime(clock)
    held.postgres_time.note(NOW)
    assert authenticate(sent, held, now=lambda: wrong, allows_demo=False).team == "payments"
    clock.advance(60)
    with pytest.raises(InvalidApiKey, match="has expired"):
        authenticate(sent, held, now=lambda: wrong, allows_demo=False)


def test_readiness_warns_while_stale_and_refuses_when_it_is_over() -> None:
    """Whoever is on call sees how long there is left, before anybody else notices."""
    clock = FakeClock()
    held = ageing(clock, outage_s=600)
    assert [check.status for check in snapshot_checks(held)] == [Status.OK, Status.OK]
    held.problem = "Postgres cannot be reached at db."
    clock.advance(100)
    warned = snapshot_checks(held)[0]
    assert (warned.status, problems(held, is_full=False, is_gone=False, is_draining=False)) == (
        Status.WARN,
        [],
    )
    assert warned.finding == (
        "read from Postgres 100 s ago; known keys serve for another 500 s, unknown ones get 503: "
        "Postgres cannot be reached at db"
    )
    clock.advance(501)
    assert snapshot_checks(held)[0].status is Status.FAIL
    (problem,) = problems(held, is_full=False, is_gone=False, is_draining=False)
    assert problem.endswith(
        "no restart is needed. The latest look: Postgres cannot be reached at db."
    )


def test_readiness_says_that_nothing_is_loaded_and_that_a_policy_is_not_the_newest() -> None:
    """The two other reasons why this replica may not do the work that an admin expects."""
    assert [check.status for check in snapshot_checks(holder(None))] == [
        Status.FAIL,
        Status.UNKNOWN,
    ]
    behind = replace(
        snapshot(key_record(MINE)), behind="version 8 is applied and cannot be read here"
    )
    policy_check = snapshot_checks(holder(behind))[1]
    assert (policy_check.status, policy_check.finding) == (
        Status.WARN,
        "version 8 is applied and cannot be read here",
    )


def test_no_number_of_projects_fills_the_memory() -> None:
    """Callers choose project names, so the memory for them is bounded."""
    current = snapshot(key_record(MINE))
    payments = current.policy.policy.teams["payments"]
    for number in range(MOST_REMEMBERED + 2):
        current.terms_of(payments, project=str(number), key_id="k", day=None)
    assert len(current.terms) == 2


def test_a_typo_is_401_even_when_stale() -> None:
    """A key with a wrong checksum was never ours, in any state of the database."""
    stale = holder(snapshot(key_record(MINE)), refreshed_at=None)
    assert isinstance(refused("Bearer nonsense", stale), InvalidApiKey)


def test_a_known_key_with_a_wrong_secret_is_401_even_when_stale() -> None:
    """Its record is here: there is nothing to wait for."""
    stale = holder(snapshot(key_record(MINE, digest=bytes(32))), refreshed_at=None)
    assert isinstance(refused("Bearer " + MINE, stale), InvalidApiKey)


def test_without_a_snapshot_no_key_is_authenticated() -> None:
    """A gateway that has loaded nothing yet says so."""
    assert isinstance(refused("Bearer " + MINE, holder(None)), Unavailable)


@pytest.mark.parametrize(("left", "is_live"), [(timedelta(0), False), (timedelta(seconds=1), True)])
def test_a_key_ends_at_its_expiry(left: timedelta, is_live: bool) -> None:
    """By the gateway's own clock until Postgres has stated its time."""
    held = known(expires_at=NOW + left)
    if is_live:
        assert caller("Bearer " + MINE, held).team == "payments"
    else:
        assert "has expired" in refused("Bearer " + MINE, held).message


def test_demo_keys_open_only_a_demo() -> None:
    """Generated data must not be able to spend money."""
    held = known(is_demo=True)
    assert "takes none" in refused("Bearer " + MINE, held).message
    assert caller("Bearer " + MINE, held, allows_demo=True).team == "payments"


def test_two_peppers_are_live_while_one_replaces_the_other() -> None:
    """Rotating the pepper locks no key out; a removed pepper locks its keys out."""
    new, old_key, new_key = Pepper(b"new"), key(1), key(2)
    records = (key_record(old_key), key_record(new_key, pepper=new))
    both = holder(snapshot(*records, peppers=(new, PEPPER)))
    assert {caller("Bearer " + each, both).team for each in (old_key, new_key)} == {"payments"}
    after = holder(snapshot(*records, peppers=(new,)))
    assert caller("Bearer " + new_key, after).team == "payments"
    assert isinstance(refused("Bearer " + old_key, after), InvalidApiKey)


def test_a_key_of_a_removed_team_says_so() -> None:
    """The policy took the team away: its admin must hear of it."""
    held = holder(snapshot(key_record(MINE), document=a_policy(teams={"search": team("search")})))
    assert "team payments is not in policy version 7" in refused("Bearer " + MINE, held).message
