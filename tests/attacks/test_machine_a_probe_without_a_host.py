"""A balancer that probes in HTTP/1.0, as HAProxy does, has no Host header: each ready gateway was
400, so taken out of service, and the message named a setting that was not set.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from tests.attacks.raw_callers import two_teams
from tests.gateway_process import FakeUpstreamProcess, Gateway

NAMES = '["gateway.example", "127.0.0.1"]'


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    fake_upstream: FakeUpstreamProcess,
) -> Iterator[Gateway]:
    yield from launch_gateway(two_teams(f"{fake_upstream.url}/v1"), module_database_url)


@pytest.fixture
def named(
    launch_gateway: Callable[..., Iterator[Gateway]],
    database_url: str,
    fake_upstream: FakeUpstreamProcess,
) -> Iterator[Gateway]:
    """Yield a gateway that answers to two names alone."""
    text = two_teams(f"{fake_upstream.url}/v1")
    yield from launch_gateway(text, database_url, allowed_hosts=NAMES)


def asked(port: int, head: str) -> tuple[int, bytes]:
    """Send a head and return the status and the whole answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as caller:
        caller.sendall(head.encode())
        answer = b"".join(iter(lambda: caller.recv(65536), b""))
    return int(answer.split(b" ", 2)[1]), answer


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_is_answered(gateway: Gateway, path: str) -> None:
    status, _ = asked(gateway.port, f"GET {path} HTTP/1.0\r\n\r\n")
    assert status == 200


def test_metrics_are_shown_to_a_scraper_of_http_1_0(gateway: Gateway) -> None:
    status, answer = asked(gateway.metrics_port, "GET /metrics HTTP/1.0\r\n\r\n")
    assert status == 200
    assert b"tollgate_" in answer


def test_http_1_1_needs_a_host(gateway: Gateway) -> None:
    """RFC 9112, section 3.2; the message says that it is missing."""
    status, answer = asked(gateway.port, "GET /healthz HTTP/1.1\r\n\r\n")
    assert status == 400
    assert b"no Host header" in answer


def test_other_paths_without_a_host_are_open_only_if_no_names_are_listed(
    gateway: Gateway, named: Gateway
) -> None:
    head = "GET /v1/models HTTP/1.0\r\n\r\n"
    assert asked(gateway.port, head)[0] == 401
    status, answer = asked(named.port, head)
    assert status == 400
    assert b"has no Host header" in answer
    assert asked(named.port, "GET /readyz HTTP/1.0\r\n\r\n")[0] == 200
    foreign = "GET /readyz HTTP/1.0\r\nhost: evil.example\r\n\r\n"
    assert asked(named.port, foreign)[0] == 400
