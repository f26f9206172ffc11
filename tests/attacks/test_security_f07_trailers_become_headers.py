"""Security F7: trailers became headers, and of a repeated header the last value counted."""

from __future__ import annotations

import pytest

from tests.attacks.raw_callers import CHAT, answer, connected, question, refusal, request
from tests.gateway_process import Gateway


def chunked(content: bytes, *, headers: str, trailers: str) -> bytes:
    """Return a request in one segment, so that the trailer arrives before the application runs."""
    return (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n{headers}\r\n".encode()
        + b"%x\r\n%b\r\n0\r\n" % (len(content), content)
        + f"{trailers}\r\n".encode()
    )


def test_a_key_in_a_trailer_is_ignored(red_and_blue: Gateway) -> None:
    """A proxy in front that removes the header does not see the trailer."""
    sent = chunked(question(), headers="", trailers=f"authorization: Bearer {red_and_blue.key}\r\n")
    with connected(red_and_blue) as connection:
        connection.sendall(sent)
        assert refusal(connection) == (401, "invalid_api_key")


def test_the_headers_decide_the_booked_attribution(red_and_blue: Gateway) -> None:
    """A trailer overruled a proxy that sets project and tags."""
    headers = "x-tollgate-project: proxy-set\r\nx-tollgate-tags: by=proxy\r\n"
    trailers = headers.replace("proxy-set", "client-chosen").replace("by=proxy", "by=client")
    key = f"authorization: Bearer {red_and_blue.key}\r\n"
    with connected(red_and_blue) as connection:
        connection.sendall(chunked(question(), headers=headers + key, trailers=trailers))
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(65536)
    assert head.startswith(b"HTTP/1.1 200 ")
    (event,) = red_and_blue.events(
        head.partition(b"x-request-id: ")[2].partition(b"\r\n")[0].decode()
    )
    assert (event["project"], event["tags"]) == ("proxy-set", {"by": "proxy"})


@pytest.mark.parametrize(
    "name", ["authorization", "x-tollgate-project", "x-tollgate-tags", "idempotency-key"]
)
@pytest.mark.parametrize("path", [CHAT, "/v1/route/explain"])
def test_a_header_that_decides_is_sent_once(red_and_blue: Gateway, name: str, path: str) -> None:
    """A proxy and the gateway could read different values: the first and the last."""
    value = (
        f"Bearer {red_and_blue.key}"
        if name == "authorization"
        else "a=b"
        if "tags" in name
        else "one"
    )
    twice = f"{name}: {value}\r\n" * (1 if name == "authorization" else 2)
    with connected(red_and_blue) as connection:
        connection.sendall(request(red_and_blue, question(), path=path, headers=twice))
        status, body = answer(connection)
        assert (status, b"more than once" in body) == (400, True)


def test_a_key_may_not_come_twice_to_any_endpoint(red_and_blue: Gateway) -> None:
    """This includes endpoints that only read."""
    line = f"authorization: Bearer {red_and_blue.key}\r\n"
    with connected(red_and_blue) as connection:
        connection.sendall(f"GET /v1/models HTTP/1.1\r\nhost: x\r\n{line}{line}\r\n".encode())
        assert refusal(connection) == (400, "invalid_request")


def test_a_data_class_that_is_sent_twice_is_one_list(red_and_blue: Gateway) -> None:
    """Neither value may hide the other; two classes are refused."""
    headers = "x-tollgate-data-class: public\r\nx-tollgate-data-class: restricted\r\n"
    with connected(red_and_blue) as connection:
        connection.sendall(request(red_and_blue, question(), headers=headers))
        status, body = answer(connection)
        assert (status, b"are two classes" in body) == (400, True)
