"""A streamed call of a tool without parameters had the arguments `""` in chats and responses:
Anthropic and Bedrock stream none for it, and the official SDKs' helpers raised.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gateway.wire.dialect import written
from gateway.wire.sse import EventSplitter, data_of
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Ended,
    Finish,
    Finished,
    Started,
)
from tests.oracles.foreign_answers import writer_for


def arguments_of(dialect: str, events: Sequence[AnswerEvent]) -> list[str]:
    """Return the arguments of each call, as a caller adds their pieces up."""
    parts = b"".join(written(part, lambda _: "1") for part in writer_for(dialect).write(events))
    found: dict[int, str] = {}
    for event in EventSplitter().feed(parts):
        data = data_of(event) or b""
        if data == b"[DONE]":
            continue
        body = json.loads(data)
        for choice in body.get("choices", ()):
            for call in choice["delta"].get("tool_calls", ()):
                at = call["index"]
                found[at] = found.get(at, "") + call["function"].get("arguments", "")
        if body.get("type") == "response.function_call_arguments.done":
            found[body["output_index"]] = body["arguments"]
    return [found[at] for at in sorted(found)]


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize("pieces", [(), ("",), (" ", "")], ids=["none", "empty", "blank"])
def test_a_call_without_arguments_has_an_empty_object(
    dialect: str, pieces: tuple[str, ...]
) -> None:
    """The neighbour: a second call keeps its own."""
    events = [
        Started(answer_id="1"),
        CallStarted(call=0, call_id="a", name="now"),
        *(CallArguments(call=0, text=piece) for piece in pieces),
        CallStarted(call=1, call_id="b", name="add"),
        CallArguments(call=1, text='{"x":1}'),
        Finished(finish=Finish.TOOL_CALLS),
        Ended(),
    ]
    first, second = arguments_of(dialect, events)
    assert (json.loads(first), second) == ({}, '{"x":1}')


def test_arguments_that_the_maximum_cut_off_are_not_made_up() -> None:
    """An empty object would run the tool."""
    events = [
        Started(answer_id="1"),
        CallStarted(call=0, call_id="a", name="pay"),
        Finished(finish=Finish.LENGTH),
        Ended(),
    ]
    assert arguments_of("chat", events) == [""]
