"""Security F15, first bullet: codings read as plain, two Hosts, HTTP/2.0, and a WebSocket POST
without an answer.
"""

from __future__ import annotations

import pytest

from tests.attacks.raw_callers import CHAT, answer, connected, is_ended, question, refusal, request
from tests.edge.raw_requests import MALFORMED
from tests.gateway_process import Gateway

BODY = question()
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"content-length: %d\r\n" % len(BODY)
# Each was answered with 200, or not at all: (the text before the version, version, headers, body).
PASSED = {
    "identity, chunked": (
        CHAT,
        "1.1",
        b"host: x\r\ntransfer-encoding: identity, chunked\r\n",
        CHUNKS,
    ),
    "gzip, chunked": (CHAT, "1.1", b"host: x\r\ntransfer-encoding: gzip, chunked\r\n", CHUNKS),
    "two hosts": (CHAT, "1.1", b"host: x\r\nhost: y\r\n" + LENGTH, BODY),
    "HTTP/2.0": (CHAT, "2.0", b"host: x\r\n" + LENGTH, BODY),
    "another host": (f"http://y{CHAT}", "1.1", b"host: x\r\n" + LENGTH, BODY),
    "a WebSocket": (
        CHAT,
        "1.1",
        b"host: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n" + LENGTH,
        BODY,
    ),
}


@pytest.mark.parametrize("name", PASSED)
def test_framing_that_used_to_pass_is_refused(red_and_blue: Gateway, name: str) -> None:
    """Everything else in these requests is correct, so only the framing can cause the refusal."""
    target, version, headers, body = PASSED[name]
    line = f"POST {target} HTTP/{version}\r\nauthorization: Bearer {red_and_blue.key}\r\n".encode()
    with connected(red_and_blue) as connection:
        connection.sendall(line + headers + b"\r\n" + body)
        assert refusal(connection) == (400, "invalid_request")
        assert is_ended(connection)


@pytest.mark.parametrize("name", MALFORMED)
def test_ambiguous_framing_ends_the_connection(red_and_blue: Gateway, name: str) -> None:
    """The test runs the audit's whole list: later bytes could be a hidden request."""
    with connected(red_and_blue) as connection:
        key = f"host: x\r\nauthorization: Bearer {red_and_blue.key}\r\n".encode()
        sent = MALFORMED[name].replace(b"host: x\r\n", key, 1)
        connection.sendall(sent + b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert refusal(connection) == (400, "invalid_request")
        assert is_ended(connection)


def test_an_upgrade_without_a_body_is_ignored(red_and_blue: Gateway) -> None:
    """RFC 9110 §7.8: the request is answered as if it had no upgrade, and the connection ends."""
    with connected(red_and_blue) as connection:
        connection.sendall(
            b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
        )
        assert answer(connection)[0] == 200
        assert is_ended(connection)


def test_a_target_with_our_own_host_is_served(red_and_blue: Gateway) -> None:
    """A proxy writes such a target. A host that differs from the Host header is among the
    malformed requests.
    """
    target = f"http://127.0.0.1:{red_and_blue.port}{CHAT}"
    sent = request(red_and_blue, question(), path=target)
    with connected(red_and_blue) as connection:
        connection.sendall(
            sent.replace(b"host: 127.0.0.1", f"host: 127.0.0.1:{red_and_blue.port}".encode())
        )
        assert answer(connection)[0] == 200
