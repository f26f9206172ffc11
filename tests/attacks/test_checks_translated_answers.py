"""Faults of translated answers that checks found on 66c42abb, and their neighbours: the order and the ids
of calls, text that is cut within a letter, counts that nothing states, members that are left out.
"""  # noqa: E501

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.wire.dialect import written
from tests.oracles.foreign_answers import TARGETS, assembled, payloads, writer_for

EMOJI = ("a\ud83d", "\ude00b")  # its halves, as a server in JavaScript cuts them
# All that Anthropic's description requires of a message, its usage and its blocks.
MESSAGE = {
    "id",
    "type",
    "role",
    "content",
    "model",
    "stop_reason",
    "stop_sequence",
    "stop_details",
    "usage",
    "container",
}
USAGE = {
    "cache_creation",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "inference_geo",
    "input_tokens",
    "output_tokens",
    "output_tokens_details",
    "server_tool_use",
    "service_tier",
}


def chunks(*deltas: dict[str, Any], end: str = "tool_calls", **last: Any) -> bytes:
    """Return a chat server's stream of these deltas."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": end})
    heads = [{"id": "c", "created": 1, "model": "m", "choices": [one]} for one in choices]
    heads[-1] |= last
    return "".join(f"data: {json.dumps(one)}\n\n" for one in heads).encode() + b"data: [DONE]\n\n"


def streamed(caller: str, sent: bytes, *, target: str = "chat") -> bytes:
    """Return a caller's stream."""
    reader, writer = TARGETS[target].reader(), writer_for(caller)
    parts = [*writer.write(reader.feed(sent)), *writer.write(reader.end())]
    return b"".join(written(part, lambda _: None) for part in parts)


def whole(caller: str, body: Any, *, target: str = "chat") -> Any:
    """Return a caller's plain answer."""
    events = TARGETS[target].events(json.dumps(body).encode())
    return json.loads(written(writer_for(caller).whole(events), lambda _: None))


def call(index: int, arguments: str, **first: Any) -> dict[str, Any]:
    """Return a piece of a call; its first one has an id."""
    named = {"name": f"t{index}"} if first else {}
    return {
        "tool_calls": [{"index": index, **first, "function": {**named, "arguments": arguments}}]
    }


def opened_and_closed(caller: str, stream: bytes) -> list[tuple[str, int]]:
    """Return the starts and ends of blocks or items, in their order."""
    words = {
        "content_block_start": "start",
        "content_block_stop": "stop",
        "response.output_item.added": "start",
        "response.output_item.done": "stop",
    }
    place = "index" if caller == "messages" else "output_index"
    found = [one for one in payloads(stream) if one["type"] in words]
    return [(words[one["type"]], one[place]) for one in found]


def calls_of(caller: str, answer: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the names and arguments of an answer's calls."""
    if caller == "messages":
        found = [one for one in answer["content"] if one["type"] == "tool_use"]
        return [(one["name"], one["input"]) for one in found]
    if caller == "responses":
        items = [one for one in answer["output"] if one["type"] == "function_call"]
        return [(one["name"], json.loads(one["arguments"])) for one in items]
    functions = [one["function"] for one in answer["choices"][0]["message"]["tool_calls"]]
    return [(one["name"], json.loads(one["arguments"])) for one in functions]


SEQUENTIAL = [call(0, "", id="a"), call(0, '{"p": 1}'), call(1, "", id="b"), call(1, '{"q": 2}')]
MIXED = [call(0, "", id="a"), call(1, '{"q"', id="b"), call(0, '{"p": 1}'), call(1, ": 2}")]
WITH_TEXT = [
    call(0, '{"p"', id="a"),
    {"content": "x"},
    call(0, ": 1}"),
    call(1, '{"q": 2}', id="b"),
]


@pytest.mark.parametrize("caller", ["messages", "responses"])
@pytest.mark.parametrize("deltas", [SEQUENTIAL, MIXED, WITH_TEXT])
def test_one_block_ends_before_the_next_begins(caller: str, deltas: list[dict[str, Any]]) -> None:
    """05: the official SDK takes the newest block for the one that ends. u: every byte arrives."""
    stream = streamed(caller, chunks(*deltas))
    found = opened_and_closed(caller, stream)
    assert found == [(word, at) for at in range(len(found) // 2) for word in ("start", "stop")]
    assert calls_of(caller, assembled(caller, stream)) == [("t0", {"p": 1}), ("t1", {"q": 2})]


@pytest.mark.parametrize("caller", ["messages", "responses"])
@pytest.mark.parametrize("ids", [(None, None), ("", ""), ("one", "one"), ("a", "")])
def test_calls_without_ids_of_their_own_stay_apart(caller: str, ids: tuple[Any, Any]) -> None:
    """t: both arguments were glued together to one call."""
    functions = ({"name": "ls", "arguments": '{"p":"a"}'}, {"name": "cat", "arguments": '{"q":2}'})
    calls = [
        {"type": "function", "function": function} | ({} if one is None else {"id": one})
        for one, function in zip(ids, functions, strict=True)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    answer = whole(caller, {"id": "c", "choices": [choice]})
    assert calls_of(caller, answer) == [("ls", {"p": "a"}), ("cat", {"q": 2})]
    items = answer["content"] if caller == "messages" else answer["output"]
    given = [one["id" if caller == "messages" else "call_id"] for one in items]
    assert all(given)
    assert len(set(given)) == 2


@pytest.mark.parametrize("caller", ["messages", "responses"])
@pytest.mark.parametrize("member", ["content", "reasoning_content", "refusal"])
def test_a_letter_in_two_deltas_is_whole(caller: str, member: str) -> None:
    """12: each half became U+FFFD."""
    stream = streamed(caller, chunks(*({member: half} for half in EMOJI), end="stop"))
    deltas = [one["delta"] for one in payloads(stream) if isinstance(one.get("delta"), str | dict)]
    texts = [
        one if isinstance(one, str) else one.get("text", "") + one.get("thinking", "")
        for one in deltas
    ]
    assert "".join(texts) == "a😀b"


@pytest.mark.parametrize("caller", ["chat", "responses"])
@pytest.mark.parametrize("kind", ["text", "thinking"])
def test_a_letter_in_two_deltas_of_messages_is_whole(caller: str, kind: str) -> None:
    """12, in the other direction."""
    place = {"type": "content_block_delta", "index": 0}
    events = [
        {"type": "message_start", "message": {"id": "m"}},
        *({**place, "delta": {"type": f"{kind}_delta", kind: half}} for half in EMOJI),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]
    sent = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
    answer = assembled(caller, streamed(caller, sent.encode(), target="messages"))
    assert "a😀b" in json.dumps(answer, ensure_ascii=False)


def test_a_message_without_a_usage_states_no_0() -> None:
    """19: the ledger has an estimate; the caller was told 0 and 0."""
    events = payloads(streamed("messages", chunks({"content": "hello"}, end="stop")))
    first = events[0]["message"]["usage"]
    last = next(one["usage"] for one in events if one["type"] == "message_delta")
    assert first["input_tokens"] > 0
    assert last["input_tokens"] > 0
    assert last["output_tokens"] > 0
    assert last["estimated"] is True
    message = {"role": "assistant", "content": "hello"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = whole("messages", {"id": "c", "choices": [choice]})["usage"]
    assert 0 not in usage.values()


@pytest.mark.parametrize("caller", ["chat", "messages", "responses"])
def test_a_prompt_that_ollama_did_not_count_is_not_0(caller: str) -> None:
    """19: an end without `prompt_eval_count`, with content before it."""
    message = {"role": "assistant", "content": "hello"}
    body = {"model": "m", "message": message, "done": True, "done_reason": "stop", "eval_count": 3}
    usage = whole(caller, body, target="ollama")["usage"]
    assert 0 not in (usage or {}).values()


@pytest.mark.parametrize("counts", [{}, {"prompt_tokens_details": {"cached_tokens": 4}}])
def test_parts_that_a_chat_server_did_not_state_are_not_0(counts: dict[str, Any]) -> None:
    """19: in the members that OpenAI requires of a response, too."""
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12, **counts}
    sent = chunks({"content": "a"}, end="stop", usage=usage)
    found = assembled("responses", streamed("responses", sent))["usage"]
    assert '": 0' not in json.dumps(found)
    assert found["input_tokens_details"] == counts.get("prompt_tokens_details")


def test_a_message_has_every_member_that_its_schema_requires() -> None:
    """m: strict clients refused it."""
    message = {
        "role": "assistant",
        "content": "a",
        "tool_calls": call(0, "{}", id="i")["tool_calls"],
    }
    body = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    answer = whole("messages", body)
    assert set(answer) >= MESSAGE
    assert set(answer["usage"]) >= USAGE
    assert [set(block) for block in answer["content"]] == [
        {"type", "text", "citations"},
        {"type", "id", "name", "input", "caller"},
    ]
    start = payloads(streamed("messages", chunks({"content": "a"})))[0]["message"]
    assert set(start) >= MESSAGE
    assert set(start["usage"]) >= USAGE


def test_a_chat_has_every_member_of_openais_own_answers() -> None:
    """m, in chats: real answers have an empty list of annotations."""
    body = {"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}]}
    message = whole("chat", body, target="gemini")["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "a", "refusal": None, "annotations": []}
