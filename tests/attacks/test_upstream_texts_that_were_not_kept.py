"""Plain answers with a usage keep no text of theirs. One whose usage cannot be believed and has no
prompt was booked as an estimate of the prompt alone, with an answer of 0 tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.attacks.settling import ask, only_event, policy
from tests.gateway_process import Gateway
from tests.integration.raw_upstream import RawUpstream, sends, whole

WORDS = "word and another thing " * 400
OUTPUT = 2000
# Usages without a readable prompt: those that can be true but for it, and those that cannot.
POSSIBLE: dict[str, dict[str, Any]] = {
    "without a prompt": {"completion_tokens": OUTPUT},
    "with a prompt of 0": {"prompt_tokens": 0, "completion_tokens": OUTPUT},
}
IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "a total beside a prompt of 0": {
        "prompt_tokens": 0,
        "completion_tokens": OUTPUT,
        "total_tokens": OUTPUT + 120,
    },
    "a total without a prompt": {"completion_tokens": OUTPUT, "total_tokens": OUTPUT + 120},
    "thoughts above the answer": {
        "prompt_tokens": 0,
        "completion_tokens": OUTPUT,
        "completion_tokens_details": {"reasoning_tokens": OUTPUT + 1},
    },
    "a cache above the prompt": {
        "prompt_tokens": 0,
        "completion_tokens": OUTPUT,
        "prompt_tokens_details": {"cached_tokens": 50},
    },
    "a prompt of half a token": {"prompt_tokens": 100.5, "completion_tokens": OUTPUT},
    "a prompt that is true": {"prompt_tokens": True, "completion_tokens": OUTPUT},
    "zeros": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
}
ANSWERS = {
    f"{provider}-{number}": (provider, usage, usage in POSSIBLE.values())
    for provider in ("openai_compatible", "vllm")
    for number, usage in enumerate([*POSSIBLE.values(), *IMPOSSIBLE.values()])
}


def answer(usage: dict[str, Any]) -> bytes:
    message = {"role": "assistant", "content": WORDS}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({"id": "c", "model": "m", "choices": [choice], "usage": usage}).encode()


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]], module_database_url: str
) -> Iterator[Gateway]:
    """Yield a gateway before servers that state each of the usages."""
    upstream = RawUpstream({name: sends(whole(answer(one[1]))) for name, one in ANSWERS.items()})
    names = {name: one[0] for name, one in ANSWERS.items()}
    yield from launch_gateway(policy(upstream.url, names), module_database_url)
    upstream.close()


@pytest.mark.parametrize("name", ANSWERS)
def test_a_text_that_was_not_kept_is_no_answer_of_nothing(gateway: Gateway, name: str) -> None:
    _, _, is_possible = ANSWERS[name]
    row = only_event(gateway, ask(gateway, name))
    assert row["is_suspect"]
    if is_possible:
        assert (row["usage_source"], row["output_tokens"]) == ("estimated", OUTPUT)
    else:
        assert (row["usage_source"], row["cost_usd"]) == ("unknown", None)
        assert row["held_usd"] > 0
