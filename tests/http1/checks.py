"""The promises of the client, checked on one case: first on bytes alone, then over a socket pair.

A broken promise is an `AssertionError`; any other exception is a finding too.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import TypeVar

from gateway.providers.http1.answer import (
    CONTENT_PER_FRAMING,
    FEW_PIECES,
    MAX_FRAMING_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    Answer,
)
from gateway.providers.http1.connection import (
    READ_AHEAD_BYTES,
    UpstreamConnection,
    UpstreamExchange,
)
from gateway.providers.http1.errors import AnswerFailed, AnswerTimeout, AnswerTooLarge
from gateway.providers.http1.pool import own_error
from tests.http1.mutated_answers import Case, cuts, valid_answer
from tests.http1.strict_reading import Reading, Unfinished, Unreadable, strictly

EVERY_SPLIT_BYTES = 400  # longer answers are split at random places only
ONE_READ_BYTES = 256 * 1024  # the event loops' own buffer
LEAST_LIMIT = 10  # of a reader, in bytes
LONG_S = 30.0  # no deadline may end a case
# The budget of framing is compared once for each piece, so it is exact to one piece only.
BY_PIECE = "a body of small chunks, chunk extensions or trailers"

T = TypeVar("T")
Seen = tuple[object, ...]
Tally = Counter[str]


# ---- bytes alone


def check_bytes(case: Case, rng: Random, tally: Tally) -> None:
    """Read the case in many splits. The result must be one, and the only possible one."""
    whole = read([case.raw], case.closed_by)
    tally["bytes"] += len(case.raw)
    tally[_kind(whole)] += 1
    expected = seen(whole)
    for pieces in _splits(case.raw, rng):
        tally["splits"] += 1
        split = read(pieces, case.closed_by)
        if BY_PIECE not in (whole.fault, split.fault):
            assert seen(split) == expected, [len(piece) for piece in pieces]
    _check_meaning(case, whole)
    _check_reading(case, whole, tally)


def read(pieces: Iterable[bytes], closed_by: str | None) -> Answer:
    """Feed pieces and the end of the connection. The answer must stay within its limits."""
    answer = Answer()
    fed = count = 0
    for piece in pieces:
        fed, count = fed + len(piece), count + 1
        answer.feed(piece)
        _check_limits(answer, fed, count)
        if answer.fault is not None:
            break  # the connection is closed at once
    answer.close(closed_by)
    assert answer.is_complete is (answer.fault is None), "it ends in exactly one way"
    return answer


def seen(answer: Answer) -> Seen:
    """Return everything that a reader can see."""
    return (
        answer.status,
        answer.headers,
        seen_body(answer),
        answer.is_complete,
        answer.may_keep_alive,
    )


def seen_body(answer: Answer) -> bytes:
    """Return the content that can be read."""
    return b"".join(answer.pieces)


def _check_limits(answer: Answer, fed: int, count: int) -> None:
    content = sum(map(len, answer.pieces))
    assert content == answer.buffered_bytes <= fed
    assert len(answer.pieces) <= (FEW_PIECES + 1) * count
    assert len(answer.headers) <= MAX_HEADERS
    assert sum(map(len, [*answer.headers, *answer.headers.values()])) <= MAX_HEAD_BYTES * 2
    if count > 1 and answer.fault is None and not answer.is_complete:
        framing = fed - content - content / CONTENT_PER_FRAMING
        assert framing <= MAX_HEAD_BYTES + MAX_FRAMING_BYTES + ONE_READ_BYTES


def _check_meaning(case: Case, answer: Answer) -> None:
    """A valid answer has its meaning, whatever follows it."""
    meaning = case.meaning
    if meaning is not None:
        assert answer.fault is None, answer.fault
        body = seen_body(answer)
        assert (answer.status, body) == (meaning.status, meaning.body)
        assert not (case.surplus and answer.may_keep_alive), "the connection is not at its end"


def _check_reading(case: Case, answer: Answer, tally: Tally) -> None:
    """A complete answer is the one of the second reading; other readers never see another."""
    try:
        reading: Reading | None = strictly(case.raw, is_closed=case.closed_by is None)
    except (Unreadable, Unfinished):
        reading = None
    if answer.is_complete:
        assert reading is not None, "complete, but no answer of RFC 9112"
        assert (answer.status, seen_body(answer)) == (reading.status, reading.body)
        assert not (reading.rest.strip(b"\r\n") and answer.may_keep_alive), (
            "the connection is not at its end"
        )
        assert not (reading.is_odd and answer.may_keep_alive), "another reader may see another end"
    elif reading is not None:
        tally["refused, though readable"] += 1


def _splits(raw: bytes, rng: Random) -> Iterable[list[bytes]]:
    if len(raw) <= EVERY_SPLIT_BYTES:
        for at in range(1, len(raw)):
            yield [raw[:at], raw[at:]]
        yield [raw[at : at + 1] for at in range(len(raw))]
    for _ in range(4):
        yield cuts(rng, raw)


def _kind(answer: Answer) -> str:
    if answer.fault is None:
        return "complete"
    return "cut" if answer.fault in ("it ended early", "ConnectionResetError") else "refused"


# ---- a socket pair


class Owner:
    """The owner of one connection, as the pool is. It counts."""

    def __init__(self) -> None:
        self.given_back = self.forgotten = 0
        self.connection = UpstreamConnection(
            give_back=self._give_back, forget=self._forget, error_of=own_error
        )

    def _give_back(self, connection: UpstreamConnection, keep_alive_s: float | None) -> None:
        self.given_back += 1

    def _forget(self, connection: UpstreamConnection) -> None:
        self.forgotten += 1

    def start(self) -> UpstreamExchange:
        """Send a request."""
        return self.connection.start(
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
            b"",
            name="up",
            first_byte_s=LONG_S,
            first_token_s=LONG_S,
            idle_s=LONG_S,
            total_s=LONG_S,
        )


async def check_socket(case: Case, rng: Random, tally: Tally) -> None:
    """Send the case over a socket and read it with cancelled reads; then reuse the connection."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    owner = Owner()
    await asyncio.get_running_loop().create_connection(lambda: owner.connection, sock=ours)
    with contextlib.closing(theirs):
        exchange = owner.start()
        sending = asyncio.create_task(_send(theirs, case, rng))
        answered = await _outcome(exchange, rng, tally)
        await sending
        exchange.close()
        _check_outcome(case, answered)
        assert owner.given_back == 1, "given back once"
        if owner.connection.is_open and owner.connection.is_quiet():
            assert not case.surplus, "bytes behind the answer wait for the next exchange"
            await _check_reuse(owner, theirs, rng, tally)
        owner.connection.abort()
        assert owner.forgotten == 1, "forgotten once"


async def _send(theirs: socket.socket, case: Case, rng: Random) -> None:
    """Send the bytes in pieces. Then end the connection, unless a valid answer's is kept."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        await loop.sock_recv(theirs, 65536)
        for piece in cuts(rng, case.raw):
            await loop.sock_sendall(theirs, piece)
            await asyncio.sleep(0)
        if case.meaning is None or case.meaning.ends_at_close:
            theirs.shutdown(socket.SHUT_WR)


async def _outcome(exchange: UpstreamExchange, rng: Random, tally: Tally) -> Seen | AnswerFailed:
    """Return status and body, or the error. Reads are cancelled now and then, and repeated."""
    body, limit_bytes = b"", rng.choice((LEAST_LIMIT, 10**6))
    try:
        status, _ = await _cancelled_at_times(exchange.head, rng, tally)
        if rng.random() < 0.3:
            body = await _cancelled_at_times(lambda: exchange.read(limit_bytes), rng, tally)
            return (status, body)
        while piece := await _cancelled_at_times(exchange.chunk, rng, tally):
            assert exchange.buffered_bytes <= READ_AHEAD_BYTES + ONE_READ_BYTES
            body += piece
    except AnswerFailed as failed:
        return failed
    return (status, body)


async def _cancelled_at_times(
    call: Callable[[], Coroutine[None, None, T]], rng: Random, tally: Tally
) -> T:
    """Await a read that is cancelled now and then, and repeated: that loses nothing."""
    while True:
        reading = asyncio.ensure_future(call())
        for _ in range(rng.randint(0, 3)):
            await asyncio.sleep(0)
        if rng.random() < 0.3 and reading.cancel():
            await asyncio.wait([reading])
            assert reading.cancelled(), "a cancelled read takes nothing"
            tally["cancelled reads"] += 1
            continue
        return await reading


def _check_outcome(case: Case, answered: Seen | AnswerFailed) -> None:
    """A reader on a socket sees the same as one of whole bytes."""
    whole = read([case.raw], None)
    assert not isinstance(answered, AnswerTimeout), "the bytes were all sent"
    if isinstance(answered, AnswerFailed):
        is_too_large = isinstance(answered, AnswerTooLarge) and len(seen_body(whole)) > LEAST_LIMIT
        is_by_piece = BY_PIECE in str(answered)
        assert whole.fault is not None or is_too_large or is_by_piece, answered
    elif whole.fault != BY_PIECE:
        assert answered == (whole.status, seen_body(whole)), whole.fault


async def _check_reuse(owner: Owner, theirs: socket.socket, rng: Random, tally: Tally) -> None:
    """The next exchange on a quiet connection has its own answer and no byte of the first."""
    raw, meaning = valid_answer(rng)
    again = Case(raw=raw, meaning=meaning)
    exchange = owner.start()
    sending = asyncio.create_task(_send(theirs, again, rng))
    answered = await _outcome(exchange, rng, tally)
    await sending
    exchange.close()
    _check_outcome(again, answered)
    tally["reused connections"] += 1
