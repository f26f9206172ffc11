"""Searches and read files that an answer shows, of a provider that ran them unasked: neither the
request nor the model's name announced them, no usage counts them, and they were booked at nothing.

OpenRouter's plugins can be a setting of the account (openrouter.ai/docs/guides/features/plugins).
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.tokens import TokenKind, UsageSource
from gateway.wire.anthropic.answer.messages import rewrite_message
from gateway.wire.anthropic.translation.upstream_reader import messages_events
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import rewrite_chat
from gateway.wire.openai.answer.responses import rewrite_response
from tests.attacks.streamed import HELD_NUSD, Event, last, read, settlement_of, text

PRICE = Price(
    provider="p",
    model="m",
    source="policy",
    rates=tuple(Rate(kind=kind, usd_per_mtok=Decimal(10)) for kind in TokenKind),
)
URL = {"type": "url_citation", "url_citation": {"url": "https://example.org", "title": "t"}}
FILE = {"type": "file", "file": {"hash": "h", "name": "a.pdf", "content": []}}
OF_CALLER = {"type": "file_citation", "file_citation": {"file_id": "f"}}
RAN = {"type": "search", "index": 0, "arguments": "{}", "output": "x"}
CHATS: dict[str, dict[str, Any]] = {
    "a page": {"annotations": [URL]},
    "a page behind a file": {"annotations": [OF_CALLER, URL]},
    "a file that was read": {"annotations": [FILE]},
    "both": {"annotations": [URL, FILE]},
    "a tool that ran": {"executed_tools": [RAN]},
}
NO_WORK: dict[str, dict[str, Any]] = {
    "none": {"annotations": []},
    "null": {"annotations": None, "executed_tools": None},
    "a file of the caller": {"annotations": [OF_CALLER]},
    "a text": {"content": '{"annotations": [{"type": "url_citation"}]}'},
    "a call": {"tool_calls": [{"function": {"name": "f", "arguments": '{"a":"url_citation"}'}}]},
    "an odd one": {"annotations": [{"type": 1}, "url_citation", None]},
}


def chat_of(shown: dict[str, Any], *, is_stream: bool, **usage: Any) -> Observed:
    """Return the observations of a chat with these members in its message."""
    if is_stream:
        event: Event = {"model": "m", "choices": [{"index": 0, "delta": shown}]}
        return read("chat", [text("chat"), event, *last("chat", 9, 9, **usage)])
    seen = Observed(is_whole=True)
    message = {"role": "assistant", "content": "a", **shown}
    counts = {"prompt_tokens": 9, "completion_tokens": 9, **usage}
    body = {"model": "m", "choices": [{"index": 0, "message": message}], "usage": counts}
    rewrite_chat(json.dumps(body).encode(), seen, model="m")
    return seen


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("name", CHATS)
def test_work_without_a_count_is_unknown_at_the_hold(name: str, is_stream: bool) -> None:
    made = settlement_of(chat_of(CHATS[name], is_stream=is_stream), price=PRICE)
    assert (made.source, made.held_nusd) == (UsageSource.UNKNOWN, HELD_NUSD)
    assert made.usage.output_tokens == 9


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("name", NO_WORK)
def test_other_answers_are_booked_as_before(name: str, is_stream: bool) -> None:
    made = settlement_of(chat_of(NO_WORK[name], is_stream=is_stream), price=PRICE)
    assert (made.source, made.cost_nusd) == (UsageSource.PROVIDER, 18 * 10_000)


@pytest.mark.parametrize("is_stream", [True, False])
def test_searches_that_the_usage_counts_are_charged(is_stream: bool) -> None:
    counts = {"server_tool_use": {"web_search_requests": 2}}
    made = settlement_of(chat_of(CHATS["a page"], is_stream=is_stream, **counts), price=PRICE)
    assert (made.source, made.cost_nusd) == (UsageSource.PROVIDER, 20 * 10_000)


PAGES: dict[str, Any] = {
    "citations": ["https://example.org"],
    "search_results": [{"title": "t", "url": "https://example.org"}],
    "web_search": [{"link": "https://example.org", "title": "t"}],
}


def answer_with(is_stream: bool, usage: dict[str, Any], **top: Any) -> Observed:
    """Return the observations of a chat with these members beside its choices."""
    counts = {"prompt_tokens": 9, "completion_tokens": 9, **usage}
    if is_stream:
        event: Event = {"model": "m", "choices": [{"index": 0, "delta": {"content": "a"}}], **top}
        return read("chat", [event, *last("chat", 9, 9, **usage)])
    seen = Observed(is_whole=True)
    body = {"model": "m", "choices": [{"message": {"content": "a"}}], "usage": counts, **top}
    rewrite_chat(json.dumps(body).encode(), seen, model="m")
    return seen


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("name", PAGES)
def test_pages_at_the_top_of_an_answer_are_a_search(name: str, is_stream: bool) -> None:
    """Perplexity's, xAI's and Zhipu's answers name them there."""
    made = settlement_of(answer_with(is_stream, {}, **{name: PAGES[name]}), price=PRICE)
    assert (made.source, made.held_nusd) == (UsageSource.UNKNOWN, HELD_NUSD)
    counted = answer_with(is_stream, {"num_search_queries": 2}, **{name: PAGES[name]})
    assert settlement_of(counted, price=PRICE).cost_nusd == 20 * 10_000
    for nothing in ([], None, {}):
        made = settlement_of(answer_with(is_stream, {}, **{name: nothing}), price=PRICE)
        assert (made.source, made.cost_nusd) == (UsageSource.PROVIDER, 18 * 10_000)


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    ("costs", "source"),
    [
        ({"cost": {"request_cost": 0.014, "total_cost": 0.0143}}, UsageSource.UNKNOWN),
        ({"cost": {"request_cost": 0, "total_cost": 0.0003}}, UsageSource.PROVIDER),
        ({"cost": 0.0003}, UsageSource.PROVIDER),
        ({"cost_details": {"server_tool_cost": 0.004}}, UsageSource.UNKNOWN),
        ({"cost_details": {"server_tool_cost": None}}, UsageSource.PROVIDER),
    ],
)
def test_a_stated_fee_of_a_request_is_held(
    costs: dict[str, Any], source: UsageSource, is_stream: bool
) -> None:
    assert settlement_of(answer_with(is_stream, costs), price=PRICE).source is source


RESULT = {"type": "bash_code_execution_tool_result", "tool_use_id": "s", "content": {}}
USE = {"type": "server_tool_use", "id": "s", "name": "bash_code_execution", "input": {}}
FETCHED = {"type": "server_tool_use", "id": "s", "name": "web_fetch", "input": {}}


@pytest.mark.parametrize("dialect", ["messages", "translated"])
@pytest.mark.parametrize("is_stream", [True, False])
def test_code_that_anthropic_ran_is_held(dialect: str, is_stream: bool) -> None:
    """Its container costs by its time, which no usage states."""
    for block, source in ((USE, "unknown"), (RESULT, "unknown"), (FETCHED, "provider")):
        if is_stream:
            start: Event = {"type": "content_block_start", "index": 0, "content_block": block}
            seen = read(dialect, [start, text(dialect), *last(dialect, 9, 9)])
        else:
            seen = Observed(is_whole=True)
            content = [block, {"type": "text", "text": "a"}]
            counts = {"input_tokens": 9, "output_tokens": 9}
            body = json.dumps({"id": "m", "model": "m", "content": content, "usage": counts})
            if dialect == "messages":
                rewrite_message(body.encode(), seen, model="m")
            else:
                messages_events(body.encode(), seen)
        assert settlement_of(seen, price=PRICE).source == source


def response(*items: dict[str, Any]) -> list[Event]:
    """Return the last event of a response with these items."""
    (end,) = last("responses", 9, 9)
    assert not isinstance(end, bytes)
    return [{**end, "response": {**end["response"], "output": items}}]


CITED = {
    "type": "message",
    "content": [{"type": "output_text", "text": "a", "annotations": [{**URL, "url": "u"}]}],
}
SEARCHED = {"type": "web_search_call", "id": "s", "status": "completed"}


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_response_that_cites_a_page_has_searched(is_stream: bool) -> None:
    for items, source in (([CITED], UsageSource.UNKNOWN), ([SEARCHED, CITED], "provider")):
        if is_stream:
            seen = read("responses", [text("responses"), *response(*items)])
        else:
            seen = Observed(is_whole=True)
            usage = {"input_tokens": 9, "output_tokens": 9}
            body = {"id": "r", "status": "completed", "output": items, "usage": usage}
            rewrite_response(json.dumps(body).encode(), seen, model="m")
        assert settlement_of(seen, price=PRICE).source == source


def test_a_cut_stream_is_held_too() -> None:
    event: Event = {"model": "m", "choices": [{"index": 0, "delta": CHATS["a page"]}]}
    assert read("chat", [text("chat"), event]).shown == {TokenKind.WEB_SEARCH}
    done: Event = {"type": "response.output_item.done", "output_index": 0, "item": CITED}
    assert read("responses", [text("responses"), done]).shown == {TokenKind.WEB_SEARCH}


@pytest.mark.parametrize(
    ("grounding", "source"),
    [
        ({"groundingChunks": [{"maps": {"uri": "u"}}]}, UsageSource.UNKNOWN),
        ({"groundingChunks": [{"web": {}}], "webSearchQueries": ["q"]}, UsageSource.PROVIDER),
        ({"groundingChunks": []}, UsageSource.PROVIDER),
        ({}, UsageSource.PROVIDER),
    ],
)
def test_grounding_of_gemini_without_a_search_of_the_web_is_held(
    grounding: dict[str, Any], source: UsageSource
) -> None:
    found: Event = {"candidates": [{"index": 0, "groundingMetadata": grounding}]}
    seen = read("gemini", [text("gemini"), found, *last("gemini", 9, 9)])
    assert settlement_of(seen, price=PRICE, calls=seen.calls).source is source
