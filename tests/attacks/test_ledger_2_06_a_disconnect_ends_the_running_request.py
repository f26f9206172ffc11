"""Ledger section 2: when a pipelining caller left, the last request was notified instead of the one
in flight.

That one continued and forwarded data to an absent caller. The first test uses a class that e47127a
does not have, so it cannot run there. The second covers the whole path; on e47127a it passes too.
"""

from __future__ import annotations

from tests.attacks.raw_callers import connected, question, request, two_teams
from tests.edge.applications import Held
from tests.edge.raw_requests import START
from tests.gateway_process import FakeUpstreamProcess, StartGateway
from tests.memory_transport import Line


async def test_a_disconnect_with_queued_requests_ends_only_the_running_one() -> None:
    """The requests behind it never begin, so they need no notification."""
    app = Held()
    line = Line(app)
    line.send(b"".join(START + b"content-length: 1\r\n\r\n%d" % number for number in range(3)))
    await line.settle()
    assert app.begun == [b"0"]
    line.hang_up()
    await line.settle()
    assert (app.disconnected, app.begun) == ([b"0"], [b"0"])


def test_a_pipelining_caller_that_leaves_is_booked_as_gone(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Through the whole gateway, the stream in flight must be cancelled and the second request
    never sent.
    """
    gateway = start_gateway(
        two_teams(f"{fake_upstream.url}/v1", model="fake/style:vllm+out:400+tps:10")
    )
    with connected(gateway) as connection:
        first = request(gateway, question(stream=True))
        connection.sendall(first + request(gateway, question()))
        head = b""
        while b"data: " not in head:
            head += connection.recv(65536)
    (event,) = gateway.events(head.partition(b"x-request-id: ")[2].partition(b"\r\n")[0].decode())
    assert event["outcome"] == "client_gone"
    assert len(gateway.query("SELECT FROM finance.usage_events")) == 1
