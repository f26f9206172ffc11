"""Security F2: a caller without a key could use unlimited memory and time with headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.attacks.raw_callers import (
    CHAT,
    answer,
    connected,
    refusal,
    request,
    resident_bytes,
    send_all,
    two_teams,
)
from tests.gateway_process import FakeUpstreamProcess, Gateway

MIB = 2**20


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    fake_upstream: FakeUpstreamProcess,
) -> Iterator[Gateway]:
    """Yield a gateway with the default limits."""
    yield from launch_gateway(two_teams(f"{fake_upstream.url}/v1"), module_database_url)


@pytest.mark.parametrize("line", [f"POST {CHAT}", "GET /healthz"])
def test_three_million_fields_are_refused_and_cost_no_memory(gateway: Gateway, line: str) -> None:
    """12 MB on the wire took 341 MB of memory, even on a path that needs no key."""
    before = resident_bytes(gateway)
    with connected(gateway) as connection:
        connection.sendall(f"{line} HTTP/1.1\r\nhost: x\r\n".encode())
        send_all(connection, b"a:\r\n" * 3_000_000)
        assert refusal(connection) == (431, "headers_too_large")
        assert resident_bytes(gateway) - before < 64 * MIB


def test_a_value_of_thirty_megabytes_is_refused(gateway: Gateway) -> None:
    """The value grew by copying, and other callers waited 3.25 s."""
    before = resident_bytes(gateway)
    with connected(gateway) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx: ".encode())
        send_all(connection, b"a" * 30_000_000)
        assert refusal(connection) == (431, "headers_too_large")
        assert resident_bytes(gateway) - before < 64 * MIB


def test_the_header_limits_match_the_documented_values(gateway: Gateway) -> None:
    """The limits are 100 fields, a target of 8 KiB and a head of 32 KiB; the message names the
    setting.
    """
    with connected(gateway) as connection:
        connection.sendall(request(gateway, b"{", headers="a: b\r\n" * 97))
        assert refusal(connection) == (400, "invalid_request")
        connection.sendall(request(gateway, b"{", headers="a: b\r\n" * 98))
        status, body = answer(connection)
        assert (status, b"TOLLGATE_MAX_HEADER_FIELDS" in body) == (431, True)
    for target, found in ((8192, (200, "")), (8193, (414, "uri_too_long"))):
        with connected(gateway) as connection:
            path = "/healthz?" + "x" * (target - len("/healthz?"))
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            assert (
                (answer(connection)[0], "") == found
                if found[0] == 200
                else refusal(connection) == found
            )
