"""Security F4: one key took all slots for requests, with unfinished bodies and streams that it
did not read.
"""

from __future__ import annotations

import contextlib
import itertools
import socket

import pytest

from gateway.api.request_slots import RequestSlots
from gateway.errors import Overloaded
from tests.attacks.raw_callers import (
    answer,
    connected,
    is_ended,
    many_connected,
    question,
    refusal,
    request,
    two_teams,
)
from tests.gateway_process import FakeUpstreamProcess, StartGateway
from tests.integration.raw_upstream import STREAM, event, raw_upstream
from tests.waiting import eventually

PLACES = 40


def test_unfinished_bodies_of_one_team_leave_the_others_served(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Blue got 503 for as long as red continued. Red's error must name red's own requests as the
    cause.
    """
    gateway = start_gateway(two_teams(f"{fake_upstream.url}/v1"), max_streams=PLACES)
    with many_connected(gateway, PLACES) as stalled:
        for connection in stalled:
            connection.sendall(request(gateway, b"{" * 100, team="red")[:-99])
        eventually(lambda: refused(stalled) == PLACES - 32, "red's share")
        with connected(gateway) as blue:
            blue.sendall(request(gateway, question(), team="blue"))
            assert answer(blue)[0] == 200


def refused(connections: list[socket.socket]) -> int:
    """Return how many connections have an answer."""
    found = 0
    for connection in connections:
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            assert b" 503 " in connection.recv(65536, socket.MSG_PEEK)
            found += 1
    return found


def test_a_stream_that_is_not_read_ends_and_is_settled(start_gateway: StartGateway) -> None:
    """The stream was in flight after 60 s and its hold blocked another team's budget; only the
    caller could end it.
    """
    piece = event({"id": "1", "choices": [{"index": 0, "delta": {"content": "x" * 60_000}}]})

    def endless(connection: socket.socket) -> None:
        connection.sendall(STREAM)
        for _ in itertools.count():
            connection.sendall(piece)

    with contextlib.contextmanager(raw_upstream)({"m": endless}) as upstream:
        # The answer is read on without its caller: by default for 16,384 events, here of 1 GB.
        gateway = start_gateway(
            two_teams(upstream.url, model="m", provider="openai_compatible"),
            write_s=1,
            abandoned_events=10,
        )
        with connected(gateway, receive_buffer=4096) as connection:
            connection.sendall(request(gateway, question(stream=True), team="red"))
            head = connection.recv(4096)
            request_id = head.partition(b"x-request-id: ")[2].partition(b"\r\n")[0].decode()
            (settled,) = gateway.events(request_id)
            assert settled["outcome"] == "client_gone"
            eventually(
                lambda: "tollgate_inflight 0" in gateway.metrics().replace(".0", ""),
                "the end of it",
            )


def test_an_unread_answer_does_not_keep_its_connection(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """This includes refusals: their answers wait no longer than a stream does."""
    gateway = start_gateway(two_teams(f"{fake_upstream.url}/v1"), write_s=1)
    with connected(gateway) as connection:
        connection.sendall(request(gateway, b"{", team="red", headers="connection: close\r\n"))
        assert refusal(connection) == (400, "invalid_request")
        assert is_ended(connection)


def test_a_team_alone_is_hardly_limited_and_leaves_room_for_one_more() -> None:
    """Four times the free slots: one team gets 32 of 40, and each further team finds a slot."""
    slots = RequestSlots(40)

    def take_all(team: str) -> int:
        for taken in itertools.count():
            try:
                slots.take(team, is_only_team=False)
            except Overloaded:
                return taken
        raise AssertionError

    assert [take_all(team) for team in ("red", "blue", "green")] == [32, 7, 1]
    slots.release("red")
    slots.take("green", is_only_team=False)
    with pytest.raises(Overloaded, match=r"Team red has 31 of the 40 places"):
        slots.take("red", is_only_team=False)


def test_a_policy_with_one_team_keeps_no_place_free() -> None:
    """No other team could use a reserved slot."""
    slots = RequestSlots(5)
    for _ in range(5):
        slots.take("red", is_only_team=True)
    with pytest.raises(Overloaded):
        slots.take("red", is_only_team=False)
