"""Usages of a part of an answer: llama.cpp ends each choice with a usage of its own, which was
added again whenever it was repeated; a usage without its prompt was booked in two ways.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.domain.pricing.settlement import Settlement
from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import chat_stream, rewrite_chat
from tests.attacks.settling import DONE, ask, only_event, policy
from tests.attacks.streamed import settlement_of
from tests.gateway_process import Gateway
from tests.integration.raw_upstream import STREAM, RawUpstream, event, sends, token, whole

PROMPT = 100


def word(choice: int) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": choice, "delta": {"content": "a"}}]}


def finish(choice: int) -> dict[str, Any]:
    end = {"index": choice, "delta": {}, "finish_reason": "stop"}
    return {"model": "m", "choices": [end]}


def used(tokens: int, *, timed: int | None = None) -> dict[str, Any]:
    """Return a usage of so many tokens beside the timings of one choice."""
    usage = {"prompt_tokens": PROMPT, "completion_tokens": tokens}
    timings = {"prompt_n": PROMPT, "cache_n": 0, "predicted_n": tokens if timed is None else timed}
    return {"model": "m", "choices": [], "usage": usage, "timings": timings}


def settled(events: list[dict[str, Any]], choices: int) -> Settlement:
    """Return the settlement of llama.cpp's stream."""
    stream = chat_stream(
        model="m",
        wants_usage=True,
        wants_running_usage=False,
        asked_running_usage=True,
        choices=choices,
    )
    stream.feed(b"".join(event(json.dumps(one).encode()) for one in events) + DONE)
    return settlement_of(stream.observed)


BEGINNING = {1: [word(0), finish(0)], 2: [word(0), word(1), finish(0)]}
# The events, the requested choices, the output tokens, and the mark.
STREAMS: dict[str, tuple[list[dict[str, Any]], int, int, bool]] = {
    "once": ([*BEGINNING[1], used(7)], 1, 7, False),
    "twice": ([*BEGINNING[1], used(7), used(7)], 1, 7, False),
    "twice with its end": ([*BEGINNING[1], used(7), finish(0), used(7)], 1, 7, False),
    "twice in one event": ([word(0), {**finish(0), **used(7), **finish(0)}, used(7)], 1, 7, False),
    "twice, less": ([*BEGINNING[1], used(70), used(7)], 1, 70, True),
    "two choices": ([*BEGINNING[2], used(7), finish(1), used(9)], 2, 16, False),
    "two choices, the first one twice": (
        [*BEGINNING[2], used(7), used(7), finish(1), used(9)],
        2,
        16,
        False,
    ),
    "a sum behind the first one": (
        [*BEGINNING[2], used(7), finish(1), used(16, timed=9)],
        2,
        16,
        False,
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_each_choice_counts_once(name: str) -> None:
    events, choices, tokens, is_suspect = STREAMS[name]
    made = settled(events, choices)
    assert (made.usage.input_tokens, made.usage.output_tokens) == (PROMPT, tokens)
    assert made.is_suspect is is_suspect


@pytest.mark.parametrize(("timed", "tokens"), [(7, None), (9, 16)])
def test_a_plain_usage_is_that_of_the_answers_that_it_counts(
    timed: int, tokens: int | None
) -> None:
    """That of the first one alone is estimated by the text of both."""
    message = {"role": "assistant", "content": "a"}
    choices = [{"index": n, "message": message, "finish_reason": "stop"} for n in range(2)]
    body = {**used(tokens or timed, timed=timed), "choices": choices}
    seen = Observed(is_whole=True)
    rewrite_chat(json.dumps(body).encode(), seen, model="m")
    expected = TokenUsage(input_tokens=PROMPT, output_tokens=tokens) if tokens else None
    assert seen.final == expected


CHAT = {
    "id": "c",
    "model": "m",
    "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
    "usage": {"completion_tokens": 5},
}
LAST = event({"id": "c", "model": "m", "choices": [], "usage": CHAT["usage"]})
UPSTREAMS = {
    "plain": sends(whole(json.dumps(CHAT).encode())),
    "stream": sends(STREAM, token("hi"), LAST, DONE),
}


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]], module_database_url: str
) -> Iterator[Gateway]:
    """Yield a gateway before a server whose usage has no prompt."""
    upstream = RawUpstream(UPSTREAMS)
    names = dict.fromkeys(UPSTREAMS, "openai_compatible")
    yield from launch_gateway(policy(upstream.url, names), module_database_url)
    upstream.close()


def test_a_usage_without_its_prompt_is_booked_alike(gateway: Gateway) -> None:
    """A plain answer stood at its whole hold, and a streamed one was an estimate."""
    rows = [
        only_event(gateway, ask(gateway, "plain")),
        only_event(gateway, ask(gateway, "stream", stream=True)),
    ]
    for row in rows:
        assert (row["usage_source"], row["output_tokens"], row["is_suspect"]) == (
            "estimated",
            5,
            True,
        )
        assert row["input_tokens"] > 0, "the estimate of the request's own bytes"
        assert row["held_usd"] is None
