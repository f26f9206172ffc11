"""A caller of messages lost Gemini's signature of a tool call: the gateway sent the call back as
another model's, and Gemini 3 forgot its thought after each tool. Chats and responses kept it.

The rule: in each dialect of callers a call comes back to Gemini as Gemini made it.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import CONVERSATIONS, Operation
from gateway.wire.callers import conversation_of, writer_for
from gateway.wire.dialect import UpstreamRequest, written
from gateway.wire.gemini.request import write_gemini_request
from gateway.wire.sse import EventSplitter, data_of
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Ended,
    Finish,
    Finished,
    Started,
    ThoughtPiece,
)
from gateway.wire.translation.losses import Losses
from tests import factories

SIGNATURES = st.binary(max_size=60).map(lambda one: b64encode(one).decode())
IDS = st.sampled_from(["call_1", "a-b", "x__thought__", "call__thought__YQ"])
TOOL: dict[str, Any] = {"name": "look"}
EMPTY = {"type": "object", "properties": {}}
ASKED: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: {"tools": [{"type": "function", "function": TOOL}]},
    Operation.RESPONSES: {"store": False, "tools": [{"type": "function", **TOOL}]},
    Operation.MESSAGES: {"max_tokens": 99, "tools": [{**TOOL, "input_schema": EMPTY}]},
}
HI = {"role": "user", "content": "Hi"}
TURNS = {Operation.RESPONSES: "input"}  # the member of the turns, `messages` elsewhere


def asked(operation: Operation, turns: list[dict[str, Any]], **more: Any) -> Any:
    """Return a request that was read."""
    body = {"model": "m", **ASKED[operation], TURNS.get(operation, "messages"): turns, **more}
    return factories.read(json.dumps(body).encode(), operation)


def answer(operation: Operation, events: list[AnswerEvent], *, is_stream: bool) -> Any:
    """Return the whole answer, or the data of its events, as the caller has it."""
    read = asked(operation, [HI], stream=is_stream)
    headers = {"x-request-id": str(factories.REQUEST_ID)}
    call = UpstreamRequest(url="", headers=headers, body=b"", is_streamed=is_stream)
    writer = writer_for(read, call)
    if not is_stream:
        return json.loads(written(writer.whole(events), lambda _: "1"))
    parts = b"".join(written(part, lambda _: "1") for part in writer.write(events))
    data = (data_of(event) for event in EventSplitter().feed(parts))
    return [json.loads(one) for one in data if one and one != b"[DONE]"]


def ids_in(value: Any) -> set[str]:
    """Return the ids of the calls in an answer or in its events."""
    if isinstance(value, list):
        return {one for part in value for one in ids_in(part)}
    if not isinstance(value, dict):
        return set()
    inner = {one for part in value.values() for one in ids_in(part)}
    if value.get("type") == "function_call":
        return inner | {value["call_id"]}
    is_call = value.get("type") in ("tool_use", "function") and "id" in value
    return inner | ({value["id"]} if is_call else set())


def handed_back(operation: Operation, ids: list[str]) -> list[dict[str, Any]]:
    """Return the turns of a caller that keeps of each call its id, name and arguments."""
    if operation is Operation.CHAT:
        function = {"name": "look", "arguments": "{}"}
        calls = [{"id": one, "type": "function", "function": function} for one in ids]
        results = [{"role": "tool", "tool_call_id": one, "content": "r"} for one in ids]
        return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]
    if operation is Operation.RESPONSES:
        call = {"type": "function_call", "name": "look", "arguments": "{}"}
        result = {"type": "function_call_output", "output": "r"}
        return [{**one, "call_id": call_id} for one in (call, result) for call_id in ids]
    uses = [{"type": "tool_use", "id": one, "name": "look", "input": {}} for one in ids]
    results = [{"type": "tool_result", "tool_use_id": one, "content": "r"} for one in ids]
    return [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]


@pytest.mark.parametrize("operation", sorted(CONVERSATIONS))
@given(call_id=IDS, signature=SIGNATURES, is_stream=st.booleans())
def test_a_call_comes_back_as_gemini_made_it(
    operation: Operation, call_id: str, signature: str, *, is_stream: bool
) -> None:
    """Byte by byte, with Gemini's own id, for a client that sends nothing back but ids."""
    events: list[AnswerEvent] = [
        Started(answer_id="r1"),
        ThoughtPiece(text="Hm"),
        CallStarted(call=0, call_id=call_id, name="look", signature=signature),
        CallArguments(call=0, text="{}"),
        Finished(finish=Finish.TOOL_CALLS),
        Ended(),
    ]
    (told,) = ids_in(answer(operation, events, is_stream=is_stream))
    again = asked(operation, [HI, *handed_back(operation, [told])])
    losses = Losses("one", drops=False)
    body = write_gemini_request(conversation_of(again), losses, model="gemini-2.5-pro")
    sent = json.loads(msgspec.json.encode(body["contents"]))
    call, result = sent[1]["parts"][0], sent[2]["parts"][0]
    assert call.get("thoughtSignature", "") == signature
    assert call["functionCall"]["id"] == result["functionResponse"]["id"] == call_id
