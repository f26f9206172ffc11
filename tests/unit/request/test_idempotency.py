"""Idempotency keys without a database: their stored form, a repeat's answer, and that no end is
ever lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from gateway.domain.policy.api_keys import Pepper
from gateway.domain.request import idempotency
from gateway.domain.request.idempotency import Claim, Earlier, claim_secret
from gateway.errors import (
    DatabaseUnavailable,
    IdempotencyConflict,
    IdempotencyMismatch,
    Unavailable,
)
from gateway.services.request.idempotency import BATCH, FORGET_EVERY_S, SLOTS, Claims
from tests.fakes import FakeClock
from tests.waiting import soon

SECRET = claim_secret(Pepper(b"a pepper of thirty-two bytes ...."))
JOURNAL = UUID(int=7)
CHAT = "/v1/chat/completions"
LONG_S = 60.0  # longer than any test; a successful wait ends before


@dataclass
class FakeClaims:
    """Claims in memory.

    It can be away, lose an answer, or make whoever asks wait at the `admission`.
    """

    rows: dict[tuple[str, bytes], tuple[UUID, bytes, bool]] = field(default_factory=dict)
    is_away: bool = False
    fails: Exception | None = None
    loses_next_answer: bool = False
    admission: threading.Event | None = None
    asked: int = 0
    batches: list[int] = field(default_factory=list)
    forgotten: int = 0
    is_closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def claim(self, claim: Claim, body_hash: bytes, *, journal_id: UUID) -> Earlier | None:
        assert journal_id == JOURNAL
        self.asked += 1
        self._wait()
        with self.lock:
            row = self.rows.setdefault(
                (claim.team, claim.key_hash), (claim.request_id, body_hash, False)
            )
        if self.loses_next_answer:
            self.loses_next_answer = False
            raise DatabaseUnavailable("committed, but the answer was lost")
        if row[0] == claim.request_id:
            return None
        return Earlier(request_id=row[0], is_same_body=row[1] == body_hash, is_finished=row[2])

    def end(self, ended: Sequence[tuple[Claim, bool]]) -> None:
        self._wait()
        self.batches.append(len(ended))
        with self.lock:
            for claim, was_charged in ended:
                place = (claim.team, claim.key_hash)
                row = self.rows.get(place)
                if row is not None and row[0] == claim.request_id and not row[2]:
                    del self.rows[place]
                    if was_charged:
                        self.rows[place] = (row[0], row[1], True)

    def forget(self) -> int:
        self._wait()
        self.forgotten += 1
        return 0

    def close(self) -> None:
        self.is_closed = True

    def _wait(self) -> None:
        if self.admission is not None:
            self.admission.wait(LONG_S)
        if self.is_away:
            raise DatabaseUnavailable("Postgres is away.")
        if self.fails is not None:
            raise self.fails


class Stage:
    """One worker's claims over a store that it may share with another's."""

    def __init__(
        self, store: FakeClaims | None = None, *, patience_s: float = LONG_S, most_waiting: int = 99
    ) -> None:
        self.store, self.clock = store or FakeClaims(), FakeClock()
        self.claims = Claims(
            self.store,
            self.clock,
            secret=SECRET,
            journal_id=JOURNAL,
            patience_s=patience_s,
            most_waiting=most_waiting,
        )

    async def claim(
        self,
        number: int = 1,
        *,
        team: str = "payments",
        key: str = "k",
        body: bytes = b"{}",
        endpoint: str = CHAT,
    ) -> Claim:
        """Claim for request `number`."""
        return await self.claims.claim(
            team, key, endpoint=endpoint, body=body, request_id=UUID(int=number)
        )


@pytest.fixture
async def on() -> AsyncIterator[Stage]:
    """One worker."""
    stage = Stage()
    yield stage
    await stage.claims.close()


# ---- the stored form


def test_a_hash_distinguishes_teams_keys_endpoints_and_bodies() -> None:
    """Two requests with equal hashes count as one."""
    keys = {
        idempotency.key_hash(team, key, secret=SECRET)
        for team in ("a", "ab")
        for key in ("k", "bk", "")
    }
    bodies = {
        idempotency.body_hash(path, body, secret=SECRET)
        for path in ("/a", "/ab")
        for body in (b"", b"k", b"bk")
    }
    assert (len(keys), len(bodies), len(keys | bodies)) == (6, 6, 12)
    assert {len(made) for made in keys | bodies} == {idempotency.HASH_BYTES}


def test_a_hash_needs_the_pepper() -> None:
    """Keys and prompts can be guessed; a plain hash would say which guess was right."""
    other = claim_secret(Pepper(b"another pepper of thirty-two bytes"))
    assert idempotency.key_hash("a", "k", secret=SECRET) != idempotency.key_hash(
        "a", "k", secret=other
    )
    assert idempotency.body_hash("/", b"", secret=SECRET) != idempotency.body_hash(
        "/", b"", secret=other
    )


def test_a_team_with_half_a_surrogate_pair_has_a_hash() -> None:
    """A YAML escape can make such a name; it must not end in an error for every keyed request."""
    assert idempotency.key_hash("\ud800", "k", secret=SECRET) != idempotency.key_hash(
        "\ud801", "k", secret=SECRET
    )


# ---- a repeat's answer


async def test_a_repeat_of_a_running_request_must_retry_later(on: Stage) -> None:
    """Two at once are the same click twice: one is sent."""
    await on.claim(1)
    with pytest.raises(
        IdempotencyConflict, match=f"under way: x-request-id {UUID(int=1)}"
    ) as refused:
        await on.claim(2)
    assert (refused.value.request_id, refused.value.retry_after_s) == (UUID(int=1), 1.0)
    assert f"GET /v1/requests/{UUID(int=1)}" in refused.value.message


async def test_a_repeat_of_a_charged_request_gets_its_receipt_address(on: Stage) -> None:
    """It is never sent again, so trying again does not help."""
    on.claims.finish(await on.claim(1), was_charged=True)
    await on.claims.run_once()
    with pytest.raises(
        IdempotencyConflict, match=f"receipt is at GET /v1/requests/{UUID(int=1)}"
    ) as refused:
        await on.claim(2)
    assert (refused.value.request_id, refused.value.retry_after_s) == (UUID(int=1), None)


async def test_a_request_that_cost_nothing_may_be_repeated(on: Stage) -> None:
    """An SDK repeats a 429 by itself, with the same key: that must be a new try."""
    on.claims.finish(await on.claim(1), was_charged=False)
    await on.claims.run_once()
    assert (await on.claim(2)).request_id == UUID(int=2)


@pytest.mark.parametrize("is_finished", [False, True])
@pytest.mark.parametrize("change", [{"body": b"{ }"}, {"endpoint": "/v1/responses"}])
async def test_another_request_under_the_same_key_is_refused(
    on: Stage, is_finished: bool, change: dict
) -> None:
    """The caller believes it has asked something that was never sent."""
    first = await on.claim(1)
    if is_finished:
        on.claims.finish(first, was_charged=True)
        await on.claims.run_once()
    with pytest.raises(
        IdempotencyMismatch, match=f"{UUID(int=1)} had another body or endpoint"
    ) as refused:
        await on.claim(2, **change)
    assert (refused.value.param, refused.value.retry_after_s) == ("Idempotency-Key", None)


async def test_another_teams_key_is_another_key(on: Stage) -> None:
    """Otherwise one team could detect, or block, another team's requests."""
    await on.claim(1)
    assert (await on.claim(2, team="search", body=b"other")).team == "search"


async def test_no_message_repeats_the_key_or_the_body(on: Stage) -> None:
    """Messages are logged by callers, and a key may hold a secret."""
    await on.claim(1, key="canary-key", body=b"canary-body")
    for body in (b"canary-body", b"canary-other"):
        with pytest.raises((IdempotencyConflict, IdempotencyMismatch)) as refused:
            await on.claim(2, key="canary-key", body=body)
        assert "canary" not in refused.value.message


# ---- before the end is written


async def test_a_worker_knows_its_unwritten_ends() -> None:
    """Postgres went away after the answer: the repeat must not hear that it is still under way for
    ever.
    """
    on = Stage()
    on.claims.finish(await on.claim(1), was_charged=True)
    with pytest.raises(IdempotencyConflict, match="has ended"):
        await on.claim(2)
    on.claims.finish(await on.claim(3, key="free"), was_charged=False)
    assert (await on.claim(4, key="free")).request_id == UUID(int=4)
    await on.claims.close()


async def test_an_end_that_is_written_during_a_repeat_frees_its_key() -> None:
    """Postgres answers the repeat before it gets the end: a look after both would miss the end."""
    has_read, is_written = threading.Event(), threading.Event()

    class SlowToAnswer(FakeClaims):
        def claim(self, claim: Claim, body_hash: bytes, *, journal_id: UUID) -> Earlier | None:
            earlier = super().claim(claim, body_hash, journal_id=journal_id)
            if earlier is not None:
                has_read.set()
                is_written.wait(LONG_S)
            return earlier

    on = Stage(SlowToAnswer())
    on.claims.finish(await on.claim(1), was_charged=False)
    repeat = asyncio.create_task(on.claim(2))
    await soon(has_read.is_set, "the repeat's answer in Postgres")
    assert await on.claims.run_once()
    assert on.claims.waiting == 0
    is_written.set()
    assert (await repeat).request_id == UUID(int=2)
    await on.claims.close()


async def test_a_late_end_does_not_touch_a_later_claim() -> None:
    """The first release is made by the repeat itself; written again in the background it must find
    nothing.
    """
    on = Stage()
    on.claims.finish(await on.claim(1), was_charged=False)
    second = await on.claim(2)
    assert await on.claims.run_once()
    assert [row[0] for row in on.store.rows.values()] == [second.request_id]
    with pytest.raises(IdempotencyConflict, match="under way"):
        await on.claim(3)
    await on.claims.close()


async def test_ends_are_kept_until_postgres_is_back() -> None:
    """An outage after the answer loses no end, and memory drops written ones."""
    on = Stage()
    made = [await on.claim(n, key=f"k{n}") for n in range(1, BATCH + 3)]
    on.store.is_away = True
    for number, claim in enumerate(made):
        on.claims.finish(claim, was_charged=number % 2 == 0)
    assert await on.claims.run_once() is False
    assert on.claims.waiting == len(made)
    on.store.is_away = False
    assert await on.claims.run_once() is True
    assert (on.claims.waiting, on.store.batches) == (0, [BATCH, 2])
    assert sorted(row[0].int for row in on.store.rows.values()) == list(range(1, BATCH + 3, 2))
    await on.claims.close()


async def test_ends_are_written_as_they_come_and_old_claims_dropped() -> None:
    """The background job does both, and goes on after a failure."""
    on = Stage()
    claim = await on.claim(1)
    running = asyncio.create_task(on.claims.run())
    on.claims.finish(claim, was_charged=True)
    await soon(lambda: not on.claims.waiting, "the end in the store")
    on.clock.advance(FORGET_EVERY_S)
    on.claims.finish(await on.claim(2, key="other"), was_charged=True)
    await soon(lambda: on.store.forgotten, "old claims dropped")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await on.claims.close()


async def test_an_unexpected_error_loses_no_end(on: Stage) -> None:
    """The supervisor starts the loop again, and unwritten ends are retried then."""
    on.claims.finish(await on.claim(1), was_charged=True)
    on.store.fails = RuntimeError("a bug")
    with pytest.raises(RuntimeError):
        await on.claims.run_once()
    on.store.fails = None
    assert await on.claims.run_once() is True
    assert on.claims.waiting == 0


# ---- Postgres away, slow or mute


async def test_a_keyed_request_needs_postgres() -> None:
    """Sent unclaimed, it would be sent by its twin too."""
    on = Stage(FakeClaims(is_away=True))
    with pytest.raises(
        Unavailable, match="keyed requests need the database; nothing was sent"
    ) as refused:
        await on.claim(1)
    assert refused.value.retry_after_s == 2.0
    await on.claims.close()


async def test_a_claim_with_a_lost_answer_does_not_block_its_key() -> None:
    """The caller was informed that nothing was sent, and repeats: that claim would never end."""
    on = Stage(FakeClaims(loses_next_answer=True))
    with pytest.raises(Unavailable):
        await on.claim(1)
    assert len(on.store.rows) == 1, "it was committed all the same"
    await soon(lambda: on.claims.waiting, "the claim among those to be released")
    assert (await on.claim(2)).request_id == UUID(int=2)
    await on.claims.close()


async def test_a_claim_that_hangs_is_cut_off_and_undone() -> None:
    """A caller waits a bounded time; a later claim of the thread is released, once it is done."""
    on = Stage(FakeClaims(admission=threading.Event()), patience_s=0.01)
    with pytest.raises(Unavailable):
        await on.claim(1)
    assert on.claims.waiting == 0, "a release now would overtake the claim"
    assert on.store.admission is not None
    on.store.admission.set()
    await soon(lambda: on.claims.waiting, "the claim among those to be released")
    await on.claims.run_once()
    assert on.store.rows == {}
    await on.claims.close()


async def test_a_caller_that_leaves_while_claiming_leaves_no_claim() -> None:
    """Its repeat is the first to be sent."""
    on = Stage(FakeClaims(admission=threading.Event()))
    assert on.store.admission is not None
    asking = asyncio.create_task(on.claim(1))
    await soon(lambda: on.store.asked, "the question in its thread")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    on.store.admission.set()
    await soon(lambda: on.claims.waiting, "the claim among those to be released")
    await on.claims.run_once()
    assert on.store.rows == {}
    await on.claims.close()


async def test_a_twin_that_leaves_ends_nobodys_claim_but_its_own() -> None:
    """The first request is still under way."""
    on = Stage()
    await on.claim(1)
    on.store.admission = threading.Event()
    asking = asyncio.create_task(on.claim(2))
    await soon(lambda: on.store.asked == 2, "the question in its thread")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    on.store.admission.set()
    with pytest.raises(IdempotencyConflict, match="under way"):
        await on.claim(3)
    assert on.claims.waiting == 0
    await on.claims.close()


async def test_more_than_the_slots_wait_a_bounded_time() -> None:
    """A hung server must not pile callers up behind the first four."""
    on = Stage(FakeClaims(admission=threading.Event()), patience_s=0.01)
    assert on.store.admission is not None
    asked = await asyncio.gather(
        *(on.claim(n, key=f"k{n}") for n in range(SLOTS + 3)), return_exceptions=True
    )
    assert {type(one) for one in asked} == {Unavailable}
    assert on.store.asked == SLOTS, "the others never reached a thread, so there is nothing to undo"
    on.store.admission.set()
    await soon(
        lambda: on.claims.waiting == SLOTS, "every claim that was made among those to be released"
    )
    await on.claims.close()


async def test_a_slot_is_given_back_however_a_claim_ends() -> None:
    """Lost one by one, after four failures no keyed request would ever be served again."""
    on = Stage()
    for number in range(3 * SLOTS):
        on.store.is_away = number % 2 == 0
        await asyncio.gather(on.claim(number, key=f"k{number}"), return_exceptions=True)
    on.store.is_away = False
    assert (await on.claim(99, key="last")).request_id == UUID(int=99)
    await on.claims.close()


async def test_claims_of_unknown_fate_are_bounded() -> None:
    """An outage of hours under keyed load must not fill the memory: then nothing is even asked."""
    on = Stage(FakeClaims(is_away=True), most_waiting=5)
    for number in range(20):
        with pytest.raises(Unavailable):
            await on.claim(number)
        await asyncio.sleep(0)
    assert (on.claims.waiting, on.store.asked) == (5, 5)
    on.store.is_away = False
    assert await on.claims.run_once() is True
    assert (await on.claim(99)).request_id == UUID(int=99)
    await on.claims.close()


async def test_a_bug_in_a_claim_is_no_outage(on: Stage) -> None:
    """It must show as a bug, and leave nothing in the queue that would fail there for ever."""
    on.store.fails = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        await on.claim(1)
    await asyncio.sleep(0)
    assert on.claims.waiting == 0
    on.store.fails = None


async def test_closing_writes_the_remaining_ends_and_returns_connections() -> None:
    """A clean stop leaves nothing for the next worker to find."""
    on = Stage()
    on.claims.finish(await on.claim(1), was_charged=True)
    await on.claims.close()
    assert (on.claims.waiting, on.store.is_closed) == (0, True)
    assert [row[2] for row in on.store.rows.values()] == [True]


async def test_closing_does_not_wait_for_a_database_that_is_away() -> None:
    """The journal's end closes those claims."""
    on = Stage()
    on.claims.finish(await on.claim(1), was_charged=True)
    on.store.is_away = True
    await on.claims.close()
    assert (on.claims.waiting, on.store.is_closed) == (1, True)
