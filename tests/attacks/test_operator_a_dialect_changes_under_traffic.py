"""An operator changes a deployment's provider, or removes it, while its answers are under way; and
a provider dies that keeps a session's prompt cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.attacks.fragile_provider import FragileProvider, fragile
from tests.gateway_process import FakeUpstreamProcess, Gateway
from tests.waiting import eventually

KEY = 'api_key: "env:FAKE_KEY"'
SLOW = "fake/in:90+out:40+tps:16"  # 2.5 s
OLD = "{input_usd_per_mtok: 1, output_usd_per_mtok: 10}"
NEW = "{input_usd_per_mtok: 3, output_usd_per_mtok: 30}"
AT_OLD, AT_NEW = Decimal("0.00049"), Decimal("0.00147")  # 90 tokens in, 40 out
DIALECT = {"openai": "/v1/chat/completions", "gemini": "/v1beta/", "anthropic": "/v1/messages"}
EACH = 4
CACHED = "fake/in:90+cached:40+out:6"


def policy(upstream: str, near: str, far: str, *, is_new: bool) -> str:
    """Return the policy before or after the operator's change."""
    openai = f'provider: openai, base_url: "{upstream}/v1", {KEY}'
    gemini = f'provider: gemini, base_url: "{upstream}/v1beta", {KEY}'
    anthropic = f'provider: anthropic, base_url: "{upstream}/v1", {KEY}'
    swapped = f"{anthropic}, price: {NEW}" if is_new else f"{openai}, price: {OLD}"
    leaves = f'  - {{name: leaves, model: "{SLOW}", region: unknown, {gemini}, price: {OLD}}}\n'
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
{"" if is_new else leaves}\
  - {{name: swapped, model: "{SLOW}", region: unknown, {swapped}}}
  - {{name: stays, model: "fake/in:90+out:40", region: unknown, {anthropic}, price: {NEW}}}
  - {{name: fails-late, model: "fake/503+ttft:1500", region: unknown, {openai}, price: {OLD}}}
  - {{name: near, model: "{CACHED}", region: unknown, provider: gemini, base_url: "{near}/v1beta",
     {KEY}, price: {OLD}}}
  - {{name: far, model: "{CACHED}", region: unknown, provider: anthropic, base_url: "{far}/v1",
     {KEY}, price: {NEW}}}
routes:
  - {{name: swapped, deployments: [swapped]}}
  - {{name: leaves, deployments: [{"stays" if is_new else "leaves, stays"}]}}
  - {{name: swapped-later, deployments: [fails-late, swapped]}}
  - {{name: leaves-later, deployments: [fails-late, {"stays" if is_new else "leaves, stays"}]}}
  - {{name: session, objective: cheapest, deployments: [near, far]}}
teams:
  - name: payments
    cost_centre: CC-1
    data_class: internal
    routes: [swapped, leaves, swapped-later, leaves-later, session]
"""


@pytest.fixture(scope="module")
def near() -> Iterator[FragileProvider]:
    """Yield the cheap provider, of Gemini's dialect."""
    with fragile() as provider:
        yield provider


@pytest.fixture(scope="module")
def far() -> Iterator[FragileProvider]:
    """Yield the dear provider, of Anthropic's dialect."""
    with fragile() as provider:
        yield provider


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    fake_upstream: FakeUpstreamProcess,
    near: FragileProvider,
    far: FragileProvider,
) -> Iterator[Gateway]:
    document = policy(fake_upstream.url, near.url, far.url, is_new=False)
    yield from launch_gateway(document, module_database_url)


def asked(gateway: Gateway, route: str, *, is_stream: bool = True, session: str = "") -> Any:
    """Return the answer of a route."""
    headers = {"authorization": f"Bearer {gateway.key}"}
    return plain_http.post(
        f"{gateway.base_url}/chat/completions",
        json={
            "model": route,
            "messages": [{"role": "user", "content": "word " * 40}],
            "max_tokens": 50,
            "stream": is_stream,
        },
        headers=headers | ({"x-session-id": session} if session else {}),
        timeout=60,
    )


def tried(gateway: Gateway, answer: httpx2.Response) -> list[dict[str, Any]]:
    """Return the events of a request, once there are as many as its receipt has attempts."""
    count = int(answer.headers["x-tollgate-attempts"])
    return gateway.events(answer.headers["x-request-id"], count=count)


def test_a_session_leaves_a_dead_provider_at_once_and_stays(
    gateway: Gateway, near: FragileProvider, far: FragileProvider
) -> None:
    """Its prompt is cached at the cheap provider, which dies and returns; then the other dies."""

    def turn() -> tuple[list[str], dict[str, Any]]:
        """Return the deployments of a turn of the session, and the event of its answer."""
        answer = asked(gateway, "session", session="s-1")
        assert answer.status_code == 200, answer.text
        events = tried(gateway, answer)
        assert [row["cost_usd"] for row in events[:-1]] == [0] * (len(events) - 1)
        last = events[-1]
        assert (last["input_tokens"], last["cached_input_tokens"], last["output_tokens"]) == (
            90,
            40,
            6,
        )
        return [row["deployment"] for row in events], last

    assert turn()[0] == ["near"]
    assert turn()[0] == ["near"]
    near.status = 503
    places, moved = turn()
    assert places == ["near", "far"]
    assert (moved["provider"], moved["outcome"]) == ("anthropic", "ok")
    near.status = 200
    places, kept = turn()
    assert places == ["far"], "its prompt is cached there now"
    other = asked(gateway, "session", session="s-2")
    assert tried(gateway, other)[-1]["deployment"] == "near", "another session is free"
    (decided,) = gateway.query(
        "SELECT decision->>'session_kept_at' AS kept_at FROM tollgate.usage_events "
        "WHERE request_id = %s",
        kept["request_id"],
    )
    assert decided["kept_at"] == "far"
    far.status = 503
    assert turn()[0] == ["far", "near"]
    far.status = 200
    assert turn()[0] == ["near"]


def test_attempts_settle_by_the_policy_that_sent_them(
    gateway: Gateway,
    fake_upstream: FakeUpstreamProcess,
    near: FragileProvider,
    far: FragileProvider,
) -> None:
    """The change comes in the middle of their answers; later requests use the new dialect."""
    routes = ("swapped", "leaves", "swapped-later", "leaves-later")
    before = len(fake_upstream.ledger()["entries"])
    with ThreadPoolExecutor(len(routes) * EACH) as pool:
        under_way: dict[str, list[Future[Any]]] = {
            route: [
                pool.submit(asked, gateway, route, is_stream=number % 2 == 0)
                for number in range(EACH)
            ]
            for route in routes
        }
        eventually(
            lambda: len(fake_upstream.ledger()["entries"]) >= before + len(routes) * EACH,
            "the attempts",
        )
        changed = gateway.apply(policy(fake_upstream.url, near.url, far.url, is_new=True))
        answers = {route: [one.result() for one in its] for route, its in under_way.items()}
    for route, its in answers.items():
        for answer in its:
            assert answer.status_code == 200, (route, answer.text)
            *failed, last = tried(gateway, answer)
            assert [row["cost_usd"] for row in failed] == [0] * len(failed)
            assert (last["outcome"], last["input_tokens"], last["output_tokens"]) == ("ok", 90, 40)
            expected = {"openai": AT_OLD, "gemini": AT_OLD, "anthropic": AT_NEW}
            assert last["cost_usd"] == expected[last["provider"]]
            sent = fake_upstream.entries(answer.headers["x-request-id"])[-1]["path"]
            assert DIALECT[last["provider"]] in sent
    for route, provider in (("swapped", "openai"), ("leaves", "gemini")):
        assert {tried(gateway, one)[-1]["provider"] for one in answers[route]} == {provider}
    eventually(
        lambda: asked(gateway, "leaves").headers["x-tollgate-policy"] == str(changed.version),
        "the new policy",
    )
    for route in routes:
        (*_, last) = tried(gateway, asked(gateway, route))
        assert (last["provider"], last["cost_usd"]) == ("anthropic", AT_NEW)
