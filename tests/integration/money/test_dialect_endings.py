"""Each outbound dialect, each ending, callers of each dialect: one event, whose tokens are those
that the upstream generated, or derived, counted or unknown by docs/reference/outcomes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.gateway_process import FakeUpstreamProcess, Gateway

PRICE = (
    "{input_usd_per_mtok: 1, cached_input_usd_per_mtok: 0.1, cache_write_usd_per_mtok: 2, "
    "output_usd_per_mtok: 10}"
)
TIMEOUTS = "{connect_s: 1, first_byte_s: 0.5, idle_s: 0.8, total_s: 20}"
KEY = 'api_key: "env:FAKE_KEY"'
PROVIDERS = {
    "anthropic": f"provider: anthropic, base_url: UPSTREAM/v1, {KEY}",
    "gemini": f"provider: gemini, base_url: UPSTREAM/v1beta, {KEY}",
    "bedrock": f"provider: bedrock, base_url: UPSTREAM, {KEY}",
    "ollama": "provider: ollama, base_url: UPSTREAM",
    "triton": "provider: triton, base_url: UPSTREAM",
}
SCRIPTS = {
    "ok": "in:90+out:6+think:2",
    "cached": "in:90+cached:40+write:20+out:6",
    "cut": "in:90+out:6+cut@3",
    "error": "in:90+out:6+miderr@3",
    "stall": "in:90+out:6+hang@3",
    "silent": "in:90+nousage+out:6",
    "busy": "429",
    "down": "503",
}
# Counts for which a dialect has no word.
UNTOLD = {
    "bedrock": {"reasoning_tokens"},
    "ollama": {"cached_input_tokens", "cache_write_tokens", "reasoning_tokens"},
    "triton": {"cached_input_tokens", "cache_write_tokens", "reasoning_tokens"},
}
RUNNING = ("gemini", "triton")  # they say their usage with each piece
CALLERS = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 40}]}),
    "responses": ("/v1/responses", {"input": "word " * 40}),
    "messages": (
        "/v1/messages",
        {"max_tokens": 50, "messages": [{"role": "user", "content": "word " * 40}]},
    ),
    "completions": ("/v1/completions", {"prompt": "word " * 40}),
}
PAIRS = [
    (dialect, caller)
    for dialect in PROVIDERS
    for caller in CALLERS
    if (dialect == "triton") is (caller == "completions")
]


def policy(upstream: str) -> str:
    """Return a policy with one route for each dialect and ending."""
    names = [(dialect, ending) for dialect in PROVIDERS for ending in SCRIPTS]
    deployments = "\n".join(
        f'  - {{name: {dialect}-{ending}, model: "fake/{SCRIPTS[ending]}", region: unknown, '
        f"price: {PRICE}, timeouts: {TIMEOUTS}, "
        + PROVIDERS[dialect].replace("UPSTREAM", upstream)
        + "}"
        for dialect, ending in names
    )
    routes = "\n".join(
        f"  - {{name: {dialect}-{ending}, deployments: [{dialect}-{ending}]}}"
        for dialect, ending in names
    )
    deployments += (
        "\n  - {name: other, model: m, provider: openai_compatible, region: unknown, "
        f'price: {PRICE}, base_url: "{upstream}/v1"}}'
    )
    for dialect in PROVIDERS:
        routes += f"\n  - {{name: {dialect}-first, deployments: [{dialect}-ok, other]}}"
    firsts = [f"{dialect}-first" for dialect in PROVIDERS]
    listed = ", ".join([*firsts, *(f"{dialect}-{ending}" for dialect, ending in names)])
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
{deployments}
routes:
{routes}
teams:
  - {{name: payments, cost_centre: CC-1, data_class: internal, routes: [{listed}]}}
"""


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    fake_upstream: FakeUpstreamProcess,
) -> Iterator[Gateway]:
    """Yield a gateway in front of the fake upstream in all its dialects."""
    yield from launch_gateway(policy(fake_upstream.url), module_database_url)


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx2.Client]:
    """Yield a plain client with payments' key."""
    headers = {"authorization": f"Bearer {gateway.key}", "anthropic-version": "2023-06-01"}
    with httpx2.Client(
        verify=plain_http.NO_CERTIFICATES,
        base_url=f"http://127.0.0.1:{gateway.port}",
        headers=headers,
        timeout=30,
    ) as made:
        yield made


def booked(
    http: httpx2.Client, gateway: Gateway, *, caller: str, route: str, is_stream: bool = True
) -> tuple[httpx2.Response, dict[str, Any]]:
    """Return the answer to a request, and its only event."""
    path, members = CALLERS[caller]
    answer = http.post(path, json={"model": route, "stream": is_stream, **members})
    (event,) = gateway.events(answer.headers["x-request-id"])
    return answer, event


@pytest.mark.parametrize("ending", ["ok", "cached"])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("dialect", "caller"), PAIRS)
def test_a_whole_answer_is_booked_to_the_token(
    http: httpx2.Client,
    gateway: Gateway,
    fake_upstream: FakeUpstreamProcess,
    dialect: str,
    caller: str,
    is_stream: bool,
    ending: str,
) -> None:
    """A count for which the dialect has no word is unknown, and never 0."""
    answer, event = booked(
        http, gateway, caller=caller, route=f"{dialect}-{ending}", is_stream=is_stream
    )
    assert answer.status_code == 200, answer.text
    assert (event["outcome"], event["usage_source"]) == ("ok", "provider")
    entry = fake_upstream.entry(str(event["request_id"]))
    true = {
        "input_tokens": entry["input_tokens"],
        "cached_input_tokens": entry["cached_tokens"],
        "cache_write_tokens": entry["cache_write_tokens"],
        "output_tokens": entry["generated"],
        "reasoning_tokens": entry["reasoning"],
    }
    if dialect == "gemini":
        true["cache_write_tokens"] = None  # its writes are no part of an answer's usage
    expected = {
        name: None if name in UNTOLD.get(dialect, ()) else count for name, count in true.items()
    }
    assert {name: event[name] for name in true} == expected


@pytest.mark.parametrize(
    ("prompt", "deployment"),
    [("a", "triton-ok"), (["a"], "triton-ok"), (["a", "b"], "other"), ([7, 8], "other")],
)
def test_a_prompt_that_triton_does_not_take_goes_to_the_next_deployment(
    http: httpx2.Client, gateway: Gateway, prompt: Any, deployment: str
) -> None:
    """Triton takes one text; lists and token ids are no mistake of the caller's."""
    answer = http.post("/v1/completions", json={"model": "triton-first", "prompt": prompt})
    assert answer.status_code == 200, answer.text
    (event,) = gateway.events(answer.headers["x-request-id"])
    assert (event["deployment"], event["usage_source"]) == (deployment, "provider")


@pytest.mark.parametrize("dialect", ["anthropic", "gemini", "bedrock", "ollama"])
def test_a_call_with_cut_arguments_goes_to_the_next_deployment(
    http: httpx2.Client, gateway: Gateway, dialect: str
) -> None:
    """A model's maximum may cut a call's arguments, and OpenAI's dialect takes any text there."""
    function = {"name": "look", "arguments": '{"at": "the'}
    call = {"id": "c1", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "no"},
    ]
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    body = {"messages": messages, "tools": [tool]}
    alone = http.post("/v1/chat/completions", json={"model": f"{dialect}-ok", **body})
    assert alone.status_code == 400
    assert "JSON object" in alone.text
    answer = http.post("/v1/chat/completions", json={"model": f"{dialect}-first", **body})
    assert answer.status_code == 200, answer.text
    (event,) = gateway.events(answer.headers["x-request-id"])
    assert (event["deployment"], event["usage_source"]) == ("other", "provider")


@pytest.mark.parametrize("ending", ["cut", "error", "stall"])
@pytest.mark.parametrize(("dialect", "caller"), PAIRS)
def test_a_broken_stream_is_booked_by_what_is_known(
    http: httpx2.Client, gateway: Gateway, dialect: str, caller: str, ending: str
) -> None:
    """A running figure counts to the token; the others are counted by the gateway."""
    answer, event = booked(http, gateway, caller=caller, route=f"{dialect}-{ending}")
    outcomes = {"cut": "upstream_cut", "error": "upstream_error", "stall": "upstream_timeout"}
    assert answer.status_code == 200
    assert "error" in answer.text
    assert event["outcome"] == outcomes[ending]
    if dialect in RUNNING:
        assert event["usage_source"] == "derived"
        assert (event["input_tokens"], event["output_tokens"]) == (90, 3)
    else:
        assert event["usage_source"] == "estimated"
        # Anthropic says the prompt's tokens at the start, and they stay true.
        assert event["input_tokens"] == 90 if dialect == "anthropic" else event["input_tokens"] > 0
        assert event["output_tokens"] > 0


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("dialect", "caller"), PAIRS)
def test_an_answer_without_usage_is_counted_and_never_free(
    http: httpx2.Client, gateway: Gateway, dialect: str, caller: str, is_stream: bool
) -> None:
    """Ollama leaves out a count of 0, but an answer with content has tokens."""
    answer, event = booked(
        http, gateway, caller=caller, route=f"{dialect}-silent", is_stream=is_stream
    )
    assert answer.status_code == 200
    assert event["outcome"] == "ok"
    assert event["usage_source"] == "estimated"
    assert event["output_tokens"] > 0
    assert event["cost_usd"] > 0


@pytest.mark.parametrize("ending", ["busy", "down"])
@pytest.mark.parametrize(("dialect", "caller"), PAIRS)
def test_an_error_status_is_free(
    http: httpx2.Client,
    gateway: Gateway,
    fake_upstream: FakeUpstreamProcess,
    dialect: str,
    caller: str,
    ending: str,
) -> None:
    path, members = CALLERS[caller]
    answer = http.post(path, json={"model": f"{dialect}-{ending}", "stream": True, **members})
    assert answer.status_code in (429, 503)
    request_id = answer.headers["x-request-id"]
    entries = fake_upstream.entries(request_id)
    for event in gateway.events(request_id, count=len(entries)):
        assert (event["outcome"], event["usage_source"]) == ("upstream_error", "none")
