"""Receives the body of one forwarded request from its caller, and writes the answer's status,
headers and pieces to the caller at its pace.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Callable
from http import HTTPStatus

from gateway.api.errors import Headers
from gateway.api.http.caller_socket import CallerSocket
from gateway.api.http.parser import Fields, RequestHead
from gateway.api.routes import Endpoint
from gateway.errors import RequestError, RequestTooLarge

READ_AHEAD_BYTES = 64 * 1024  # of a body before it is requested
LARGE_BYTES = 256 * 1024  # a larger piece is not copied behind its head
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}


class ClientGone(Exception):
    """The caller left before its request was complete."""


class CallerExchange:
    """The caller's side of one forwarded request. `on_leaving` is called when the caller leaves,
    `on_answered` with the exchange when its answer is complete.

    The answer's head is written together with its first piece: one packet, and one write for a
    plain answer.
    """

    __slots__ = (
        "_awaits_continue",
        "_body",
        "_error",
        "_head",
        "_is_chunked",
        "_is_http_1_0",
        "_is_wanted",
        "_on_answered",
        "_resume_reading",
        "_socket",
        "_waiter",
        "endpoint",
        "fields",
        "has_begun",
        "is_answered",
        "is_gone",
        "is_whole",
        "keeps_alive",
        "on_leaving",
        "received_bytes",
        "target",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        head: RequestHead,
        socket: CallerSocket,
        *,
        on_answered: Callable[[CallerExchange], None],
        resume_reading: Callable[[], None],
    ) -> None:
        """Make the exchange of a parsed request head; its body and its answer are still to come."""
        self._socket, self._on_answered = socket, on_answered
        self._resume_reading = resume_reading
        self.endpoint = endpoint
        self.fields: Fields = head.fields
        self.target = head.target
        self.keeps_alive = head.keeps_alive
        self._is_http_1_0 = head.is_http_1_0
        self._awaits_continue = head.awaits_continue
        self._body: bytes | bytearray = b""
        self.received_bytes = 0
        self.is_whole = self.is_answered = self.has_begun = self.is_gone = False
        self._is_wanted = self._is_chunked = False
        self._error: RequestError | None = None
        self._waiter: Future[None] | None = None
        self._head = b""
        self.on_leaving: Callable[[], None] | None = None

    # ---- for the answering side

    async def body(self, *, limit_bytes: int) -> bytes:
        """Return the complete request body as soon as it has arrived.

        Raises `RequestTooLarge` as soon as it exceeds the limit, `ClientGone`, or the error of a
        bad body.
        """
        self._is_wanted = True
        while not self.is_whole and self.received_bytes <= limit_bytes:
            self._raise_failure()
            if self._awaits_continue:
                self._awaits_continue = False
                self._socket.transport.write(CONTINUE)
            self._resume_reading()
            self._waiter = get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._raise_failure()
        if self.received_bytes > limit_bytes:
            self._body = b""
            raise too_large(limit_bytes)
        body, self._body = self._body, b""
        return body if isinstance(body, bytes) else bytes(body)

    def start(self, status: int, headers: Headers) -> None:
        """Prepare the answer's status line and headers; they are written together with the first
        piece.

        Without a content-length the body is chunked.
        """
        assert not self.has_begun, "an answer begins once"
        self.has_begun = True
        self._awaits_continue = False  # a caller that gets an answer need not send the body
        head = b"\r\n".join([STATUS_LINES[status], *map(b": ".join, headers), b""])
        expected = 1 + len(headers)
        if head.count(b"\n") != expected or head.count(b"\r") != expected or head.find(b"\0") >= 0:
            raise RuntimeError("a header of an answer has a line break or a NUL")
        if head.find(b"\ncontent-length: ") < 0:
            if self._is_http_1_0:
                # HTTP/1.0 has no chunks: the connection's end ends the answer.
                self.keeps_alive = False
            else:
                self._is_chunked = True
                head += b"transfer-encoding: chunked\r\n"
        if head.find(b"\nconnection: ") >= 0:  # we send this header only to close
            self.keeps_alive = False
        elif not self.keeps_alive:
            head += b"connection: close\r\n"
        self._head = head + b"\r\n"

    async def send(self, piece: bytes, *, is_last: bool = False) -> None:
        """Write a piece of the answer as soon as the caller has taken enough of the earlier ones.

        Does nothing after the caller left.
        """
        transport, flow = self._socket.transport, self._socket.flow
        if flow.write_paused and not self.is_gone:
            await flow.drain()
        if self.is_gone:
            return
        assert not self.is_answered, "an answer ends once"
        if self._is_chunked:
            piece = (b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b"") + (
                b"0\r\n\r\n" if is_last else b""
            )
        if len(piece) < LARGE_BYTES:
            piece = self._head + piece
        elif self._head:  # a copy of 126 MB takes 200 ms
            transport.write(self._head)
        transport.write(piece)
        self._head = b""
        if is_last:
            self.is_answered = True
            self._on_answered(self)

    # ---- for the connection

    def add_to_body(self, piece: bytes) -> None:
        """Add a received part to the request body. Parts after the answer are dropped."""
        self.received_bytes += len(piece)
        if self.is_answered:
            return
        if not self._body:
            self._body = piece
        else:
            # Not a list of pieces: ten million one-byte chunks would take eight times the body.
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += piece
        if not self._is_wanted:
            if len(self._body) > READ_AHEAD_BYTES:
                self._socket.flow.pause_reading()
        elif self.received_bytes > READ_AHEAD_BYTES:
            self._wake()  # the body may be too large now

    def end_body(self) -> None:
        """Mark the request body as complete, and wake its reader."""
        self.is_whole = True
        self._wake()

    def fail_body(self, error: RequestError) -> bool:
        """Fail the request body with an error for its reader, because it will never be complete.

        Returns False if no reader waits for it, so the caller would get no error.
        """
        self._error = error
        if self._waiter is None:
            return False
        self._wake()
        return True

    def note_caller_left(self) -> None:
        """Record that the caller left, and wake the reader and `on_leaving`."""
        self.is_gone = True
        self._wake()
        on_leaving, self.on_leaving = self.on_leaving, None
        if on_leaving is not None:
            on_leaving()

    def _raise_failure(self) -> None:
        """Raise `ClientGone` if the caller left, or the error of a failed body once; else do
        nothing.
        """
        if self.is_gone:
            raise ClientGone
        error, self._error = self._error, None
        if error is None:
            return
        try:
            raise error
        finally:
            del error  # it keeps this frame: neither the frame nor this object may keep it

    def _wake(self) -> None:
        """Wake the task that waits in `body` for the rest of the request, if there is one."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def too_large(limit_bytes: int) -> RequestTooLarge:
    """Return the error for a request body over the limit."""
    return RequestTooLarge(
        f"The body is larger than {limit_bytes:,} bytes. Send less, or ask an admin to raise "
        "TOLLGATE_MAX_BODY_BYTES."
    )
