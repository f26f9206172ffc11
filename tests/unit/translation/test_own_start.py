"""An answer without an upstream's id and time has those of the gateway's own request, in every
dialect of callers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.domain.ids import occurred_at, text_of, uuid7
from gateway.domain.operation import Operation
from gateway.wire.callers import writer_for
from gateway.wire.dialect import UpstreamRequest, written
from gateway.wire.openai.chat_translation.completions_writer import CompletionsWriter
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    AnswerWriter,
    Ended,
    Finish,
    Finished,
    Started,
    TextPiece,
    own_start,
)
from tests import factories

ID = uuid7(1_795_176_000_999, bytes(range(10)))
CALL = UpstreamRequest(url="", headers={"x-request-id": text_of(ID)}, body=b"")
CONTENT: Sequence[AnswerEvent] = (TextPiece(text="Hi"), Finished(finish=Finish.STOP), Ended())
MESSAGES = [{"role": "user", "content": "Hi"}]
ASKS: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: {"messages": MESSAGES},
    Operation.RESPONSES: {"input": "Hi"},
    Operation.MESSAGES: {"messages": MESSAGES, "max_tokens": 9},
    Operation.COMPLETIONS: {"prompt": "Hi"},
}
PREFIXES = {
    Operation.CHAT: "chatcmpl-",
    Operation.RESPONSES: "resp_",
    Operation.MESSAGES: "msg_",
    Operation.COMPLETIONS: "cmpl-",
}
TIMES = {
    Operation.CHAT: "created",
    Operation.RESPONSES: "created_at",
    Operation.COMPLETIONS: "created",
}


def writer(operation: Operation, *, is_stream: bool) -> AnswerWriter:
    body = {"model": "assistant", "stream": is_stream, **ASKS[operation]}
    read = factories.read(json.dumps(body).encode(), operation)
    if operation is Operation.COMPLETIONS:
        return CompletionsWriter(read, own_start(CALL))
    return writer_for(read, CALL)


def heads(operation: Operation, sent: bytes) -> list[dict[str, Any]]:
    """The objects of a stream that have an id and a time of the answer."""
    datas = [line[6:] for line in sent.splitlines() if line.startswith(b"data: {")]
    found = [json.loads(data) for data in datas]
    member = {Operation.RESPONSES: "response", Operation.MESSAGES: "message"}.get(operation)
    return found if member is None else [one[member] for one in found if member in one]


def streamed(operation: Operation, *events: AnswerEvent) -> list[dict[str, Any]]:
    parts = writer(operation, is_stream=True).write(events)
    return heads(operation, b"".join(written(part, lambda usage: None) for part in parts))


def whole(operation: Operation, *events: AnswerEvent) -> dict[str, Any]:
    part = writer(operation, is_stream=False).whole(events)
    found: dict[str, Any] = json.loads(written(part, lambda usage: None))
    return found


@pytest.mark.parametrize("operation", ASKS)
def test_an_upstream_without_an_id_and_a_time(operation: Operation) -> None:
    """Bedrock reports neither; a client that reads `created` as a date would show 1970."""
    for answer in (
        whole(operation, Started(), *CONTENT),
        *streamed(operation, Started(), *CONTENT),
    ):
        assert answer["id"] == PREFIXES[operation] + ID.hex
        if operation in TIMES:
            assert answer[TIMES[operation]] == 1_795_176_000


@pytest.mark.parametrize("operation", ASKS)
def test_an_upstreams_own_id_and_time_stay(operation: Operation) -> None:
    """Its support knows an answer by them."""
    begun = Started(answer_id="abc", created_s=7)
    answers = [whole(operation, begun, *CONTENT), *streamed(operation, begun, *CONTENT)]
    assert len(answers) > 1
    for answer in answers:
        assert answer["id"] == PREFIXES[operation] + "abc"
        if operation in TIMES:
            assert answer[TIMES[operation]] == 7


@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.RESPONSES, Operation.COMPLETIONS])
def test_a_stream_without_a_start(operation: Operation) -> None:
    """Servers that forget their first event still send an answer."""
    answers = streamed(operation, *CONTENT)
    assert answers
    for answer in answers:
        assert answer["id"] == PREFIXES[operation] + ID.hex
        assert answer[TIMES[operation]] == 1_795_176_000


def test_the_time_is_the_moment_of_the_request() -> None:
    """In whole seconds, cut and not rounded, as OpenAI's are."""
    begun = own_start(CALL)
    assert begun.created_s == int(occurred_at(ID).timestamp()) == 1_795_176_000
    assert begun.answer_id == ID.hex
