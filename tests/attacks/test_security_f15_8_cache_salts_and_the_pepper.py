"""Security F15, last bullet: the key of vLLM's cache salts was the pepper itself."""

from __future__ import annotations

import hmac
import json
from hashlib import sha256

import httpx2

from gateway.storage.policy import pepper
from tests import plain_http
from tests.gateway_process import FakeUpstreamProcess, StartGateway
from tests.integration.policy import PRICE

POLICY = """\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: one, model: plain-1, provider: vllm, region: unknown, base_url: "{upstream}/v1", price: {price}}}
routes: [{{name: chat, deployments: [one]}}]
teams: [{{name: payments, cost_centre: CC-1, data_class: internal, routes: [chat]}}]
"""  # noqa: E501


def test_no_salt_is_made_from_the_pepper_itself(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """An engine sees salts, so they must come from a key without any other use."""
    gateway = start_gateway(POLICY.format(upstream=fake_upstream.url, price=PRICE))
    answer = gateway_chat(gateway.base_url, gateway.key)
    sent = json.loads(fake_upstream.entry(answer.headers["x-request-id"])["body"])["cache_salt"]
    secret = pepper.load(gateway.home / "pepper")[0].secret
    assert sent not in {
        sha256(secret + b"\0cache salt\0payments").hexdigest()[:32],
        hmac.new(secret, b"payments", sha256).hexdigest()[:32],
    }
    again = gateway_chat(gateway.base_url, gateway.key)
    assert (
        json.loads(fake_upstream.entry(again.headers["x-request-id"])["body"])["cache_salt"] == sent
    )


def gateway_chat(base_url: str, key: str) -> httpx2.Response:
    """Return one plain answer."""
    body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    headers = {"authorization": f"Bearer {key}"}
    answer = plain_http.post(f"{base_url}/chat/completions", json=body, headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer
