"""Answers are read alike for any packet sizes, and any answer but HTTP/1.1 is refused."""

from __future__ import annotations

import gc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.providers.http1.answer import (
    CONTENT_PER_FRAMING,
    FEW_PIECES,
    MAX_FRAMING_BYTES,
    MAX_HEAD_BYTES,
    MAX_INFORMATIONAL,
    Answer,
)
from tests.providers.recorded_answers import HEAD, MALFORMED, RECORDED, STREAM, chunked


def read(*pieces: bytes, closed_by: str | None = "nobody") -> Answer:
    """Feed pieces to an answer. If `closed_by` is None the connection ends properly; a text is
    its error.
    """
    answer = Answer()
    for piece in pieces:
        answer.feed(piece)
    if closed_by != "nobody":
        answer.close(closed_by)
    return answer


def seen(answer: Answer) -> tuple[object, ...]:
    """Return everything that a reader can see, including the body, which this consumes."""
    return (
        answer.status,
        answer.headers,
        answer.take(),
        answer.has_head,
        answer.is_complete,
        answer.may_keep_alive,
        answer.fault is None,
    )


@pytest.mark.parametrize("name", RECORDED)
def test_every_framing_of_an_answer_is_read_correctly(name: str) -> None:
    """HTTP/1.1 has several ways to frame an answer; each must be read correctly."""
    one = RECORDED[name]
    answer = read(one.raw, closed_by=None if one.ends_at_close else "nobody")
    assert (answer.status, answer.take(), answer.may_keep_alive) == (
        one.status,
        one.body,
        one.may_keep_alive,
    )
    assert (answer.is_complete, answer.fault) == (True, None)


@pytest.mark.parametrize("name", RECORDED)
def test_it_is_the_same_split_at_every_byte(name: str) -> None:
    """The network may cut in a line break, in a chunk's size or between two answers."""
    raw, end = RECORDED[name].raw, None if RECORDED[name].ends_at_close else "nobody"
    whole = seen(read(raw, closed_by=end))
    for at in range(1, len(raw)):
        assert seen(read(raw[:at], raw[at:], closed_by=end)) == whole, at
    assert seen(read(*(raw[at : at + 1] for at in range(len(raw))), closed_by=end)) == whole


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bytes_are_refused_however_they_are_split(name: str) -> None:
    """A lenient parser and a strict one would see different answers, so no leniency is allowed."""
    raw = MALFORMED[name]
    for at in range(len(raw)):
        answer = read(raw[:at], raw[at:])
        assert answer.fault is not None, at
        assert not answer.is_complete, at
        assert not answer.may_keep_alive, at


@pytest.mark.parametrize("name", RECORDED)
def test_a_cut_at_any_byte_is_an_error_and_keeps_the_received_part(name: str) -> None:
    """Half an answer must never look complete, and the received half can still be metered."""
    one = RECORDED[name]
    least = len(one.raw) if one.ends_at_close else len(one.raw.removesuffix(b"XXXX"))
    for at in range(least):
        for reason in (None, "ConnectionResetError"):
            answer = read(one.raw[:at], closed_by=reason)
            is_whole = answer.is_complete
            assert answer.fault is not None or is_whole, at
            taken = answer.take()
            assert one.body.startswith(taken), at
            if is_whole:
                # An answer without a length is complete at any proper end of the connection. One
                # followed by garbage is complete before the garbage.
                assert (one.ends_at_close and reason is None) or taken == one.body, at


@given(data=st.data(), name=st.sampled_from(sorted(RECORDED)))
def test_any_split_gives_the_same(data: st.DataObject, name: str) -> None:
    """The network may cut at any number of places, and pieces may be empty."""
    raw, end = RECORDED[name].raw, None if RECORDED[name].ends_at_close else "nobody"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert seen(read(*pieces, closed_by=end)) == seen(read(raw, closed_by=end))


@given(chunks=st.lists(st.binary(min_size=1, max_size=300), max_size=8), size=st.integers(1, 400))
def test_any_chunking_gives_the_body(chunks: list[bytes], size: int) -> None:
    """The body equals the sent one, for any sizes of chunks and of packets."""
    raw = STREAM + chunked(*chunks)
    answer = read(*(raw[at : at + size] for at in range(0, len(raw), size)))
    assert (answer.is_complete, answer.take(), answer.may_keep_alive) == (
        True,
        b"".join(chunks),
        True,
    )


@given(
    raw=st.binary(max_size=200),
    head=st.sampled_from([b"", HEAD, STREAM, HEAD + b"content-length: 9\r\n\r\n"]),
)
@example(raw=b"", head=b"")
def test_any_bytes_end_in_an_answer_or_a_fault(raw: bytes, head: bytes) -> None:
    """No bytes of an upstream may raise, and after its close no answer stays open."""
    answer = read(head, raw, closed_by=None)
    assert answer.is_complete is (answer.fault is None)


def test_the_head_has_a_limit_to_the_byte() -> None:
    """An endless header must not fill the memory, and the limit must not depend on the packets."""
    start, end = b"HTTP/1.1 200 OK\r\nx: ", b"\r\ncontent-length: 2\r\n\r\n"
    fits = start + b"a" * (MAX_HEAD_BYTES - len(start) - len(end)) + end
    too_long = start + b"a" + fits.removeprefix(start)
    assert (len(fits), len(too_long)) == (MAX_HEAD_BYTES, MAX_HEAD_BYTES + 1)
    for at in (1, 1000, MAX_HEAD_BYTES - 1, MAX_HEAD_BYTES):
        assert read(fits[:at], fits[at:] + b"ok").take() == b"ok", at
        assert "a head of more than" in str(read(too_long[:at], too_long[at:] + b"ok").fault), at


def test_ten_informational_answers_are_allowed() -> None:
    """The limit is exact: ten are allowed."""
    raw = b"HTTP/1.1 103 Early Hints\r\n\r\n" * MAX_INFORMATIONAL + RECORDED["plain"].raw
    assert read(raw).take() == RECORDED["plain"].body


def test_endless_trailers_and_extensions_are_a_fault() -> None:
    """Bytes without content must not be read forever."""
    for opening in (b"0\r\n", b"5;"):
        answer = read(STREAM + opening)
        for _ in range(MAX_FRAMING_BYTES // 1000 + 1):
            answer.feed(b"x: %b\r\n" % (b"y" * 995) if opening == b"0\r\n" else b"y" * 1000)
        assert "chunk extensions or trailers" in str(answer.fault)


def test_small_chunks_are_a_fault() -> None:
    """8 MB in chunks of one byte stopped the event loop for 2.6 s and took 200 MB."""
    assert "small chunks" in str(
        read(*packets(STREAM + chunked(*[b"a"] * MAX_FRAMING_BYTES))).fault
    )
    fits = [b"a" * CONTENT_PER_FRAMING * 6] * MAX_FRAMING_BYTES
    answer = read(*packets(STREAM + chunked(*fits)))
    assert len(answer.pieces) < FEW_PIECES
    assert (answer.take(), answer.fault) == (b"".join(fits), None)


def test_a_network_packet_is_not_counted_as_a_chunk() -> None:
    """An honest answer's packets may be as small as they like."""
    body = b"a" * 2 * MAX_FRAMING_BYTES
    raw = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    for sent in (raw, STREAM + chunked(body)):
        assert read(*packets(sent, size=1)).take() == body


def packets(raw: bytes, *, size: int = 64 * 1024) -> list[bytes]:
    """Return the bytes cut as a network cuts them."""
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def test_a_reset_does_not_end_an_answer_without_length() -> None:
    """Only a proper close completes such an answer; a reset cuts it."""
    assert (
        read(RECORDED["to close"].raw, closed_by="ConnectionResetError").fault
        == "ConnectionResetError"
    )


def test_headers_of_one_name_are_joined() -> None:
    """RFC 9110 §5.3 joins them; names are in lower case, and odd bytes do not raise."""
    raw = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\nX-Odd: \xff\r\ncontent-length: 0\r\n\r\n"
    assert read(raw).headers == {"x-a": "1, 2", "x-odd": "\xff", "content-length": "0"}


@pytest.mark.parametrize(
    ("hint", "seconds"),
    [
        (b"timeout=5", 5.0),
        (b"max=3, Timeout = 75", 75.0),
        (b"timeout=", None),
        (b"timeout=-1", None),
        (b"x", None),
    ],
)
def test_the_upstream_says_how_long_it_keeps_the_connection(
    hint: bytes, seconds: float | None
) -> None:
    """An unreadable value counts as missing."""
    assert (
        read(HEAD + b"keep-alive: " + hint + b"\r\ncontent-length: 0\r\n\r\n").keep_alive_s
        == seconds
    )
    assert read(RECORDED["plain"].raw).keep_alive_s is None


def test_a_finished_answer_leaves_nothing_to_the_garbage_collector() -> None:
    """The parser and the answer refer to each other; at 10,000 a second this cycle must be
    broken explicitly.
    """
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for one in RECORDED.values():
            read(one.raw, closed_by=None)
        for raw in MALFORMED.values():
            read(raw)
        gc.collect()
        # Another test's threads may leave garbage at the same moment, which does not count.
        ours = [
            type(one) for one in gc.garbage if type(one).__module__.startswith("gateway.providers.")
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not ours
