"""At the door: a request that is refused for load is refused before its body is read, and by its
team's priority.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from gateway.api.edge import Edge
from gateway.api.forward import Forwarder
from gateway.api.http.caller_exchange import CONTINUE
from gateway.api.large_bodies import LargeBodies
from gateway.api.request_slots import RequestSlots
from gateway.domain.policy.policy import Priority
from gateway.domain.request.end_user import end_user_key
from gateway.domain.request.request import Request
from gateway.domain.routing.decide import Decision, Ranking
from gateway.services.deployments.estimates import Estimates
from gateway.services.request.shedding import TURNS, Shedding
from gateway.telemetry.logs import RequestLog
from gateway.telemetry.metrics import Metrics
from tests import factories
from tests.fakes import FakeClock, FakeTransport, FakeUpstreamAnswer
from tests.memory_transport import Line
from tests.unit.request.test_request_service import WHOLE, Stage, body

KEYS = {priority: factories.key(number) for number, priority in enumerate(Priority, 1)}


class Door:
    """A gateway without its socket; `bodies_read` says whether anybody waited for one."""

    def __init__(self) -> None:
        self.stage = Stage(FakeTransport([FakeUpstreamAnswer([WHOLE]) for _ in range(9)]))
        teams = {
            priority.value: factories.team(priority.value, priority=priority)
            for priority in Priority
        }
        records = [factories.key_record(key, team=priority.value) for priority, key in KEYS.items()]
        holder = factories.holder(
            factories.snapshot(*records, document=factories.policy(teams=teams))
        )
        self.shedding = Shedding(
            journal_share=lambda: 0.0, streams=lambda: 0, max_streams=100, lag_s=0.1
        )
        self.forward = forward = Forwarder(
            requests=self.stage.service(),
            limiter=self.stage.limiter,
            metrics=Metrics(),
            holder=holder,
            lines=RequestLog("error", lambda piece: None),
            clock=self.stage.clock,
            new_id=lambda: factories.request_id(random=len(self.stage.journal.intents)),
            is_full=lambda: False,
            max_body_bytes=2**20,
            allows_demo_keys=False,
            end_user_key=end_user_key(factories.PEPPER),
            shedding=self.shedding,
            slots=RequestSlots(10),
            large_bodies=LargeBodies(),
        )
        self.edge = Edge(
            forward=forward,
            plain=None,
            allowed_hosts=frozenset(),
            max_in_flight=10,
            metrics_address="",
        )
        self.bodies_read = 0

    async def ask(self, priority: Priority) -> tuple[int, dict[bytes, bytes], bytes]:
        """Status, headers and body of an answer to a caller that sends its body when it is asked
        for.
        """
        line = Line(self.edge)
        content = body()
        line.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: "
            b"100-continue\r\nconnection: close\r\n"
            b"x-api-key: %b\r\ncontent-length: %d\r\n\r\n" % (KEYS[priority].encode(), len(content))
        )
        await line.settle()
        if line.written.startswith(CONTINUE):
            self.bodies_read += 1
            line.send(content)
        await line.transport.ended.wait()
        head, _, answer = line.written.removeprefix(CONTINUE).partition(b"\r\n\r\n")
        status, *fields = head.split(b"\r\n")
        headers = [field.split(b": ", 1) for field in fields]
        return int(status.split()[1]), dict(headers), answer


async def test_low_is_refused_before_its_body_is_read_and_high_is_served() -> None:
    """With the code, a time, and how much is asked for: reading ten megabytes first would be a part
    of the overload.
    """
    door = Door()
    for _ in range(TURNS):
        door.shedding.note_turn(0.06)
    status, headers, answer = await door.ask(Priority.LOW)
    assert (status, json.loads(answer)["error"]["code"], door.bodies_read) == (503, "overloaded", 0)
    assert (headers[b"retry-after"], headers[b"x-tollgate-attempts"]) == (b"2", b"0")
    assert [(await door.ask(priority))[0] for priority in (Priority.NORMAL, Priority.HIGH)] == [
        200,
        200,
    ]
    assert door.bodies_read == 2


async def test_no_request_is_refused_without_load() -> None:
    """Without load all are alike, and no answer says anything of degrading."""
    door = Door()
    answers = [await door.ask(priority) for priority in Priority]
    assert [status for status, _, _ in answers] == [200, 200, 200]
    assert all(b"x-tollgate-degraded" not in headers for _, headers, _ in answers)


class Spilling(Estimates):
    """An outlook that takes the listed order for a spill."""

    def rank(
        self, request: Request, decision: Decision, *, degrade: Callable[[], Decision] | None = None
    ) -> Ranking:
        choices = decision.as_listed.choices
        return Ranking(decision=decision, choices=choices, degraded="spill", preferred="another")


async def test_degraded_answers_are_marked() -> None:
    """Never silently: whoever measures the answers can tell the degraded ones apart."""
    door = Door()
    forward = replace(
        door.edge.forward, requests=replace(door.stage.service(), estimates=Spilling(FakeClock()))
    )
    door.edge = replace(door.edge, forward=forward)
    _, headers, _ = await door.ask(Priority.NORMAL)
    assert headers[b"x-tollgate-degraded"] == b"spill"
