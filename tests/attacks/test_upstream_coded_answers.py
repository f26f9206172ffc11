"""Bought answers in deflate, br, zstd, two gzips or two members of gzip were booked by their
compressed size, unflagged: USD 2.63 of 7. Usage in sight was not read behind a byte order mark, in
a list and in events for a plain request. A plain answer cut short was booked by all its bytes.

The rule: the size of bytes is no size of a text. An unreadable answer is unknown, at its hold.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.domain.providers.table import PROVIDERS
from gateway.errors import RequestError, UpstreamError
from gateway.providers.token_counting import OfflineTokenCounter
from gateway.services.codings import GZIP, MARK, BrokenCoding, Opener, opened
from tests import factories
from tests.fakes import FakeTransport, FakeUpstreamAnswer
from tests.unit.request.test_request_service import DONE, Stage, piece, rest_of
from tests.waiting import soon

TEXT = "word " * 1000
USAGE = {"prompt_tokens": 5000, "completion_tokens": 1000, "total_tokens": 6000}
STATED = TokenUsage(input_tokens=5000, output_tokens=1000)
MESSAGE = {"role": "assistant", "content": TEXT}
CHAT = {
    "id": "c",
    "model": "m-1",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
}
WHOLE = json.dumps(CHAT | {"usage": USAGE}).encode()
TAIL = b"data: " + json.dumps({"model": "m-1", "choices": [], "usage": USAGE}).encode() + b"\n\n"
STREAM = piece(TEXT[:2500]) + piece(TEXT[2500:]) + TAIL + DONE
PART = 97
Codes = Callable[[bytes], bytes]


def raw_deflate(body: bytes) -> bytes:
    """Compress without the header that the name `deflate` stands for: a common mistake."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(body) + packer.flush()


def members(body: bytes) -> bytes:
    """Compress in two members (RFC 1952 §2.2)."""
    return gzip.compress(body[:900]) + gzip.compress(body[900:])


def itself(body: bytes) -> bytes:
    """Return the bytes under a label that lies."""
    return body


OPENED: Mapping[str, tuple[str | None, Codes]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZIP", gzip.compress),
    "gzip, unlabelled": (None, gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "two gzips": ("gzip, gzip", lambda body: gzip.compress(gzip.compress(body))),
    "two gzips, unlabelled": (None, lambda body: gzip.compress(gzip.compress(body))),
    "gzip of deflate": ("deflate, gzip", lambda body: gzip.compress(zlib.compress(body))),
    "two members": ("gzip", members),
    "gzip and rubbish": ("gzip", lambda body: gzip.compress(body) + bytes(20)),
    "identity": ("identity", itself),
    "a mark": (None, lambda body: MARK + body),
    "a mark in gzip": ("gzip", lambda body: gzip.compress(MARK + body)),
    "a label that lies": ("gzip", itself),
    "deflate that lies": ("deflate", itself),
    "br that lies": ("br", itself),
}
CLOSED: Mapping[str, tuple[str | None, bytes]] = {
    "br": ("br", b"\x1b" + bytes(range(200))),
    "zstd": ("zstd", b"\x28\xb5\x2f\xfd" + bytes(range(200))),
    "unknown": ("tomorrow", gzip.compress(WHOLE)[::-1]),
    "many": (", ".join(["gzip"] * 9), bytes(range(200))),
    "broken gzip": ("gzip", gzip.compress(WHOLE)[:60] + bytes(40)),
    "half of gzip": ("gzip", gzip.compress(WHOLE)[:-200]),
    "half of the answer": (None, WHOLE[:-200]),
    "two answers": (None, WHOLE + b"\n" + WHOLE),
    "UTF-16": (None, WHOLE.decode().encode("utf-16")),
    "a page": (None, b"<html>" + b"words " * 900),
}


def named(coding: str | None, content_type: str = "application/json") -> dict[str, str]:
    """Return the head of an answer."""
    return {"content-type": content_type} | ({} if coding is None else {"content-encoding": coding})


def sent(body: bytes, headers: Mapping[str, str], *, piece_bytes: int = PART) -> FakeUpstreamAnswer:
    """Return an answer in pieces."""
    pieces = [body[at : at + piece_bytes] for at in range(0, len(body), piece_bytes)]
    return FakeUpstreamAnswer(pieces, headers=headers)


def stage(answer: FakeUpstreamAnswer) -> Stage:
    """Return a stage with the gateway's own counter, without a tokenizer."""
    return Stage(FakeTransport([answer]), counter=OfflineTokenCounter({}))  # type: ignore[arg-type]


def asked(**more: Any) -> bytes:
    """Return a caller's request."""
    turns = [{"role": "user", "content": "x"}]
    return json.dumps({"model": "assistant", "messages": turns, "max_tokens": 2000} | more).encode()


async def booked(on: Stage) -> UsageEvent:
    """Return the only event."""
    await soon(lambda: on.journal.events, "the event")
    return on.event


@pytest.mark.parametrize(("coding", "coded"), OPENED.values(), ids=OPENED)
async def test_a_coding_of_zlib_is_opened_for_the_caller(coding: str | None, coded: Codes) -> None:
    on = stage(sent(coded(WHOLE), named(coding)))
    answer = await on.answer(asked())
    assert json.loads(answer.body)["choices"] == CHAT["choices"]
    assert (on.event.usage, on.event.usage_source) == (STATED, UsageSource.PROVIDER)


@pytest.mark.parametrize("piece_bytes", [1, PART, 10**6])
@pytest.mark.parametrize(("coding", "coded"), OPENED.values(), ids=OPENED)
async def test_a_coded_stream_is_opened(coding: str | None, coded: Codes, piece_bytes: int) -> None:
    headers = named(coding, "text/event-stream")
    on = stage(sent(coded(STREAM), headers, piece_bytes=piece_bytes))
    got = await rest_of(await on.answer(asked(stream=True)))
    assert got.count(b"word ") == 1000
    assert b"[DONE]" in got
    assert (on.event.usage, on.event.usage_source) == (STATED, UsageSource.PROVIDER)


@pytest.mark.parametrize(("coding", "coded"), CLOSED.values(), ids=CLOSED)
async def test_what_cannot_be_read_is_unknown_at_its_hold(coding: str | None, coded: bytes) -> None:
    """Whatever its size is."""
    on = stage(sent(coded, named(coding)))
    with pytest.raises(UpstreamError, match="not asked again"):
        await on.answer(asked())
    event = await booked(on)
    assert (event.usage_source, event.cost_nusd) == (UsageSource.UNKNOWN, None)
    assert event.held_nusd
    assert len(on.transport.sent) == 1


@pytest.mark.parametrize("name", ["br", "zstd", "unknown", "broken gzip"])
async def test_a_stream_that_cannot_be_opened_is_unknown_at_its_hold(name: str) -> None:
    coding, coded = CLOSED[name]
    on = stage(sent(coded, named(coding, "text/event-stream")))
    with pytest.raises(RequestError):
        await on.answer(asked(stream=True))
    event = await booked(on)
    assert (event.usage_source, event.cost_nusd) == (UsageSource.UNKNOWN, None)


@pytest.mark.parametrize("operation", [Operation.EMBEDDINGS, Operation.RERANK])
async def test_an_answer_without_text_in_a_closed_coding_is_unknown(operation: Operation) -> None:
    """Its input could be counted, but the upstream's work is in the answer that stays closed."""
    on = stage(sent(CLOSED["br"][1], named("br")))
    asks = {"model": "assistant", "input": "x", "query": "x", "documents": ["y"]}
    deployment = factories.deployment(operations=frozenset(Operation))
    with pytest.raises(UpstreamError):
        await on.answer(json.dumps(asks).encode(), deployment, operation=operation)
    assert (await booked(on)).usage_source is UsageSource.UNKNOWN


async def test_a_part_that_cannot_be_read_leaves_a_stream_unknown() -> None:
    """The text around it says nothing about its size."""
    on = stage(sent(piece(TEXT) + b"data: {not json\n\n" + DONE, named(None)))
    await rest_of(await on.answer(asked(stream=True)))
    assert on.event.usage_source is UsageSource.UNKNOWN


async def test_the_text_of_a_cut_stream_is_counted() -> None:
    """No more than was made, and no less than the caller got."""
    on = stage(FakeUpstreamAnswer([piece(TEXT)], then=UpstreamError("cut")))
    got = await rest_of(await on.answer(asked(stream=True)))
    assert got.count(b"word ") == 1000
    assert on.event.usage_source is UsageSource.ESTIMATED
    assert on.event.usage.output_tokens == len(TEXT) // 4


async def test_a_list_of_one_answer_is_that_answer() -> None:
    on = stage(sent(b" [" + WHOLE + b"]\n", named(None)))
    answer = await on.answer(asked())
    assert json.loads(answer.body)["choices"] == CHAT["choices"]
    assert on.event.usage == STATED


@pytest.mark.parametrize("body", [b"[]", b"[" + WHOLE + b"," + WHOLE + b"]", b"[1]", b"["])
async def test_any_other_list_is_no_answer(body: bytes) -> None:
    on = stage(sent(body, named(None)))
    with pytest.raises(UpstreamError):
        await on.answer(asked())
    assert (await booked(on)).usage_source is UsageSource.UNKNOWN


RESPONSE = {
    "id": "r",
    "object": "response",
    "status": "completed",
    "model": "m-1",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": TEXT}]}],
    "usage": {"input_tokens": 5000, "output_tokens": 1000, "total_tokens": 6000},
}


def events(*bodies: dict[str, Any]) -> bytes:
    """Return a stream of named events."""
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (body["type"].encode(), json.dumps(body).encode())
        for body in bodies
    )


MESSAGES = events(
    {
        "type": "message_start",
        "message": {"id": "m", "usage": {"input_tokens": 5000, "output_tokens": 1}},
    },
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 1000},
    },
    {"type": "message_stop"},
)
RESPONSES = events(
    {"type": "response.created", "response": {"id": "r", "status": "in_progress"}},
    {"type": "response.output_text.delta", "delta": TEXT},
    {"type": "response.completed", "response": RESPONSE},
)
UNASKED: Mapping[str, tuple[Operation, bytes, str]] = {
    "chat": (Operation.CHAT, b": keep-alive\n\n" + STREAM, "openai_compatible"),
    "responses": (Operation.RESPONSES, RESPONSES, "openai_compatible"),
    "messages": (Operation.MESSAGES, MESSAGES, "anthropic"),
    "messages as a chat": (Operation.CHAT, MESSAGES, "anthropic"),
}


@pytest.mark.parametrize(("operation", "body", "provider"), UNASKED.values(), ids=UNASKED)
async def test_events_for_a_plain_request_become_its_answer(
    operation: Operation, body: bytes, provider: str, tmp_path: Any
) -> None:
    """Some servers answer with events whatever was asked for."""
    key = tmp_path / "key"
    key.write_text("sk-0123456789")
    deployment = factories.deployment(
        provider=provider,
        native=PROVIDERS[provider].native,
        operations=frozenset({operation}),
        api_key=f"file:{key}",
    )
    on = stage(sent(body, named(None, "text/event-stream")))
    more = {"input": "x"} if operation is Operation.RESPONSES else {}
    answer = await on.answer(asked(**more), deployment, operation=operation)
    assert answer.content_type == "application/json"
    assert json.dumps(TEXT) in json.dumps(json.loads(answer.body))
    assert (on.event.usage.input_tokens, on.event.usage.output_tokens) == (5000, 1000)
    assert on.event.usage_source is UsageSource.PROVIDER


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (Operation.CHAT, piece(TEXT)),
        (Operation.COMPLETIONS, STREAM),
        (Operation.RESPONSES, events({"type": "response.created", "response": {"id": "r"}})),
        (Operation.CHAT, b"data: " + b"x" * 2**21),
    ],
    ids=["no end", "completions", "no whole response", "an endless event"],
)
async def test_events_that_make_no_answer_are_refused_and_paid(
    operation: Operation, body: bytes
) -> None:
    """Their usage counts if it is there."""
    on = stage(sent(body, named(None, "text/event-stream"), piece_bytes=10**6))
    more = {Operation.COMPLETIONS: {"prompt": "x"}, Operation.RESPONSES: {"input": "x"}}
    asks = asked(**more.get(operation, {}))
    deployment = factories.deployment(operations=frozenset(Operation))
    with pytest.raises(UpstreamError, match="not asked again"):
        await on.answer(asks, deployment, operation=operation)
    event = await booked(on)
    has_usage = b"usage" in body
    assert (event.usage_source is UsageSource.PROVIDER) is has_usage
    assert event.cost_nusd or event.held_nusd


def test_a_bomb_is_opened_up_to_a_bound() -> None:
    """Its compressed form stands for it, and cannot be read."""
    bomb = gzip.compress(bytes(2**22))
    assert opened(bomb, "gzip", most_bytes=2**21) == bomb
    assert len(opened(bomb, "gzip", most_bytes=2**22)) == 2**22


@given(st.binary(max_size=200), st.sampled_from([None, "gzip", "deflate", "br", "gzip, deflate"]))
def test_opening_any_bytes_ends(body: bytes, coding: str | None) -> None:
    """With bytes, whole or piece by piece."""
    assert isinstance(opened(body, coding, most_bytes=2**20), bytes)
    opener = Opener(coding)
    try:
        for at in range(len(body)):
            opener.feed(body[at : at + 1])
            opener.take()
        opener.take(is_end=True)
    except BrokenCoding:
        assert coding is not None or GZIP in body
