"""Neutral answer events as the answers of `/v1/responses`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, get_args

import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.dialect import written
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.responses import response_stream, rewrite_response
from gateway.wire.openai.error import error_event
from gateway.wire.openai.responses_translation.writer import ResponsesWriter
from gateway.wire.openai.tool_call_ids import with_signature
from gateway.wire.sse import EVENT_STREAM, EventSplitter, data_of
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Ended,
    Failed,
    Finish,
    Finished,
    Omitted,
    Picture,
    RefusalPiece,
    Started,
    TextPiece,
    ThoughtPiece,
    Used,
)
from tests import factories, plain_http

USAGE = TokenUsage(
    input_tokens=100,
    cached_input_tokens=40,
    cache_write_tokens=20,
    cache_write_30m_tokens=20,
    cache_write_12h_tokens=0,
    output_tokens=30,
    reasoning_tokens=10,
)
LOGPROBS = msgspec.Raw(b'[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[]}]')
ANSWER: Sequence[AnswerEvent] = (
    Started(answer_id="chatcmpl-1", created_s=1_700_000_000),
    ThoughtPiece(text="Hm"),
    ThoughtPiece(text="."),
    TextPiece(text="Yes", logprobs=LOGPROBS),
    TextPiece(text="."),
    RefusalPiece(text="No."),
    CallStarted(call=0, call_id="a", name="look"),
    CallArguments(call=0, text='{"at":'),
    CallStarted(call=1, call_id="b", name="look", signature="c2ln"),
    CallArguments(call=0, text="1}"),
    CallArguments(call=1, text="{}"),
    CallArguments(call=7, text="of no call"),
    Finished(finish=Finish.TOOL_CALLS),
    Used(usage=USAGE, service_tier="priority"),
    Ended(),
)
_EVENTS = {
    get_args(one.model_fields["type"].annotation)[0]: one
    for one in get_args(get_args(ResponseStreamEvent)[0])
}


def writer(**members: Any) -> ResponsesWriter:
    """The writer of the answer to a request."""
    body = {"model": "assistant", "input": "Hello", "stream": True, **members}
    return ResponsesWriter(factories.read(json.dumps(body).encode(), Operation.RESPONSES))


def streamed(events: Sequence[AnswerEvent], **members: Any) -> bytes:
    """The caller's stream of some events, with a cost of one dollar."""
    return b"".join(written(part, lambda _: "1.0") for part in writer(**members).write(events))


def named(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream; each name is its type and each number its place."""
    found = []
    for at, event in enumerate(EventSplitter().feed(stream)):
        body = json.loads(data_of(event) or b"")
        assert event.startswith(b"event: " + body["type"].encode() + b"\n")
        assert body["sequence_number"] == at
        found.append(body)
    return found


def read_by_openai(stream: bytes) -> int:
    """Return how many events the official client yields of a stream from a server on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Answer with the stream."""
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", EVENT_STREAM)
            self.send_header("content-length", str(len(stream)))
            self.end_headers()
            self.wfile.write(stream)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
            with plain_http.official_client(base_url, "k") as client:
                return len(list(client.responses.create(model="m", input="Hi", stream=True)))
        finally:
            server.shutdown()


def test_a_stream_has_each_event_of_each_item() -> None:
    """The official client assembles its answer from exactly these."""
    found = named(streamed(ANSWER))
    for event in found:
        _EVENTS[event["type"]].model_validate(event)
    assert [(one["type"].removeprefix("response."), one.get("output_index")) for one in found] == [
        ("created", None),
        ("in_progress", None),
        ("output_item.added", 0),
        ("reasoning_summary_part.added", 0),
        ("reasoning_summary_text.delta", 0),
        ("reasoning_summary_text.delta", 0),
        ("reasoning_summary_text.done", 0),
        ("reasoning_summary_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("content_part.added", 1),
        ("refusal.delta", 1),
        ("refusal.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.done", 2),
        ("output_item.done", 2),
        ("output_item.added", 3),
        ("function_call_arguments.delta", 3),
        ("function_call_arguments.done", 3),
        ("output_item.done", 3),
        ("completed", None),
    ]
    assert found[2]["item"] == {"id": "rs_tg_chatcmpl-1_0", "type": "reasoning", "summary": []}
    assert found[10]["part"]["text"] == ""


def test_the_last_event_has_the_whole_answer_with_usage_and_cost() -> None:
    """It equals the plain answer to the same request."""
    last = named(streamed(ANSWER))[-1]["response"]
    assert last["output"] == [
        {
            "id": "rs_tg_chatcmpl-1_0",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Hm."}],
        },
        {
            "id": "msg_chatcmpl-1_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [
                {
                    "type": "output_text",
                    "text": "Yes.",
                    "annotations": [],
                    "logprobs": json.loads(bytes(LOGPROBS)),
                },
                {"type": "refusal", "refusal": "No."},
            ],
        },
        {
            "id": "fc_chatcmpl-1_2",
            "type": "function_call",
            "status": "completed",
            "arguments": '{"at":1}',
            "call_id": "a",
            "name": "look",
        },
        {
            "id": "fc_chatcmpl-1_3",
            "type": "function_call",
            "status": "completed",
            "arguments": "{}",
            "call_id": with_signature("b", "c2ln"),
            "name": "look",
        },
    ]
    assert last["usage"] == {
        "input_tokens": 100,
        "input_tokens_details": {
            "cached_tokens": 40,
            "cache_write_tokens": 20,
            "cache_write_tokens_details": {"ttl_30m_tokens": 20, "ttl_12h_tokens": 0},
        },
        "output_tokens": 30,
        "output_tokens_details": {"reasoning_tokens": 10},
        "total_tokens": 130,
        "cost_usd": 1.0,
    }
    body = written(writer(stream=False).whole(ANSWER), lambda _: "1.0")
    Response.model_validate_json(body)
    assert json.loads(body) == last


def test_an_answer_repeats_its_request() -> None:
    """As OpenAI's does, with the members that its clients' types require."""
    answer = json.loads(
        written(
            writer(
                stream=False,
                instructions="Be brief.",
                tools=[{"type": "function", "name": "look"}, {"type": "web_search"}],
                tool_choice="required",
                text={"verbosity": "low"},
                reasoning={"effort": "low"},
                metadata={"a": "b"},
                temperature=0.5,
                truncation=None,
                user="ann",
            ).whole(ANSWER),
            lambda _: None,
        )
    )
    assert (answer["instructions"], answer["user"]) == ("Be brief.", "ann")
    assert "user" not in named(streamed(ANSWER))[-1]["response"]
    assert answer["tools"] == [
        {
            "description": None,
            "parameters": None,
            "strict": None,
            "type": "function",
            "name": "look",
        },
        {"type": "web_search"},
    ]
    assert answer["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert answer["reasoning"] == {"effort": "low", "summary": None}
    assert (answer["metadata"], answer["temperature"]) == ({"a": "b"}, 0.5)
    assert (answer["truncation"], answer["tool_choice"]) == ("disabled", "required")
    assert (answer["store"], answer["service_tier"]) == (False, "priority")


def test_a_request_of_many_lines_is_repeated_on_one() -> None:
    """A line's end inside an event's data would end the data."""
    body = {"model": "assistant", "input": "a", "metadata": {"a": "b"}, "tools": [{"type": "x"}]}
    body |= {"text": {"verbosity": "low"}, "stream": True}
    read = factories.read(json.dumps(body, indent=2).encode(), Operation.RESPONSES)
    parts = ResponsesWriter(read).write(ANSWER)
    assert len(named(b"".join(written(part, lambda _: None) for part in parts))) == 30


@pytest.mark.parametrize(
    ("finish", "reason"),
    [(Finish.LENGTH, "max_output_tokens"), (Finish.CONTENT_FILTER, "content_filter")],
)
def test_an_answer_that_was_stopped_is_incomplete(finish: Finish, reason: str) -> None:
    """Its last item too."""
    events = (Started(), TextPiece(text="a"), Finished(finish=finish), Ended())
    *_, item, last = named(streamed(events))
    assert item["item"]["status"] == "incomplete"
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": reason}
    assert last["response"]["usage"] is None


def test_a_failure_ends_the_stream_with_an_error() -> None:
    """Strict readers of OpenAI's description take both events; Codex fails at the second one."""
    events = (Started(), TextPiece(text="a"), Failed(code="upstream_error", message="It broke."))
    error, failed = named(streamed(events))[-2:]
    for event in (error, failed):
        _EVENTS[event["type"]].model_validate(event)
    assert (error["type"], error["code"]) == ("error", "upstream_error")
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "It broke."}
    (item,) = failed["response"]["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "a")
    whole = json.loads(written(writer().whole(events), lambda _: None))
    assert whole["error"]["message"] == "It broke."


def test_openai_python_raises_for_a_stream_that_fails() -> None:
    """It raises for a nested `error` only: without one, its user sees a short answer as whole."""
    events = (Started(), TextPiece(text="a"), Failed(code="upstream_error", message="It broke."))
    emitted = streamed(events)
    begun = emitted.partition(b"event: error")[0]
    passed_through = begun + error_event("upstream_error", "It broke.", is_responses=True)
    for stream in (emitted, passed_through):
        with pytest.raises(openai.APIError, match=r"It broke\.") as raised:
            read_by_openai(stream)
        assert raised.value.code == "upstream_error"


def test_the_proof_of_a_thought_ends_its_item() -> None:
    """Anthropic's blocks have one signature each."""
    events = (
        Started(),
        ThoughtPiece(text="Hm."),
        ThoughtPiece(signature="c2ln"),
        ThoughtPiece(sealed="b3BhcXVl"),
        ThoughtPiece(text="So."),
        Finished(finish=Finish.STOP),
        Ended(),
    )
    output = named(streamed(events))[-1]["response"]["output"]
    assert [(len(one["summary"]), one.get("encrypted_content")) for one in output] == [
        (1, "tollgate.signature.c2ln"),
        (0, "tollgate.sealed.b3BhcXVl"),
        (1, None),
    ]


def test_a_usage_without_its_prompt_is_no_usage() -> None:
    """Clients refuse one without these counts, and unknown is not 0."""
    events = (Started(), Used(usage=TokenUsage(output_tokens=3)), Ended())
    assert named(streamed(events))[-1]["response"]["usage"] is None


def test_a_picture_is_an_item_of_the_tool_that_draws() -> None:
    """It is the form that OpenAI has for one; the last event has its bytes."""
    events = (
        Started(),
        TextPiece(text="a"),
        Picture(media_type="image/png", data="iVBORw=="),
        Omitted(name="audio/wav"),
        TextPiece(text="b"),
        Finished(finish=Finish.STOP),
        Ended(),
    )
    found = named(streamed(events))
    for event in found:
        _EVENTS[event["type"]].model_validate(event)
    places = [one["type"] for one in found if one.get("output_index") == 1]
    assert places == [
        "response.output_item.added",
        "response.image_generation_call.completed",
        "response.output_item.done",
    ]
    last = found[-1]["response"]
    assert [item["type"] for item in last["output"]] == [
        "message",
        "image_generation_call",
        "message",
    ]
    assert last["output"][1]["result"] == "iVBORw=="
    assert last["omitted"] == ["audio/wav"]


@pytest.mark.parametrize("known", [(), ("cached_input_tokens",), ("reasoning_tokens",)])
def test_a_part_that_no_upstream_stated_is_not_0(known: tuple[str, ...]) -> None:
    """Codex takes details that are null, and none that lack their first part."""
    counts = TokenUsage(input_tokens=9, output_tokens=3, **dict.fromkeys(known, 2))
    usage = named(streamed((Started(), Used(usage=counts), Ended())))[-1]["response"]["usage"]
    assert [usage["input_tokens_details"], usage["output_tokens_details"]] == [
        {"cached_tokens": 2} if "cached_input_tokens" in known else None,
        {"reasoning_tokens": 2} if "reasoning_tokens" in known else None,
    ]


PIECES = st.one_of(
    st.builds(ThoughtPiece, text=st.text(), signature=st.sampled_from(["", "", "c2ln"])),
    st.builds(TextPiece, text=st.text()),
    st.builds(RefusalPiece, text=st.text()),
    st.builds(CallStarted, call=st.just(0), call_id=st.text(), name=st.text()),
    st.builds(CallArguments, call=st.just(0), text=st.text()),
)


@given(pieces=st.lists(PIECES), finish=st.sampled_from(Finish))
def test_any_answer_is_valid_and_read_as_one(pieces: list[Any], finish: Finish) -> None:
    """By the official client's types, and by the gateway's own reader of such a stream."""
    calls = 0
    for at, piece in enumerate(pieces):
        if isinstance(piece, CallStarted):
            pieces[at] = msgspec.structs.replace(piece, call=calls)
            calls += 1
    events = [Started(answer_id="x"), *pieces, Finished(finish=finish), Used(usage=USAGE), Ended()]
    stream = streamed(events)
    found = named(stream)
    for event in found:
        _EVENTS[event["type"]].model_validate(event)
    whole = written(writer().whole(events), lambda _: "1.0")
    assert json.loads(whole) == found[-1]["response"]
    reader = response_stream(model="assistant")
    reader.feed(stream)
    assert (reader.observed.final, reader.observed.is_done) == (USAGE, True)
    observed = Observed()
    rewrite_response(whole, observed, model="assistant")
    assert observed.final == USAGE
