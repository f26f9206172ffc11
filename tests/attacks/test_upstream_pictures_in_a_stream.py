"""One event of a stream may hold a picture of several megabytes: OpenAI's `response.completed`, a
delta's `images`, Gemini's `inlineData`. Each was cut at 1 MiB, and the attempt unknown at its hold,
while the same answer passed plain.

The rule: what a plain answer may hold, an event may hold. It is read in the thread of large
answers, its usage without its picture; above 32 MiB a stream is cut as before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from gateway.wire.dialect import EventTooLarge
from gateway.wire.sse import MAX_LARGE_EVENT_BYTES, EventSplitter
from tests import plain_http
from tests.attacks.settling import BODIES, MESSAGES, only_event, policy
from tests.gateway_process import Gateway
from tests.integration.policy import PRICE
from tests.integration.raw_upstream import RawUpstream, event, sends, token

MIB = 2**20
SIZES = {"0.1": MIB // 10 // 4 * 4, "1.5": 3 * MIB // 2, "5": 5 * MIB}  # whole groups of base64
OVER = MAX_LARGE_EVENT_BYTES + MIB
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
TEXT_USAGE = {"prompt_tokens": 10, "completion_tokens": 1290, "total_tokens": 1300}
USAGE = {**TEXT_USAGE, "completion_tokens_details": {"image_tokens": 1280}}
RESPONSE_USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 1290,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 1300,
}
DONE = event(b"[DONE]")
REQUESTS: dict[str, dict[str, Any]] = {
    "chat/completions": {
        **BODIES["chat/completions"],
        "max_tokens": 2000,
        "stream_options": {"include_usage": True},
    },
    "responses": {**BODIES["responses"], "max_output_tokens": 2000},
    "messages": {"messages": MESSAGES, "max_tokens": 2000},
}
ENDS = {
    "chat/completions": "data: [DONE]",
    "responses": "event: response.completed",
    "messages": "event: message_stop",
}


def picture(size: int) -> str:
    """Return a picture of so many bytes, with marks at both its ends."""
    return "B" + "A" * (size - 2) + "C"


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """Return a chunk of a chat."""
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": choices}


def named(*values: dict[str, Any]) -> bytes:
    """Return events with their type as a name."""
    return b"".join(b"event: %b\n" % one["type"].encode() + event(one) for one in values)


def images(size: int) -> list[dict[str, Any]]:
    """Return OpenRouter's list of pictures."""
    return [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + picture(size)}}]


def chat(size: int) -> bytes:
    """Return a picture between texts."""
    shown = chunk(images=images(size))
    last = {"id": "c", "model": "m", "choices": [], "usage": USAGE}
    return token("a") + event(shown) + token("b") + event(chunk("stop")) + event(last) + DONE


def chat_first(size: int) -> bytes:
    """Return a picture in the first event, which has the usage and its model behind the content."""
    first = {"id": "c", "choices": [], "usage": USAGE, "model": "m"}
    first["choices"] = chunk("stop", role="assistant", content="", images=images(size))["choices"]
    return event(first) + DONE


def chat_last(size: int) -> bytes:
    """Return a text of this size in one event."""
    last = {"id": "c", "model": "m", "choices": [], "usage": TEXT_USAGE}
    return token("a") + event(chunk("stop", content=picture(size))) + event(last) + DONE


def response(size: int) -> bytes:
    """Return a large item, and again in the last event, with the usage behind it."""
    part = {"type": "output_text", "text": picture(size), "annotations": []}
    item = {"id": "msg", "role": "assistant", "status": "completed", "content": [part]}
    return response_with({"type": "message", **item})


def drawn(size: int) -> bytes:
    """Return a picture that the provider's tool drew."""
    item = {"id": "ig", "status": "completed", "result": picture(size)}
    return response_with({"type": "image_generation_call", **item})


def response_with(item: dict[str, Any]) -> bytes:
    """Return a response with one item."""
    base = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m"}
    whole = {**base, "status": "completed", "output": [item], "usage": RESPONSE_USAGE}
    return named(
        {
            "type": "response.created",
            "response": {**base, "status": "in_progress", "output": [], "usage": None},
        },
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    )


def messages(size: int) -> bytes:
    """Return the result of a tool of the provider that has this size."""
    block = {"type": "web_fetch_tool_result", "content": {"data": picture(size)}}
    start = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
    text = {"type": "text", "text": "a"}
    return named(
        {
            "type": "message_start",
            "message": {**start, "usage": {"input_tokens": 10, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": text},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": block},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 1290},
        },
        {"type": "message_stop"},
    )


def gemini(size: int) -> bytes:
    """Return a text and a picture in one event, with the usage."""
    data = {"inlineData": {"mimeType": "image/png", "data": picture(size)}}
    parts = [{"text": "hello"}, data]
    usage = {
        "promptTokenCount": 10,
        "candidatesTokenCount": 1290,
        "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1280}],
        "totalTokenCount": 1300,
    }
    return event(
        {
            "candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}],
            "usageMetadata": usage,
        }
    )


CHAT, MESSAGES_KIND = "openai_compatible, native: [chat]", 'anthropic, api_key: "env:FAKE_KEY"'
RESPONSES = "openai_compatible, native: [chat, responses]"
GEMINI = 'gemini, api_key: "env:FAKE_KEY"'
# Each kind of stream: its provider, its operation, its body, how often the caller sees its picture.
KINDS: dict[str, tuple[str, str, Callable[[int], bytes], int]] = {
    "chat": (CHAT, "chat/completions", chat, 1),
    "chat-first": (CHAT, "chat/completions", chat_first, 1),
    "chat-text": (CHAT, "chat/completions", chat_last, 1),
    "chat-crlf": (
        CHAT,
        "chat/completions",
        lambda size: chat(size).replace(b"\n", b"\r\n"),
        1,
    ),
    "responses": (RESPONSES, "responses", response, 2),
    "responses-crlf": (
        RESPONSES,
        "responses",
        lambda size: response(size).replace(b"\n", b"\r\n"),
        2,
    ),
    "responses-unended": (RESPONSES, "responses", lambda size: response(size).rstrip(b"\n"), 2),
    "responses-drawn": (RESPONSES, "responses", drawn, 2),
    "messages": (MESSAGES_KIND, "messages", messages, 1),
    "gemini": (GEMINI, "chat/completions", gemini, 1),
    "anthropic-chat": (MESSAGES_KIND, "chat/completions", messages, 0),
    "chat-messages": (CHAT, "messages", chat_last, 1),
}


def chunked(body: bytes, *, ends: bool = True) -> bytes:
    """Return a body in one chunk."""
    framed = HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(body), body)
    return framed + b"0\r\n\r\n" if ends else framed


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]], module_database_url: str
) -> Iterator[Gateway]:
    """Yield a gateway before servers with each of these streams."""
    bodies = {
        f"{kind}-{name}": (provider, chunked(make(size)))
        for kind, (provider, _, make, _) in KINDS.items()
        for name, size in {**SIZES, "over": OVER}.items()
    } | {
        f"{kind}-cut": (provider, chunked(make(5 * MIB)[: 3 * MIB], ends=False))
        for kind, (provider, _, make, _) in KINDS.items()
    }
    upstream = RawUpstream({name: sends(body) for name, (_, body) in bodies.items()})
    text = policy(upstream.url, {name: provider for name, (provider, _) in bodies.items()})
    text = text.replace("[chat, completions, responses, embeddings]", "[chat, messages, responses]")
    more = "image_output_usd_per_mtok: 30, image_generation_usd_per_1k_calls: 40"
    text = text.replace(PRICE, f"{PRICE[:-1]}, {more}}}")
    yield from launch_gateway(text, module_database_url)
    upstream.close()


def ask(gateway: Gateway, model: str, operation: str) -> httpx2.Response:
    """Ask for one stream."""
    return plain_http.post(
        f"{gateway.base_url}/{operation}",
        json={"model": model, **REQUESTS[operation], "stream": True},
        timeout=60,
        headers={"authorization": f"Bearer {gateway.key}"},
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_caller_gets_the_whole_event_and_it_is_metered(
    gateway: Gateway, kind: str, size: str
) -> None:
    _, operation, _, shown = KINDS[kind]
    answer = ask(gateway, f"{kind}-{size}", operation)
    row = only_event(gateway, answer)
    times = answer.text.count(picture(SIZES[size]))
    assert times == shown
    assert answer.text.count(ENDS[operation]) == 1
    assert "upstream_error" not in answer.text
    assert '"model":"m"' not in answer.text.replace(" ", "")
    assert (row["outcome"], row["usage_source"]) == ("ok", "provider")
    assert not row["is_suspect"]
    assert (row["input_tokens"], row["output_tokens"]) == (10, 1290)
    assert "cost_usd" in answer.text


@pytest.mark.parametrize("end", ["over", "cut"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_larger_or_broken_event_is_cut_and_held(gateway: Gateway, kind: str, end: str) -> None:
    operation = KINDS[kind][1]
    answer = ask(gateway, f"{kind}-{end}", operation)
    row = only_event(gateway, answer)
    assert ENDS[operation] not in answer.text
    assert "upstream_error" in answer.text
    assert (row["outcome"], row["usage_source"]) == ("upstream_cut", "unknown")
    assert row["held_usd"] > 0


def test_the_official_client_reads_both(gateway: Gateway) -> None:
    client = OpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0)
    responses = list(client.responses.create(model="responses-drawn-5", input="hello", stream=True))
    assert responses[-1].response.output[0].result == picture(SIZES["5"])
    assert responses[-1].response.usage.output_tokens == 1290
    chunks = list(
        client.chat.completions.create(
            model="chat-5",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    (shown,) = [one for one in chunks if one.choices and "images" in one.choices[0].delta.to_dict()]
    assert shown.choices[0].delta.to_dict()["images"] == json.loads(json.dumps(images(5 * MIB)))
    assert chunks[-1].usage.completion_tokens == 1290


@pytest.mark.parametrize("piece_bytes", [1, 16 * 1024])
def test_an_event_without_end_holds_one_answer_at_most(piece_bytes: int) -> None:
    """Held are the bytes themselves, in one place, however they came."""
    splitter = EventSplitter()
    splitter.feed(b"data: ")
    large = b"x" * (MAX_LARGE_EVENT_BYTES - 64 * 1024)
    assert not splitter.keep_large(large)
    taken = 6 + len(large)
    while taken + piece_bytes <= MAX_LARGE_EVENT_BYTES:
        assert not splitter.keep_large(b"x" * piece_bytes)
        taken += piece_bytes
    with pytest.raises(EventTooLarge):
        splitter.keep_large(b"x" * piece_bytes)
    assert MAX_LARGE_EVENT_BYTES - piece_bytes < taken <= MAX_LARGE_EVENT_BYTES
    assert len(splitter.rest) == taken
    assert len(splitter._parts) == 1


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"])
def test_a_large_event_is_cut_where_a_small_one_is(end: bytes) -> None:
    """Its end may be split anywhere, and events may stand behind it."""
    event = b"data: " + b"x" * (MIB + 9) + end
    body = event + b"data: y\n\ndata: z"
    for cut in range(len(event) - 6, len(event) + 3):
        splitter = EventSplitter()
        with pytest.raises(EventTooLarge):
            splitter.feed(body[: MIB + 1])
        assert not splitter.keep_large(body[: MIB + 1])
        pieces = [body[MIB + 1 : cut], body[cut:]]
        with pytest.raises(EventTooLarge):  # whoever takes over feeds it again
            splitter.feed(pieces[0])
        if not splitter.keep_large(pieces[0]):
            with pytest.raises(EventTooLarge):
                splitter.feed(pieces[1])
            assert splitter.keep_large(pieces[1])
            events = splitter.take_large()
        else:
            events = splitter.take_large() + splitter.feed(pieces[1])
        assert b"".join(events) == body[: -len(b"data: z")]
        assert splitter.rest == b"data: z"
