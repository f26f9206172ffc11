"""Runs the exchanges of one upstream connection, one at a time: writes the request and reads the
answer, with deadlines and back-pressure.

A cancelled read loses nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import select
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import cast

from gateway.providers.http1.answer import Answer
from gateway.providers.http1.errors import (
    AnswerCut,
    AnswerFailed,
    AnswerMalformed,
    AnswerTimeout,
    AnswerTooLarge,
)

READ_AHEAD_BYTES = 256 * 1024  # bytes held for a slow reader before reading from the socket pauses
LARGE_BYTES = 2**20  # larger answers are joined in a thread
COPIED_BYTES = 64 * 1024  # up to this size, one copied buffer is cheaper than two
# A timer this late means that the event loop was blocked. libuv runs timers before sockets, so
# arrived bytes get their turn first. Otherwise a blocked loop would look like a silent upstream.
HELD_UP_S, ONE_TURN_S = 0.01, 0.001

# One thread: several would take turns on the interpreter, and the event loop would wait for all of
# them.
_JOINING = ThreadPoolExecutor(1, "large-answers-joined")


# Makes the error that an exchange raises of this package's own; called only when one is raised.
ErrorOf = Callable[[AnswerFailed], Exception]


class UpstreamConnection(asyncio.Protocol):
    """A socket to one origin. It runs one exchange at a time; in between it is idle or closed.

    One timer serves all exchanges: it stands at the earliest deadline so far, and compares when it
    fires. A timer for each exchange would cost as much as parsing the answer.
    """

    __slots__ = (
        "_arrivals",
        "_forget",
        "_give_back",
        "_timer",
        "_timer_at_s",
        "_transport",
        "error_of",
        "exchange",
        "is_open",
        "is_paused",
        "loop",
    )

    def __init__(
        self,
        *,
        give_back: Callable[[UpstreamConnection, float | None], None],
        forget: Callable[[UpstreamConnection], None],
        error_of: ErrorOf,
    ) -> None:
        """Make a connection that belongs to a pool.

        `give_back` takes it after each exchange, with the upstream's keep-alive time if it states
        one. `forget` is called once, when the socket is closed.
        """
        self._give_back, self._forget, self.error_of = give_back, forget, error_of
        self.loop = asyncio.get_running_loop()
        self._arrivals: select.poll | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = math.inf
        self._transport: asyncio.Transport
        self.exchange: UpstreamExchange | None = None
        self.is_open = False
        self.is_paused = False

    def start(
        self,
        head: bytes,
        body: bytes,
        *,
        name: str,
        first_byte_s: float,
        first_token_s: float,
        idle_s: float,
        total_s: float,
    ) -> UpstreamExchange:
        """Write a request to the socket and return its exchange. `name` is the peer's in messages.

        The limits are seconds from now: until the answer's head is complete, until its reader
        reports the first token, and until the end of the answer. `idle_s` bounds each silence in
        between.
        """
        assert self.is_open, "a closed connection is never handed out"
        assert self.exchange is None, "one exchange at a time"
        assert not self.is_paused, "what is paused is not at the end of its answer"
        exchange = self.exchange = UpstreamExchange(
            self,
            name=name,
            now_s=self.loop.time(),
            first_byte_s=first_byte_s,
            first_token_s=first_token_s,
            idle_s=idle_s,
            total_s=total_s,
        )
        self.watch(exchange.deadline_s())
        if len(body) > COPIED_BYTES:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head + body)
        return exchange

    def end(self, *, is_reusable: bool, keep_alive_s: float | None) -> None:
        """End the connection's exchange: keep the connection for reuse, or close it.

        A connection with unsent bytes is closed: its answer came early.
        """
        self.exchange = None
        if not is_reusable or (self.is_open and self._transport.get_write_buffer_size()):
            self.abort()
        self._give_back(self, keep_alive_s)

    def abort(self) -> None:
        """Close the upstream socket at once."""
        if self.is_open:
            self._transport.abort()
            self._closed("the gateway closed it")

    def pause(self) -> None:
        """Stop reading from the socket: the answer's reader is slower than the upstream."""
        if self.is_open and not self.is_paused:
            self.is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read from the upstream socket again after a pause."""
        if self.is_paused:
            self.is_paused = False
            if self.is_open:
                self._transport.resume_reading()

    def watch(self, deadline_s: float) -> None:
        """Check the exchange's deadline at the loop time `deadline_s` at the latest."""
        if deadline_s < self._timer_at_s and self.is_open:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at_s = deadline_s
            self._timer = self.loop.call_at(deadline_s, self._check_deadline)

    def is_quiet(self) -> bool:
        """Return True if an idle connection is usable; False even before the loop has seen its
        close.
        """
        if self._transport.is_closing():
            return False
        if self._arrivals is None:
            self._arrivals = select.poll()
            self._arrivals.register(
                self._transport.get_extra_info("socket").fileno(), select.POLLIN
            )
        return not self._arrivals.poll(0)

    def arrived_bytes(self) -> int:
        """Return the number of bytes that wait in the kernel.

        With TLS they are encrypted, so a little more than their content.
        """
        if not self.is_open:
            return 0
        waiting = bytearray(4)
        fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.FIONREAD, waiting)
        return int.from_bytes(waiting, sys.byteorder)

    def _check_deadline(self) -> None:
        """Fail the exchange if its deadline has passed, else set the timer to the next deadline."""
        now_s = self.loop.time()
        late_s = now_s - self._timer_at_s
        self._timer, self._timer_at_s = None, math.inf
        exchange = self.exchange
        deadline_s = math.inf if exchange is None else exchange.deadline_s()
        if deadline_s <= now_s and late_s > HELD_UP_S:
            self.watch(now_s + ONE_TURN_S)
        elif exchange is not None and deadline_s <= now_s:
            exchange.expire(now_s)
        elif deadline_s < math.inf:
            self.watch(deadline_s)

    def _closed(self, reason: str | None) -> None:
        """Record that the socket closed: stop the timer, notify the exchange and leave the pool."""
        if not self.is_open:
            return
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.exchange is not None:
            self.exchange.lost(reason)
        self._forget(self)

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connected upstream socket."""
        # Of a stream, as this is a stream's protocol.
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Pass received bytes to the exchange; close the connection if they belong to no
        request.
        """
        exchange = self.exchange
        if exchange is None:
            self.abort()  # bytes without a request
        else:
            exchange.received(data, self.loop.time())

    def eof_received(self) -> None:
        """Close the socket at once, because the upstream closed its side."""
        self._closed(None)
        self._transport.abort()  # not `close`: that would wait until everything is sent

    def connection_lost(self, broken: Exception | None) -> None:
        """Record that the socket is closed, with the name of the error if one broke it."""
        self._closed(None if broken is None else type(broken).__name__)


class UpstreamExchange:
    """A request that was handed to the socket, with its incoming answer.

    No await stands between taking bytes and returning them, so a cancelled read loses nothing and
    may be repeated.
    """

    __slots__ = (
        "_active_s",
        "_answer",
        "_awaits_token",
        "_connection",
        "_error_of",
        "_failure",
        "_first_byte_s",
        "_first_token_s",
        "_idle_s",
        "_loop",
        "_name",
        "_pause_above_bytes",
        "_started_s",
        "_total_s",
        "_waiter",
    )

    def __init__(
        self,
        connection: UpstreamConnection,
        *,
        name: str,
        now_s: float,
        first_byte_s: float,
        first_token_s: float,
        idle_s: float,
        total_s: float,
    ) -> None:
        """Begin an exchange whose request was just written; the times are its deadlines in
        seconds.
        """
        self._connection: UpstreamConnection | None = connection
        self._loop, self._error_of = connection.loop, connection.error_of
        self._name = name
        self._first_byte_s, self._first_token_s = first_byte_s, first_token_s
        self._idle_s, self._total_s = idle_s, total_s
        self._awaits_token = True  # until its reader reports the first token
        self._started_s = self._active_s = now_s
        self._answer = Answer()
        # A plain function: a bound method would refer to this object and keep the answer's bytes
        # until the next collection.
        self._failure: Callable[[UpstreamExchange], AnswerFailed] | None = None
        self._pause_above_bytes = READ_AHEAD_BYTES
        self._waiter: asyncio.Future[None] | None = None

    async def head(self) -> tuple[int, Mapping[str, str]]:
        """Return the answer's status and headers as soon as they arrive, names in lower case.

        Raises `AnswerTimeout`, `AnswerCut` or `AnswerMalformed`.
        """
        while not self._answer.has_head:
            await self._wait_for_change()
        return self._answer.status, self._answer.headers

    async def chunk(self) -> bytes:
        """Return the next piece of the answer's body, empty at its end.

        Raises `AnswerTimeout`, `AnswerCut` or `AnswerMalformed`.
        """
        answer = self._answer
        while not answer.buffered_bytes:
            if answer.is_complete:
                return b""
            await self._wait_for_change()
        return self._take_arrived()

    async def read(self, limit_bytes: int) -> bytes:
        """Return the rest of the answer's body.

        Raises the same, or `AnswerTooLarge` if it is over the limit.
        """
        answer = self._answer
        self._pause_above_bytes = max(limit_bytes, READ_AHEAD_BYTES)
        self._resume()
        try:
            while not answer.is_complete and answer.buffered_bytes <= limit_bytes:
                await self._wait_for_change()
        finally:
            self._pause_above_bytes = READ_AHEAD_BYTES
        if answer.buffered_bytes > limit_bytes:
            raise self._too_large(limit_bytes)
        if answer.buffered_bytes >= LARGE_BYTES:
            # Allocating 126 MB takes 200 ms. Cancelling the wait loses nothing.
            answer.replace_pieces(
                await self._loop.run_in_executor(_JOINING, _joined, answer.pieces)
            )
        return self._take_arrived()

    def _too_large(self, limit_bytes: int) -> Exception:
        """Return the error for a body over the limit. It is made here because a frame that names
        its own exception forms a reference cycle.
        """
        return self._error_of(
            AnswerTooLarge(f"The answer of {self._name} is larger than {limit_bytes} bytes.")
        )

    def note_first_token(self) -> None:
        """Record that the first content arrived: from now on only silence and the total time are
        limited.
        """
        # The timer may fire once too early; it then checks the remaining time.
        self._awaits_token = False

    def give_up(self) -> None:
        """Fail the exchange with a timeout error now, because its reader learned that the peer
        makes no progress; does nothing to a complete answer.
        """
        connection = self._connection
        if connection is not None and not self._answer.is_complete:
            self._fail(UpstreamExchange._no_progress)
            connection.abort()

    def close(self) -> None:
        """Return the connection for reuse if the answer is complete, else close it at once.

        A second call does nothing.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            return
        answer = self._answer
        answer.close("the gateway closed it")
        answer.take()  # unread content is dropped with the connection
        if answer.fault is not None:
            self._fail(UpstreamExchange._cut)
        connection.end(is_reusable=answer.may_keep_alive, keep_alive_s=answer.keep_alive_s)

    def has_stated_end(self) -> bool:
        """Return True if the body came to the end that its length or its last chunk states."""
        return self._answer.has_stated_end

    def arrived_bytes(self) -> int:
        """Return the number of bytes that arrived and were not taken yet, here and in the
        kernel.
        """
        connection = self._connection
        return self._answer.buffered_bytes + (
            connection.arrived_bytes() if connection is not None else 0
        )

    @property
    def buffered_bytes(self) -> int:
        """Return the number of bytes that arrived here and were not taken yet."""
        return self._answer.buffered_bytes

    async def _wait_for_change(self) -> None:
        """Wait until bytes arrive or the exchange ends. Raises the exchange's error."""
        if self._failure is not None:
            raise self._error_of(self._failure(self))
        assert self._waiter is None, "one reader at a time"
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        """Let the waiting reader, if there is one, check the answer again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take_arrived(self) -> bytes:
        """Return the content that has arrived, and resume reading from the socket."""
        taken = self._answer.take()
        self._resume()
        return taken

    def _resume(self) -> None:
        """Read from a paused socket again, and count the silence from now on."""
        connection = self._connection
        if connection is not None and connection.is_paused:
            self._active_s = self._loop.time()  # reading was paused, so the upstream was not silent
            connection.resume()
            connection.watch(self.deadline_s())

    def _fail(self, failure: Callable[[UpstreamExchange], AnswerFailed]) -> None:
        """Record the exchange's first failure, and wake the reader, which raises it."""
        if self._failure is None:
            self._failure = failure
            self._wake()

    # ---- called by the connection

    def received(self, data: bytes, now_s: float) -> None:
        """Parse bytes that the socket received, and wake the reader."""
        answer, connection = self._answer, self._connection
        assert connection is not None, "a closed exchange has no connection"
        self._active_s = now_s
        had_head = answer.has_head
        answer.feed(data)
        if answer.fault is not None:
            self._fail(UpstreamExchange._malformed)
            connection.abort()
        elif answer.is_complete:
            pass
        elif answer.buffered_bytes > self._pause_above_bytes:
            connection.pause()
        elif answer.has_head is not had_head:
            # From now on the idle time counts, which may be shorter.
            connection.watch(self.deadline_s())
        self._wake()

    def lost(self, reason: str | None) -> None:
        """Record that the connection ended; `reason` is None if the upstream closed it properly."""
        self._answer.close(reason)
        if self._answer.fault is not None:
            self._fail(UpstreamExchange._cut)
        self._wake()

    def deadline_s(self) -> float:
        """Return the exchange's current deadline, in the loop's time."""
        connection = self._connection
        if self._answer.is_complete or self._failure is not None or connection is None:
            return math.inf
        end_s = self._started_s + self._total_s
        if not self._answer.has_head:
            return min(end_s, self._started_s + self._first_byte_s)
        if self._awaits_token:
            end_s = min(end_s, self._started_s + self._first_token_s)
        return end_s if connection.is_paused else min(end_s, self._active_s + self._idle_s)

    def expire(self, now_s: float) -> None:
        """Fail the exchange with a timeout error, because its deadline has passed."""
        connection = self._connection
        assert connection is not None, "only a running exchange has a deadline"
        if not self._answer.has_head:
            self._fail(UpstreamExchange._first_byte_timeout)
        else:
            self._fail(self._timeout_error(now_s))
        connection.abort()

    # ---- errors, made again for each raise, because a raised exception keeps its frames

    def _timeout_error(self, now_s: float) -> Callable[[UpstreamExchange], AnswerFailed]:
        """Return the maker of the error for the deadline that has passed: total, first token or
        idle.
        """
        if now_s >= self._started_s + self._total_s:
            return UpstreamExchange._total_timeout
        is_tokenless = self._awaits_token and now_s >= self._started_s + self._first_token_s
        return (
            UpstreamExchange._first_token_timeout
            if is_tokenless
            else UpstreamExchange._idle_timeout
        )

    def _first_byte_timeout(self) -> AnswerFailed:
        """Return the error for an upstream that did not send the head of its answer in time."""
        waited_s = min(self._first_byte_s, self._total_s)
        return AnswerTimeout(f"{self._name} did not begin to answer in {waited_s:.3g} s.")

    def _first_token_timeout(self) -> AnswerFailed:
        """Return the error for an answer that began but brought no content in time."""
        waited_s = self._first_token_s
        return AnswerTimeout(
            f"{self._name} began to answer, but gave no content in {waited_s:g} s."
        )

    def _idle_timeout(self) -> AnswerFailed:
        """Return the error for an answer that began and was then silent for too long."""
        return AnswerTimeout(f"{self._name} stopped answering in the middle of its answer.")

    def _total_timeout(self) -> AnswerFailed:
        """Return the error for an answer that was not complete in its total time."""
        return AnswerTimeout(f"{self._name} did not finish its answer in {self._total_s:.3g} s.")

    def _no_progress(self) -> AnswerFailed:
        """Return the error for a peer that was found to make no progress."""
        return AnswerTimeout(f"{self._name} stands still: it makes no progress on its requests.")

    def _cut(self) -> AnswerFailed:
        """Return the error for a connection that ended before the answer did."""
        if not self._answer.has_head:
            return AnswerCut(
                f"{self._name} closed the connection without an answer: {self._answer.fault}."
            )
        return AnswerCut(f"The connection to {self._name} broke: {self._answer.fault}.")

    def _malformed(self) -> AnswerFailed:
        """Return the error for an answer that cannot be parsed, with the fault."""
        return AnswerMalformed(
            f"{self._name} sent an answer that cannot be read: {self._answer.fault}.",
            status=self._answer.stated_status,
        )


def _joined(pieces: Sequence[bytes]) -> bytes:
    """Join pieces of content one by one: a single call would hold the interpreter for the whole
    copy.
    """
    whole = BytesIO()
    for piece in pieces:
        whole.write(piece)
    return whole.getvalue()
