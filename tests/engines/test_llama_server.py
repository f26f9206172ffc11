"""llama.cpp's own server behind a real gateway: each row of the ledger equals the tokens that the
engine itself counted, whatever the caller asks for and whenever it leaves.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from threading import Thread
from typing import Any

import httpx2
import openai
import pytest

from gateway.domain.deployments.engine_load import EngineMetrics
from gateway.domain.deployments.engine_pages import pages_of, together
from gateway.main import SystemClock
from gateway.providers.engine_sampler import EngineSampler
from gateway.services.deployments.engine_load import EngineLoads
from tests import factories, plain_http
from tests.engines.conftest import PROVIDERS
from tests.engines.llama import SLOTS, LlamaServer, Tokens
from tests.gateway_process import Gateway
from tests.waiting import eventually, soon

USD_PER_TOKEN = {"input": Decimal("1e-6"), "cached": Decimal("0.25e-6"), "output": Decimal("4e-6")}
COUNT: Any = [{"role": "user", "content": "Count down from 12"}]
NUMBERS = "12 11 10 9 8 7 6 5 4 3 2 1"
WEATHER: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
LONG: dict[str, Any] = {"max_tokens": 3000, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.base_url, api_key=gateway.key, max_retries=0) as made:
        yield made


@contextmanager
def counted(llama: LlamaServer) -> Iterator[list[Tokens]]:
    """Yield a list that holds, after the block, what the engine counted in it."""
    before = llama.counted()
    found: list[Tokens] = []
    yield found
    found.append(llama.counted() - before)


def check_row(row: dict[str, Any], tokens: Tokens) -> None:
    """Require a settled row of exactly these tokens, at exactly their price."""
    assert (row["input_tokens"], row["output_tokens"] or 0) == (tokens.prompt, tokens.predicted)
    cached = row["cached_input_tokens"] or 0
    assert row["cost_usd"] == (
        (row["input_tokens"] - cached) * USD_PER_TOKEN["input"]
        + cached * USD_PER_TOKEN["cached"]
        + (row["output_tokens"] or 0) * USD_PER_TOKEN["output"]
    )
    assert (row["usage_source"], row["outcome"], row["held_usd"]) == ("provider", "ok", None)


@pytest.mark.parametrize("route", PROVIDERS)
def test_a_plain_chat(
    client: openai.OpenAI, gateway: Gateway, llama: LlamaServer, route: str
) -> None:
    """The shipped model counts down in llama.cpp as it does in vLLM."""
    with counted(llama) as tokens:
        raw = client.chat.completions.with_raw_response.create(
            model=route, messages=COUNT, temperature=0
        )
    answer = raw.parse()
    assert (answer.choices[0].message.content or "").endswith(NUMBERS)
    (row,) = gateway.events(raw.headers["x-request-id"])
    check_row(row, tokens[0])
    assert tokens[0].predicted > 12


@pytest.mark.parametrize("asks_usage", [True, False])
@pytest.mark.parametrize("route", PROVIDERS)
def test_a_streamed_chat(
    client: openai.OpenAI, gateway: Gateway, llama: LlamaServer, *, route: str, asks_usage: bool
) -> None:
    """The caller gets usage only if it asked for it; the ledger has it in either case."""
    options: Any = {"stream_options": {"include_usage": True}} if asks_usage else {}
    with counted(llama) as tokens:
        raw = client.chat.completions.with_raw_response.create(
            model=route, messages=COUNT, temperature=0, stream=True, **options
        )
        chunks = list(raw.parse())
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.endswith(NUMBERS)
    assert bool(chunks[-1].usage) == asks_usage
    (row,) = gateway.events(raw.headers["x-request-id"])
    check_row(row, tokens[0])


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("route", ["llamacpp", "ollama"])
def test_a_tool_call(
    client: openai.OpenAI, gateway: Gateway, llama: LlamaServer, *, route: str, is_streamed: bool
) -> None:
    """The template writes the tools, and llama.cpp reads the call out of the text."""
    with counted(llama) as tokens:
        raw = client.chat.completions.with_raw_response.create(
            model=route, messages=WEATHER, tools=TOOLS, temperature=0, stream=is_streamed
        )
        answer: Any = raw.parse()
        if is_streamed:
            deltas = [chunk.choices[0] for chunk in answer if chunk.choices]
            calls = [call for one in deltas for call in one.delta.tool_calls or ()]
            name = "".join(call.function.name or "" for call in calls)
            arguments = "".join(call.function.arguments or "" for call in calls)
            finish = deltas[-1].finish_reason
        else:
            (call,) = answer.choices[0].message.tool_calls
            name, arguments = call.function.name, call.function.arguments
            finish = answer.choices[0].finish_reason
    assert (name, json.loads(arguments), finish) == (
        "get_weather",
        {"city": "Paris"},
        "tool_calls",
    )
    (row,) = gateway.events(raw.headers["x-request-id"])
    check_row(row, tokens[0])


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_completion(
    client: openai.OpenAI, gateway: Gateway, llama: LlamaServer, *, is_streamed: bool
) -> None:
    """The older endpoint has the same usage."""
    with counted(llama) as tokens:
        raw = client.completions.with_raw_response.create(
            model="llamacpp", prompt="hello", max_tokens=7, temperature=0, stream=is_streamed
        )
        answer: Any = raw.parse()
        if is_streamed:
            list(answer)
    (row,) = gateway.events(raw.headers["x-request-id"])
    check_row(row, tokens[0])
    assert tokens[0].predicted == 7


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("asked", [{"n": 2}, {"prompt": ["hello", "bye bye bye"]}])
def test_several_answers(
    gateway: Gateway, llama: LlamaServer, *, asked: dict[str, Any], is_streamed: bool
) -> None:
    """llama.cpp reports the usage of each in its own event of a stream, and in a plain answer only
    that of the first: the gateway counts the text then.
    """
    body = {"model": "llamacpp", "prompt": "hello", "max_tokens": 7, "temperature": 0, **asked}
    with counted(llama) as tokens:
        answer = post(gateway, "completions", body | {"stream": is_streamed})
    assert answer.status_code == 200
    (row,) = gateway.events(answer.headers["x-request-id"])
    assert tokens[0].predicted == 14
    print(f"{asked}: row {row['output_tokens']} ({row['usage_source']}), engine 14")
    if is_streamed:
        assert (row["output_tokens"], row["usage_source"]) == (14, "provider")
        assert row["input_tokens"] >= tokens[0].prompt
    else:
        assert row["usage_source"] == "estimated"
        assert row["output_tokens"] > 7


def test_embeddings(client: openai.OpenAI, gateway: Gateway, embedder: LlamaServer) -> None:
    """Input alone; the official client asks for base64."""
    with counted(embedder) as tokens:
        raw = client.embeddings.with_raw_response.create(
            model="embed", input=["red apple", "What is the capital of France?"]
        )
    assert [len(one.embedding) for one in raw.parse().data] == [256, 256]
    (row,) = gateway.events(raw.headers["x-request-id"])
    check_row(row, tokens[0])


@pytest.mark.parametrize("chunks", [1, 50, 400])
def test_a_caller_that_leaves(
    client: openai.OpenAI, gateway: Gateway, llama: LlamaServer, chunks: int
) -> None:
    """The engine stops at once, and the row has its running figure of that moment: all that
    the caller got, and no token that the engine did not make.
    """
    with counted(llama) as tokens:
        raw = client.chat.completions.with_raw_response.create(
            model="llamacpp", messages=COUNT, temperature=0, stream=True, **LONG
        )
        stream = raw.parse()
        seen = sum(1 for _ in zip(range(chunks), stream, strict=False))
        stream.close()
    made = tokens[0]
    (row,) = gateway.events(raw.headers["x-request-id"])
    print(f"after {seen} chunks: row {row['output_tokens']}, engine {made.predicted}")
    assert made.predicted < 3000, "it went on to the end"
    assert (row["outcome"], row["usage_source"]) == ("client_gone", "derived")
    assert row["input_tokens"] == made.prompt
    assert seen - 1 <= row["output_tokens"] <= made.predicted


def test_its_load_is_found(llama: LlamaServer) -> None:
    """Its room is stated, its queue grows, and an engine at work never looks hung."""
    deployment = factories.deployment(
        "tiny", provider="llamacpp", base_url=f"{llama.url}/v1", is_self_hosted=True
    )
    probe = EngineSampler(SystemClock().now)

    def look() -> EngineMetrics:
        pages = pages_of("llamacpp")[0]
        texts = [(page, probe.metrics_page(deployment, page.path) or "") for page in pages]
        return together([page.read(text, "tiny") for page, text in texts])

    before = look()
    asking = [Thread(target=ask_long, args=(llama,)) for _ in range(SLOTS + 2)]
    for one in asking:
        one.start()
    try:
        eventually(lambda: look().waiting, "a queue")
        busy = look()
        assert (busy.running, busy.room) == (SLOTS, SLOTS)
        eventually(lambda: (look().kv_use or 0) > 0, "a slot with tokens")
        assert (look().steps or 0) > (before.steps or 0)
    finally:
        for one in asking:
            one.join()
    llama.counted()
    after = look()
    assert (after.running, after.waiting, after.room) == (0, 0, SLOTS)
    assert (after.generation_tokens or 0) - (before.generation_tokens or 0) == len(asking) * 1500
    assert (after.tpot_sum_s or 0) > (before.tpot_sum_s or 0)
    sample = probe.sample(deployment)
    tokens = llama.counted()
    assert (sample.prompt_tokens, sample.generation_tokens) == (tokens.prompt, tokens.predicted)


async def test_a_worker_knows_its_load(llama: LlamaServer) -> None:
    """By the name of another provider too: one server often stands in for another."""
    own = {
        name: factories.deployment(
            name, provider=name, base_url=f"{llama.url}/v1", model="tiny", is_self_hosted=True
        )
        for name in ("llamacpp", "vllm", "openai_compatible")
    }
    version = factories.version(factories.policy(*own.values()))
    probe = EngineSampler(SystemClock().now)
    loads = EngineLoads(policy=lambda: version, page=probe.metrics_page, clock=SystemClock())
    watching = asyncio.create_task(loads.run())
    try:
        for name in own:
            loads.began(name)
            await soon(lambda name=name: loads.of(name), f"the load of {name}")  # type: ignore[misc]
        found = loads.of("llamacpp")
        assert found is not None
        assert found.room == SLOTS
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await loads.close()


def ask_long(llama: LlamaServer) -> None:
    """Ask the engine itself for an answer of 1,500 tokens."""
    body = {"prompt": "hello", "max_tokens": 1500, "ignore_eos": True, "temperature": 0}
    plain_http.post(f"{llama.url}/v1/completions", json=body, timeout=120)


def post(gateway: Gateway, path: str, body: dict[str, Any]) -> httpx2.Response:
    """Send one request of the first team."""
    headers = {"authorization": f"Bearer {gateway.key}"}
    return plain_http.post(f"{gateway.base_url}/{path}", json=body, headers=headers, timeout=60)
