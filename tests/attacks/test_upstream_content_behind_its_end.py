"""Content behind a finish reason was lost from the last object that callers of responses get, a
later `length` was ignored, and a call behind a stop ended a message with `end_turn`.

The rule: the last object is made of all that was sent, and the end is decided at the end of the
stream.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from tests.attacks.every_target import ASKED, target
from tests.event_messages import event as event_message
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import once, rest_of

CALL = {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """Return a chunk of a chat."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"model": "m-1", "choices": [choice]}).encode() + b"\n\n"


def gemini(parts: list[dict[str, Any]], finish: str | None = None) -> bytes:
    """Return an event of Gemini's."""
    candidate = {"index": 0, "content": {"parts": parts}, "finishReason": finish}
    return b"data: " + json.dumps({"candidates": [candidate]}).encode() + b"\n\n"


def bedrock(text: str) -> bytes:
    """Return a piece of text of Bedrock's."""
    return event_message("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": text}})


def stopped(word: str) -> bytes:
    """Return Bedrock's end."""
    return event_message("messageStop", {"stopReason": word})


def anthropic(kind: str, **members: Any) -> bytes:
    """Return a named event."""
    return b"data: " + json.dumps({"type": kind, **members}).encode() + b"\n\n"


def words(text: str) -> bytes:
    """Return a piece of text of Anthropic's."""
    delta = {"type": "text_delta", "text": text}
    return anthropic("content_block_delta", index=0, delta=delta)


def ended(word: str) -> bytes:
    """Return Anthropic's end."""
    usage = {"input_tokens": 5, "output_tokens": 20}
    return anthropic("message_delta", delta={"stop_reason": word}, usage=usage)


CHAT = {"usage": {"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25}, "choices": []}
DONE = b"data: " + json.dumps(CHAT).encode() + b"\n\ndata: [DONE]\n\n"
STOP = anthropic("message_stop")
# A stream of each dialect: its text is AB, the word is the caller's end.
STREAMS = {
    "chat, text": ("groq", [chat({"content": "A"}, "stop"), chat({"content": "B"}), DONE], "stop"),
    "chat, a cut": (
        "groq",
        [chat({"content": "A"}, "stop"), chat({"content": "B"}, "length"), DONE],
        "length",
    ),
    "chat, a cut first": (
        "groq",
        [chat({"content": "A"}, "length"), chat({"content": "B"}, "stop"), DONE],
        "length",
    ),
    "chat, a call": (
        "groq",
        [chat({"content": "AB"}, "stop"), chat({"tool_calls": [CALL]}), DONE],
        "tool_calls",
    ),
    "gemini, text": ("gemini", [gemini([{"text": "A"}], "STOP"), gemini([{"text": "B"}])], "stop"),
    "gemini, a cut": (
        "gemini",
        [gemini([{"text": "A"}], "STOP"), gemini([{"text": "B"}], "MAX_TOKENS")],
        "length",
    ),
    "gemini, a call": (
        "gemini",
        [gemini([{"text": "AB"}], "STOP"), gemini([{"functionCall": {"name": "f", "args": {}}}])],
        "tool_calls",
    ),
    "bedrock, text": ("bedrock", [bedrock("A"), stopped("end_turn"), bedrock("B")], "stop"),
    "bedrock, a cut": (
        "bedrock",
        [bedrock("A"), stopped("end_turn"), bedrock("B"), stopped("max_tokens")],
        "length",
    ),
    "anthropic, text": ("anthropic", [words("A"), ended("end_turn"), words("B"), STOP], "stop"),
    "anthropic, a cut": (
        "anthropic",
        [words("A"), ended("end_turn"), words("B"), ended("max_tokens"), STOP],
        "length",
    ),
}
MESSAGES = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


async def seen(name: str, operation: Operation, tmp_path: Any) -> list[dict[str, Any]]:
    """Return the events of the caller's stream."""
    provider, pieces, _ = STREAMS[name]
    on = once(FakeUpstreamAnswer(pieces))
    asked = {"model": "assistant", "stream": True, **ASKED[operation]}
    answer = await on.answer(
        json.dumps(asked).encode(), target(provider, tmp_path), operation=operation
    )
    sent = await rest_of(answer)
    lines = [line.removeprefix(b"data: ") for line in sent.splitlines() if line[:7] == b"data: {"]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", STREAMS)
async def test_a_response_is_made_of_all_that_was_sent(name: str, tmp_path: Any) -> None:
    """Each item of the last object is done, with its whole text."""
    events = await seen(name, Operation.RESPONSES, tmp_path)
    response, end = events[-1]["response"], STREAMS[name][2]
    texts = [part["text"] for item in response["output"] for part in item.get("content", [])]
    assert "".join(texts) == "AB"
    assert {item["status"] for item in response["output"]} <= {"completed", response["status"]}
    assert response["status"] == ("incomplete" if end == "length" else "completed")
    done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    assert done == response["output"]


@pytest.mark.parametrize("name", [one for one in STREAMS if STREAMS[one][0] != "anthropic"])
async def test_a_message_ends_with_its_last_word(name: str, tmp_path: Any) -> None:
    events = await seen(name, Operation.MESSAGES, tmp_path)
    deltas = [one["delta"] for one in events if one["type"].endswith("_delta")]
    assert "".join(delta.get("text", "") for delta in deltas) == "AB"
    assert deltas[-1]["stop_reason"] == MESSAGES[STREAMS[name][2]]


@pytest.mark.parametrize("name", [one for one in STREAMS if STREAMS[one][0] != "groq"])
async def test_a_chat_ends_once(name: str, tmp_path: Any) -> None:
    events = await seen(name, Operation.CHAT, tmp_path)
    choices = [choice for one in events for choice in one["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "AB"
    ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert ends == [STREAMS[name][2]]
