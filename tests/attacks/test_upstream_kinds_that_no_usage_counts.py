"""Answers in sounds and pictures whose usage counts their tokens with those of the text: they were
booked as text, a twelfth of the bill, as the provider's own figure.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.settlement import Settlement
from gateway.domain.pricing.tokens import TokenKind, UsageSource
from gateway.domain.request.unpriced import has_sound
from gateway.wire.bedrock.answer import converse_events
from gateway.wire.gemini.answer import gemini_events
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import rewrite_chat
from gateway.wire.openai.answer.responses import rewrite_response
from gateway.wire.openai.request.read import read_request
from tests.attacks.streamed import HELD_NUSD, Event, last, read, settlement_of, text

RATES = {
    TokenKind.INPUT: 1,
    TokenKind.OUTPUT: 4,
    TokenKind.AUDIO_OUTPUT: 64,
    TokenKind.IMAGE_OUTPUT: 30,
    TokenKind.AUDIO_INPUT: 10,
}
SOUND = {"id": "a", "data": "AAAA", "transcript": "hello"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
INLINE = {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}
SENT = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
SPOKEN = {"inlineData": {"mimeType": "audio/pcm", "data": "QUJD"}}


def price(*kinds: TokenKind) -> Price:
    """Return a price of text and of these kinds."""
    listed = (TokenKind.INPUT, TokenKind.OUTPUT, *kinds)
    rates = tuple(Rate(kind=kind, usd_per_mtok=Decimal(RATES[kind])) for kind in listed)
    return Price(provider="p", model="m", source="policy", rates=rates)


ALL = price(TokenKind.AUDIO_OUTPUT, TokenKind.IMAGE_OUTPUT)


def chat(**message: Any) -> list[Event]:
    """Return the events of a chat with this delta."""
    delta = {"role": "assistant", "content": "", **message}
    return [{"model": "m", "choices": [{"index": 0, "delta": delta}]}]


def piece(part: dict[str, Any]) -> list[Event]:
    """Return the events of a part of Gemini's answer."""
    return [{"candidates": [{"index": 0, "content": {"parts": [{"text": "see"}, part]}}]}]


# The dialect, its events before the last ones, and the kind that they show.
SEEN: dict[str, tuple[str, list[Event], TokenKind]] = {
    "a sound": ("chat", chat(audio=SOUND), TokenKind.AUDIO_OUTPUT),
    "a sound behind text": ("chat", [text("chat"), *chat(audio=SOUND)], TokenKind.AUDIO_OUTPUT),
    "pictures": ("chat", chat(images=[PICTURE]), TokenKind.IMAGE_OUTPUT),
    "a picture in parts": ("chat", chat(content=[PICTURE]), TokenKind.IMAGE_OUTPUT),
    "a sound of a response": (
        "responses",
        [{"type": "response.output_audio.delta", "delta": "AAAA"}],
        TokenKind.AUDIO_OUTPUT,
    ),
    "an item of a response": (
        "responses",
        [
            {
                "type": "response.output_item.done",
                "item": {"type": "message", "content": [{"type": "output_audio", "data": "A"}]},
            }
        ],
        TokenKind.AUDIO_OUTPUT,
    ),
    "a picture of Gemini": ("gemini", piece(INLINE), TokenKind.IMAGE_OUTPUT),
    "a sound of Gemini": ("gemini", piece(SPOKEN), TokenKind.AUDIO_OUTPUT),
    "a picture of Bedrock": (
        "bedrock",
        [{"contentBlockDelta": {"delta": {"image": {"source": {"bytes": "QUJD"}}}}}],
        TokenKind.IMAGE_OUTPUT,
    ),
}


def figures(made: Settlement) -> tuple[int | None, UsageSource]:
    """Return the cost and the source."""
    return made.cost_nusd, made.source


@pytest.mark.parametrize("name", SEEN)
def test_the_output_costs_as_the_dearest_kind_and_is_an_estimate(name: str) -> None:
    dialect, events, kind = SEEN[name]
    seen = read(dialect, [*events, *last(dialect, 10, 500)])
    made = settlement_of(seen, price=price(kind))
    assert figures(made) == (10 * 1000 + 500 * 1000 * RATES[kind], UsageSource.ESTIMATED)
    assert made.reported == seen.final


@pytest.mark.parametrize("name", SEEN)
def test_without_a_price_of_the_kind_it_is_held(name: str) -> None:
    dialect, events, _ = SEEN[name]
    made = settlement_of(read(dialect, [*events, *last(dialect, 10, 500)]), price=price())
    assert (made.cost_nusd, made.held_nusd, made.is_suspect) == (None, HELD_NUSD, True)


@pytest.mark.parametrize("name", SEEN)
def test_an_engine_with_one_rate_charges_it(name: str) -> None:
    dialect, events, _ = SEEN[name]
    seen = read(dialect, [*events, *last(dialect, 10, 500)])
    made = settlement_of(seen, price=price(), is_self_hosted=True)
    assert figures(made) == (10 * 1000 + 500 * 4000, UsageSource.PROVIDER)


def whole(dialect: str, shown: dict[str, Any], usage: dict[str, Any]) -> Observed:
    """Return the observations of a whole answer."""
    seen = Observed(is_whole=True)
    if dialect == "chat":
        message = {"role": "assistant", "content": "a", **shown}
        body = {"model": "m", "choices": [{"index": 0, "message": message}], "usage": usage}
        rewrite_chat(json.dumps(body).encode(), seen, model="m")
    elif dialect == "responses":
        output = [{"type": "message", "content": [shown]}]
        body = {"id": "r", "status": "completed", "output": output, "usage": usage}
        rewrite_response(json.dumps(body).encode(), seen, model="m")
    elif dialect == "bedrock":
        body = {"output": {"message": {"content": [shown]}}, "usage": usage}
        converse_events(json.dumps(body).encode(), seen)
    else:
        content = {"parts": [{"text": "a"}, shown]}
        body = {"candidates": [{"content": content}], "usageMetadata": usage}
        gemini_events(json.dumps(body).encode(), seen)
    return seen


CHAT = {"prompt_tokens": 10, "completion_tokens": 500, "total_tokens": 510}
RESPONSE = {"input_tokens": 10, "output_tokens": 500}
GEMINI = {"promptTokenCount": 10, "candidatesTokenCount": 500, "totalTokenCount": 510}
TEXT = {"modality": "TEXT", "tokenCount": 10}
WHOLE: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "a sound": ("chat", {"audio": SOUND}, CHAT, 64),
    "a count of 0": (
        "chat",
        {"audio": SOUND},
        {**CHAT, "completion_tokens_details": {"audio_tokens": 0, "reasoning_tokens": 0}},
        64,
    ),
    "pictures": ("chat", {"images": [PICTURE]}, CHAT, 30),
    "a sound of a response": ("responses", {"type": "output_audio", "data": "A"}, RESPONSE, 64),
    "a picture": ("gemini", INLINE, GEMINI, 30),
    "a count of its text": ("gemini", INLINE, {**GEMINI, "candidatesTokensDetails": [TEXT]}, 30),
    "both": ("chat", {"audio": SOUND, "images": [PICTURE]}, CHAT, 64),
    "a picture of Bedrock": (
        "bedrock",
        {"image": {"format": "png", "source": {"bytes": "QUJD"}}},
        {"inputTokens": 10, "outputTokens": 500},
        30,
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_answer_too(name: str) -> None:
    """The price has both kinds: the seen one counts."""
    dialect, shown, usage, rate = WHOLE[name]
    made = settlement_of(whole(dialect, shown, usage), price=ALL)
    assert figures(made) == (10 * 1000 + 500 * 1000 * rate, UsageSource.ESTIMATED)


SPLIT: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "a sound": (
        "chat",
        {"audio": SOUND},
        {**CHAT, "completion_tokens_details": {"audio_tokens": 400}},
        400 * 64 + 100 * 4,
    ),
    "a picture": (
        "gemini",
        INLINE,
        {**GEMINI, "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 500}]},
        500 * 30,
    ),
    "no sound": ("chat", {"audio": None, "images": [], "annotations": []}, CHAT, 500 * 4),
    "a call": (
        "chat",
        {"tool_calls": [{"function": {"name": "f", "arguments": '{"audio":{"data":"A"}}'}}]},
        CHAT,
        500 * 4,
    ),
    "a text that names one": (
        "chat",
        {"content": '{"audio": {"data": "A"}, "type": "output_audio"}'},
        CHAT,
        500 * 4,
    ),
    "parts of text": ("chat", {"content": [{"type": "text", "text": "a"}]}, CHAT, 500 * 4),
    "a text of a response": (
        "responses",
        {"type": "output_text", "text": '{"type": "output_audio"}', "annotations": []},
        RESPONSE,
        500 * 4,
    ),
}


@pytest.mark.parametrize("name", SPLIT)
def test_a_split_and_a_text_are_booked_as_before(name: str) -> None:
    dialect, shown, usage, output = SPLIT[name]
    made = settlement_of(whole(dialect, shown, usage), price=ALL)
    assert figures(made) == ((10 + output) * 1000, UsageSource.PROVIDER)
    assert not made.is_suspect


HEARD = frozenset({TokenKind.AUDIO_INPUT})


@pytest.mark.parametrize(
    ("details", "rates", "cost", "source"),
    [
        ({}, (TokenKind.AUDIO_INPUT,), 10 * 10 + 500 * 4, UsageSource.ESTIMATED),
        ({}, (), 10 + 500 * 4, UsageSource.PROVIDER),
        ({"audio_tokens": 4}, (TokenKind.AUDIO_INPUT,), 46 + 500 * 4, UsageSource.PROVIDER),
        ({"audio_tokens": 0}, (TokenKind.AUDIO_INPUT,), 10 + 500 * 4, UsageSource.PROVIDER),
    ],
)
def test_a_sound_in_the_prompt_costs_its_rate_if_the_price_has_one(
    details: dict[str, int], rates: tuple[TokenKind, ...], cost: int, source: UsageSource
) -> None:
    usage = {**CHAT, "prompt_tokens_details": details}
    seen = whole("chat", {}, usage)
    made = settlement_of(seen, price=price(*rates), seen_kinds=HEARD)
    assert figures(made) == (cost * 1000, source)


@pytest.mark.parametrize(
    ("body", "is_heard"),
    [
        ({"messages": [{"role": "user", "content": [SENT]}]}, True),
        ({"messages": [{"role": "user", "content": "hello"}]}, False),
        ({"messages": [], "modalities": ["text", "audio"], "audio": {"voice": "a"}}, False),
    ],
)
def test_a_sound_in_a_request_is_known(body: dict[str, Any], is_heard: bool) -> None:
    facts = read_request(Operation.CHAT, json.dumps({"model": "m", **body}).encode()).facts
    assert has_sound(facts) is is_heard
