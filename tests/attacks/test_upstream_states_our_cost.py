"""Upstreams whose usage has a member `cost_usd`: it reached the caller as if it were Tollgate's, if
ours was unknown or its name had an escape.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.wire.anthropic.answer.messages import message_stream, rewrite_message
from gateway.wire.dialect import AnswerPart, written
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import chat_stream, rewrite_chat
from gateway.wire.openai.answer.responses import response_stream, rewrite_response

NAMES = [b'"cost_usd"', rb'"cost\u005fusd"', rb'"\u0063ost_usd"']
USAGES: dict[str, dict[str, Any]] = {
    "counts": {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "input_tokens": 1,
        "output_tokens": 2,
    },
    "words": {"speed": "standard"},
    "nothing": {},
}


def shown(parts: list[AnswerPart], cost: str | None) -> bytes:
    return b"".join(written(part, lambda _: cost) for part in parts)


def members_of(sent: bytes) -> list[list[tuple[str, Any]]]:
    """Return the members of each usage in an answer, also those that stand there twice."""
    found: list[list[tuple[str, Any]]] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.extend(value for name, value in pairs if name == "usage")
        names = [name for name, _ in pairs]
        return Pairs(pairs) if names.count("usage") == 0 else dict(pairs)

    class Pairs(dict[str, Any]):
        def __init__(self, pairs: list[tuple[str, Any]]) -> None:
            super().__init__(pairs)
            self.pairs = pairs

    for line in sent.replace(b"data: ", b"").splitlines():
        if line.startswith(b"{"):
            json.loads(line, object_pairs_hook=note)
    return [usage.pairs if isinstance(usage, Pairs) else list(usage) for usage in found]


def events(dialect: str, usage: bytes, *, is_stream: bool) -> bytes:
    """Return an answer with this usage at each place of its dialect."""
    if dialect == "chat":
        if not is_stream:
            return b'{"id":"a","model":"x","choices":[],"usage":%b}' % usage
        piece = (
            b'data: {"model":"x","choices":[{"index":0,"delta":{"content":"a"}}],"usage":%b}\n\n'
        )
        end = b'data: {"model":"x","choices":[],"usage":%b}\n\n'
        return piece % usage + end % usage
    if dialect == "responses":
        whole = b'{"id":"r","model":"x","status":"completed","output":[],"usage":%b}' % usage
        if not is_stream:
            return whole
        kinds = (b"response.in_progress", b"response.completed")
        return b"".join(b'data: {"type":"%b","response":%b}\n\n' % (one, whole) for one in kinds)
    whole = b'{"id":"m","type":"message","model":"x","content":[],"usage":%b}' % usage
    if not is_stream:
        return whole
    start = b'data: {"type":"message_start","message":%b}\n\n' % whole
    return start + b'data: {"type":"message_delta","delta":{},"usage":%b}\n\n' % usage


def answered(dialect: str, body: bytes, *, is_stream: bool, cost: str | None) -> bytes:
    """Return the bytes of an answer for the caller."""
    if not is_stream:
        rewrite = {"chat": rewrite_chat, "responses": rewrite_response}.get(
            dialect, rewrite_message
        )
        return shown([rewrite(body, Observed(), model="m")], cost)
    stream: Any
    if dialect == "chat":
        stream = chat_stream(
            model="m", wants_usage=True, wants_running_usage=True, asked_running_usage=False
        )
    else:
        stream = (response_stream if dialect == "responses" else message_stream)(model="m")
    return shown(list(stream.feed(body)), cost)


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("counts", USAGES)
@pytest.mark.parametrize("cost", ["0.5", None])
@pytest.mark.parametrize("times", [1, 2])
def test_the_cost_in_an_answer_is_ours_or_absent(
    dialect: str, is_stream: bool, name: bytes, counts: str, cost: str | None, times: int
) -> None:
    known = msgspec.json.encode(USAGES[counts])[1:-1]
    inner = b",".join(part for part in (known, *[name + b":99"] * times) if part)
    body = events(dialect, b"{%b}" % inner, is_stream=is_stream)
    sent = answered(dialect, body, is_stream=is_stream, cost=cost)
    usages = members_of(sent)
    assert usages
    for usage in usages:
        costs = [value for member, value in usage if member == "cost_usd"]
        assert costs in ([], [0.5] if cost else [])
        assert dict(usage).keys() - {"cost_usd"} == USAGES[counts].keys()
    if cost and counts == "counts":
        assert sent.count(b"0.5") == 1
