"""A server of Ollama sends requests for models of its cloud on to ollama.com; such a deployment
counted as self-hosted in its declared region, and an answer that stated it changed nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.domain.providers.known_hosts import names_cloud_model
from tests.attacks.settling import ask, only_event
from tests.gateway_process import Gateway
from tests.integration.raw_upstream import Answering, RawUpstream, sends, whole
from tests.policy.documents import EXAMPLE, changed, findings

REMOTE = {"remote_host": "https://ollama.com:443", "remote_model": "gpt-oss:120b"}
PIECE = {"model": "m", "created_at": "2026-11-29T08:00:00Z", "done": False}
TEXT = {**PIECE, "message": {"role": "assistant", "content": "Hi"}}
LAST = {**PIECE, "message": {"role": "assistant", "content": ""}, "done": True}
COUNTS = {"done_reason": "stop", "prompt_eval_count": 10, "eval_count": 5}


def lines(*pieces: dict[str, Any]) -> bytes:
    """Return an answer in Ollama's own dialect."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in pieces)


def plain(**stated: Any) -> Answering:
    """Return an upstream with one plain answer."""
    return sends(whole(lines({**TEXT, "done": True, **COUNTS, **stated})))


def streamed(*pieces: dict[str, Any]) -> Answering:
    """Return an upstream with one streamed answer."""
    return sends(whole(lines(*pieces)))


# The answers, whether the request asks for a stream, the deployment's region, and its fate.
CASES: dict[str, tuple[Answering, bool, str, bool]] = {
    "plain": (plain(**REMOTE), False, "de", True),
    "plain-host": (plain(remote_host=REMOTE["remote_host"]), False, "de", True),
    "plain-model": (plain(remote_model=["odd"]), False, "de", True),
    "plain-unknown": (plain(**REMOTE), False, "unknown", True),
    "stream": (
        streamed({**TEXT, **REMOTE}, {**LAST, **COUNTS, **REMOTE}),
        True,
        "de",
        True,
    ),
    "stream-first": (streamed({**TEXT, **REMOTE}, {**LAST, **COUNTS}), True, "de", True),
    "stream-last": (streamed(TEXT, {**LAST, **COUNTS, **REMOTE}), True, "de", True),
    "stream-behind": (streamed(TEXT, {**LAST, **COUNTS}, {**LAST, **REMOTE}), True, "de", True),
    "local": (plain(), False, "de", False),
    "local-empty": (plain(remote_host="", remote_model=""), False, "de", False),
    "local-stream": (streamed(TEXT, {**LAST, **COUNTS}), True, "de", False),
}


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]], module_database_url: str
) -> Iterator[Gateway]:
    """Yield a gateway before one server of Ollama, a deployment for each case."""
    upstream = RawUpstream({name: one[0] for name, one in CASES.items()})
    url = upstream.url.removesuffix("/v1")
    price = "price: {input_usd_per_mtok: 1, output_usd_per_mtok: 5}"
    own = "\n".join(
        f'  - {{name: {name}, model: {name}, provider: ollama, region: {one[2]}, base_url: "{url}",'
        f" {price}}}"
        for name, one in CASES.items()
    )
    routes = "\n".join(f"  - {{name: {name}, deployments: [{name}]}}" for name in CASES)
    yield from launch_gateway(
        f"""\
version: 1
classes: {{internal: {{regions: [any], self_hosted: true}}}}
deployments:
{own}
routes:
{routes}
teams:
  - {{name: t, cost_centre: C, data_class: internal, routes: [{", ".join(CASES)}]}}
""",
        module_database_url,
    )
    upstream.close()


@pytest.mark.parametrize("name", CASES)
def test_an_answer_of_another_server_contradicts_the_promise(gateway: Gateway, name: str) -> None:
    """The name of a model hides that it is one of the cloud; the answer states it."""
    _, is_stream, _, is_wrong = CASES[name]
    answer = ask(gateway, name, stream=is_stream)
    assert answer.status_code == 200, answer.text
    found = only_event(gateway, answer)
    assert (found["usage_source"], found["output_tokens"]) == ("provider", 5)
    assert found["is_suspect"] is is_wrong
    assert ask(gateway, name, stream=is_stream).status_code == (403 if is_wrong else 200)
    host = (found["usage_detail"] or {}).get("remote_host")
    assert host in ("ollama.com:443" if is_wrong else None, None)


HERE = "http://10.0.0.7:11434/v1"


def ollama(model: str, *, others: str = "", provider: str = "ollama", url: str = HERE) -> str:
    """Return the example's document with a deployment of Ollama in Frankfurt."""
    deployment = f"""\
deployments:
  - name: boxed
    provider: {provider}
    base_url: {url}
    model: "{model}"
    region: eu-de
    price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 5}}
{others}"""
    return changed("deployments:\n", deployment, text=EXAMPLE)


SOURCE = "    residency: {source: contract 9, as_of: 2026-10-01}\n"
OTHERS = "    self_hosted: false\n"


@pytest.mark.parametrize("model", ["gpt-oss:120b-cloud", "gemma4:cloud", "Qwen:Cloud", "own-cloud"])
def test_a_model_of_the_cloud_is_neither_self_hosted_nor_placed(model: str) -> None:
    """The server in Frankfurt sends its prompts on to a place that nothing promises."""
    found = {one.field: one.message for one in findings(ollama(model)) or ()}
    assert set(found) == {"deployments[0].self_hosted", "deployments[0].region"}
    assert "write 'self_hosted: false'" in found["deployments[0].self_hosted"]
    assert f"Ollama sends '{model}' on to ollama.com" in found["deployments[0].region"]
    assert "write 'region: unknown'" in found["deployments[0].region"]
    unplaced = ollama(model, others=OTHERS).replace(
        "region: eu-de\n    price", "region: unknown\n    price"
    )
    assert findings(unplaced) is None
    assert findings(ollama(model, others=OTHERS + SOURCE)) is None


def test_the_cloud_itself_is_neither() -> None:
    """Its address counted as a server of one's own."""
    found = findings(ollama("gemma4:31b", url="https://ollama.com/v1")) or ()
    assert {one.field for one in found} == {"deployments[0].self_hosted", "deployments[0].region"}


@pytest.mark.parametrize(
    ("provider", "model", "is_cloud"),
    [
        ("ollama", "gpt-oss:120b", False),
        ("ollama", "own-cloud:latest", False),
        ("ollama", "cloud-9", False),
        ("ollama", "registry:5000/own/cloud", False),
        ("openai_compatible", "ollama/gpt-oss:120b-cloud", True),
        ("openai_compatible", "own-cloud", False),
        ("vllm", "gemma4:cloud", False),
    ],
)
def test_other_names_stay_as_they_were(provider: str, model: str, is_cloud: bool) -> None:
    """A name with the word in it is no model of the cloud."""
    assert names_cloud_model(provider, model) is is_cloud
