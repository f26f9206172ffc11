"""Callers on bare sockets, for bytes that no HTTP client would send."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse

from tests.gateway_process import Gateway

CHAT = "/v1/chat/completions"
# The team that attacks, and the team that must be served meanwhile.
POLICY = """\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: vllm, model: "{model}", provider: {provider}, region: unknown, base_url: "{url}",
     price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 4}}}}
routes: [{{name: vllm, deployments: [vllm]}}]
teams:
  - {{name: red, cost_centre: CC-1, data_class: internal, routes: [vllm]}}
  - {{name: blue, cost_centre: CC-2, data_class: internal, routes: [vllm]}}
"""


def two_teams(url: str, *, model: str = "fake/style:vllm", provider: str = "vllm") -> str:
    """Return a policy with teams red and blue."""
    return POLICY.format(url=url, model=model, provider=provider)


@contextmanager
def connected(gateway: Gateway, *, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """Yield a socket to the gateway."""
    with socket.socket() as connection:
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", gateway.port))
        yield connection


@contextmanager
def many_connected(gateway: Gateway, count: int) -> Iterator[list[socket.socket]]:
    """Yield this many sockets to the gateway."""
    with ExitStack() as stack:
        yield [stack.enter_context(connected(gateway)) for _ in range(count)]


def request(
    gateway: Gateway, content: bytes, *, team: str = "", path: str = CHAT, headers: str = ""
) -> bytes:
    """Return a whole request of a team."""
    key = gateway.keys[team] if team else gateway.key
    return (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"content-length: {len(content)}\r\n{headers}\r\n"
    ).encode() + content


def question(**members: object) -> bytes:
    """Return the body of a chat."""
    return json.dumps(
        {"model": "vllm", "messages": [{"role": "user", "content": "Hi"}], **members}
    ).encode()


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """Return the status and body of the next answer."""
    response = HTTPResponse(connection)
    response.begin()
    return response.status, response.read()


def refusal(connection: socket.socket) -> tuple[int, str]:
    """Return the status and code of an error answer."""
    status, body = answer(connection)
    return status, str(json.loads(body)["error"]["code"])


def is_ended(connection: socket.socket) -> bool:
    """Return True when the gateway has ended the connection; wait until then."""
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def send_all(connection: socket.socket, content: bytes) -> None:
    """Send as much as the gateway accepts: after a refusal it may close meanwhile."""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(content)


def resident_bytes(gateway: Gateway) -> int:
    """Return the memory of the gateway's process, in bytes."""
    assert gateway.process is not None
    with open(f"/proc/{gateway.process.pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096
