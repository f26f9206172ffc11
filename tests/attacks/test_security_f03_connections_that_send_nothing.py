"""Security F3: connections that sent nothing lived forever and used all descriptors, including
those for Postgres.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPResponse

import pytest

from gateway.api.http.limits import most_connections, raise_descriptor_limit
from gateway.errors import BadUsage
from tests.attacks.raw_callers import (
    CHAT,
    answer,
    connected,
    is_ended,
    many_connected,
    question,
    refusal,
    request,
    two_teams,
)
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(scope="module")
def impatient(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    fake_upstream: FakeUpstreamProcess,
) -> Iterator[Gateway]:
    """Yield a gateway with short deadlines for heads, and for bodies that stall."""
    yield from launch_gateway(
        two_teams(f"{fake_upstream.url}/v1"), module_database_url, head_s=0.5, body_grace_s=0.2
    )


def started(
    start_gateway: StartGateway, upstream: FakeUpstreamProcess, **settings: object
) -> Gateway:
    """Start a gateway with other settings."""
    return start_gateway(two_teams(f"{upstream.url}/v1"), **settings)


@pytest.mark.parametrize(
    "sent", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nhost: x\r\n", b"\r\n\r\n"]
)
def test_a_head_that_does_not_come_ends_the_connection(impatient: Gateway, sent: bytes) -> None:
    """Connections with no byte, half a line, half a head or empty lines were open after 420 s. A
    caller that has begun gets the reason.
    """
    with connected(impatient) as connection:
        connection.sendall(sent)
        if sent.strip():
            assert refusal(connection) == (408, "request_timeout")
        assert is_ended(connection)


def test_the_head_of_a_later_request_has_the_same_deadline(
    impatient: Gateway,
) -> None:
    """The deadline counts from the head's first byte, so an idle connection that was served
    stays open.
    """
    with connected(impatient) as idle, connected(impatient) as half:
        for connection in (idle, half):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert answer(connection)[0] == 200
        half.sendall(b"GET /heal")
        assert refusal(half) == (408, "request_timeout")
        assert is_ended(half)
        idle.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert answer(idle)[0] == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/route/explain"])
def test_a_body_that_stalls_is_a_408(impatient: Gateway, path: str) -> None:
    """With a key, one byte of a hundred kept a connection open forever."""
    with connected(impatient) as connection:
        connection.sendall(request(impatient, b"{" * 100, path=path)[:-99])
        assert refusal(connection) == (408, "request_timeout")
        assert is_ended(connection)


def test_an_unread_body_has_the_same_deadline(
    impatient: Gateway,
) -> None:
    """Without a key the answer comes at once, and the rest of the body has the same deadline as
    any other.
    """
    with connected(impatient) as connection:
        connection.sendall(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode()
        )
        assert refusal(connection) == (401, "invalid_api_key")
        assert is_ended(connection)


def test_a_body_is_whole_in_time_however_fast_it_comes(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """A minimum rate alone would let a chunked body run forever."""
    gateway = started(start_gateway, fake_upstream, body_s=1)
    with connected(gateway) as connection:
        connection.sendall(
            request(gateway, b"")[:-2].replace(b"content-length: 0", b"transfer-encoding: chunked")
        )
        connection.sendall(b"\r\n1\r\n \r\n")
        assert refusal(connection) == (408, "request_timeout")


def test_at_the_cap_the_oldest_that_asked_nothing_makes_room(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """A caller that has been served is never closed for another one, and a new caller finds
    room.
    """
    gateway = started(start_gateway, fake_upstream, max_connections=20)
    with ExitStack() as stack:
        served = stack.enter_context(many_connected(gateway, 5))
        for connection in served:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert answer(connection)[0] == 200
        idle = stack.enter_context(many_connected(gateway, 40))
        assert is_ended(idle[0])
        with connected(gateway) as new:
            new.sendall(request(gateway, question()))
            assert answer(new)[0] == 200
        for connection in served:
            connection.sendall(request(gateway, question()))
            assert answer(connection)[0] == 200
        assert 'tollgate_connections_closed_total{reason="at_cap"}' in gateway.metrics()


@pytest.mark.parametrize("has_key", [False, True])
def test_connections_that_were_served_leave_places(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess, has_key: bool
) -> None:
    """10,000 connections, each answered once, with a key or without, kept every caller out for
    75 s. Beyond three quarters an answer ends its connection, and says so.
    """
    gateway = started(start_gateway, fake_upstream, max_connections=20)
    asked = request(gateway, question()) if has_key else HEALTH
    with ExitStack() as stack:
        kept = []
        for _ in range(60):
            (connection,) = stack.enter_context(many_connected(gateway, 1))
            connection.sendall(asked)
            response = HTTPResponse(connection)
            response.begin()
            assert (response.status, bool(response.read())) == (200, True)
            if response.getheader("connection") == "close":
                assert is_ended(connection)
            else:
                kept.append(connection)
        assert len(kept) == 15
        for connection in kept:  # each is answered once more, and then ended
            connection.sendall(asked)
            assert answer(connection)[0] == 200
        with connected(gateway) as new:
            new.sendall(request(gateway, question()))
            assert answer(new)[0] == 200


def test_descriptors_are_left_for_postgres_and_upstreams() -> None:
    """Callers may use 80 %, and at least 64 descriptors stay for everything else."""
    assert most_connections(65_536, configured=10_000) == 10_000
    assert most_connections(4096, configured=10_000) == 3276
    assert most_connections(300, configured=10_000) == 236
    assert most_connections(128, configured=10_000) == 64
    with pytest.raises(BadUsage, match="may open 127 files"):
        most_connections(127, configured=10_000)


def test_the_soft_limit_is_raised_as_far_as_it_may() -> None:
    """Most systems start a process with 1,024 descriptors and allow it more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        raised = raise_descriptor_limit(1000)
        assert raised == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(1251, before[1])
        assert raise_descriptor_limit(10) == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
