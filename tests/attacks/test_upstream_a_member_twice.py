"""Answers that state their usage or their service tier twice: the last one was booked, unmarked,
and the tier of the first was lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.pricing.settlement import Settlement
from gateway.domain.request.served_tier import UNKNOWN_TIER
from gateway.wire.anthropic.answer.messages import rewrite_message
from gateway.wire.anthropic.translation.upstream_reader import messages_events
from gateway.wire.bedrock.answer import converse_events
from gateway.wire.foreign_json import MOST_READINGS
from gateway.wire.gemini.answer import gemini_events
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.complete_answer import rewrite
from tests.attacks.streamed import read as read_stream
from tests.attacks.streamed import settlement_of, text
from tests.event_messages import framed
from tests.factories import read as request_of

ASKED = {
    "chat": request_of(b'{"model":"m","messages":[]}'),
    "responses": request_of(b'{"model":"m","input":"x"}', Operation.RESPONSES),
    "embeddings": request_of(b'{"model":"m","input":"x"}', Operation.EMBEDDINGS),
}
Reader = Callable[[bytes, Observed], Any]


def openai(dialect: str) -> Reader:
    return lambda body, seen: rewrite(ASKED[dialect], body, seen)


def messages(body: bytes, seen: Observed) -> None:
    rewrite_message(body, seen, model="n")


def counts(prompt: str, answer: str) -> Callable[[int, int], dict[str, int]]:
    return lambda read, written: {prompt: read, answer: written}


OPENAI, ITEMS = (
    counts("prompt_tokens", "completion_tokens"),
    counts("input_tokens", "output_tokens"),
)
CHAT = {"model": "m", "choices": [{"index": 0, "message": {"content": "a"}}]}
ITEM = {"type": "message", "content": [{"type": "output_text", "text": "a"}]}
RESPONSE = {"id": "r", "model": "m", "status": "completed", "output": [ITEM]}
MESSAGE = {"id": "m", "model": "m", "content": [{"type": "text", "text": "a"}]}
# Of each dialect: its reader, an answer, the name of its usage and the counts in it.
WHOLE: dict[str, tuple[Reader, dict[str, Any], str, Callable[[int, int], dict[str, int]]]] = {
    "chat": (openai("chat"), CHAT, "usage", OPENAI),
    "responses": (openai("responses"), RESPONSE, "usage", ITEMS),
    "messages": (messages, MESSAGE, "usage", ITEMS),
    "translated": (messages_events, MESSAGE, "usage", ITEMS),
    "bedrock": (
        converse_events,
        {"output": {"message": {"content": [{"text": "a"}]}}},
        "usage",
        counts("inputTokens", "outputTokens"),
    ),
    "gemini": (
        gemini_events,
        {"candidates": [{"content": {"parts": [{"text": "a"}]}}]},
        "usageMetadata",
        counts("promptTokenCount", "candidatesTokenCount"),
    ),
}


def joined(body: dict[str, Any], *members: tuple[str, Any], form: str = "plain") -> bytes:
    """Return a body with these members behind it; two may have one name, in one of its forms."""
    written = []
    for place, (name, value) in enumerate(members):
        spelt = json.dumps(name)
        if form == "escaped" and place == 0:
            spelt = spelt.replace("s", "\\u0073", 1)
        written.append(f"{spelt}: {json.dumps(value)}")
    inner = json.dumps(body)[1:-1]
    first = [inner] if form != "at both ends" else []
    last = [inner] if form == "at both ends" else []
    parts = [*written[:-1], *last, written[-1]] if last else [*first, *written]
    return ("{" + ", ".join(parts) + "}").encode()


def settled(reader: Reader, body: bytes) -> tuple[Settlement, Observed]:
    seen = Observed(is_whole=True)
    reader(body, seen)
    return settlement_of(seen), seen


def figures(made: Settlement) -> tuple[int | None, int | None, str, bool]:
    return made.usage.input_tokens, made.usage.output_tokens, made.source, made.is_suspect


@pytest.mark.parametrize("form", ["plain", "at both ends", "escaped"])
@pytest.mark.parametrize(
    "values", [((100, 50), (1, 1)), ((1, 1), (100, 50)), ((1, 50), (100, 50), (1, 1))]
)
@pytest.mark.parametrize("dialect", WHOLE)
def test_the_dearer_figure_of_two_usages_is_charged_and_flagged(
    dialect: str, values: tuple[tuple[int, int], ...], form: str
) -> None:
    reader, answer, name, usage_of = WHOLE[dialect]
    body = joined(answer, *((name, usage_of(*one)) for one in values), form=form)
    made, _ = settled(reader, body)
    assert figures(made) == (100, 50, "provider", True)


@pytest.mark.parametrize("dialect", WHOLE)
def test_a_usage_beside_null_is_read(dialect: str) -> None:
    reader, answer, name, usage_of = WHOLE[dialect]
    for values in ((usage_of(100, 50), None), (None, usage_of(100, 50))):
        made, _ = settled(reader, joined(answer, *((name, one) for one in values)))
        assert figures(made)[:3] == (100, 50, "provider")


@pytest.mark.parametrize("dialect", WHOLE)
def test_one_usage_stated_twice_is_no_contradiction(dialect: str) -> None:
    reader, answer, name, usage_of = WHOLE[dialect]
    body = joined(answer, (name, usage_of(100, 50)), (name, usage_of(100, 50)))
    made, _ = settled(reader, body)
    assert figures(made) == (100, 50, "provider", False)


def test_the_vectors_of_embeddings_have_the_dearer_usage() -> None:
    body = {"object": "list", "model": "m", "data": [{"index": 0, "embedding": [0.1]}]}
    usages = (("usage", {"prompt_tokens": n, "total_tokens": n}) for n in (100, 1))
    seen = Observed(is_whole=True)
    rewrite(ASKED["embeddings"], joined(body, *usages), seen)
    made = settlement_of(seen, writes_output=False)
    assert (made.usage.input_tokens, made.is_suspect) == (100, True)


# A tier in each place: the dialect, and the members that state it.
def at_top(name: str, wrap: Callable[[Any], Any] = lambda tier: tier) -> Any:
    return lambda usage, *tiers: [usage, *((name, wrap(tier)) for tier in tiers)]


TIERS: dict[str, tuple[str, Callable[..., list[tuple[str, Any]]]]] = {
    "chat": ("chat", at_top("service_tier")),
    "responses": ("responses", at_top("service_tier")),
    "bedrock": ("bedrock", at_top("serviceTier", lambda tier: {"type": tier})),
}


@pytest.mark.parametrize("place", TIERS)
@pytest.mark.parametrize(
    ("stated", "tier"),
    [
        (("priority", "flex"), UNKNOWN_TIER),
        (("priority", "flex", "priority"), UNKNOWN_TIER),
        (("priority", "priority"), "priority"),
        (("priority", None), "priority"),
        ((None, "priority"), "priority"),
        (("priority",), "priority"),
    ],
)
def test_each_stated_tier_counts(place: str, stated: tuple[str | None, ...], tier: str) -> None:
    dialect, members = TIERS[place]
    reader, answer, name, usage_of = WHOLE[dialect]
    made, seen = settled(reader, joined(answer, *members((name, usage_of(9, 9)), *stated)))
    assert (seen.service_tier, made.usage.output_tokens) == (tier, 9)


@pytest.mark.parametrize("dialect", ["chat", "messages", "translated", "gemini"])
def test_each_tier_inside_a_usage_counts(dialect: str) -> None:
    reader, answer, name, usage_of = WHOLE[dialect]
    spelt = "serviceTier" if dialect == "gemini" else "service_tier"
    usage = json.dumps(usage_of(9, 9))[:-1]
    usage += f', "{spelt}": "priority", "{spelt}": "standard"' + "}"
    inner = json.dumps(answer)[:-1] + f', "{name}": {usage}' + "}"
    _, seen = settled(reader, inner.encode())
    assert seen.service_tier == UNKNOWN_TIER


def test_a_tier_beside_two_names_of_the_model_counts() -> None:
    body = joined(
        {"choices": CHAT["choices"], "usage": OPENAI(9, 9)},
        *(("model", "a"), ("service_tier", "priority"), ("model", "b")),
    )
    _, seen = settled(openai("chat"), body)
    assert (seen.service_tier, seen.has_unread) == ("priority", False)


def test_a_fee_beside_two_usages_counts() -> None:
    items = [{"type": "web_search_call", "id": "w", "status": "completed"}, ITEM]
    usages = (("usage", ITEMS(9, 9)), ("usage", ITEMS(9, 8)))
    _, seen = settled(openai("responses"), joined({**RESPONSE, "output": items}, *usages))
    assert seen.final is not None
    assert seen.final.web_search_calls == 1


@pytest.mark.parametrize("values", [((100, 50), (1, 1)), ((1, 1), (100, 50))])
@pytest.mark.parametrize("dialect", ["chat", "messages", "translated", "bedrock", "gemini"])
def test_the_dearer_figure_of_two_usages_in_a_stream_is_charged_and_flagged(
    dialect: str, values: tuple[tuple[int, int], ...]
) -> None:
    _, _, name, usage_of = WHOLE[dialect]
    usages = [(name, usage_of(*one)) for one in values]
    end: dict[str, Any] = {"model": "m", "choices": [{"delta": {}, "finish_reason": "stop"}]}
    last = [b"data: [DONE]\n\n"]
    if dialect == "gemini":
        end = {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]}
    if dialect in ("messages", "translated"):
        end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
        last = [b'event: message_stop\ndata: {"type":"message_stop"}\n\n']
    event = b"data: " + joined(end, *usages) + b"\n\n"
    if dialect == "bedrock":
        names = {":message-type": "event", ":event-type": "metadata"}
        event, last = framed(names, joined({"metrics": {}}, *usages)), []
    made = settlement_of(read_stream(dialect, [text(dialect), event, *last]))
    assert figures(made) == (100, 50, "provider", True)


def test_two_tiers_of_a_chunk_are_held() -> None:
    end = {"model": "m", "choices": [{"delta": {}, "finish_reason": "stop"}]}
    members = [("service_tier", "priority"), ("service_tier", "flex"), ("usage", OPENAI(9, 9))]
    event = b"data: " + joined(end, *members) + b"\n\n"
    assert read_stream("chat", [text("chat"), event]).service_tier == UNKNOWN_TIER


@pytest.mark.parametrize("dialect", WHOLE)
def test_more_values_than_are_read_are_held(dialect: str) -> None:
    reader, answer, name, usage_of = WHOLE[dialect]
    usages = [usage_of(1, 1)] * MOST_READINGS + [usage_of(100, 50), usage_of(1, 1)]
    _, seen = settled(reader, joined(answer, *((name, one) for one in usages)))
    assert seen.service_tier == UNKNOWN_TIER


def test_a_tier_whose_name_an_escape_spells_counts() -> None:
    members = [("service_tier", "priority"), ("service_tier", "flex"), ("usage", OPENAI(9, 9))]
    _, seen = settled(openai("chat"), joined(CHAT, *members, form="escaped"))
    assert seen.service_tier == UNKNOWN_TIER
