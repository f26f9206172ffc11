"""`tollgate up` with an engine of one's own, and with a key for OpenAI in the environment."""

from __future__ import annotations

import signal
from datetime import date
from pathlib import Path

import pytest

from gateway.cli.up.demo_policy import Demo, document
from gateway.domain.policy.policy import DataClass
from gateway.domain.residency.rules import denials
from gateway.wire.parsed_policy import parse
from tests import plain_http
from tests.e2e import road as roads
from tests.gateway_process import FakeUpstreamProcess
from tests.waiting import eventually


def demo(
    *, has_external: bool = False, may_fall_back: bool = False, key: str | None = None
) -> Demo:
    """Return the values that `up` fills in."""
    return Demo(
        engine_url="http://127.0.0.1:8001/",
        engine_model="Qwen/Qwen3-8B",
        engine_key=key,
        context_window=4096,
        has_external=has_external,
        may_fall_back=may_fall_back,
    )


@pytest.mark.parametrize("key", [None, "file:/home/me/engine-key", "env:ENGINE_KEY"])
@pytest.mark.parametrize("has_external", [False, True])
@pytest.mark.parametrize("may_fall_back", [False, True])
def test_demo_policy_is_valid_whatever_it_is_made_of(
    key: str | None, has_external: bool, may_fall_back: bool
) -> None:
    """A policy that `validate` refuses would end the first minute of a newcomer."""
    policy = parse(
        document(demo(has_external=has_external, may_fall_back=may_fall_back, key=key))
    ).policy
    assert policy.deployments["tiny-local"].model == "Qwen/Qwen3-8B"
    assert policy.deployments["tiny-local"].api_key == key
    falls_back = has_external and may_fall_back
    assert policy.routes["assistant"].deployments == (
        ("tiny-local", "openai") if falls_back else ("tiny-local",)
    )
    assert ("external" in policy.routes) is has_external


def test_demo_policy_keeps_confidential_data_on_this_machine() -> None:
    """Even if the demo route may fall back to OpenAI."""
    policy = parse(document(demo(has_external=True, may_fall_back=True))).policy
    rules = (policy.classes[DataClass.CONFIDENTIAL],)
    denied = {
        name: denials(
            rules,
            made,
            regions=policy.region_tree,
            gateway_region="unknown",
            day=date(2026, 11, 22),
            valid_days=None,
        )
        for name, made in policy.deployments.items()
    }
    assert [name for name in denied if not denied[name]] == ["tiny-local"]


def test_up_joins_an_engine_and_announces_the_external_route(
    tmp_path: Path, fake_upstream: FakeUpstreamProcess
) -> None:
    """Nothing is installed or trained, and OpenAI stays a route of its own: no request of the demo
    route goes there.
    """
    road = roads.start(
        tmp_path, "--engine-url", fake_upstream.url, OPENAI_API_KEY="sk-not-a-real-key"
    )
    try:
        printed = road.printed
        assert "route 'external' goes to OpenAI and costs real money" in printed
        assert "never falls back to it (--allow-external)" in printed
        assert "vLLM" not in printed
        assert road.up["engine_url"] == fake_upstream.url
        headers = {"authorization": f"Bearer {road.up['api_key']}"}
        models = plain_http.get(
            f"{road.up['gateway_url']}/v1/models", headers=headers, timeout=10
        ).json()["data"]
        assert {model["id"]: model["providers"] for model in models} == {
            "assistant": ["vllm"],
            "elsewhere": ["openai_compatible"],
            "external": ["openai"],
        }
        assert "sk-not-a-real-key" not in (road.home / "logs" / "gateway.log").read_text() + printed
    finally:
        road.stop()
    eventually(lambda: not road.family(), "the end of every child")


def test_up_keeps_a_policy_of_ones_own(tmp_path: Path, fake_upstream: FakeUpstreamProcess) -> None:
    """An operator's policy is in force after the next `up`, and its absent demo team is no
    failure.
    """
    road = roads.start(tmp_path, "--engine-url", fake_upstream.url, "--no-demo-data")
    own = tmp_path / "own.yaml"
    own.write_text(document(demo()).replace("name: demo\n", "name: mine\n"))
    road.tollgate("policy", "apply", str(own), "--yes")
    road.stop()
    again = roads.start(tmp_path, "--engine-url", fake_upstream.url, "--no-demo-data")
    try:
        assert "Policy version 2 is your own and stays in force" in again.printed
        assert "--engine-url has no effect: policy version 2 is your own" in again.printed
        assert again.tollgate("team", "list", "--format", "csv").splitlines()[1].startswith("mine,")
    finally:
        again.stop(signal.SIGINT)  # Ctrl-C: ends every child too
    eventually(lambda: not again.family(), "the end of every child")
    assert not (tmp_path / "up.json").exists()
