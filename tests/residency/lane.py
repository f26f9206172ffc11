"""A gateway in this process, and endpoints that count who connects to them.

Real: the edge, headers, decision, attempts and the way out with its sockets. Not here: Postgres,
the journal's disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any
from uuid import UUID, uuid4

from gateway.api.edge import Drain, Edge
from gateway.api.forward import Forwarder
from gateway.api.large_bodies import LargeBodies
from gateway.api.request_slots import RequestSlots
from gateway.domain.ids import RANDOM_BYTES as ID_BYTES
from gateway.domain.ids import uuid7
from gateway.domain.policy.api_keys import RANDOM_BYTES, KeyRecord, key_id_of, mint
from gateway.domain.policy.policy import PolicyVersion
from gateway.domain.request.end_user import end_user_key
from gateway.providers.registry import build_providers
from gateway.providers.transport import open_transport
from gateway.services.budgets.leases import BudgetLeases
from gateway.services.deployments.ejections import Ejections
from gateway.services.deployments.estimates import Estimates
from gateway.services.deployments.state import DeploymentHealth
from gateway.services.limits.limiter import Limiter
from gateway.services.policy.apply import prices_of
from gateway.services.request.abandoned import AbandonedAnswers, DrainLimits
from gateway.services.request.admission import Admission
from gateway.services.request.attempt import Attempts
from gateway.services.request.idempotency import Claims
from gateway.services.request.meter import Meter
from gateway.services.request.refusals import Refusals
from gateway.services.request.service import RequestService
from gateway.services.request.shedding import Shedding
from gateway.services.snapshot.snapshot import Snapshot, SnapshotHolder
from gateway.storage.budgets.idempotency import ClaimTable
from gateway.storage.budgets.limits import LimitWindows
from gateway.storage.postgres.database import Database
from gateway.telemetry.logs import RequestLog
from gateway.telemetry.metrics import Metrics
from gateway.wire.parsed_policy import parse
from tests.factories import PEPPER
from tests.fakes import FakeCounter, FakeEjections, FakeJournal, FakeLeases, FakeRefusals
from tests.memory_transport import answer_to
from tests.residency.cases import ENDPOINTS, ROUTE, TEAM, Ask

KEY = mint(b"a key for residency cases only, 64 bytes long".ljust(RANDOM_BYTES, b"."))
ANSWER = json.dumps(
    {
        "id": "c-1",
        "model": "m-1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "yes"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
    }
)
LIE = ANSWER.replace('"usage": {', '"usage": {"inference_geo": "global", ')
BODY = json.dumps(
    {"model": ROUTE, "messages": [{"role": "user", "content": "where am I?"}], "max_tokens": 8}
).encode()


class Clock:
    """The day that a case says, and time that passes."""

    def __init__(self) -> None:
        self.day = date(2026, 11, 22)

    def now(self) -> datetime:
        return datetime.combine(self.day, time(12), UTC)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Endpoint:
    """One TCP port. `touched` counts connections, and the requests on kept ones."""

    def __init__(self) -> None:
        self.behaviour, self.elsewhere = "answers", ""
        self.touched = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._listener = _listener()
        self.port = int(self._listener.getsockname()[1])
        self.reached = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether it accepts."""
        return self._server is not None

    async def open(self) -> None:
        """Accept from now on."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, sock=self._listener)

    async def shut(self) -> None:
        """Refuse connections, on the same port, and drop those that were kept."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._listener = _listener(self.port)
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def end(self) -> None:
        """Give the port back."""
        if self._server is not None:
            self._server.close()
        self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.touched += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                await reader.readexactly(length)
                self.touched += 1
                self.reached.set()
                match self.behaviour:
                    case "stalls":
                        await reader.read(1)  # until the gateway hangs up
                        return
                    case "cuts":
                        return
                    case "redirects":
                        writer.write(_answer("302 Found", "{}", f"location: {self.elsewhere}\r\n"))
                    case "fails":
                        writer.write(
                            _answer("500 Internal Server Error", '{"error": {"message": "no"}}')
                        )
                    case "lies":
                        writer.write(
                            _answer("200 OK", LIE, "x-ms-region: Atlantis\r\nx-region: mars\r\n")
                        )
                    case _:
                        writer.write(_answer("200 OK", ANSWER))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


@dataclass
class Reply:
    """The caller's answer."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def code(self) -> str | None:
        """Return the error's code; None without an error."""
        with suppress(ValueError):
            answer = json.loads(self.body)
            return (answer.get("error") or {}).get("code")
        return None


class Lane:
    """One gateway and its endpoints; cases follow each other on it."""

    def __init__(self) -> None:
        self.clock, self.holder = Clock(), SnapshotHolder()
        self.endpoints = [Endpoint() for _ in range(ENDPOINTS)]
        self.journal = FakeJournal()
        self.ejections = Ejections(FakeEjections(), self.clock, on_ejected=lambda _: None)
        self._version = 0
        self._transport = open_transport(100)
        self.edges: dict[str, Edge] = {}

    async def open(self) -> None:
        """Let every endpoint listen."""
        for endpoint in self.endpoints:
            await endpoint.open()

    async def close(self) -> None:
        """End all of it."""
        await self._transport.close()
        for endpoint in self.endpoints:
            endpoint.end()

    def forget(self) -> None:
        """The next case is another gateway's, on the same endpoints."""
        self.journal.intents.clear()
        self.journal.events.clear()
        self.edges.clear()
        self.ejections = Ejections(FakeEjections(), self.clock, on_ejected=lambda _: None)

    def at(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document with our endpoints' addresses."""
        placed = [
            {**one, "base_url": f"http://127.0.0.1:{endpoint.port}/v1"}
            for one, endpoint in zip(document["deployments"], self.endpoints, strict=False)
        ]
        return {**document, "deployments": placed}

    def apply(self, document: dict[str, Any]) -> None:
        """Serve under this document from the next request on."""
        self._version += 1
        policy = parse(json.dumps(document)).policy
        key_id = key_id_of(KEY)
        assert key_id is not None
        record = KeyRecord(
            key_id=key_id,
            team=TEAM,
            project=None,
            digest=PEPPER.digest(KEY),
            pepper_id=PEPPER.pepper_id,
        )
        self.holder.take(
            Snapshot(
                policy=PolicyVersion(
                    version=self._version, sha256=f"{self._version:064x}", policy=policy
                ),
                prices=prices_of(policy, at=self.clock.now(), builtin=lambda **_: None),
                keys={key_id: record},
                peppers={PEPPER.pepper_id: PEPPER},
            ),
            good_at=self.clock.now(),
            good_s=0.0,
        )

    async def ask(
        self, ask: Ask, *, path: str = "/v1/chat/completions", body: bytes = BODY
    ) -> Reply:
        """Send one request through the gateway that runs in the region that the request says."""
        edge = self.edges.get(ask.gateway_region)
        if edge is None:
            edge = self.edges[ask.gateway_region] = self._gateway(ask.gateway_region)
        headers = {"authorization": f"Bearer {KEY}"}
        labels = [ask.data_class] if ask.data_class else []
        if words := [*labels, *ask.data_tags]:
            headers["x-tollgate-data-class"] = ", ".join(words)
        status, fields, answer = await answer_to(edge, body, path=path, headers=headers)
        return Reply(status, fields, answer)

    def _gateway(self, region: str) -> Edge:
        """The same snapshot and the same way out, for a replica that is in one place."""
        clock, metrics, database = (
            self.clock,
            Metrics(),
            Database("postgresql://nobody@localhost/none"),
        )
        budget_leases = BudgetLeases(FakeLeases(), clock, worker=uuid4(), lease_s=900)
        limiter = Limiter(LimitWindows(database), clock, worker=uuid4())
        claims = Claims(ClaimTable(database), clock, secret=b"secret", journal_id=uuid4())
        refusals = Refusals(FakeRefusals(), clock, journal_id=uuid4())
        limits = DrainLimits(answers=0, seconds=1, events=1)
        service = RequestService(
            transport=self._transport,
            providers=build_providers(salt_key=b"salt"),
            admission=Admission(
                budget_leases=budget_leases,
                limiter=limiter,
                claims=claims,
                refusals=refusals,
                clock=clock,
            ),
            attempts=Attempts(Meter(self.journal, on_settled=(), ejections=self.ejections), clock),
            abandoned=AbandonedAnswers(FakeCounter(), limits, is_stopping=lambda: False),
            clock=clock,
            max_attempts=3,
            region=region,
            refusals=refusals,
            ejections=self.ejections,
            estimates=Estimates(clock),
            health=DeploymentHealth(),
        )
        shedding = Shedding(
            journal_share=lambda: 0.0, streams=lambda: 0, max_streams=100, lag_s=0.1
        )
        forward = Forwarder(
            requests=service,
            limiter=limiter,
            metrics=metrics,
            holder=self.holder,
            lines=RequestLog("error", lambda piece: None),
            clock=clock,
            new_id=self._new_id,
            is_full=lambda: False,
            max_body_bytes=2**20,
            allows_demo_keys=False,
            shedding=shedding,
            end_user_key=end_user_key(PEPPER),
            slots=RequestSlots(100),
            large_bodies=LargeBodies(),
        )
        return Edge(
            forward=forward,
            plain=None,
            allowed_hosts=frozenset(),
            max_in_flight=100,
            metrics_address="",
            drain=Drain(),
        )

    def _new_id(self) -> UUID:
        return uuid7(int(self.clock.now().timestamp() * 1000), os.urandom(ID_BYTES))


def _answer(status: str, body: str, headers: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: "
        f"{len(body)}\r\n\r\n"
    )
    return (head + body).encode()


def _listener(port: int = 0) -> socket.socket:
    """A socket that is bound and does not listen yet: connections to it are refused."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.setblocking(False)
    return listener
