"""Parses one upstream HTTP/1.1 answer from bytes in any pieces, with limits on head and framing; it
has no socket, clock or await.
"""

from __future__ import annotations

import re

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MAX_HEAD_BYTES = 64 * 1024  # for the answer's head and all informational answers before it
MAX_HEADERS = 256
MAX_INFORMATIONAL = 10
# Limits a body's chunk lines, extensions and trailers: each chunk costs a call, however small.
MAX_FRAMING_BYTES = 64 * 1024
# Bytes of content per byte of new budget; the shortest event of a stream has 34.
CONTENT_PER_FRAMING = 4
FEW_PIECES = 64
_END_OF_HEAD = re.compile(rb"\r*\n\r*\n")
_STATUS_LINE = re.compile(rb"^HTTP/[0-9.]+ ([2-9][0-9]{2})(?![0-9])", re.MULTILINE)


class Answer:
    """An incremental parser of one HTTP answer: feed it until `is_complete` or until there is a
    `fault`.

    Content from before a fault can still be taken: a cut answer is metered by its arrived part.
    """

    __slots__ = (
        "_ends_at_close",
        "_fields",
        "_framing_bytes",
        "_head",
        "_informational",
        "_is_odd",
        "_parser",
        "_pieces",
        "buffered_bytes",
        "fault",
        "has_head",
        "headers",
        "is_complete",
        "may_keep_alive",
        "status",
    )

    def __init__(self) -> None:
        """Start before the first byte of an answer."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.has_head = False
        self.is_complete = False
        self.may_keep_alive = False
        self.fault: str | None = None
        self.buffered_bytes = 0
        self._pieces: list[bytes] = []
        self._fields: list[tuple[bytes, bytes]] = []
        self._head = b""  # the pieces before the one that completes the head
        self._framing_bytes = 0.0  # framing bytes minus the budget that content added
        self._informational = 0
        self._is_odd = False  # the head is not strict: it is read again, as soon as it is complete
        self._ends_at_close = False
        self._parser: HttpResponseParser | None = HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Parse received bytes of the answer into head and content."""
        if not self.has_head and len(self._head) + len(data) > MAX_HEAD_BYTES:
            # Cut at the end of the largest allowed head, so that the limit does not depend on the
            # pieces.
            room = MAX_HEAD_BYTES - len(self._head)
            self._parse(data[:room])
            if not self.has_head:
                self.close(f"a head of more than {MAX_HEAD_BYTES} bytes")
                return
            data = data[room:]
        self._parse(data)

    def close(self, reason: str | None) -> None:
        """End the answer: `reason` is the connection's error, None if the upstream closed it."""
        self._parser = None
        if self.is_complete or self.fault is not None:
            return
        if self._ends_at_close and reason is None:
            self.is_complete = True
        else:
            self.fault = reason or "it ended early"

    def take(self) -> bytes:
        """Return the content that arrived since the last call."""
        pieces = self._pieces
        self._pieces, self.buffered_bytes = [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def stated_status(self) -> int:
        """Return the status in the answer's status line, also of a head that cannot be read; 0
        without one. Informational answers do not count.
        """
        if self.has_head:
            return self.status
        line = _STATUS_LINE.search(self._head)
        return 0 if line is None else int(line[1])

    @property
    def has_stated_end(self) -> bool:
        """Return True if the answer came to the end that its length or its last chunk states."""
        return self.is_complete and not self._ends_at_close

    @property
    def pieces(self) -> list[bytes]:
        """Return the pieces of content that `take` would join."""
        return self._pieces

    def replace_pieces(self, joined: bytes) -> None:
        """Replace the pieces of content by the joined content."""
        self._pieces = [joined]

    @property
    def keep_alive_s(self) -> float | None:
        """Return the upstream's keep-alive time; None if it states none."""
        hint = self.headers.get("keep-alive")
        if hint is not None:
            for part in hint.split(","):
                word, _, seconds = part.partition("=")
                if word.strip().lower() == "timeout" and seconds.strip().isdecimal():
                    return float(seconds)
        return None

    def _parse(self, data: bytes) -> None:
        """Feed bytes to the HTTP parser; record a fault for malformed ones, and drop the parser at
        the end.
        """
        if self.is_complete or self.fault is not None:
            # The upstream sent more than one answer. The parser skips line breaks between two, so
            # they are skipped here too: otherwise the packets would decide about the connection.
            self.may_keep_alive = self.may_keep_alive and not data.strip(b"\r\n")
            return
        had_head, buffered_bytes, pieces = self.has_head, self.buffered_bytes, len(self._pieces)
        assert self._parser is not None, "kept until the end"
        if not had_head and self._is_odd and not (data := self._usual_form(data)):
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if self._may_be_odd(data):
                self._is_odd = True
                self._parse(data)
                return
            self.may_keep_alive = False
            if not self.is_complete:
                self.fault = self.fault or f"malformed HTTP: {error}"
        if not self.has_head:
            self._head += data
        elif had_head and not self.is_complete:
            self._note_framing(len(data), self.buffered_bytes - buffered_bytes)
        # A million small ones take fifty times their bytes.
        if len(self._pieces) - pieces > FEW_PIECES:
            self._pieces[pieces:] = [b"".join(self._pieces[pieces:])]
        if self.is_complete or self.fault is not None:
            # it refers to this object: drop it here, not by the cyclic garbage collector
            self._parser = None

    def _may_be_odd(self, data: bytes) -> bool:
        """Return True if the parser gave up on a head that may be read in its usual form."""
        if self.has_head or self._is_odd or self.fault is not None:
            return False
        return _STATUS_LINE.match((self._head + data).lstrip(b"\r\n")) is not None

    def _usual_form(self, data: bytes) -> bytes:
        """Return the received bytes with a strict head, for a new parser; empty until `data` makes
        the head complete.
        """
        self._head += data
        received = self._head.lstrip(b"\r\n")
        end = _END_OF_HEAD.search(received)
        if end is None:
            return b""
        self._parser = HttpResponseParser(self)
        self._fields.clear()
        return _usual_head(received[: end.start()]) + received[end.end() :]

    def _note_framing(self, received_bytes: int, content_bytes: int) -> None:
        """Record a fault if framing bytes exceed the content's allowance by too much."""
        framing_bytes = received_bytes - content_bytes - content_bytes / CONTENT_PER_FRAMING
        self._framing_bytes = max(self._framing_bytes + framing_bytes, 0.0)
        if self._framing_bytes > MAX_FRAMING_BYTES:
            self.fault = self.fault or "a body of small chunks, chunk extensions or trailers"

    def _refuse(self, fault: str) -> None:
        """Record a fault and stop the parser: an exception in a callback ends `feed_data`."""
        self.fault = fault
        raise ValueError(fault)

    # ---- called by the parser

    def on_message_begin(self) -> None:
        """Stop the parser at the begin of a second answer."""
        if self.is_complete:
            # `_parse` makes sure that the connection is not reused.
            raise ValueError("a second answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header field, or count and ignore a trailer; refuse more than `MAX_HEADERS`."""
        self._fields.append((name, value))  # after the head it is a trailer: counted and ignored
        if len(self._fields) > MAX_HEADERS:
            self._refuse(f"more than {MAX_HEADERS} headers")

    def on_headers_complete(self) -> None:
        """Record status and headers; skip informational answers, and refuse unrequested transfer
        codings.
        """
        assert self._parser is not None, "it is calling"
        status = self._parser.get_status_code()
        if status < 200:  # except 101, which stops the parser by itself
            self._informational += 1
            if self._informational > MAX_INFORMATIONAL:
                self._refuse(f"more than {MAX_INFORMATIONAL} informational answers")
            self._fields.clear()
            return
        headers: dict[str, str] = {}
        for raw_name, raw_value in self._fields:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if status not in (204, 304):
            coding = headers.get("transfer-encoding")
            if coding is not None and coding.strip().lower() != "chunked":
                self._refuse("a transfer coding that was not asked for")
            self._ends_at_close = coding is None and "content-length" not in headers
        self.status, self.headers, self.has_head = status, headers, True

    def on_body(self, piece: bytes) -> None:
        """Keep a piece of the content until `take`."""
        self._pieces.append(piece)
        self.buffered_bytes += len(piece)

    def on_message_complete(self) -> None:
        """Mark the answer as complete, and note whether its connection may be reused."""
        if self.has_head:  # otherwise it is the end of an informational answer
            assert self._parser is not None, "it is calling"
            self.is_complete = True
            # Another reader may see the end of an odd answer elsewhere (RFC 9112 §6.3).
            self.may_keep_alive = self._parser.should_keep_alive() and not self._is_odd


def _usual_head(head: bytes) -> bytes:
    """Return a head with the liberties that RFC 9112 lets a recipient take: lines may end with LF
    alone (§2.2), chunks win over a length, and equal lengths are one (§6.3).
    """
    lines = [line.removesuffix(b"\r") for line in head.split(b"\n")]
    others, is_chunked = [], False
    lengths: set[bytes] = set()
    for line in lines:
        name, _, value = line.partition(b":")
        is_chunked = is_chunked or name.lower() == b"transfer-encoding"
        if name.lower() == b"content-length":
            lengths.update(length.strip(b" \t") for length in value.split(b","))
        else:
            others.append(line)
    if lengths and not is_chunked:
        others += [b"content-length: " + length for length in sorted(lengths)]
    return b"\r\n".join(others) + b"\r\n\r\n"
