"""Drop-in compatibility: the official OpenAI client, sync and async, on every endpoint, metered
to the token.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import httpx2
import openai
import pytest

from gateway.api.routes import ENDPOINTS
from tests.canary import COMPLETION, PROMPT
from tests.gateway_process import FakeUpstreamProcess, Gateway
from tests.integration.policy import USD_PER_TOKEN

MESSAGES: Any = [{"role": "user", "content": PROMPT}]
TEXT = f"{COMPLETION} t1 t2 t3 t4 t5 t6 t7"
HEADERS = {
    "x-request-id",
    "x-tollgate-route",
    "x-tollgate-deployment",
    "x-tollgate-provider",
    "x-tollgate-region",
    "x-tollgate-policy",
    "x-tollgate-attempts",
    "x-tollgate-overhead-ms",
}


def fake(**spec: int | str) -> dict[str, Any]:
    """Return instructions for the fake upstream, in a member that the gateway passes through."""
    return {"fake": ",".join(f"{name}={value}" for name, value in spec.items())}


def expected_nusd(entry: dict[str, Any]) -> int:
    """Return the price of the upstream's reported tokens."""
    plain = entry["input_tokens"] - entry["cached_tokens"]
    return (
        plain * USD_PER_TOKEN["input"]
        + entry["cached_tokens"] * USD_PER_TOKEN["cached"]
        + entry["generated"] * USD_PER_TOKEN["output"]
    )


def check_event(event: dict[str, Any], entry: dict[str, Any]) -> None:
    """Require that the ledger's row equals the upstream's work, to the token and the
    nano-dollar.
    """
    assert (event["input_tokens"], event["output_tokens"] or 0) == (
        entry["input_tokens"],
        entry["generated"],
    )
    assert (event["cached_input_tokens"] or 0) == entry["cached_tokens"]
    assert (event["reasoning_tokens"] or 0) == entry["reasoning"]
    assert event["cost_usd"] * 10**9 == expected_nusd(entry)
    assert (event["outcome"], event["http_status"], event["usage_source"]) == (
        "ok",
        200,
        "provider",
    )
    assert event["held_usd"] is None


def test_a_chat(
    client: openai.OpenAI, gateway: Gateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """The answer, its headers, its cost in body and header, the ledger's row and the upstream's
    record must agree.
    """
    raw = client.chat.completions.with_raw_response.create(
        model="gpt-4o-mini",
        messages=MESSAGES,
        user="u-1",
        extra_body=fake(**{"in": 1000}, cached=400, out=50, think=20),
        extra_headers={
            "x-tollgate-tags": "env=prod",
            "x-tollgate-project": "checkout",
            "x-request-id": "mine-1",
        },
    )
    answer = raw.parse()
    assert answer.model == "gpt-4o-mini"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (1000, 50)
    assert set(raw.headers) >= HEADERS | {"x-tollgate-cost-usd"}
    assert raw.headers["x-tollgate-route"] == "chat"
    assert raw.headers["x-tollgate-deployment"] == "plain"
    assert raw.headers["x-tollgate-region"] == "eu-de"
    assert raw.headers["x-tollgate-attempts"] == "1"

    entry = fake_upstream.entry(raw.headers["x-request-id"])
    (event,) = gateway.events(raw.headers["x-request-id"])
    check_event(event, entry)
    assert Decimal(raw.headers["x-tollgate-cost-usd"]) == event["cost_usd"]
    assert Decimal(str(answer.usage.cost_usd)) == event["cost_usd"]  # type: ignore[attr-defined]
    assert (event["team"], event["cost_centre"], event["project"]) == (
        "payments",
        "CC-1207",
        "checkout",
    )
    assert (event["tags"], event["client_request_id"]) == ({"env": "prod"}, "mine-1")
    # The policy does not ask to keep names.
    assert re.fullmatch("eu_[0-9a-f]{32}", event["end_user"])
    assert (event["data_class"], event["model"], event["streamed"]) == (
        "confidential",
        "plain-1",
        False,
    )
    assert json.loads(entry["body"])["model"] == "plain-1"


@pytest.mark.parametrize("route", ["chat", "vllm", "hosted"])
@pytest.mark.parametrize("wants_usage", [True, False])
def test_a_streamed_chat(
    client: openai.OpenAI,
    gateway: Gateway,
    fake_upstream: FakeUpstreamProcess,
    route: str,
    wants_usage: bool,
) -> None:
    """Usage and cost are in the last chunk if the caller requested usage. Other callers see no
    usage, and are metered alike.
    """
    options: Any = {"stream_options": {"include_usage": True}} if wants_usage else {}
    raw = client.chat.completions.with_raw_response.create(
        model=route,
        messages=MESSAGES,
        stream=True,
        extra_body=fake(**{"in": 100}, cached=40, think=2),
        **options,
    )
    chunks = list(raw.parse())
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "t2 t3 t4 t5 t6 t7"
    assert {chunk.model for chunk in chunks} == {route}
    assert set(raw.headers) >= HEADERS
    (event,) = gateway.events(raw.headers["x-request-id"])
    check_event(event, fake_upstream.entry(raw.headers["x-request-id"]))
    assert event["ttft_s"] is not None
    with_usage = [chunk for chunk in chunks if chunk.usage is not None]
    if wants_usage:
        assert with_usage == [chunks[-1]]
        assert chunks[-1].choices == []
        assert Decimal(str(with_usage[0].usage.cost_usd)) == event["cost_usd"]  # type: ignore[union-attr]
    else:
        assert with_usage == []
        assert all(chunk.choices for chunk in chunks)


def test_usage_on_a_chunk_with_choices(
    client: openai.OpenAI, gateway: Gateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Some providers send the final usage on such a chunk."""
    raw = client.chat.completions.with_raw_response.create(
        model="chat", messages=MESSAGES, stream=True, extra_body={"fake": "on_choice"}
    )
    assert all("usage" not in chunk.model_fields_set for chunk in raw.parse())
    (event,) = gateway.events(raw.headers["x-request-id"])
    check_event(event, fake_upstream.entry(raw.headers["x-request-id"]))


async def test_the_async_client(gateway: Gateway, fake_upstream: FakeUpstreamProcess) -> None:
    """The same request must work through asyncio."""
    async with openai.AsyncOpenAI(
        base_url=gateway.base_url, api_key=gateway.key, max_retries=0
    ) as client:
        answer = await client.chat.completions.create(model="chat", messages=MESSAGES)
        assert answer.choices[0].message.content == TEXT
        stream = await client.chat.completions.create(model="chat", messages=MESSAGES, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT
        assert [model.id async for model in client.models.list()][:2] == ["chat", "vllm"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_completions(
    client: openai.OpenAI, gateway: Gateway, fake_upstream: FakeUpstreamProcess, is_stream: bool
) -> None:
    """Load generators still use this older endpoint."""
    raw = client.completions.with_raw_response.create(
        model="vllm", prompt=PROMPT, max_tokens=5, stream=is_stream
    )
    if is_stream:
        assert (
            "".join(chunk.choices[0].text for chunk in raw.parse()) == f"{COMPLETION} t1 t2 t3 t4"
        )  # type: ignore[attr-defined]
    else:
        assert raw.parse().choices[0].text == f"{COMPLETION} t1 t2 t3 t4"
    (event,) = gateway.events(raw.headers["x-request-id"])
    check_event(event, fake_upstream.entry(raw.headers["x-request-id"]))
    assert (event["operation"], event["finish_reason"]) == ("completions", "length")


def test_a_response(
    client: openai.OpenAI, gateway: Gateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Codex uses `/v1/responses`; nothing may be stored at the provider."""
    raw = client.responses.with_raw_response.create(
        model="chat", input=PROMPT, extra_body=fake(**{"in": 90}, cached=30)
    )
    answer = raw.parse()
    assert (answer.model, answer.output_text, answer.status) == ("chat", TEXT, "completed")
    entry = fake_upstream.entry(raw.headers["x-request-id"])
    (event,) = gateway.events(raw.headers["x-request-id"])
    check_event(event, entry)
    assert Decimal(str(answer.usage.cost_usd)) == event["cost_usd"]  # type: ignore[union-attr]
    assert json.loads(entry["body"])["store"] is False


def test_a_streamed_response(
    client: openai.OpenAI, gateway: Gateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """The completed response contains its usage and its cost."""
    raw = client.responses.with_raw_response.create(
        model="chat", input=PROMPT, stream=True, extra_body=fake(think=3)
    )
    events = list(raw.parse())
    assert events[0].type == "response.created"
    last = events[-1]
    assert last.type == "response.completed"
    (event,) = gateway.events(raw.headers["x-request-id"])
    check_event(event, fake_upstream.entry(raw.headers["x-request-id"]))
    assert Decimal(str(last.response.usage.cost_usd)) == event["cost_usd"]
    assert {e.response.model for e in events if hasattr(e, "response")} == {"chat"}


def test_embeddings(
    client: openai.OpenAI, gateway: Gateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Only the input is metered."""
    raw = client.embeddings.with_raw_response.create(
        model="chat", input=[PROMPT], encoding_format="float", extra_body=fake(**{"in": 8})
    )
    assert raw.parse().data[0].embedding == [0.5, -0.25]
    (event,) = gateway.events(raw.headers["x-request-id"])
    check_event(event, fake_upstream.entry(raw.headers["x-request-id"]))
    assert (event["operation"], event["cost_usd"] * 10**9) == (
        "embeddings",
        8 * USD_PER_TOKEN["input"],
    )


def test_every_metered_endpoint_makes_an_event(gateway: Gateway, http: httpx2.Client) -> None:
    """The table of endpoints lists every metered endpoint, so this test covers each new row
    automatically.
    """
    bodies = {
        "chat": {"messages": MESSAGES},
        "completions": {"prompt": PROMPT},
        "responses": {"input": PROMPT},
        "embeddings": {"input": PROMPT},
        "rerank": {"query": PROMPT, "documents": [PROMPT, "b"]},
        "score": {"text_1": PROMPT, "text_2": [PROMPT, "b"]},
        "messages": {"messages": MESSAGES, "max_tokens": 20},
    }
    metered = [endpoint for endpoint in ENDPOINTS if endpoint.is_metered]
    assert {endpoint.operation for endpoint in metered} == set(bodies)
    for endpoint in metered:
        assert endpoint.operation is not None
        answer = http.post(
            endpoint.path, json={"model": "chat", **bodies[endpoint.operation.value]}
        )
        assert answer.status_code == 200, answer.text
        (event,) = gateway.events(answer.headers["x-request-id"])
        assert event["operation"] == endpoint.operation.value
        assert event["cost_usd"] is not None


def test_one_model_by_its_name_or_an_alias(client: openai.OpenAI) -> None:
    """Some clients look a model up before they use it; they must find the route under the name
    that they know.
    """
    assert client.models.retrieve("gpt-4o-2026").id == "chat"
    with pytest.raises(openai.NotFoundError, match="Yours: chat, vllm"):
        client.models.retrieve("nothing")


def test_models_are_those_of_the_team(gateway: Gateway, client: openai.OpenAI) -> None:
    """A team sees its own routes with prices and regions, and no other team's routes."""
    mine = {model.id: model for model in client.models.list()}
    assert "us-only" in mine
    assert mine["chat"].regions == ["eu-de"]  # type: ignore[attr-defined]
    assert mine["chat"].pricing == {  # type: ignore[attr-defined]
        "input_usd_per_mtok": "1.25",
        "cached_input_usd_per_mtok": "0.125",
        "output_usd_per_mtok": "10",
    }
    assert mine["after-500"].deployments == [  # type: ignore[attr-defined]
        {"name": name, "provider": "openai_compatible", "region": "eu-de"}
        for name in ("down", "plain")
    ]
    with openai.OpenAI(
        base_url=gateway.base_url, api_key=gateway.keys["search"], max_retries=0
    ) as theirs:
        assert [model.id for model in theirs.models.list()] == ["vllm"]
