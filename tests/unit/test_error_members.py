"""An `error` member hides no content and no usage, in any dialect's reader, whole or streamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.anthropic.answer.messages import message_stream, rewrite_message
from gateway.wire.anthropic.answer.messages import usage_in as message_usage_in
from gateway.wire.anthropic.translation.upstream_reader import MessagesReader, messages_events
from gateway.wire.bedrock.answer import ConverseReader, converse_events
from gateway.wire.bedrock.answer import usage_in as converse_usage_in
from gateway.wire.dialect import written
from gateway.wire.foreign_json import is_error, is_raw_error
from gateway.wire.gemini.answer import GeminiReader, gemini_events
from gateway.wire.gemini.answer import usage_in as gemini_usage_in
from gateway.wire.observed import Observed
from gateway.wire.ollama.answer import OllamaReader, ollama_events
from gateway.wire.ollama.answer import usage_in as ollama_usage_in
from gateway.wire.openai.answer.assemble import Assembler
from gateway.wire.openai.answer.chat import chat_stream, rewrite_chat
from gateway.wire.openai.answer.responses import response_stream, rewrite_response
from gateway.wire.openai.answer.shapes import usage_in
from gateway.wire.openai.chat_translation.reader import ChatReader
from gateway.wire.translation.answer_events import Failed
from gateway.wire.triton.answer import TritonReader, generate_events
from gateway.wire.triton.answer import usage_in as triton_usage_in
from gateway.wire.whole_forms import usage_in_forms
from tests.event_messages import event as frame
from tests.event_messages import exception

Members = dict[str, Any]
REAL: list[Any] = [{"message": "x", "code": 500}, "x"]
NONE: list[Any] = [None, False, "", {}, [], " "]
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
OF_MESSAGES = {"input_tokens": 10, "output_tokens": 5}
OF_GEMINI = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
OF_CONVERSE = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
OF_OLLAMA = {"prompt_eval_count": 10, "eval_count": 5}
OF_TRITON = {"num_input_tokens": 10, "num_output_tokens": 5}
MESSAGE = {"role": "assistant", "content": "hello"}
DELTA = {"index": 0, "delta": {"content": "hello"}, "finish_reason": None}


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def sse(*events: Members) -> bytes:
    return b"".join(b"data: " + encoded(one) + b"\n\n" for one in events)


def lines(*pieces: Members) -> bytes:
    return b"".join(encoded(one) + b"\n" for one in pieces)


def seen_by(read: Callable[[bytes, Observed], Any]) -> Callable[[bytes], Observed]:
    """Return a reader of a whole body that returns its observations."""

    def whole(body: bytes) -> Observed:
        observed = Observed()
        read(body, observed)
        return observed

    return whole


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A reader's answers: the members of content and of usage, whole and in events."""

    whole: Callable[[bytes], Observed] | None
    reader: Callable[[], Any]
    content: Members
    usage: Members
    events: Callable[..., bytes] = sse
    streamed_content: Members | None = None
    streamed_usage: Members | None = None
    of_error: Callable[[Any], Members] = lambda error: {"error": error}


def chat() -> Any:
    return chat_stream(
        model="m", wants_usage=True, wants_running_usage=False, asked_running_usage=False
    )


CHAT = Dialect(
    whole=seen_by(lambda body, seen: rewrite_chat(body, seen, model="m")),
    reader=chat,
    content={"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]},
    usage={"usage": USAGE},
    streamed_content={"choices": [DELTA]},
    streamed_usage={"choices": [], "usage": USAGE},
)
MESSAGES = Dialect(
    whole=seen_by(lambda body, seen: rewrite_message(body, seen, model="m")),
    reader=lambda: message_stream(model="m"),
    content={"content": [{"type": "text", "text": "hello"}]},
    usage={"usage": OF_MESSAGES},
    streamed_content={"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}},
    streamed_usage={"type": "message_delta", "delta": {}, "usage": OF_MESSAGES},
    of_error=lambda error: {"type": "error", "error": error},
)
DIALECTS = {
    "chat": CHAT,
    "chat, Groq": Dialect(
        **{
            **vars(CHAT),
            "usage": {"x_groq": {"id": "g", "usage": USAGE}},
            "streamed_usage": {"choices": [], "x_groq": {"id": "g", "usage": USAGE}},
        }
    ),
    "chat, translated": Dialect(**{**vars(CHAT), "reader": lambda: ChatReader(chat())}),
    "chat, assembled": Dialect(
        **{
            **vars(CHAT),
            "whole": None,
            "reader": lambda: Assembler(
                operation=Operation.CHAT, choices=1, limit_bytes=2**20, observed=Observed()
            ),
        }
    ),
    "responses": Dialect(
        whole=seen_by(lambda body, seen: rewrite_response(body, seen, model="m")),
        reader=lambda: response_stream(model="m"),
        content={
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "h"}]}]
        },
        usage={"usage": OF_MESSAGES},
        streamed_content={"type": "response.output_text.delta", "delta": "hello"},
        streamed_usage={"type": "response.completed", "response": {"usage": OF_MESSAGES}},
    ),
    "messages": MESSAGES,
    "messages, translated": Dialect(
        **{**vars(MESSAGES), "whole": seen_by(messages_events), "reader": MessagesReader}
    ),
    "gemini": Dialect(
        whole=seen_by(gemini_events),
        reader=GeminiReader,
        content={"candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}]},
        usage={"usageMetadata": OF_GEMINI},
    ),
    "ollama": Dialect(
        whole=seen_by(ollama_events),
        reader=OllamaReader,
        content={"message": MESSAGE},
        usage={"done": True, **OF_OLLAMA},
        events=lines,
    ),
    "triton": Dialect(
        whole=seen_by(
            lambda body, seen: generate_events(body, seen, answer_id="a", most_tokens=None)
        ),
        reader=lambda: TritonReader("a"),
        content={"text_output": "hello"},
        usage=OF_TRITON,
    ),
}
CONVERSE = Dialect(  # its events are messages of their own: see below
    whole=seen_by(converse_events),
    reader=ConverseReader,
    content={"output": {"message": {"content": [{"text": "hello"}]}}},
    usage={"usage": OF_CONVERSE},
)
WHOLE = {name: one for name, one in DIALECTS.items() if one.whole} | {"converse": CONVERSE}


def failures(parts: Iterable[Any]) -> int:
    """Return the number of errors among a reader's parts for the caller."""
    texts = [b"" if isinstance(one, Failed) else one for one in parts if one is not None]
    failed = sum(isinstance(one, Failed) for one in parts)
    return failed + sum(b'"error"' in written(one, lambda _: None) for one in texts if one)


def check(seen: Observed, *, is_failed: bool, content: bool, usage: bool) -> None:
    """Assert that the answer was metered wholly, beside any error. Content beside a usage
    without an error decides nothing, and some readers skip it.
    """
    assert seen.is_error is is_failed
    assert seen.has_content is content or (usage and not is_failed)
    if usage:
        assert seen.usage is not None
        assert seen.usage.input_tokens == 10
        assert seen.usage.output_tokens == (None if seen.is_behind else 5)
    elif is_failed:
        assert seen.usage is None


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("content", [True, False])
@pytest.mark.parametrize("error", [*REAL, *NONE])
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_answer_with_an_error_is_metered(
    name: str, error: Any, content: bool, usage: bool
) -> None:
    """Reading stopped at the member, and a paid answer was booked at zero and bought again."""
    one = WHOLE[name]
    assert one.whole is not None
    body = {"error": error} | (one.content if content else {}) | (one.usage if usage else {})
    if error not in REAL and not content:
        return  # an answer of an unknown shape or without tokens: other tests
    check(one.whole(encoded(body)), is_failed=error in REAL, content=content, usage=usage)


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("content", [True, False])
@pytest.mark.parametrize("error", REAL)
@pytest.mark.parametrize("name", DIALECTS)
def test_events_behind_an_error_are_metered(
    name: str, error: Any, content: bool, usage: bool
) -> None:
    """The caller's stream ends with the error, but content behind it is paid."""
    one, reader = DIALECTS[name], DIALECTS[name].reader()
    pieces = [one.of_error(error)]
    if content:
        pieces.append(one.streamed_content or one.content)
    if usage:
        pieces.append(one.streamed_usage or one.usage)
    returned = reader.feed(one.events(*pieces))
    parts = [*(returned or ()), *(reader.end() or ())]
    check(reader.observed, is_failed=True, content=content, usage=usage)
    if name not in ("chat, assembled", "responses"):
        assert failures(parts) == 1
        assert all(isinstance(part, Failed) or failures([part]) or not part for part in parts)


@pytest.mark.parametrize("error", NONE)
@pytest.mark.parametrize("name", DIALECTS)
def test_no_error_in_events_is_none(name: str, error: Any) -> None:
    """`"error": null` in each event ended the stream at the first."""
    one, reader = DIALECTS[name], DIALECTS[name].reader()
    content, usage = one.streamed_content or one.content, one.streamed_usage or one.usage
    reader.feed(one.events({**content, "error": error}, {**usage, "error": error}))
    reader.end()
    check(reader.observed, is_failed=False, content=True, usage=True)


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("content", [True, False])
def test_messages_behind_an_exception_are_metered(content: bool, usage: bool) -> None:
    """Converse sends an exception as a message of its own."""
    reader = ConverseReader()
    delta = frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "hello"}})
    body = exception("internalServerException", "x") + delta * content
    body += frame("metadata", {"usage": OF_CONVERSE}) * usage
    events = [*reader.feed(body), *reader.end()]
    assert [type(one) for one in events] == [Failed]
    check(reader.observed, is_failed=True, content=content, usage=usage)


READERS: dict[str, tuple[Callable[[bytes], TokenUsage | None], Members]] = {
    "openai": (usage_in, {"usage": USAGE}),
    "groq": (usage_in, {"x_groq": {"usage": USAGE}}),
    "messages": (message_usage_in, {"usage": OF_MESSAGES}),
    "gemini": (gemini_usage_in, {"usageMetadata": OF_GEMINI}),
    "converse": (converse_usage_in, {"usage": OF_CONVERSE}),
    "ollama": (ollama_usage_in, OF_OLLAMA),
    "triton": (triton_usage_in, OF_TRITON),
}
FORMS: dict[str, Callable[[Members], bytes]] = {
    "beside": lambda usage: encoded({"error": {"message": "x"}, **usage}),
    "inside": lambda usage: encoded({"error": {"message": "x", **usage}}),
    "listed": lambda usage: b" " + encoded([{"error": {"message": "x"}, **usage}]),
    "listed inside": lambda usage: encoded([{"a": 1}, {"error": {"message": "x", **usage}}]),
    "events": lambda usage: sse({"error": {"message": "x"}}, usage),
    "lines": lambda usage: lines({"error": "x"}, usage),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", READERS)
def test_an_errors_body_states_its_usage_anywhere(name: str, form: str) -> None:
    """It was read at one place, so a refusal that stated its cost was free."""
    read, usage = READERS[name]
    if (name, form) == ("groq", "inside") or (name, form) == ("groq", "listed inside"):
        return  # Groq's own member stands at the top level alone
    found = usage_in_forms(FORMS[form](usage), read)
    assert found is not None
    assert (found.input_tokens, found.output_tokens) == (10, 5)


@pytest.mark.parametrize("body", [b"", b"[", b"[1, 2]", b"<html>", b"data: {\n\n", b'{"error":1}'])
@pytest.mark.parametrize("name", READERS)
def test_bodies_without_usage_state_none(name: str, body: bytes) -> None:
    """A missing usage is unknown, and reading never raises."""
    assert usage_in_forms(body, READERS[name][0]) is None


@pytest.mark.parametrize("reader", ["chat", "responses", "messages", "messages, translated"])
def test_usage_inside_an_errors_event_is_read(reader: str) -> None:
    """The event is the only one, so its usage is the bill."""
    usage = USAGE if reader == "chat" else OF_MESSAGES
    one = DIALECTS[reader].reader()
    one.feed(sse({"type": "error", "error": {"message": "x", "usage": usage}}))
    check(one.observed, is_failed=True, content=False, usage=True)


@pytest.mark.parametrize("error", [*REAL, *NONE, 5, True, [1]])
def test_decoded_and_undecoded_errors_are_judged_alike(error: Any) -> None:
    """Two readers of one dialect must not disagree about an answer."""
    assert is_error(error) == is_raw_error(msgspec.Raw(encoded(error))) == (error in REAL)
