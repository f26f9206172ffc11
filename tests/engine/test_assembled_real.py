"""Plain answers against assembled streams, on a real engine: the proof behind
`gateway.wire.openai.answer.assemble`.

Each request goes out twice, as `gateway.providers.vllm` sends it with and without assembling. The
comparison leaves out only the differences between any two calls (id, time, the engine's timings).
"""

import json
import os
import random
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from running_engine import IS_READY, RunningEngine, served

from gateway.domain.operation import Operation
from gateway.providers.vllm import Vllm
from gateway.wire.openai.answer.assemble import is_convertible
from tests import factories
from tests.answers import at_once

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not IS_READY, reason="needs the real engine: python -m engine setup"),
]

SEED = int(os.environ.get("TOLLGATE_TEST_SEED", "20261120"))
DRAWN_REQUESTS = int(os.environ.get("TOLLGATE_DRAWN_REQUESTS", "40"))
TRIES = 5
COUNT_DOWN: dict[str, Any] = {"messages": [{"role": "user", "content": "Count down from 5"}]}
PLAINLY: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "a",
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CHATS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 1},
    {"max_completion_tokens": 4},
    {"max_tokens": 20, "n": 2, "temperature": 0.9},
    {"max_tokens": 20, "n": 3, "temperature": 1.5, "logprobs": True, "top_logprobs": 3},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 0},
    {"stop": ["4"]},
    {"stop": "5", **PLAINLY},  # nothing is left of the answer
    {"stop": ["4"], "include_stop_str_in_output": True},
    {"stop_token_ids": list(range(5, 60))},
    {"response_format": SCHEMA, "max_tokens": 30},
    {"response_format": {"type": "json_object"}, "max_tokens": 30},
    {"min_tokens": 20, "max_tokens": 30},
    {"ignore_eos": True, "max_tokens": 30},
    {"ignore_eos": True, "max_tokens": 30, "skip_special_tokens": False},
    {"logit_bias": {"2": 100}, "max_tokens": 10},
    {
        "frequency_penalty": 1.5,
        "presence_penalty": 1,
        "repetition_penalty": 1.3,
        "top_p": 0.5,
        "top_k": 4,
        "min_p": 0.1,
        "temperature": 1,
        "max_tokens": 30,
    },
    {"reasoning_effort": "low"},
    {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "x"},
    {
        "messages": [{"role": "user", "content": "Grüße 世界 🎉"}],
        "temperature": 2,
        "max_tokens": 60,
    },
    {"max_tokens": 0},  # refused both ways
    {"max_tokens": 100_000},
]
COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": "Count down from 5"},
    {"prompt": "Count down from 5", "logprobs": 2},
    {"prompt": "Count", "logprobs": 0, "max_tokens": 5},
    {"prompt": ["Count down from 5", "Hello"], "max_tokens": 9},
    {
        "prompt": ["Count down from 5", "Hello"],
        "max_tokens": 9,
        "n": 2,
        "temperature": 1,
        "logprobs": 1,
    },
    {"prompt": [5, 6, 7], "max_tokens": 9},
    {"prompt": "Count down from 5", "stop": ["4"]},
    {"prompt": "Count down from 5", "stop": ["."]},
    {"prompt": "Count down from 5", "max_tokens": 30, "ignore_eos": True, "logprobs": 1},
    {"prompt": "Count down from 5", "max_tokens": 30, "response_format": SCHEMA},
    {"prompt": "Count down from 5", "max_tokens": 0},
]


def drawn_chats() -> list[dict[str, Any]]:
    """Yield unforeseen texts of hot models: stray tags, half letters, malformed calls."""
    rng = random.Random(SEED)
    many = []
    for _ in range(DRAWN_REQUESTS):
        content = rng.choice(
            ["Count down from 5", "Hello", "What is the weather in Paris?", "Grüße 世界"]
        )
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": content}],
            "temperature": rng.choice([0.3, 1, 1.5, 2]),
            "seed": rng.randrange(10**6),
            "max_tokens": rng.choice([1, 2, 3, 5, 8, 13, 21, 40, 80]),
        }
        if rng.random() < 0.4:
            body |= PLAINLY
        if rng.random() < 0.3:
            body |= {"logprobs": True, "top_logprobs": rng.choice([0, 1, 3])}
        if rng.random() < 0.3:
            body["n"] = rng.choice([2, 3])
        if rng.random() < 0.4:
            body["logit_bias"] = {str(rng.randrange(12)): rng.choice([3, 5, 8]) for _ in range(2)}
        many.append(body)
    return many


@pytest.fixture(scope="module")
def bare() -> Iterator[RunningEngine]:
    """Start an engine that parses nothing out of a chat: a deployment without `tools` and
    `reasoning` declares it.
    """
    yield from served("--reasoning-parser", "none", "--tool-call-parser", "none")


def sent(
    engine: RunningEngine, operation: Operation, body: dict[str, Any], *, assembles: bool
) -> tuple[int, Any]:
    """Return the status and the answer of a plain request, without the differences between any
    two calls.
    """
    understood = factories.read(
        json.dumps({"model": "tiny", "seed": 7, "temperature": 0} | body).encode(), operation
    )
    assert is_convertible(understood)
    one = factories.deployment(
        provider="vllm",
        model="tiny",
        base_url=f"{engine.url}/v1",
        capabilities=frozenset({"json_schema"}),
    )
    call = at_once(Vllm(b"key", assembles_plain=assembles).call(one, factories.request(understood)))
    assert call.is_assembled is assembles
    request = urllib.request.Request(call.url, data=call.body, headers=dict(call.headers))
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, content = answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)
    if assembles:
        assembler = Vllm(b"key").assembler(understood, limit_bytes=2**26)
        assembler.feed(content)
        content = assembler.body()
    return status, comparable(json.loads(content))


def comparable(answer: dict[str, Any]) -> str:
    """As text, so that the order of the members is compared too."""
    assert answer.pop("id")
    assert answer.pop("created")
    answer["metrics"] = answer["metrics"] and {
        name: value is None for name, value in answer["metrics"].items()
    }
    return json.dumps(answer)


def same_both_ways(engine: RunningEngine, operation: Operation, body: dict[str, Any]) -> None:
    """Ask both ways until an assembled answer equals a plain one.

    Several prompts at once may enter the engine in one step or in two. The batches then differ, and
    with them the last digits of a probability: two plain answers may differ too.
    """
    # From here on both read the same prefix from the cache.
    sent(engine, operation, body, assembles=False)
    assembled, plain = [], []
    for _ in range(TRIES):
        assembled.append(sent(engine, operation, body, assembles=True))
        plain.append(sent(engine, operation, body, assembles=False))
        if any(answer in plain for answer in assembled):
            return
    assert assembled[-1] == plain[-1]


@pytest.mark.parametrize("body", CHATS, ids=str)
def test_a_chat_is_the_same_both_ways(bare: RunningEngine, body: dict[str, Any]) -> None:
    """For anything that may be requested in a converted field."""
    same_both_ways(bare, Operation.CHAT, COUNT_DOWN | body)


@pytest.mark.parametrize("body", COMPLETIONS, ids=str)
def test_a_completion_is_the_same_both_ways(bare: RunningEngine, body: dict[str, Any]) -> None:
    """Completions are never parsed, so this holds on every engine."""
    same_both_ways(bare, Operation.COMPLETIONS, body)


@pytest.mark.parametrize("number", range(DRAWN_REQUESTS))
def test_drawn_chats_are_the_same_both_ways(bare: RunningEngine, number: int) -> None:
    """TOLLGATE_TEST_SEED draws others, TOLLGATE_DRAWN_REQUESTS more."""
    same_both_ways(bare, Operation.CHAT, drawn_chats()[number])
