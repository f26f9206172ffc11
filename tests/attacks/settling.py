"""The shared parts of the attacks on settlement: a policy over upstreams on bare sockets, and
requests to it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from tests import plain_http
from tests.gateway_process import Gateway
from tests.integration.policy import PRICE
from tests.integration.raw_upstream import event

MESSAGES = [{"role": "user", "content": "hello"}]
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
DONE = event(b"[DONE]")
# The smallest request of each operation.
BODIES: Mapping[str, Mapping[str, Any]] = {
    "chat/completions": {"messages": MESSAGES, "max_tokens": 20},
    "completions": {"prompt": "hello", "max_tokens": 20},
    "embeddings": {"input": "hello"},
    "responses": {"input": "hello", "max_output_tokens": 20},
}


def policy(
    url: str,
    deployments: Mapping[str, str],
    routes: Mapping[str, Sequence[str]] | None = None,
    *,
    extra: str = "",
) -> str:
    """Return a policy with a route for each deployment, in addition to `routes`.

    `deployments` maps names, which are also the models, to providers; `extra` is appended to the
    one team, for budgets.
    """
    operations = "operations: [chat, completions, responses, embeddings]"
    listed = "\n".join(
        f"  - {{name: {name}, model: {name}, provider: {provider}, region: unknown, base_url: "
        f'"{url}", price: {PRICE},'
        f" {operations}}}"
        for name, provider in deployments.items()
    )
    all_routes = {**{name: [name] for name in deployments}, **(routes or {})}
    routed = "\n".join(
        f"  - {{name: {name}, deployments: [{', '.join(way)}]}}" for name, way in all_routes.items()
    )
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
{listed}
routes:
{routed}
teams:
  - {{name: payments, cost_centre: CC-1207, data_class: internal, routes: [{", ".join(all_routes)}]{extra}}}
"""  # noqa: E501


def ask(
    gateway: Gateway,
    model: str,
    operation: str = "chat/completions",
    *,
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> httpx2.Response:
    """Send one request and return its whole answer."""
    return plain_http.post(
        f"{gateway.base_url}/{operation}",
        json={"model": model, **BODIES[operation], **members},
        timeout=60,
        headers={"authorization": f"Bearer {gateway.key}", **(headers or {})},
    )


def only_event(gateway: Gateway, answer: httpx2.Response) -> dict[str, Any]:
    """Return the one event of an answer's request."""
    (found,) = gateway.events(answer.headers["x-request-id"])
    return found


def open_stream(gateway: Gateway, model: str, **members: Any) -> socket.socket:
    """Request a stream over a plain socket, so that the test decides when to read and when to
    leave.
    """
    body = json.dumps({"model": model, "messages": MESSAGES, "stream": True, **members}).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", gateway.port))
    connection.settimeout(30)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: "
        f"localhost:{gateway.port}\r\nauthorization: Bearer {gateway.key}"
        f"\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection
