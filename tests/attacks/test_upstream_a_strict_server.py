"""A server that forbids unknown members and roles: callers learn whose member it refuses, and an
admin how to have it left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.gateway_process import Gateway
from tests.running_server import address_of, running

MEMBERS = {"model", "messages", "stream", "max_tokens", "max_completion_tokens"}
ROLES = {"system", "user", "assistant"}
ROUTE = "q3"
POLICY = """version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: up, provider: openai_compatible, base_url: "{url}/v1", model: m, region: unknown,
     context_window: 4096, max_output_tokens: 100,
     price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 5}}{more}}}
routes: [{{name: q3, deployments: [up]}}]
teams: [{{name: t, cost_centre: C, data_class: internal, routes: [q3]}}]
"""
SWITCHED = ", stream_usage: unasked, refuses: [developer]"


class StrictServer(BaseHTTPRequestHandler):
    """A chat server of a closed schema, as FastAPI refuses unknown members."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Refuse the first unknown thing by its place, else answer."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        unknown = [["body", name] for name in body.keys() - MEMBERS]
        roles = [one["role"] for one in body["messages"]]
        unknown += [["body", "messages", 0, "role", one] for one in roles if one not in ROLES]
        if unknown:
            detail = {"loc": unknown[0], "msg": f"Not permitted: {unknown[0][-1]}"}
            self._answer(422, {"detail": [detail]})
        elif body.get("stream"):
            choice = {"index": 0, "delta": {"content": roles[0]}, "finish_reason": "stop"}
            chunk = {"id": "c", "object": "chat.completion.chunk", "choices": [choice]}
            self._send(200, "text/event-stream", b"data: %b\n\ndata: [DONE]\n\n" % _bytes(chunk))
        else:
            message = {"role": "assistant", "content": roles[0]}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
            self._answer(200, {"id": "c", "choices": [choice], "usage": usage})

    def _answer(self, status: int, value: Any) -> None:
        self._send(status, "application/json", _bytes(value))

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.fixture
def server() -> Iterator[str]:
    """Yield the address of a strict server."""
    with running(ThreadingHTTPServer(("127.0.0.1", 0), StrictServer)) as one:
        yield address_of(one)


def client(gateway: Gateway) -> httpx2.Client:
    """A client with the team's key."""
    return httpx2.Client(
        verify=plain_http.NO_CERTIFICATES,
        base_url=gateway.base_url,
        headers={"authorization": f"Bearer {gateway.keys['t']}"},
        timeout=60,
    )


def chat(http: httpx2.Client, role: str, **members: Any) -> httpx2.Response:
    """Return the answer to a chat of one message."""
    messages = [{"role": role, "content": "Hi"}]
    return http.post("chat/completions", json={"model": ROUTE, "messages": messages, **members})


def test_a_refusal_says_whose_member_it_is(
    server: str, start_gateway: Callable[..., Gateway]
) -> None:
    """The caller sent no `stream_options`, and cannot correct it; a role may be its SDK's."""
    with client(start_gateway(POLICY.format(url=server, more=""))) as http:
        refused = chat(http, "user", stream=True).json()["error"]
        assert "The gateway added 'stream_options', not the caller." in refused["message"]
        assert "`stream_usage: unasked`" in refused["message"]
        assert refused["param"] is None
        refused = chat(http, "developer").json()["error"]
        assert "`refuses: [developer]` sends it as `system`" in refused["message"]


def test_the_switches_keep_its_callers_served(
    server: str, start_gateway: Callable[..., Gateway]
) -> None:
    """Streams without their usage, and the role that the older one replaced."""
    with client(start_gateway(POLICY.format(url=server, more=SWITCHED))) as http:
        streamed = chat(http, "developer", stream=True)
        assert streamed.status_code == 200
        assert '"content": "system"' in streamed.text
        plain = chat(http, "developer")
        assert plain.json()["choices"][0]["message"]["content"] == "system"
