"""Parses callers' HTTP requests from bytes in any pieces, and refuses ambiguous or too large ones;
it has no socket, clock or await.

An ambiguous request ends the connection, because two readers could disagree about it. After `Fault`
nothing more is read.
"""

from __future__ import annotations

from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from gateway.api.http.limits import HttpLimits
from gateway.errors import HeadersTooLarge, InvalidRequest, RequestError, UriTooLong

# Limits a body's chunk lines, extensions and trailers. Each chunk costs a call, however small, and
# real clients fill their chunks.
MAX_FRAMING_BYTES = 64 * 1024
# Bytes of content per byte of new budget; chunks of 96 bytes can go on for ever.
CONTENT_PER_FRAMING = 16
_VERSIONS = frozenset({"1.0", "1.1"})

Fields = list[tuple[bytes, bytes]]


class RequestHead:
    """A request's line and fields. `fields` have names in lower case; trailers never join them."""

    __slots__ = ("awaits_continue", "fields", "is_http_1_0", "keeps_alive", "method", "target")

    def __init__(
        self,
        method: bytes,
        target: bytes,
        fields: Fields,
        *,
        is_http_1_0: bool,
        keeps_alive: bool,
        awaits_continue: bool,
    ) -> None:
        """Record the parsed line and header fields of a request."""
        self.method, self.target, self.fields = method, target, fields
        self.is_http_1_0, self.keeps_alive, self.awaits_continue = (
            is_http_1_0,
            keeps_alive,
            awaits_continue,
        )


class RequestReceiver(Protocol):
    """The receiver of parsed requests: the connection."""

    def on_head(self, head: RequestHead) -> bool:
        """Take a complete request head. Return False to receive no further request, not even this
        one.
        """

    def on_body(self, piece: bytes) -> None:
        """Take a part of the request body."""

    def on_end(self) -> None:
        """Take the end of the request: its body is complete."""


class Fault(Exception):
    """The received bytes cannot be parsed further, so the connection ends.

    `error` is for the caller; None if the receiver wanted no more.
    """

    def __init__(self, error: RequestError | None) -> None:
        """Keep the error that the caller is to get; None to end the connection without one."""
        super().__init__()
        self.error = error


class RequestParser:
    """An incremental parser of requests. `has_begun_head` is True from a head's first byte to its
    last.
    """

    __slots__ = (
        "_awaits_continue",
        "_body",
        "_error",
        "_fields",
        "_framing_bytes",
        "_head_bytes",
        "_in_body",
        "_limits",
        "_parser",
        "_receiver",
        "_target",
        "_trailer_bytes",
        "_trailers",
        "_wants_no_more",
        "has_begun_head",
    )

    def __init__(self, receiver: RequestReceiver, limits: HttpLimits) -> None:
        """Make a parser that passes requests to `receiver` and enforces `limits`."""
        self._receiver: RequestReceiver | None = receiver
        self._limits = limits
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._error: RequestError | None = None
        self._wants_no_more = False
        self._in_body = False
        self._head_bytes = 0
        self._framing_bytes = 0.0  # framing bytes minus the budget that content added
        self._body: list[bytes] = []  # the body's parts within one piece of the connection's bytes
        self._reset_head()

    def feed(self, data: bytes) -> None:
        """Parse received bytes, and pass heads and bodies to the receiver. Raises `Fault`."""
        if self._in_body:
            self._parse(data)
            return
        self._head_bytes += len(data)
        if self._head_bytes <= self._limits.head_bytes:
            self._parse(data)
            return
        # Cut at the end of the largest allowed head, so that the limit does not depend on the
        # pieces.
        self._head_bytes -= len(data)
        while data:
            room = len(data) if self._in_body else self._limits.head_bytes - self._head_bytes
            if not room:
                raise self._fault(_head_too_large(self._limits))
            piece, data = data[:room], data[room:]
            self._head_bytes += len(piece)
            self._parse(piece)

    def close(self) -> None:
        """Drop the parser: it refers to this object, so only the cyclic garbage collector would
        free both.
        """
        self._parser = self._receiver = None

    def _parse(self, data: bytes) -> None:
        """Feed bytes to the HTTP parser. Raises `Fault` for malformed bytes, an upgrade or too much
        framing.
        """
        if self._parser is None:
            raise Fault(None)
        begins_in_body = self._in_body
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            # The parser cannot continue behind a head that asks for another protocol; this server
            # keeps its own.
            raise self._fault(None) from None
        except HttpParserError as error:
            raise self._fault(
                None if self._wants_no_more else self._error or _malformed(str(error))
            ) from None
        content_bytes = self._pass_body_on()
        if begins_in_body and self._in_body:
            framing_bytes = len(data) - content_bytes - content_bytes / CONTENT_PER_FRAMING
            self._framing_bytes = max(self._framing_bytes + framing_bytes, 0.0)
            if self._framing_bytes > MAX_FRAMING_BYTES:
                raise self._fault(
                    _malformed(
                        "a body of small chunks, chunk extensions or trailers; send larger chunks"
                    )
                )

    def _pass_body_on(self) -> int:
        """Pass the received parts of the body to the receiver in one call; return their number of
        bytes.
        """
        if not self._body:
            return 0
        content = b"".join(self._body)
        self._body.clear()
        if self._receiver is not None:
            self._receiver.on_body(content)
        return len(content)

    def _fault(self, error: RequestError | None) -> Fault:
        """Close the parser, and return the `Fault` for its caller to raise."""
        self.close()
        return Fault(error)

    def _refuse(self, error: RequestError) -> None:
        """Stop the parser: an exception in a callback ends `feed_data`.

        The error itself is not raised, because its frames would form a reference cycle.
        """
        self._error = error
        raise ValueError(error.code)

    def _reset_head(self) -> None:
        """Reset the fields that belong to one request's head, before the first and after each
        request.
        """
        self._target = b""
        self._fields: Fields = []
        self._trailers = self._trailer_bytes = 0
        self._awaits_continue = False
        self.has_begun_head = False

    # ---- called by the parser

    def on_message_begin(self) -> None:
        """Note that a request's head has begun."""
        self.has_begun_head = True

    def on_url(self, target: bytes) -> None:
        """Take a part of the request target; refuse a target over its limit with `UriTooLong`."""
        self._target += target
        if len(self._target) > self._limits.target_bytes:
            self._refuse(
                UriTooLong(
                    f"The request's target is longer than {self._limits.target_bytes:,} bytes. "
                    "Move long values to the body; an admin can raise TOLLGATE_MAX_TARGET_BYTES."
                )
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header field, or drop a trailer; refuse too many or too large ones."""
        # A trailer: RFC 9110 §6.5.1 lets a server drop it, and no proxy in front checked it.
        if self._in_body:
            self._trailers += 1
            self._trailer_bytes += len(name) + len(value)
            if (
                self._trailers > self._limits.fields
                or self._trailer_bytes > self._limits.head_bytes
            ):
                self._refuse(_head_too_large(self._limits))
            return
        fields = self._fields
        # RFC 9110 §5.5: blanks around a value are not part of it. The parser removes those before
        # it.
        fields.append((name.lower(), value.rstrip(b" \t")))
        if len(fields) > self._limits.fields:
            self._refuse(_head_too_large(self._limits))

    def on_headers_complete(self) -> None:
        """Check the complete head and pass it to the receiver; refuse an invalid or unwanted
        request.
        """
        parser, receiver = self._parser, self._receiver
        assert parser is not None, "it is calling"
        assert receiver is not None, "it goes with the parser"
        version, method = parser.get_http_version(), parser.get_method()
        if version not in _VERSIONS:
            self._refuse(
                InvalidRequest(
                    f"HTTP/{version[:8]} is not offered on this connection. Send HTTP/1.1."
                )
            )
        has_body, expects = self._check_fields(is_http_1_0=version == "1.0")
        is_upgrade = parser.should_upgrade()
        if is_upgrade and (has_body or method == b"CONNECT"):
            self._refuse(
                InvalidRequest(
                    "No other protocol is offered on this connection. Send the request without the "
                    "headers Upgrade and Connection: upgrade (in Java's HttpClient: "
                    "version(HTTP_1_1))."
                )
            )
        self.has_begun_head, self._in_body = False, True
        self._head_bytes = 0
        self._framing_bytes = 0.0
        head = RequestHead(
            method,
            self._target,
            self._fields,
            is_http_1_0=version == "1.0",
            awaits_continue=expects,
            keeps_alive=parser.should_keep_alive() and version == "1.1" and not is_upgrade,
        )
        try:
            self._wants_no_more = not receiver.on_head(head)
        except RequestError as error:
            self._refuse(error.with_traceback(None))
        if self._wants_no_more:
            raise ValueError("no more")

    def on_body(self, piece: bytes) -> None:
        """Keep a part of the body until `_pass_body_on`."""
        self._body.append(piece)

    def on_message_complete(self) -> None:
        """Pass on the rest of the body and the request's end, and get ready for the next head."""
        self._pass_body_on()
        self._in_body = False
        # The next head may have begun in the same piece; `_check_fields` counts it.
        self._head_bytes = 0
        self._reset_head()
        if self._receiver is not None:
            self._receiver.on_end()

    def _check_fields(self, *, is_http_1_0: bool) -> tuple[bool, bool]:
        """Check the header fields; return whether a body follows, and whether its sender waits for
        permission.

        Refuses a request with ambiguous framing.
        """
        hosts, size, has_body, awaits_continue = 0, len(self._target), False, False
        for name, value in self._fields:
            size += len(name) + len(value) + 3  # the colon and the line's end
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                has_body = has_body or value.strip() != b"0"
            elif name == b"transfer-encoding":
                has_body = True
                if value.strip().lower() != b"chunked" or is_http_1_0:
                    self._refuse(_malformed("a transfer coding other than chunked"))
            elif name == b"expect":
                awaits_continue = value.strip().lower() == b"100-continue" and not is_http_1_0
        if hosts != 1 and (hosts or not is_http_1_0):  # RFC 9112, section 3.2
            self._refuse(_malformed("more than one Host header" if hosts else "no Host header"))
        if size > self._limits.head_bytes:
            self._refuse(_head_too_large(self._limits))
        return has_body, awaits_continue


def _malformed(problem: str) -> InvalidRequest:
    """Return the error for a request that breaks HTTP's rules; `problem` completes its sentence."""
    return InvalidRequest(
        f"The request is malformed HTTP: {problem}. The connection ends; nothing was sent upstream."
    )


def _head_too_large(limits: HttpLimits) -> HeadersTooLarge:
    """Return the error for a request head over the limit on bytes or fields."""
    return HeadersTooLarge(
        f"The request's headers are over {limits.head_bytes:,} bytes or {limits.fields} fields. "
        "Send fewer or shorter ones (cookies are not needed here); an admin can raise "
        "TOLLGATE_MAX_HEAD_BYTES and TOLLGATE_MAX_HEADER_FIELDS."
    )
