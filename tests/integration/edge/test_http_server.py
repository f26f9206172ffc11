"""HTTP itself, over raw sockets: our handling of forwarded requests differs from uvicorn's."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse

import pytest

from tests.gateway_process import Gateway

PATH = "/v1/chat/completions"


def body(**changes: object) -> bytes:
    return json.dumps(
        {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], **changes}
    ).encode()


def request(
    gateway: Gateway, content: bytes, *, target: str = PATH, version: str = "1.1", headers: str = ""
) -> bytes:
    return (
        f"POST {target} HTTP/{version}\r\nhost: 127.0.0.1\r\nauthorization: Bearer "
        f"{gateway.key}\r\n"
        f"content-length: {len(content)}\r\n{headers}\r\n"
    ).encode() + content


@contextmanager
def connected(gateway: Gateway) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as connection:
        yield connection


def answer(connection: socket.socket) -> tuple[HTTPResponse, bytes]:
    """Return the next answer, as the standard library reads it."""
    response = HTTPResponse(connection, method="POST")
    response.begin()
    return response, response.read()


def read_all(connection: socket.socket) -> bytes:
    """Return all bytes until the gateway closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_connection_serves_one_request_after_the_other(gateway: Gateway) -> None:
    with connected(gateway) as connection:
        for _ in range(3):
            connection.sendall(request(gateway, body()))
            response, content = answer(connection)
            assert (response.status, response.will_close) == (200, False)
            assert len(content) == int(response.headers["content-length"])
            assert json.loads(content)["usage"]["cost_usd"] > 0


@pytest.mark.parametrize(
    "target", [f"{PATH}?trace=1", "http://127.0.0.1" + PATH, PATH.replace("chat", "%63hat")]
)
def test_other_spellings_of_an_address(gateway: Gateway, target: str) -> None:
    """uvicorn handles rare spellings; the answer must be the same."""
    with connected(gateway) as connection:
        connection.sendall(request(gateway, body(), target=target))
        response, content = answer(connection)
        assert (response.status, "cost_usd" in json.loads(content)["usage"]) == (200, True)


def test_requests_sent_at_once_are_answered_in_their_order(gateway: Gateway) -> None:
    with connected(gateway) as connection:
        connection.sendall(
            request(gateway, body(stream=True))
            + request(gateway, b"{")
            + request(gateway, body(model="nobody"))
        )
        whole = b""
        while b"model_not_found" not in whole:
            whole += connection.recv(65536)
    found = re.findall(rb"HTTP/1\.1 (\d{3}) ", whole)
    assert found == [b"200", b"400", b"404"]
    assert whole.index(b"data: [DONE]\n\n\r\n0\r\n\r\n") < whole.index(b"HTTP/1.1 400 ")


def test_a_stream_comes_in_well_formed_chunks(gateway: Gateway) -> None:
    with connected(gateway) as connection:
        connection.sendall(request(gateway, body(stream=True)))
        response, content = answer(connection)
        assert (response.headers["transfer-encoding"], "content-length" in response.headers) == (
            "chunked",
            False,
        )
        assert content.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_caller_of_http_1_0_gets_its_answer_and_the_end(
    gateway: Gateway, is_stream: bool
) -> None:
    with connected(gateway) as connection:
        connection.sendall(request(gateway, body(stream=is_stream), version="1.0"))
        head, _, content = read_all(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in head
        assert (b"data: [DONE]" if is_stream else b"cost_usd") in content


def test_connection_close_is_honoured_after_the_answer(gateway: Gateway) -> None:
    with connected(gateway) as connection:
        connection.sendall(request(gateway, body(), headers="connection: close\r\n"))
        assert read_all(connection).count(b"connection: close\r\n") == 1


def test_an_error_that_ends_the_connection_says_so_once(gateway: Gateway) -> None:
    """A body that is too large is not read to its end, so later bytes could not be separated
    from it.
    """
    with connected(gateway) as connection:
        connection.sendall(
            request(gateway, b"", headers="").replace(
                b"content-length: 0", b"content-length: 999999"
            )
        )
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"connection: close\r\n") == 1


def test_expect_100_continue_is_answered(gateway: Gateway) -> None:
    """curl waits for `100 Continue` when a body has a megabyte or more."""
    content = body()
    whole = request(gateway, content, headers="expect: 100-continue\r\n")
    with connected(gateway) as connection:
        connection.sendall(whole[: -len(content)])
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(content)
        assert answer(connection)[0].status == 200
