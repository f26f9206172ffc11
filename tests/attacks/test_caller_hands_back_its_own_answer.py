"""A thinking model's response that was handed back, as in OpenAI's documented loop, was 403: the
gateway took its own thought for one that a provider has stored. Agents ended at their first tool.

The rule: no item that the gateway wrote needs a permission when it comes back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.wire.dialect import written
from gateway.wire.openai.request.read import read_request
from gateway.wire.openai.responses_translation.request_reader import read_responses_request
from gateway.wire.openai.responses_translation.writer import ResponsesWriter
from gateway.wire.sse import EventSplitter, data_of
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Ended,
    Finish,
    Finished,
    RefusalPiece,
    Started,
    TextPiece,
    ThoughtPiece,
)
from tests import factories

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
ASKED: dict[str, Any] = {"model": "assistant", "input": "Hello", "store": False, "tools": [TOOL]}
PIECES = st.sampled_from(
    [
        ThoughtPiece(text="Hm"),
        ThoughtPiece(text="So", signature="c2ln"),
        ThoughtPiece(sealed="c2VhbGVk"),
        TextPiece(text="Yes"),
        RefusalPiece(text="No"),
    ]
)


def output(events: Sequence[AnswerEvent], *, is_stream: bool) -> list[dict[str, Any]]:
    """Return the items of an answer as the caller has them."""
    body = json.dumps({**ASKED, "stream": is_stream}).encode()
    writer = ResponsesWriter(factories.read(body, Operation.RESPONSES))
    if not is_stream:
        whole = json.loads(written(writer.whole(events), lambda _: "1"))
        return list(whole["output"])
    parts = b"".join(written(part, lambda _: "1") for part in writer.write(events))
    *_, last = EventSplitter().feed(parts)
    return list(json.loads(data_of(last) or b"")["response"]["output"])


@given(pieces=st.lists(PIECES, max_size=6), calls=st.integers(0, 2), is_stream=st.booleans())
def test_an_answer_comes_back_without_a_permission(
    pieces: list[AnswerEvent], calls: int, is_stream: bool
) -> None:
    """Thoughts shown, proved and sealed, texts, refusals and calls with their results."""
    events: list[AnswerEvent] = [Started(answer_id="chatcmpl-1"), *pieces]
    for call in range(calls):
        events += [
            CallStarted(call=call, call_id=f"c{call}", name="look"),
            CallArguments(call=call, text="{}"),
        ]
    events += [Finished(finish=Finish.TOOL_CALLS if calls else Finish.STOP), Ended()]
    items = output(events, is_stream=is_stream)
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "r"}
        for item in items
        if item["type"] == "function_call"
    ]
    again = [{"role": "user", "content": "q"}, *items, *results]
    read = read_request(Operation.RESPONSES, json.dumps({**ASKED, "input": again}).encode())
    assert (
        read.facts.features
        == read_request(Operation.RESPONSES, json.dumps(ASKED).encode()).facts.features
    )
    read_responses_request(read)  # and its translation reads it
