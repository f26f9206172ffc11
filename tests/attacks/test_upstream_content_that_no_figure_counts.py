"""Content that no reader knows, or that is no text (a picture, a sound, a sealed thought), behind
an upstream's first or last running figure, or beside a little text without any: 1,000 words were
booked as one token, and pictures as nothing.

The rule for every dialect: a figure that may miss content is none of the whole answer, and a count
of texts is none of an answer with other content. Such an attempt is unknown, at its hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.domain.pricing.settlement import Counted, Settlement
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.domain.request.token_estimate import tokens_in
from gateway.wire.anthropic.answer.messages import rewrite_message
from gateway.wire.anthropic.translation.upstream_reader import messages_events
from gateway.wire.bedrock.answer import converse_events
from gateway.wire.gemini.answer import gemini_events
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import rewrite_chat
from gateway.wire.openai.answer.responses import rewrite_response
from tests.attacks.streamed import Event, last, read, settlement_of, text

SEALED = "c2VhbGVk" * 500
WORDS = "word and another thing " * 200


def chat(**delta: Any) -> Event:
    """Return a chunk of a chat with these members in its delta."""
    return {"model": "m", "choices": [{"index": 0, "delta": delta}]}


def block(**members: Any) -> Event:
    """Return the start of a block of a message."""
    return {"type": "content_block_start", "index": 0, "content_block": members}


def piece(**members: Any) -> Event:
    """Return a piece of a block of a message."""
    return {"type": "content_block_delta", "index": 0, "delta": members}


def part(**members: Any) -> Event:
    """Return a piece of Gemini's."""
    return {"candidates": [{"index": 0, "content": {"parts": [members]}}]}


def item(**members: Any) -> Event:
    """Return a finished item of a response."""
    return {"type": "response.output_item.done", "output_index": 0, "item": members}


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + SEALED}}
# Content of each dialect that is no text, or of no known form.
OTHER: dict[str, list[Event]] = {
    "chat": [
        chat(images=[PICTURE]),
        chat(audio={"id": "a", "data": SEALED}),
        chat(reasoning_details=[{"type": "reasoning.encrypted", "data": SEALED}]),
        chat(content=[{"type": "song", "lyrics": WORDS}]),
        chat(tool_calls=[{"index": 0, "extra_content": {"google": {"thought_signature": SEALED}}}]),
    ],
    "responses": [
        item(type="reasoning", summary=[], encrypted_content=SEALED),
        item(type="reasoning", summary=[]),
        item(type="image_generation_call", result=SEALED),
        item(type="compaction", encrypted_content=SEALED),
        {"type": "response.image_generation_call.partial_image", "partial_image_b64": SEALED},
        {"type": "response.audio.delta", "delta": SEALED},
        {"type": "response.song.delta", "delta": WORDS},
        {"type": "response.song", "song": WORDS},
    ],
    "messages": [
        piece(type="compaction_delta", content=WORDS),
        piece(type="song_delta", song=WORDS),
        block(type="redacted_thinking", data=SEALED),
        block(type="thinking", thinking="", signature=SEALED),
        block(type="web_search_tool_result", content=[{"encrypted_content": SEALED}]),
        {"type": "song", "song": WORDS},
        b"data: {broken\n\n",
    ],
    "bedrock": [
        {"contentBlockDelta": {"delta": {"image": {"source": SEALED}}}},
        {"contentBlockDelta": {"delta": {"reasoningContent": {"redactedContent": SEALED}}}},
        {
            "contentBlockDelta": {
                "contentBlockIndex": 7,
                "delta": {"reasoningContent": {"signature": SEALED}},
            }
        },
        {"contentChunk": {"text": WORDS}},
    ],
    "gemini": [
        part(inlineData={"mimeType": "image/png", "data": SEALED}),
        part(thoughtSignature=SEALED),
        part(text="", thoughtSignature=SEALED),
        part(executableCode={"code": WORDS}),
        part(song={"lyrics": WORDS}),
        {"candidates": [{"index": 0, "output": WORDS}]},
    ],
    "ollama": [
        {"model": "m", "message": {"role": "assistant", "content": "", "images": [SEALED]}},
        {"model": "m", "message": {"role": "assistant", "content": "", "song": WORDS}},
    ],
}
OTHER["translated"] = OTHER["messages"]
EACH = [(dialect, number) for dialect, some in OTHER.items() for number in range(len(some))]
# A first figure of each dialect that has one before its end.
FIRST: dict[str, Event] = {
    "chat": {
        "model": "m",
        "choices": [{"index": 0, "delta": {"role": "assistant"}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 0},
    },
    "responses": {
        "type": "response.in_progress",
        "response": {"status": "in_progress", "usage": {"input_tokens": 100, "output_tokens": 0}},
    },
    "messages": {
        "type": "message_start",
        "message": {"id": "m", "usage": {"input_tokens": 100, "output_tokens": 1}},
    },
    "gemini": {
        "candidates": [{"index": 0, "content": {"parts": []}}],
        "usageMetadata": {"promptTokenCount": 100},
    },
}
FIRST["translated"] = FIRST["messages"]
# A later figure that counts what came before it, and nothing after it.
LATER: dict[str, Event] = {
    "chat": {
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": "a"}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 1},
    },
    "responses": {
        "type": "response.in_progress",
        "response": {"status": "in_progress", "usage": {"input_tokens": 100, "output_tokens": 1}},
    },
    "gemini": {
        "candidates": [{"index": 0, "content": {"parts": [{"text": "a"}]}}],
        "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 1},
    },
}


def counted(seen: Observed) -> Settlement:
    """Settle a stream as an attempt does: with a count of its text, if that is all of it."""
    usage = TokenUsage(input_tokens=4000, output_tokens=tokens_in(seen.output_bytes))
    is_counted = (seen.usage is None or seen.is_behind) and seen.is_countable
    has_answered = seen.has_content or seen.is_done or seen.is_whole
    count = Counted(usage=usage, is_exact=False) if is_counted and has_answered else None
    return settlement_of(seen, counted=count)


@pytest.mark.parametrize(("dialect", "number"), EACH)
def test_content_beside_a_little_text_without_a_usage_is_held(dialect: str, number: int) -> None:
    for events in ([text(dialect), OTHER[dialect][number]], [OTHER[dialect][number]]):
        made = counted(read(dialect, events))
        assert (made.source, made.cost_nusd) == (UsageSource.UNKNOWN, None)


@pytest.mark.parametrize(("dialect", "number"), [one for one in EACH if one[0] in FIRST])
def test_content_behind_a_first_figure_is_held(dialect: str, number: int) -> None:
    made = counted(read(dialect, [FIRST[dialect], OTHER[dialect][number]]))
    assert (made.source, made.cost_nusd) == (UsageSource.UNKNOWN, None)
    assert made.reported is not None


@pytest.mark.parametrize(("dialect", "number"), [one for one in EACH if one[0] in LATER])
def test_content_behind_a_running_figure_is_held(dialect: str, number: int) -> None:
    made = counted(read(dialect, [LATER[dialect], OTHER[dialect][number]]))
    assert (made.source, made.cost_nusd) == (UsageSource.UNKNOWN, None)


@pytest.mark.parametrize("dialect", FIRST)
def test_a_first_figure_alone_is_held(dialect: str) -> None:
    """Nothing was seen, and the upstream may have gone on: its prompt is what it reported."""
    seen = read(dialect, [FIRST[dialect]])
    made = counted(seen)
    assert (made.source, made.cost_nusd) == (UsageSource.UNKNOWN, None)
    # The journal notes this figure, and the next start settles by it alone.
    assert seen.usage is not None
    assert (seen.usage.input_tokens, seen.usage.output_tokens) == (100, None)


@pytest.mark.parametrize("dialect", LATER)
def test_a_running_figure_behind_which_nothing_came_stands(dialect: str) -> None:
    made = counted(read(dialect, [LATER[dialect]]))
    assert (made.source, made.usage.output_tokens) == (UsageSource.DERIVED, 1)


@pytest.mark.parametrize(("dialect", "number"), EACH)
def test_the_last_figure_counts_all_of_it(dialect: str, number: int) -> None:
    """Ordinary answers with sealed thoughts keep their provider's figure. The price has no rate of
    pictures and sounds, and the usage counts none, so these are held.
    """
    if isinstance(OTHER[dialect][number], bytes):
        return
    first = [FIRST[dialect]] if dialect in FIRST else []
    events = [*first, OTHER[dialect][number], text(dialect), *last(dialect, 100, 50)]
    seen = read(dialect, events)
    made = counted(seen)
    source = UsageSource.UNKNOWN if seen.shown else UsageSource.PROVIDER
    assert (made.source, made.usage.output_tokens) == (source, 50)
    assert made.is_suspect is bool(seen.shown)


def test_a_picture_of_gemini_behind_the_last_usage_is_held() -> None:
    """A complete answer: its last piece has the finish reason and no usage."""
    picture = part(inlineData={"mimeType": "image/png", "data": SEALED})
    end = {"candidates": [{"index": 0, "finishReason": "STOP"}]}
    made = counted(read("gemini", [LATER["gemini"], picture, end]))
    assert (made.source, made.cost_nusd) == (UsageSource.UNKNOWN, None)


def test_a_shown_thought_and_its_signature_are_counted() -> None:
    events = [
        piece(type="thinking_delta", thinking="abcd"),
        piece(type="signature_delta", signature="s"),
    ]
    for dialect in ("messages", "translated"):
        made = counted(
            read(dialect, [FIRST[dialect], block(type="thinking", thinking=""), *events])
        )
        assert (made.source, made.usage.output_tokens) == (UsageSource.ESTIMATED, 1)


def test_the_signature_of_a_thought_that_is_not_shown_is_held() -> None:
    events = [block(type="thinking", thinking=""), piece(type="signature_delta", signature="s")]
    for dialect in ("messages", "translated"):
        made = counted(read(dialect, [FIRST[dialect], text(dialect), *events]))
        assert (made.source, made.cost_nusd) == (UsageSource.UNKNOWN, None)


def test_events_that_repeat_a_text_or_tell_of_a_tool_change_nothing() -> None:
    """A cut response of text alone is an estimate, as before."""
    events: list[Event] = [
        text("responses"),
        {"type": "response.output_text.done", "text": "a"},
        {"type": "response.content_part.done", "part": {"type": "output_text", "text": "a"}},
        item(type="message", content=[{"type": "output_text", "text": "a"}]),
        {"type": "response.web_search_call.searching", "item_id": "w"},
        item(type="web_search_call", id="w", status="completed"),
    ]
    assert counted(read("responses", events)).source is UsageSource.ESTIMATED


Reads = Callable[[bytes, Observed], Any]
HI = {"type": "text", "text": "hi"}
# Whole answers without a usage: a little text beside other content.
WHOLE: dict[str, tuple[Reads, list[Any]]] = {
    "chat": (
        lambda body, seen: rewrite_chat(body, seen, model="m"),
        [
            {"choices": [{"message": {"content": "hi", "images": [PICTURE]}}]},
            {"choices": [{"message": {"content": "hi", "audio": {"data": SEALED}}}]},
            {"choices": [{"message": {"content": [HI, {"type": "song", "lyrics": WORDS}]}}]},
        ],
    ),
    "responses": (
        lambda body, seen: rewrite_response(body, seen, model="m"),
        [
            {"output": [{"type": "message", "content": [HI]}, other]}
            for other in (
                {"type": "reasoning", "summary": [], "encrypted_content": SEALED},
                {"type": "image_generation_call", "result": SEALED},
                {"type": "compaction", "encrypted_content": SEALED},
            )
        ],
    ),
    "messages": (
        lambda body, seen: rewrite_message(body, seen, model="m"),
        [
            {"content": [other, HI]}
            for other in (
                {"type": "redacted_thinking", "data": SEALED},
                {"type": "thinking", "thinking": "", "signature": SEALED},
                {"type": "web_search_tool_result", "content": [{"encrypted_content": SEALED}]},
                {"type": "compaction", "content": WORDS},
            )
        ],
    ),
    "bedrock": (
        converse_events,
        [
            {"output": {"message": {"content": [{"text": "hi"}, other]}}}
            for other in (
                {"reasoningContent": {"redactedContent": SEALED}},
                {"image": {"source": {"bytes": SEALED}}},
            )
        ],
    ),
    "gemini": (
        gemini_events,
        [
            {"candidates": [{"content": {"parts": [{"text": "hi"}, other]}}]}
            for other in (
                {"inlineData": {"mimeType": "image/png", "data": SEALED}},
                {"text": "a", "thoughtSignature": SEALED},
                {"executableCode": {"code": WORDS}},
            )
        ],
    ),
}
WHOLE["translated"] = (messages_events, WHOLE["messages"][1])


@pytest.mark.parametrize("dialect", WHOLE)
def test_a_whole_answer_with_other_content_and_no_usage_is_held(dialect: str) -> None:
    reader, bodies = WHOLE[dialect]
    for body in bodies:
        seen = Observed(is_whole=True)
        reader(json.dumps(body).encode(), seen)
        made = counted(seen)
        assert (made.source, made.cost_nusd) == (UsageSource.UNKNOWN, None), body
