"""Azure's identity through a live gateway: the money of a request without a token, the token's way
to the upstream, its end and its renewal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.canary import UPSTREAM_SECRET
from tests.gateway_process import Gateway, StartGateway
from tests.integration.policy import PRICE
from tests.running_server import address_of, running
from tests.token_host import TokenHost, listening
from tests.waiting import eventually

GOLDEN = Path(__file__).parents[2] / "golden" / "azure_openai"
PATH = "/openai/deployments/gpt/chat/completions?api-version=2024-10-21"
COST_NUSD = 16 * 1250 + 64 * 125 + 12 * 10_000  # of the transcript, by PRICE


@dataclass
class Upstream:
    """An upstream with a transcript of Azure's; `seen` are targets and headers in their order."""

    url: str = ""
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    found = Upstream()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            is_stream = json.loads(self.rfile.read(int(self.headers["content-length"]))).get(
                "stream", False
            )
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.seen.append((self.path, headers))
            name = "chat-stream/upstream.sse" if is_stream else "chat/upstream.json"
            body = (GOLDEN / name).read_bytes()
            self.send_response(200)
            kind = "text/event-stream" if is_stream else "application/json"
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        found.url = address_of(server)
        yield found


@pytest.fixture
def host() -> Iterator[TokenHost]:
    with listening() as one:
        yield one


def policy(url: str) -> str:
    return f"""\
version: 1
regions: {{eu: [eu-de]}}
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: azure, provider: azure_openai, base_url: "{url}/openai/deployments/gpt", model: gpt,
     api_version: 2024-10-21, credentials: ambient, region: eu-de, price: {PRICE}}}
  - {{name: other, provider: openai_compatible, base_url: "{url}/other/v1", model: gpt, region: eu-de,
     price: {PRICE}}}
routes:
  - {{name: alone, deployments: [azure]}}
  - {{name: first, deployments: [azure, other]}}
teams:
  - {{name: payments, cost_centre: CC-1, data_class: internal, routes: [alone, first]}}
"""  # noqa: E501


def asked(gateway: Gateway, route: str, **members: Any) -> httpx2.Response:
    return plain_http.post(
        f"{gateway.base_url}/chat/completions",
        json={"model": route, "messages": [{"role": "user", "content": "Hi"}], **members},
        headers={"authorization": f"Bearer {gateway.key}"},
        timeout=60,
    )


def rows(gateway: Gateway, answer: httpx2.Response) -> list[dict[str, Any]]:
    """Return the ledger's rows of all attempts of a request."""
    count = int(answer.headers["x-tollgate-attempts"])
    return gateway.events(answer.headers["x-request-id"], count=count)


def reason(gateway: Gateway) -> str:
    """Return the message for a route that has only Azure, while there is no token. Whatever the
    reason, nothing was sent, so nothing may be charged.
    """
    answer = asked(gateway, "alone")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_auth")
    assert [row["cost_usd"] for row in rows(gateway, answer)] == [0]
    return str(answer.json()["error"]["message"])


def elsewhere(gateway: Gateway) -> None:
    """Check that a route's next deployment serves a request while there is no token."""
    answer = asked(gateway, "first")
    assert (answer.status_code, answer.headers["x-tollgate-deployment"]) == (200, "other")
    refused, served = rows(gateway, answer)
    assert (refused["deployment"], refused["usage_source"]) == ("azure", "none")
    assert refused["cost_usd"] == 0
    assert (served["outcome"], served["cost_usd"] * 10**9) == ("ok", COST_NUSD)


def test_the_life_of_an_identity(
    start_gateway: StartGateway, upstream: Upstream, host: TokenHost
) -> None:
    """Neither tokens nor money are lost at a token host that hangs, fails, answers something else,
    and recovers. No token is in a log or in the ledger, which the end of the gateway searches.
    """
    host.may_answer.clear()
    root = host.url.removesuffix("/token")
    gateway = start_gateway(
        policy(upstream.url), environment={"AZURE_POD_IDENTITY_AUTHORITY_HOST": root}, workers=1
    )
    elsewhere(gateway)
    assert "The credential ambient of deployment azure" in reason(gateway)
    host.may_answer.set()

    broken = json.dumps({"access_token": f"{UPSTREAM_SECRET}\nx: y", "expires_in": "3599"})
    for status, body, found in (
        (500, b'{"error":"internal"}', "(HTTP 500, internal)"),
        (307, b"", "(HTTP 307)"),
        (200, b"<html><body>Sign in</body></html>", "got no access token"),
        (502, b"<html></html>", "(HTTP 502)"),
        (200, broken.encode(), "got no access token"),
    ):
        host.location = f"{upstream.url}/token" if status == 307 else None
        host.otherwise = (status, body)
        eventually(lambda found=found: found in reason(gateway), found)  # type: ignore[misc]
    assert [target for target, _ in upstream.seen] == ["/other/v1/chat/completions"]

    host.location = None
    host.otherwise = (200, grant(f"{UPSTREAM_SECRET}-1", "30"))  # it ends too soon to be kept
    eventually(lambda: asked(gateway, "alone").status_code == 200, "the first token")
    host.otherwise = (200, grant(f"{UPSTREAM_SECRET}-2", "3599"))
    before = len(host.seen)
    for is_stream in (False, True, True):
        answer = asked(gateway, "alone", stream=is_stream)
        [row] = rows(gateway, answer)
        assert (row["outcome"], row["cost_usd"] * 10**9) == ("ok", COST_NUSD)
    assert len(host.seen) == before + 1
    assert {target for target, _ in upstream.seen[1:]} == {PATH}
    assert [headers["authorization"] for _, headers in upstream.seen[1:]] == [
        f"Bearer {UPSTREAM_SECRET}-1",
        *[f"Bearer {UPSTREAM_SECRET}-2"] * 3,
    ]
    assert all("api-key" not in headers for _, headers in upstream.seen)
    assert {path.partition("?")[0] for path, _, _ in host.seen} == {
        "/metadata/identity/oauth2/token"
    }
    assert all(headers["metadata"] == "true" for _, headers, _ in host.seen)


def grant(token: str, expires_s: str) -> bytes:
    """Return the metadata server's answer, whose numbers are text."""
    return json.dumps({"access_token": token, "expires_in": expires_s}).encode()
