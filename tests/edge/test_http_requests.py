"""Requests are read alike for any packet sizes, and a request that two parsers could read
differently is refused.
"""

from __future__ import annotations

import gc
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.api.http.app_exchange import AppExchange
from gateway.api.http.caller_exchange import LARGE_BYTES, CallerExchange
from gateway.api.http.connection import Connection
from gateway.api.http.limits import HttpLimits
from gateway.api.http.parser import (
    CONTENT_PER_FRAMING,
    MAX_FRAMING_BYTES,
    Fault,
    RequestHead,
    RequestParser,
)
from tests.edge.applications import Echo, Held
from tests.edge.raw_requests import CHAT, MALFORMED, START, WELL_FORMED, chunked
from tests.memory_transport import Line

PIECES = (1, 2, 3, 7, None)

PACKET = 64 * 1024


async def exchanged(
    raw: bytes, *, size: int | None, limits: HttpLimits | None = None
) -> tuple[Echo, Line]:
    """Feed a connection in pieces of `size` bytes, and wait until it has nothing more to do."""
    app = Echo()
    line = Line(app, limits=limits)
    line.send(raw, size=size)
    await line.settle()
    return app, line


def statuses(line: Line) -> list[int]:
    """Return the statuses of all answers."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", line.written)]


@pytest.mark.parametrize("name", WELL_FORMED)
async def test_a_request_parses_the_same_however_it_is_split(name: str) -> None:
    """The network may cut at any byte, and on one connection our own requests may follow
    FastAPI's.
    """
    sent = WELL_FORMED[name]
    for size in PIECES:
        app, line = await exchanged(sent.raw, size=size)
        assert tuple(app.requests) == sent.requests, size
        assert statuses(line) == [200] * len(sent.requests), size
        assert line.is_over is not sent.stays_open, size


@pytest.mark.parametrize("key", [b"K", b"  K", b"K  ", b"\tK \t"])
async def test_blanks_around_a_value_are_no_part_of_it(key: bytes) -> None:
    """An Idempotency-Key with a trailing blank was another key, and the repeat was paid again
    (RFC 9110 §5.5).
    """
    for size in PIECES:
        app, _ = await exchanged(
            START + b"idempotency-key:" + key + b"\r\ncontent-length: 2\r\n\r\n{}", size=size
        )
        assert (b"idempotency-key", b"K") in app.fields[0], size


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_bytes_are_refused_however_they_are_split(name: str) -> None:
    """The server answers 400 once and closes: later bytes could belong to the request, or hide
    another one.
    """
    for size in PIECES:
        app, line = await exchanged(
            MALFORMED[name] + START + b"content-length: 2\r\n\r\n{}", size=size
        )
        assert app.requests == [], size
        assert statuses(line) == [400], size
        assert b"\r\nconnection: close\r\n" in line.written, size
        assert line.is_over, size


async def test_small_chunks_are_refused() -> None:
    """A body of 4 MB in chunks of one byte stopped the event loop for 2.4 s."""
    opening = START + b"transfer-encoding: chunked\r\n\r\n"
    app, line = await exchanged(opening + chunked(*[b" "] * MAX_FRAMING_BYTES), size=PACKET)
    assert (app.requests, statuses(line), line.is_over) == ([], [400], True)
    app, line = await exchanged(opening + chunked(*[b" "] * 1000), size=PACKET)
    assert app.requests == [(CHAT, b" " * 1000)]


async def test_a_network_packet_is_not_counted_as_a_chunk() -> None:
    """An honest caller's packets may be as small as they like."""
    body = b" " * 2 * MAX_FRAMING_BYTES
    app, _ = await exchanged(START + b"content-length: %d\r\n\r\n" % len(body) + body, size=1)
    assert app.requests == [(CHAT, body)]


@pytest.mark.parametrize("name", WELL_FORMED)
async def test_a_refusal_waits_for_the_answers_before_it(name: str) -> None:
    """A caller matches answers to requests by their order."""
    sent = WELL_FORMED[name]
    for size in PIECES:
        app, line = await exchanged(sent.raw + b"nonsense\r\n\r\n", size=size)
        assert tuple(app.requests) == sent.requests, size
        assert statuses(line) == [200] * len(sent.requests) + [400] * sent.stays_open, size
        assert line.is_over, size


@given(data=st.data(), name=st.sampled_from(sorted({**WELL_FORMED, **MALFORMED})))
async def test_any_split_gives_the_same(data: st.DataObject, name: str) -> None:
    """The network may cut at any number of places."""
    raw = WELL_FORMED[name].raw if name in WELL_FORMED else MALFORMED[name]
    whole, at_once = await exchanged(raw, size=None)
    app = Echo()
    line = Line(app)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    for begins, ends in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        line.send(raw[begins:ends])
    await line.settle()
    assert (app.requests, app.fields, statuses(line), line.is_over) == (
        whole.requests,
        whole.fields,
        statuses(at_once),
        at_once.is_over,
    )


@given(
    raw=st.binary(max_size=200),
    head=st.sampled_from([b"", START, START + b"content-length: 9\r\n\r\n"]),
)
@example(raw=b"", head=b"")
async def test_any_bytes_are_read_waited_for_or_refused(raw: bytes, head: bytes) -> None:
    """No bytes raise, and every refusal has a status of ours."""
    _, line = await exchanged(head + raw, size=None)
    assert set(statuses(line)) <= {200, 400, 404, 413, 414, 431}
    line.hang_up()


@given(chunks=st.lists(st.binary(min_size=1, max_size=300), max_size=8), size=st.integers(1, 400))
async def test_any_chunking_gives_the_body(chunks: list[bytes], size: int) -> None:
    """The body equals the sent one, for any sizes of chunks and of packets."""
    app, _ = await exchanged(
        START + b"transfer-encoding: chunked\r\n\r\n" + chunked(*chunks), size=size
    )
    assert app.requests == [(CHAT, b"".join(chunks))]


@pytest.mark.parametrize("size", [1, 100, None])
async def test_the_head_has_a_limit_to_the_byte(size: int | None) -> None:
    """An endless header must not fill the memory, and the limit must not depend on the packets."""
    limits = HttpLimits(head_bytes=2000)
    end = b"\r\n\r\n"
    fits = START + b"a: " + b"x" * (2000 - len(START) - len(b"a: ") - len(end)) + end
    assert len(fits) == 2000
    for head, status in (
        (fits, 200),
        (fits.replace(b"a: ", b"a:  "), 431),
        (fits.replace(b"a: ", b"ab: "), 431),
    ):
        _, line = await exchanged(head, size=size, limits=limits)
        assert statuses(line) == [status]
        assert line.is_over is (status == 431)


@pytest.mark.parametrize("size", PIECES)
async def test_the_second_head_has_the_same_limit(size: int | None) -> None:
    """The limit holds even if the head came together with the previous request."""
    first = START + b"content-length: 2\r\n\r\n{}"
    for length, status in ((1500, 200), (2100, 431)):
        _, line = await exchanged(
            first + START + b"a: " + b"x" * length + b"\r\n\r\n",
            size=size,
            limits=HttpLimits(head_bytes=2000),
        )
        assert statuses(line) == [200, status]


@pytest.mark.parametrize("size", PIECES)
async def test_fields_and_target_have_a_limit(size: int | None) -> None:
    """A field of two bytes takes a hundred bytes of memory."""
    limits = HttpLimits(fields=10, target_bytes=60)
    fields = b"a:\r\n" * 9
    target = b"GET /healthz?" + b"x" * (60 - len(b"/healthz?"))
    cases = [
        (START + fields + b"\r\n", 200),
        (START + b"a:\r\n" + fields + b"\r\n", 431),
        (target + b" HTTP/1.1\r\nhost: x\r\n\r\n", 200),
        (target + b"x HTTP/1.1\r\nhost: x\r\n\r\n", 414),
    ]
    for raw, status in cases:
        _, line = await exchanged(raw, size=size, limits=limits)
        assert statuses(line) == [status]


@pytest.mark.parametrize("opening", [b"0\r\n", b"5;"])
async def test_endless_trailers_and_extensions_are_refused(opening: bytes) -> None:
    """Bytes without content must not be read forever: a trailer grows by copying."""
    app, line = await exchanged(START + b"transfer-encoding: chunked\r\n\r\n" + opening, size=None)
    for _ in range(MAX_FRAMING_BYTES // 1000 + 1):
        line.send(b"x: %b\r\n" % (b"y" * 995) if opening == b"0\r\n" else b"y" * 1000)
    await line.settle()
    assert app.requests == []
    assert statuses(line) in ([400], [431])
    assert line.is_over


async def test_trailers_are_counted_as_headers_are() -> None:
    """Each trailer costs a call into Python."""
    trailers = b"a:\r\n" * 101
    _, line = await exchanged(
        START + b"transfer-encoding: chunked\r\n\r\n0\r\n" + trailers + b"\r\n", size=None
    )
    assert statuses(line) == [431]


async def test_requests_that_wait_for_their_turn_are_few() -> None:
    """Each queued request takes memory; the connection stops reading after the allowed number."""
    app, line = await exchanged((START + b"content-length: 1\r\n\r\n1") * 50, size=None)
    assert len(app.requests) == 17
    assert line.written.count(b"connection: close") == 1
    assert line.is_over


async def test_a_body_that_is_waited_for_asks_for_it_once() -> None:
    """curl waits for `100 Continue` when a body has a megabyte or more."""
    app = Echo()
    line = Line(app)
    line.send(START + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    await line.settle()
    assert line.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    line.send(b"{")
    await line.settle()
    line.send(b"}")
    await line.settle()
    assert (app.requests, statuses(line)) == ([(CHAT, b"{}")], [100, 200])


async def test_a_large_answer_stands_behind_its_head() -> None:
    """Head and body are written separately: copying 126 MB behind a head paused the event loop
    for 200 ms.
    """
    body = b"x" * 2 * LARGE_BYTES
    _, line = await exchanged(
        START + b"content-length: %d\r\n\r\n%b" % (len(body), body), size=None
    )
    head, _, sent = line.written.partition(b"\r\n\r\n")
    assert (head.count(b"HTTP/1.1 200"), sent) == (1, CHAT.encode() + b" " + body)


async def test_a_stream_to_http_1_0_has_no_chunks() -> None:
    """HTTP/1.0 has no chunks, so the connection's end completes the answer."""
    app = Held()
    app.go.set()
    line = Line(app)
    line.send(b"POST /v1/chat/completions HTTP/1.0\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
    await line.settle()
    assert line.written.endswith(b"connection: close\r\n\r\nbegun")
    assert line.is_over


async def test_nothing_of_a_connection_is_left_to_the_collector() -> None:
    """The collector seldom runs (see `tune_collector`), so a reference cycle would keep each
    caller's last request in memory.
    """
    gc.collect()
    gc.disable()
    try:
        for raw in (
            *(sent.raw for sent in WELL_FORMED.values()),
            *MALFORMED.values(),
            START,
            START[:9],
            START + b"\r",
        ):
            for leaves in (True, False):
                _, line = await exchanged(raw * 2, size=None)
                if leaves or not line.is_over:
                    line.hang_up()
                await line.settle()
                # as the event loop calls it after the last byte
                line.connection.connection_lost(None)
                line.transport.protocol = None  # as an event loop's transport drops its protocol
                del line
        kinds = (Connection, CallerExchange, AppExchange, RequestParser)
        assert [one for one in gc.get_objects() if isinstance(one, kinds)] == []
    finally:
        gc.enable()


class Noted:
    """A handler that keeps heads and counts a body's bytes."""

    def __init__(self) -> None:
        self.heads: list[RequestHead] = []
        self.body_bytes = 0

    def on_head(self, head: RequestHead) -> bool:
        self.heads.append(head)
        return True

    def on_body(self, piece: bytes) -> None:
        self.body_bytes += len(piece)

    def on_end(self) -> None:
        pass


def test_content_makes_room_for_chunks() -> None:
    """A long body in chunks of a hundred bytes is honest and must pass."""
    noted = Noted()
    parser = RequestParser(noted, HttpLimits())
    chunks = [b" " * CONTENT_PER_FRAMING * 6] * MAX_FRAMING_BYTES
    raw = START + b"transfer-encoding: chunked\r\n\r\n" + chunked(*chunks)
    for at in range(0, len(raw), PACKET):
        parser.feed(raw[at : at + PACKET])
    assert noted.body_bytes == len(b"".join(chunks))


def test_nothing_is_read_behind_a_fault() -> None:
    """A parser that continued would find a request in unreadable bytes."""
    noted = Noted()
    parser = RequestParser(noted, HttpLimits())
    with pytest.raises(Fault) as first:
        parser.feed(b"nonsense\r\n\r\n")
    with pytest.raises(Fault) as second:
        parser.feed(START + b"\r\n")
    assert first.value.error is not None
    assert (second.value.error, noted.heads) == (None, [])
