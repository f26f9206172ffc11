"""Chunks whose finish reason is a word for none (`""`, `"null"`) reached the caller as `stop`, so a
client that stops at the first reason lost the rest of the answer.

The rule: a word becomes a legal one of the same meaning, and one that ends nothing is null.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.assemble import Assembler
from gateway.wire.openai.answer.chat import ChatStream, chat_stream, rewrite_chat
from gateway.wire.openai.chat_translation.reader import ChatReader
from gateway.wire.sse import EventSplitter, data_of
from gateway.wire.translation.answer_events import Finished, TextPiece

WORDS = ["", "null", "NULL", "None", "NOT_COMPLETE"]


def chunk(text: str, word: str | None, *, is_chat: bool = True) -> bytes:
    content: dict[str, Any] = {"delta": {"content": text}} if is_chat else {"text": text}
    choice = {"index": 0, **content, "finish_reason": word}
    return b"data: " + json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode() + b"\n\n"


def stream() -> ChatStream:
    return chat_stream(
        model="m", wants_usage=True, wants_running_usage=False, asked_running_usage=False
    )


def reasons(sent: bytes) -> list[str | None]:
    events = (data_of(one) for one in EventSplitter().feed(sent))
    return [json.loads(one)["choices"][0]["finish_reason"] for one in events if one]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("is_chat", [True, False])
def test_a_word_that_ends_nothing_is_null(word: str, is_chat: bool) -> None:
    """The whole text comes before the only reason, and no choice has ended earlier."""
    reading = stream()
    events = [chunk(text, word, is_chat=is_chat) for text in ("Hello", " wide", " wide")]
    parts = [part for one in events for part in reading.feed(one)]
    assert (reading.observed.finish_reason, reading.observed.ended) == (None, set())
    parts += reading.feed(chunk(" world", "eos", is_chat=is_chat))
    sent = b"".join(part for part in parts if isinstance(part, bytes))
    assert reasons(sent) == [None, None, None, "stop"]
    assert (reading.observed.finish_reason, reading.observed.ended) == ("eos", {0})


@pytest.mark.parametrize("word", WORDS)
def test_a_translated_answer_goes_on_after_it(word: str) -> None:
    """Messages and responses have one end as well."""
    reader = ChatReader(stream())
    found = [
        event
        for one in (chunk("a", word), chunk("b", word), chunk("c", "stop"))
        for event in reader.feed(one)
    ]
    kinds = [type(event) for event in found if isinstance(event, (TextPiece, Finished))]
    assert kinds == [TextPiece, TextPiece, TextPiece, Finished]


@pytest.mark.parametrize("word", WORDS)
def test_an_assembled_answer_has_the_last_reason(word: str) -> None:
    """A plain answer that is put together of such chunks."""
    assembler = Assembler(operation=Operation.CHAT, choices=1, limit_bytes=10_000)
    assembler.feed(chunk("a", word))
    assert assembler.observed.ended == set()
    assembler.feed(chunk("b", "length") + chunk("", word) + b"data: [DONE]\n\n")
    assert json.loads(assembler.body())["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("word", WORDS)
def test_a_whole_answer_has_ended(word: str) -> None:
    """Strict clients refuse null there."""
    choice = {"index": 0, "message": {"content": "a"}, "finish_reason": word}
    seen = Observed()
    sent = rewrite_chat(
        json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode(), seen, model="m"
    )
    assert isinstance(sent, bytes)
    assert json.loads(sent)["choices"][0]["finish_reason"] == "stop"
    assert seen.finish_reason is None


def test_a_usage_beside_such_a_word_is_a_running_one() -> None:
    """The answer goes on after it."""
    reading = stream()
    usage = b'"usage":{"prompt_tokens":9,"completion_tokens":1},"choices"'
    reading.feed(chunk("a", "null").replace(b'"choices"', usage, 1))
    assert (reading.observed.final, reading.observed.has_running) == (None, True)
