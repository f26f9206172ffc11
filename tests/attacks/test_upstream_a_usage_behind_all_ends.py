"""Upstreams that send their usage in a last chunk with an empty choice, as Azure and LiteLLM do: it
was taken for a running figure, so the caller saw no cost.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.wire.dialect import written
from gateway.wire.openai.answer.chat import ChatStream, chat_stream

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def chunk(*choices: dict[str, Any], **members: Any) -> bytes:
    event = json.dumps({"model": "m", "choices": list(choices), **members})
    return f"data: {event}\n\n".encode()


def choice(index: int = 0, *, text: str = "", finish: str | None = None) -> dict[str, Any]:
    delta = {"content": text} if text else {}
    return {"index": index, "delta": delta, "finish_reason": finish}


def read(*events: bytes, choices: int = 1, asked: bool = False) -> tuple[ChatStream, bytes]:
    stream = chat_stream(
        model="m",
        wants_usage=True,
        wants_running_usage=False,
        asked_running_usage=asked,
        choices=choices,
    )
    parts = [part for event in events for part in stream.feed(event)]
    return stream, b"".join(written(part, lambda _: "0.5") for part in parts)


@pytest.mark.parametrize("empty", [choice(), {"index": 0, "delta": {}}, {"index": 0}])
def test_it_is_final_and_shows_the_cost(empty: dict[str, Any]) -> None:
    stream, sent = read(
        chunk(choice(text="a")), chunk(choice(finish="stop")), chunk(empty, usage=USAGE)
    )
    assert stream.observed.final is not None
    assert sent.count(b'"cost_usd":0.5') == 1


@pytest.mark.parametrize(
    "events",
    [
        [chunk(choice(text="a")), chunk(choice(), usage=USAGE)],
        [
            chunk(choice(text="a")),
            chunk(choice(finish="stop")),
            chunk(choice(text="b"), usage=USAGE),
        ],
        [chunk(choice(text="a")), chunk(choice(finish="stop")), chunk(choice(1), usage=USAGE)],
    ],
    ids=["no end yet", "content", "another choice"],
)
def test_a_usage_before_the_end_is_a_running_one(events: list[bytes]) -> None:
    stream, sent = read(*events)
    assert (stream.observed.final, sent.count(b"cost_usd")) == (None, 0)
    assert stream.observed.running is not None


def test_one_of_two_choices_has_not_ended() -> None:
    ends = [chunk(choice(finish="stop")), chunk(choice(), usage=USAGE)]
    assert read(*ends, choices=2)[0].observed.final is None
    both = [chunk(choice(1, finish="stop")), *ends]
    assert read(*both, choices=2)[0].observed.final is not None
