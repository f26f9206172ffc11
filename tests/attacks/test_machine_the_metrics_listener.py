"""The metrics listener shares the process with callers: 1,000 half heads on it took all descriptors
and 1,012 threads, and callers got 502.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from gateway.api.metrics_page import CONNECTIONS
from tests.attacks.raw_callers import answer, connected, is_ended, question, request, two_teams
from tests.gateway_process import FakeUpstreamProcess, Gateway

FLOOD = 300
PAGE = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def scraped(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    fake_upstream: FakeUpstreamProcess,
) -> Iterator[Gateway]:
    """Yield a gateway with a short deadline for heads."""
    yield from launch_gateway(
        two_teams(f"{fake_upstream.url}/v1"), module_database_url, head_s=0.5, body_grace_s=0.2
    )


def scraper(gateway: Gateway) -> socket.socket:
    """Return a new connection to the metrics listener."""
    return socket.create_connection(("127.0.0.1", gateway.metrics_port), timeout=20)


def count(gateway: Gateway, folder: str) -> int:
    """Return the number of the process's descriptors (`fd`) or threads (`task`)."""
    assert gateway.process is not None
    return len(os.listdir(f"/proc/{gateway.process.pid}/{folder}"))


def test_half_heads_take_few_descriptors_and_no_threads(scraped: Gateway) -> None:
    """The library's server gave each connection a thread, without a deadline and without a cap."""
    threads, descriptors = count(scraped, "task"), count(scraped, "fd")
    with ExitStack() as stack:
        flood = [stack.enter_context(closing(scraper(scraped))) for _ in range(FLOOD)]
        for half in flood:
            try:
                half.sendall(b"GET /metrics HTTP/1.1\r\nhost: x")
            except (BrokenPipeError, ConnectionResetError):
                continue  # it made room for a later one
        with connected(scraped) as caller:
            caller.sendall(request(scraped, question()))
            assert answer(caller)[0] == 200
        assert "tollgate_requests_total" in scraped.metrics()
        # A caller's connection, an upstream's and Postgres' may have come beside them.
        assert count(scraped, "fd") <= descriptors + CONNECTIONS + 20
        assert count(scraped, "task") <= threads + 20
    assert 'tollgate_connections_closed_total{reason="metrics_at_cap"}' in scraped.metrics()


@pytest.mark.parametrize("sent", [b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nhost: x\r\n"])
def test_a_head_that_does_not_come_ends_the_scraper(scraped: Gateway, sent: bytes) -> None:
    """Half heads were open as long as the scraper liked."""
    with closing(scraper(scraped)) as connection:
        connection.sendall(sent)
        if sent:
            assert answer(connection)[0] == 408
        assert is_ended(connection)


def test_a_scraper_that_was_answered_keeps_no_place(scraped: Gateway) -> None:
    """A served connection is never closed for a new one, so ten idle ones would keep all others
    out.
    """
    with ExitStack() as stack:
        for _ in range(CONNECTIONS + 2):
            connection = stack.enter_context(closing(scraper(scraped)))
            connection.sendall(PAGE)
            status, page = answer(connection)
            assert status == 200
            assert b"# HELP tollgate_requests_total" in page
            assert is_ended(connection)


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}",
        b"DELETE /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
def test_the_metrics_listener_offers_nothing_else(scraped: Gateway, head: bytes) -> None:
    """It runs the edge's server, and must not be a second door to the edge's endpoints."""
    with closing(scraper(scraped)) as connection:
        connection.sendall(head)
        status, body = answer(connection)
        assert (status, json.loads(body)["error"]["code"]) == (404, "not_supported")


def test_a_large_head_is_refused_by_the_metrics_listener_too(scraped: Gateway) -> None:
    """The library read heads of 64 KiB and 100 lines into memory for each connection."""
    with closing(scraper(scraped)) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 40_000)
        assert answer(connection)[0] == 431
