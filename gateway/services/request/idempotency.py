"""Claims idempotency keys: a team has one request in flight per key, and no further one after a
request that may be charged; answers are not kept.

A claim is committed in Postgres before anything is sent. Its end is written in the background,
repeated until Postgres has it, and kept here until then. Ends that a dying worker did not write are
found in the ledger (`storage.budgets.idempotency`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Protocol
from uuid import UUID

import structlog

from gateway.domain.request.idempotency import Claim, Earlier, body_hash, key_hash
from gateway.errors import (
    DatabaseUnavailable,
    IdempotencyConflict,
    IdempotencyMismatch,
    RequestError,
    Unavailable,
)
from gateway.services.database_exchange import FAILED, DatabaseExchange, wait_for
from gateway.services.ports import Clock

log = structlog.get_logger()

PATIENCE_S = 1.0  # seconds for one of the slots, and again for Postgres's answer
SLOTS = 4  # claims that ask Postgres at once, each on its own connection
RETRY_AFTER_S = 2.0
TWIN_RETRY_AFTER_S = 1.0
# Limits the unwritten ends: those of all requests in flight, and of claims with unknown results
# while Postgres is away. Beyond it, no more claims are accepted.
MOST_WAITING = 10_000
BATCH = 100
PAUSE_S = 1.0  # seconds after a failure
FORGET_EVERY_S = 600.0
FLUSH_WITHIN_S = 2.0


class ClaimStore(Protocol):
    """Stores claims on idempotency keys; `storage.budgets.idempotency.ClaimTable` implements it.

    Each raises `DatabaseUnavailable` and runs in a thread.
    """

    def claim(self, claim: Claim, body_hash: bytes, *, journal_id: UUID) -> Earlier | None:
        """Claim the idempotency key and return None, or return the earlier request that has it.

        After an error the claim may exist or not.
        """

    def end(self, ended: Sequence[tuple[Claim, bool]]) -> None:
        """End claims: each one paired with True stays finished for ever, each other frees its key.

        All or nothing; repeating it is harmless.
        """

    def forget(self) -> int:
        """Delete old claims; return their number."""

    def close(self) -> None:
        """Close the connections to Postgres."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A claim on an idempotency key whose end is not written to Postgres yet."""

    claim: Claim
    was_charged: bool


class Claims:
    """The claims on idempotency keys of this worker's requests; each names the worker's journal."""

    def __init__(
        self,
        store: ClaimStore,
        clock: Clock,
        *,
        secret: bytes,
        journal_id: UUID,
        patience_s: float = PATIENCE_S,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """Start without claims; `secret` is the key of the stored hashes."""
        self._store, self._clock, self._secret, self._journal_id = store, clock, secret, journal_id
        self._patience_s, self._most_waiting = patience_s, most_waiting
        self._slots = asyncio.Semaphore(SLOTS)
        self._asking = DatabaseExchange("claims", clock, threads=SLOTS)
        self._writing = DatabaseExchange("claims-writer", clock, pauses_s=(PAUSE_S, PAUSE_S))
        self._ended: dict[UUID, _Ended] = {}
        self._has_ended = asyncio.Event()
        self._forgot_at_s = clock.monotonic()

    @property
    def waiting(self) -> int:
        """Return the number of ended claims that Postgres does not have yet."""
        return len(self._ended)

    async def claim(
        self, team: str, key: str, *, endpoint: str, body: bytes, request_id: UUID
    ) -> Claim:
        """Claim the idempotency key `key` for a request that is to be sent; its holder calls
        `finish`, however the request ends.

        Raises `IdempotencyMismatch`, `IdempotencyConflict` or `Unavailable`. Then nothing may be
        sent, and there is no claim to finish. A cancellation leaves no claim either.
        """
        claim = Claim(
            team=team, key_hash=key_hash(team, key, secret=self._secret), request_id=request_id
        )
        earlier = await self._ask_in_thread(
            claim, partial(self._claim_in_thread, claim, endpoint, body)
        )
        if earlier is not None:
            raise _refusal(earlier)
        return claim

    def finish(self, claim: Claim, *, was_charged: bool) -> None:
        """Record that a request with a claimed idempotency key has ended; Postgres gets it later.

        `was_charged`: it cost something or may have; otherwise its key is free again.

        Never awaits and never fails: a background task writes it.
        """
        self._ended[claim.request_id] = _Ended(claim, was_charged)
        self._has_ended.set()

    async def run(self) -> None:
        """Write the ends of claims to Postgres as they come and delete old claims, until
        cancelled.
        """
        while True:
            await wait_for(self._has_ended, FORGET_EVERY_S)
            if not await self.run_once():
                await asyncio.sleep(self._writing.pause_s)

    async def run_once(self) -> bool:
        """Write all ended claims and delete due old ones; return False if the database failed."""
        return await self._writing.turn(self._write_and_forget(), on_failure=self._note_failure)

    def _note_failure(self, problem: str) -> None:
        """Log that Postgres did not take the ends of claims; they are written again later."""
        if problem != FAILED:
            log.warning("claims_not_ended", problem=problem, waiting=len(self._ended))

    async def _write_and_forget(self) -> None:
        """Write all ended claims to Postgres, and delete old claims if that is due."""
        await self._write_ends()
        if self._clock.monotonic() - self._forgot_at_s >= FORGET_EVERY_S:
            await self._writing.ask(self._store.forget)
            self._forgot_at_s = self._clock.monotonic()

    async def close(self) -> None:
        """Write the remaining ends of claims, for a short time.

        The journal's end closes those that Postgres did not take.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_WITHIN_S):
                await self.run_once()
        self._asking.close()
        self._writing.close()
        self._store.close()

    async def _ask_in_thread(
        self, claim: Claim, ask: Callable[[], Earlier | None]
    ) -> Earlier | None:
        """Run `ask` for a claim in a thread, for as long as its caller can wait.

        A claim that it makes after the caller left is released once it is done.
        """
        if len(self._ended) >= self._most_waiting:
            raise _unavailable()
        try:
            async with asyncio.timeout(self._patience_s):
                await self._slots.acquire()
        except TimeoutError:
            raise _unavailable() from None
        asking = self._asking.ask(ask)
        asking.add_done_callback(lambda _: self._slots.release())
        is_answered = False
        try:
            await asyncio.wait({asking}, timeout=self._patience_s)
            if not asking.done():
                raise _unavailable()
            earlier = asking.result()
            is_answered = True
        except DatabaseUnavailable as problem:
            log.warning("claim_not_made", request_id=str(claim.request_id), problem=problem.message)
            raise _unavailable() from None
        finally:
            # the thread must end first: before that there may be no claim to release
            if not is_answered:
                asking.add_done_callback(partial(self._release_late_claim, claim))
            # Its error refers to this frame, which refers to the body: a circle of megabytes.
            del asking
        return earlier

    def _release_late_claim(self, claim: Claim, asked: asyncio.Future[Earlier | None]) -> None:
        """Release a claim that Postgres took, or may have taken, after its request had given up."""
        problem = asked.exception()
        may_be_there = (
            asked.result() is None if problem is None else isinstance(problem, DatabaseUnavailable)
        )
        if may_be_there:
            self.finish(claim, was_charged=False)

    def _claim_in_thread(self, claim: Claim, endpoint: str, body: bytes) -> Earlier | None:
        """Claim a key or return the earlier request that has it; runs in a thread, because hashing
        a body of 10 MB takes long.
        """
        hashed = body_hash(endpoint, body, secret=self._secret)
        # An end may reach Postgres, and leave `_ended`, just after Postgres has answered the claim.
        ended_before = self._ended.copy()
        earlier = self._store.claim(claim, hashed, journal_id=self._journal_id)
        if earlier is None:
            return None
        ended = ended_before.get(earlier.request_id) or self._ended.get(earlier.request_id)
        if ended is None:
            return earlier
        if ended.was_charged:
            return replace(earlier, is_finished=True)
        self._store.end([(ended.claim, False)])  # the next step of the background, made now
        return self._store.claim(claim, hashed, journal_id=self._journal_id)

    async def _write_ends(self) -> None:
        """Write all ended claims to Postgres in batches."""
        self._has_ended.clear()
        try:
            while batch := list(islice(self._ended.values(), BATCH)):
                ends = [(one.claim, one.was_charged) for one in batch]
                await self._writing.ask(self._store.end, ends)
                for one in batch:
                    del self._ended[one.claim.request_id]
        finally:
            if self._ended:
                self._has_ended.set()


def _refusal(earlier: Earlier) -> RequestError:
    """Return the error for a key that an earlier request has: another body, finished, or still
    under way.
    """
    receipt = f"GET /v1/requests/{earlier.request_id}"
    if not earlier.is_same_body:
        return IdempotencyMismatch(
            f"This Idempotency-Key belongs to another request: {earlier.request_id} had another "
            "body or endpoint. Nothing was sent. Use a new key; the other request's receipt is at "
            f"{receipt}.",
            param="Idempotency-Key",
        )
    if earlier.is_finished:
        return IdempotencyConflict(
            "The request with this Idempotency-Key has ended and may have been charged, so nothing "
            f"was sent again. Answers are not kept; its receipt is at {receipt}. To send it again, "
            "use a new key.",
            param="Idempotency-Key",
            request_id=earlier.request_id,
        )
    return IdempotencyConflict(
        f"A request with this Idempotency-Key is under way: x-request-id {earlier.request_id}. "
        f"Nothing was sent again. Ask for its receipt, {receipt}, or try again in a second.",
        param="Idempotency-Key",
        request_id=earlier.request_id,
        retry_after_s=TWIN_RETRY_AFTER_S,
    )


def _unavailable() -> Unavailable:
    """Return the error for a request with an idempotency key while Postgres does not answer."""
    return Unavailable(
        "Postgres did not answer in time, and keyed requests need the database; nothing was sent. "
        "Try again in 2 seconds, or send the request without an Idempotency-Key.",
        retry_after_s=RETRY_AFTER_S,
    )
