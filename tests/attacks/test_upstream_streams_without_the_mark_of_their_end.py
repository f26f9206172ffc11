"""Several servers end a stream without `[DONE]`, or with a blank behind it: the caller got the
whole answer and then an error, the deployment counted as failing, and a plain request was a 502.

The rule: if each choice has its finish reason, and the body came to the end that its framing
states, the answer is whole. A body that is cut, or that ends with its connection, stays cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from gateway.domain.operation import Operation
from gateway.wire.openai.answer.assemble import Assembler
from gateway.wire.openai.answer.last_event import DONE_EVENT
from tests import plain_http
from tests.attacks.settling import only_event, policy
from tests.gateway_process import Gateway
from tests.integration.raw_upstream import RawUpstream, event, sends, token

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    """Return a chunk of a chat with one choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "c", "model": "m", "choices": [choice]})


FINISH = chunk("stop")
LAST = event({"id": "c", "model": "m", "choices": [], "usage": USAGE})
TEXT = chunk(role="assistant", content="a")
WHOLE = TEXT + token("b") + FINISH + LAST
MESSAGE = [
    {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 10}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ab"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20},
    "messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20},
    "responses": {"input": "hello", "max_output_tokens": 20},
}


def chunked(body: bytes, *, ends: bool = True) -> bytes:
    """Return a body in one chunk; without the last one if it does not end."""
    framed = HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(body), body)
    return framed + b"0\r\n\r\n" if ends else framed


def measured(body: bytes, *, more: int = 0) -> bytes:
    """Return a body with its length; one that is cut states more."""
    return HEAD + b"content-length: %d\r\n\r\n%b" % (len(body) + more, body)


ANTHROPIC = b"".join(b"event: %b\n" % one["type"].encode() + event(one) for one in MESSAGE)
WHOLES = {
    "chunked": chunked(WHOLE),
    "measured": measured(WHOLE),
    "a blank behind the mark": chunked(WHOLE + b"data: [DONE] \n\n"),
    "the mark without its blank line": chunked(WHOLE + b"data: [DONE] "),
    "the last event without its blank line": chunked(WHOLE.rstrip(b"\n")),
    "no usage": chunked(TEXT + token("b") + FINISH),
}
CUTS = {
    "cut between chunks": chunked(WHOLE, ends=False),
    "cut before its length": measured(WHOLE, more=9),
    "ends with its connection": HEAD + b"\r\n" + WHOLE,
    "no finish reason": chunked(TEXT + token("b") + LAST),
}
PROVIDERS = ("openai_compatible", "vllm")
ANSWERS = {
    f"{provider} {kind}".replace(" ", "-"): (f"{provider}, native: [chat]", body)
    for provider in PROVIDERS
    for kind, body in {**WHOLES, **CUTS}.items()
} | {
    "anthropic-whole": ('anthropic, api_key: "env:FAKE_KEY"', chunked(ANTHROPIC)),
    "anthropic-cut": ('anthropic, api_key: "env:FAKE_KEY"', chunked(ANTHROPIC, ends=False)),
}
WHOLE_NAMES = [f"{one} {kind}".replace(" ", "-") for one in PROVIDERS for kind in WHOLES]
CUT_NAMES = [f"{one} {kind}".replace(" ", "-") for one in PROVIDERS for kind in CUTS]
END = {
    "chat/completions": "data: [DONE]",
    "messages": "event: message_stop",
    "responses": "event: response.completed",
}


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]], module_database_url: str
) -> Iterator[Gateway]:
    """Yield a gateway before servers with each of these streams."""
    upstream = RawUpstream({name: sends(body) for name, (_, body) in ANSWERS.items()})
    names = {name: provider for name, (provider, _) in ANSWERS.items()}
    text = policy(upstream.url, names).replace(
        "[chat, completions, responses, embeddings]", "[chat, messages, responses]"
    )
    yield from launch_gateway(text, module_database_url)
    upstream.close()


def ask(gateway: Gateway, model: str, operation: str, **members: Any) -> httpx2.Response:
    """Send one request and return its answer."""
    return plain_http.post(
        f"{gateway.base_url}/{operation}",
        json={"model": model, **BODIES[operation], **members},
        timeout=60,
        headers={"authorization": f"Bearer {gateway.key}"},
    )


@pytest.mark.parametrize("operation", BODIES)
@pytest.mark.parametrize("name", [*WHOLE_NAMES, "anthropic-whole"])
def test_a_whole_stream_without_its_mark_ends_as_any(
    gateway: Gateway, name: str, operation: str
) -> None:
    answer = ask(gateway, name, operation, stream=True)
    row = only_event(gateway, answer)
    assert END[operation] in answer.text
    assert "upstream_error" not in answer.text
    assert answer.text.count(END[operation]) == 1
    assert row["outcome"] == "ok"
    if "usage" not in name:
        assert (row["input_tokens"], row["output_tokens"]) == (10, 5)
        assert (row["usage_source"], row["is_suspect"]) == ("provider", False)


@pytest.mark.parametrize("name", WHOLE_NAMES)
def test_a_plain_request_gets_the_answer(gateway: Gateway, name: str) -> None:
    """vLLM is asked for a stream; others send one unasked."""
    answer = ask(gateway, name, "chat/completions")
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "ab"
    assert only_event(gateway, answer)["outcome"] == "ok"


@pytest.mark.parametrize("name", [*CUT_NAMES, "anthropic-cut"])
def test_a_cut_stream_stays_cut(gateway: Gateway, name: str) -> None:
    answer = ask(gateway, name, "chat/completions", stream=True)
    assert "[DONE]" not in answer.text
    assert "upstream_error" in answer.text
    assert only_event(gateway, answer)["outcome"] == "upstream_cut"


@pytest.mark.parametrize("ended", range(4))
def test_each_choice_needs_its_finish_reason(ended: int) -> None:
    """Of three answers each must have ended."""
    choices = [
        {"index": one, "delta": {"content": "a"}, "finish_reason": "stop" if one < ended else None}
        for one in range(3)
    ]
    stream = Assembler(operation=Operation.CHAT, choices=3, limit_bytes=10**6)
    for choice in choices:
        stream.feed(b"data: " + json.dumps({"model": "m", "choices": [choice]}).encode() + b"\n\n")
    assert stream.observed.missing_end(3) == (DONE_EVENT if ended == 3 else b"")
