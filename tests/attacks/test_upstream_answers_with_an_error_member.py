"""Attack of 2026-11-28, upstream F1: a paid answer with an `error` member was booked at zero, and
bought again up to three times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.attacks.settling import USAGE, ask, only_event, policy
from tests.gateway_process import Gateway, new_database
from tests.integration.raw_upstream import (
    STREAM,
    Answering,
    RawUpstream,
    event,
    raw_upstream,
    sends,
    token,
    whole,
)

ERROR = {"message": "x", "code": 503}
COUNTS = {"prompt_eval_count": 10, "eval_count": 5}
LINE = {"model": "m", "message": {"role": "assistant", "content": "hi"}, "done": False}
ENDED = {**LINE, "message": {}, "done": True, "done_reason": "stop", **COUNTS}
TAIL = event({"id": "c", "model": "m", "choices": [], "usage": USAGE})
STREAM_REFUSED = STREAM.replace(b"200 OK", b"400 Bad Request")


def plain(value: Any, status: bytes = b"200 OK") -> Answering:
    return sends(whole(json.dumps(value).encode()).replace(b"200 OK", status))


def lines(*pieces: dict[str, Any]) -> Answering:
    return sends(STREAM + b"".join(json.dumps(one).encode() + b"\n" for one in pieces))


OLLAMA: dict[str, Answering] = {
    "nothing": plain({**LINE, **ENDED, "message": LINE["message"], "error": None}),
    "empty-stream": lines({**LINE, "error": ""}, {**ENDED, "error": ""}),
    "line-then-answer": lines({"error": "x"}, LINE, ENDED),
}
CHATS: dict[str, Answering] = {
    "inside": plain({"error": {**ERROR, "usage": USAGE}}),
    "inside-400": plain({"error": {**ERROR, "usage": USAGE}}, b"400 Bad Request"),
    "listed-400": plain([{"error": ERROR, "usage": USAGE}], b"400 Bad Request"),
    "events-400-stream": sends(STREAM_REFUSED, event({"error": ERROR}), TAIL),
    "cut-stream": sends(STREAM, event({"error": ERROR}), token("hi")),
    "content-400": plain(
        {"error": ERROR, "choices": [{"message": {"content": "hi " * 20}}]}, b"400 Bad Request"
    ),
    "alone": plain({"error": ERROR}),
    "alone-stream": sends(STREAM, event({"error": ERROR})),
}
KINDS = {**dict.fromkeys(OLLAMA, "ollama"), **dict.fromkeys(CHATS, "openai_compatible")}
ROUTES = {f"{name}-twice": [name, f"{name}-2"] for name in KINDS}


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawUpstream]:
    answers = {**OLLAMA, **CHATS}
    yield from raw_upstream(answers | {f"{name}-2": one for name, one in answers.items()})


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    postgres_url: str,
    migrated_template: str,
    upstream: RawUpstream,
) -> Iterator[Gateway]:
    kinds = KINDS | {f"{name}-2": kind for name, kind in KINDS.items()}
    database = new_database(postgres_url, migrated_template)
    url = upstream.url.removesuffix("/v1")  # Ollama's own dialect has an address without a path
    text = policy(url, kinds, ROUTES).replace(
        "provider: ollama,", "provider: ollama, context_window: 4096,"
    )
    yield from launch_gateway(text, next(database))
    list(database)


def asked(gateway: Gateway, upstream: RawUpstream, name: str) -> tuple[dict[str, Any], int]:
    """Return the one event of a request to two such upstreams, and the number of calls."""
    before = len(upstream.asked)
    answer = ask(gateway, f"{name}-twice", stream="stream" in name or name.startswith("line"))
    return only_event(gateway, answer), len(upstream.asked) - before


STATED = [*OLLAMA, "inside", "inside-400", "listed-400", "events-400-stream"]


@pytest.mark.parametrize("name", STATED)
def test_stated_usage_is_booked_and_bought_once(
    gateway: Gateway, upstream: RawUpstream, name: str
) -> None:
    """Three of them were booked at USD 0 as `none`, and each was asked for three times."""
    row, calls = asked(gateway, upstream, name)
    assert (calls, row["usage_source"]) == (1, "provider")
    assert (row["input_tokens"], row["output_tokens"]) == (10, 5)


@pytest.mark.parametrize("name", ["cut-stream", "content-400"])
def test_content_without_usage_is_not_free(
    gateway: Gateway, upstream: RawUpstream, name: str
) -> None:
    """The upstream made it, so it is estimated or held, and not asked for again."""
    row, calls = asked(gateway, upstream, name)
    assert (calls, row["usage_source"] in ("estimated", "unknown")) == (1, True)
    assert row["cost_usd"] or row["held_usd"]


@pytest.mark.parametrize("name", ["alone", "alone-stream"])
def test_an_error_alone_is_free_and_tried_elsewhere(
    gateway: Gateway, upstream: RawUpstream, name: str
) -> None:
    """It has neither content nor usage, and its body was read to the end."""
    answer = ask(gateway, f"{name}-twice", stream="stream" in name)
    attempts = int(answer.headers["x-tollgate-attempts"])
    rows = gateway.events(answer.headers["x-request-id"], count=attempts)
    assert attempts > 1
    assert {row["usage_source"] for row in rows} == {"none"}
