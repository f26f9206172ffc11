"""A provider of each dialect refuses by its own words, or falls silent: another one answers, the
failed attempt costs its true price, and the receipt tells both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.attacks.refusing_provider import REFUSALS, refusing
from tests.chaos.token_host import TokenHost
from tests.gateway_process import FakeUpstreamProcess, Gateway

PRICE = "{input_usd_per_mtok: 1, output_usd_per_mtok: 10}"
SILENT_S = "timeouts: {first_byte_s: 2, first_token_s: 2, idle_s: 2}, "
KEY = 'api_key: "env:FAKE_KEY"'
# Each provider's place at an upstream, and the one that answers after it.
PLACES = {
    "anthropic": (f"provider: anthropic, base_url: UPSTREAM/v1, {KEY}", "gemini"),
    "gemini": (f"provider: gemini, base_url: UPSTREAM/v1beta, {KEY}", "bedrock"),
    "vertex": (
        "provider: vertex, base_url: UPSTREAM/v1/projects/p/locations/europe-west4, "
        'api_key: "env:FAKE_GOOGLE_KEY"',
        "anthropic",
    ),
    "bedrock": (f"provider: bedrock, base_url: UPSTREAM, {KEY}", "ollama"),
    "ollama": ("provider: ollama, base_url: UPSTREAM", "azure_openai"),
    "triton": ("provider: triton, base_url: UPSTREAM", "openai"),
    "azure_openai": (f"provider: azure_openai, base_url: UPSTREAM/openai/v1, {KEY}", "anthropic"),
    "groq": (f"provider: groq, base_url: UPSTREAM/openai/v1, {KEY}", "vertex"),
    "openai": (
        f"provider: openai, base_url: UPSTREAM/v1, {KEY}, operations: [chat, completions]",
        "bedrock",
    ),
}
RUNNING = ("gemini", "vertex", "triton")  # they say their usage with each piece
# The dialect of each request that was translated, as receipts name it.
SENT_AS = {
    "anthropic": "messages",
    "gemini": "generateContent",
    "vertex": "generateContent",
    "bedrock": "converse",
    "ollama": "/api/chat",
    "triton": "generate",
}
AT_ONCE = 16
# The silences: after the answer's head, after the first token, and before and inside the event
# with the usage.
SILENCES = {
    "head": "in:90+out:6+early+hang",
    "token": "in:90+out:6+hang@1",
    "last": "in:90+out:6+hang@6",
    "half": "in:90+out:6+hang@6.5",
}
IN_THE_ANSWER = ("token", "last", "half")
# Each has a budget of retries of its own.
TEAMS = {
    "pairs": [f"{name}-pair" for name in REFUSALS],
    "alone": [f"{name}-alone" for name in REFUSALS],
    "silent": [f"{name}-head-pair" for name in PLACES]
    + [f"{name}-{silence}" for name in PLACES for silence in IN_THE_ANSWER],
}


def _deployment(name: str, provider: str, model: str, upstream: str, *, more: str = "") -> str:
    place = PLACES[provider][0].replace("UPSTREAM", upstream)
    return f'  - {{name: {name}, model: "{model}", region: unknown, price: {PRICE}, {more}{place}}}'


def policy(upstream: str, refuser: str) -> str:
    """Return a policy with two routes for each refusal and each silence: with another dialect
    behind it, and alone.
    """
    lines, routes = [], {}
    for provider, (_, after) in PLACES.items():
        lines.append(_deployment(f"{provider}-ok", provider, "fake/in:90+out:6", upstream))
        for silence, script in SILENCES.items():
            name = f"{provider}-{silence}"
            model = f"fake/{script}"
            lines.append(_deployment(name, provider, model, upstream, more=SILENT_S))
            routes[name] = [name]
        routes[f"{provider}-head-pair"] = [f"{provider}-head", f"{after}-ok"]
    for name, refusal in REFUSALS.items():
        for kind, others in (("alone", []), ("pair", [f"{PLACES[refusal.provider][1]}-ok"])):
            # Each has a breaker of its own.
            lines.append(_deployment(f"{name}-{kind}", refusal.provider, name, refuser))
            routes[f"{name}-{kind}"] = [f"{name}-{kind}", *others]
    named = [
        f"  - {{name: {name}, deployments: [{', '.join(places)}]}}"
        for name, places in routes.items()
    ]
    teams = [
        f"  - {{name: {team}, cost_centre: CC-1, data_class: internal, routes: [{', '.join(its)}]}}"
        for team, its in TEAMS.items()
    ]
    return "\n".join(
        [
            "version: 1",
            "classes: {internal: {regions: [any]}}",
            "deployments:",
            *lines,
            "routes:",
            *named,
            "teams:",
            *teams,
        ]
    )


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    fake_upstream: FakeUpstreamProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    """Yield a gateway before providers that answer and providers that refuse."""
    folder: Path = tmp_path_factory.mktemp("google")
    with refusing() as refuser, TokenHost(folder) as google:
        yield from launch_gateway(
            policy(fake_upstream.url, refuser), module_database_url, environment=google.variables
        )


@dataclass(frozen=True)
class Seen:
    """A request's answer, its events in the ledger, and the attempts of its receipt."""

    answer: httpx2.Response
    events: list[dict[str, Any]]
    shown: list[dict[str, Any]]


def asked(gateway: Gateway, route: str) -> Seen:
    """Ask a route for a stream, and wait for its events; Triton serves completions alone."""
    team = next(team for team, routes in TEAMS.items() if route in routes)
    headers = {"authorization": f"Bearer {gateway.keys[team]}"}
    body: dict[str, Any] = {"model": route, "stream": True, "max_tokens": 50}
    messages = [{"role": "user", "content": "word " * 40}]
    is_prompt = route.startswith("triton")
    body |= {"prompt": "word " * 40} if is_prompt else {"messages": messages}
    path = "completions" if is_prompt else "chat/completions"
    with httpx2.Client(
        verify=plain_http.NO_CERTIFICATES, base_url=gateway.base_url, headers=headers, timeout=60
    ) as http:
        answer = http.post(path, json=body)
        count = int(answer.headers["x-tollgate-attempts"])
        events = gateway.events(answer.headers["x-request-id"], count=count)
        receipt = http.get(f"requests/{answer.headers['x-request-id']}").json()
    return Seen(answer, events, receipt["attempts"])


@pytest.fixture(scope="module")
def seen(gateway: Gateway) -> dict[str, Seen]:
    """Return the traces of one request to each route, many at once."""
    routes = [route for of_team in TEAMS.values() for route in of_team]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(routes, pool.map(lambda route: asked(gateway, route), routes), strict=True))


@pytest.mark.parametrize("name", REFUSALS)
def test_another_dialect_answers_after_a_refusal(seen: dict[str, Seen], name: str) -> None:
    """The refusal costs nothing, and the receipt has both attempts with provider and reason."""
    refusal = REFUSALS[name]
    after = PLACES[refusal.provider][1]
    found = seen[f"{name}-pair"]
    assert found.answer.status_code == 200, found.answer.text
    first, second = found.events
    assert (first["outcome"], first["cost_usd"], first["usage_source"]) == (
        "upstream_error",
        0,
        "none",
    )
    assert (second["outcome"], second["input_tokens"], second["output_tokens"]) == ("ok", 90, 6)
    assert [(one["provider"], one["outcome"], one["http_status"]) for one in found.shown] == [
        (refusal.provider, "upstream_error", refusal.status),
        (after, "ok", 200),
    ]
    dialects = [SENT_AS.get(provider) for provider in (refusal.provider, after)]
    assert [one["sent_as"] for one in found.shown] == dialects


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_without_another_deployment_hands_on_its_wait(
    seen: dict[str, Seen], name: str
) -> None:
    """In the caller's dialect; nothing is charged, however often it was tried."""
    refusal, found = REFUSALS[name], seen[f"{name}-alone"]
    code = found.answer.json()["error"]["code"]
    assert (code, found.answer.headers.get("retry-after")) == (refusal.code, refusal.wait)
    assert {(row["outcome"], row["cost_usd"]) for row in found.events} == {("upstream_error", 0)}


@pytest.mark.parametrize("provider", PLACES)
def test_a_silence_after_the_head_ends_at_another_dialect(
    seen: dict[str, Seen], provider: str
) -> None:
    """The silent one may have worked: it stands at its hold, never at zero."""
    found = seen[f"{provider}-head-pair"]
    assert found.answer.status_code == 200, found.answer.text
    first, second = found.events
    assert (first["outcome"], first["usage_source"], first["cost_usd"]) == (
        "upstream_timeout",
        "unknown",
        None,
    )
    assert first["held_usd"] > 0
    assert (second["outcome"], second["output_tokens"]) == ("ok", 6)


@pytest.mark.parametrize("provider", PLACES)
@pytest.mark.parametrize("silence", IN_THE_ANSWER)
def test_a_silence_in_the_answer_is_never_free(
    seen: dict[str, Seen], provider: str, silence: str
) -> None:
    """The served tokens are charged by running figures, or by the gateway's own count."""
    found = seen[f"{provider}-{silence}"]
    assert found.answer.status_code == 200
    assert "[DONE]" not in found.answer.text
    (row,), (shown,) = found.events, found.shown
    assert row["outcome"] == shown["outcome"] == "upstream_timeout"
    served = 1 if silence == "token" else 6
    if provider in RUNNING:
        assert (row["usage_source"], row["output_tokens"]) == ("derived", served)
    else:
        assert row["usage_source"] in ("derived", "estimated")
        assert row["output_tokens"] >= served
    assert row["cost_usd"] > 0
    assert Decimal(str(shown["cost_usd"])) == row["cost_usd"]
