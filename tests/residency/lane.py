"""A gateway in this process, behind it the endpoints that count who connects to them.

Real: the edge, headers, decision, attempts and the way out with its sockets. Not here: Postgres,
the journal's disk.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid4

from gateway.api.edge import Drain, Edge
from gateway.api.forward import Forwarder
from gateway.api.large_bodies import LargeBodies
from gateway.api.request_slots import RequestSlots
from gateway.domain.ids import RANDOM_BYTES as ID_BYTES
from gateway.domain.ids import uuid7
from gateway.domain.policy.api_keys import RANDOM_BYTES, KeyRecord, key_id_of, mint
from gateway.domain.policy.policy import Policy, PolicyVersion
from gateway.domain.request.end_user import end_user_key
from gateway.providers.google.gemini import Vertex
from gateway.providers.google.google_tokens import KEY_FILE_VARIABLE, GoogleTokens
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
from tests.residency.cases import ENDPOINTS, KEY_VARIABLE, ROUTE, TEAM, Ask
from tests.residency.endpoint import Endpoint

KEY = mint(b"a key for residency cases only, 64 bytes long".ljust(RANDOM_BYTES, b"."))
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "score": "/v1/score",
}
QUESTION = {"role": "user", "content": "where am I?"}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [QUESTION], "max_tokens": 8},
    "responses": {"input": "where am I?", "max_output_tokens": 8},
    "messages": {"messages": [QUESTION], "max_tokens": 8},
}
# The path of a provider's address.
PATHS_OF_PROVIDERS = {
    "ollama": "",
    "anthropic": "/v1",
    "azure_openai": "/openai/v1",
    "bedrock": "",
    "gemini": "/v1beta",
    "groq": "/openai/v1",
    "vertex": "/v1/projects/p/locations/global",
}


@lru_cache(maxsize=64)  # a case asks several times for its documents
def policy_of(text: str) -> Policy:
    """Return the policy of a document."""
    return parse(text).policy


class Clock:
    """The day that a case says, and time that passes."""

    def __init__(self) -> None:
        self.day = date(2026, 11, 22)

    def now(self) -> datetime:
        return datetime.combine(self.day, time(12), UTC)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


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


# Once for all lanes, which run beside each other.
os.environ[KEY_VARIABLE] = "a key of nobody"
os.environ.pop(KEY_FILE_VARIABLE, None)


class Lane:
    """One gateway and its endpoints; cases follow each other on it."""

    def __init__(self) -> None:
        self.clock, self.holder = Clock(), SnapshotHolder()
        self.endpoints = [Endpoint() for _ in range(ENDPOINTS)]
        self.journal = FakeJournal()
        self.ejections = Ejections(FakeEjections(), self.clock, on_ejected=lambda _: None)
        self._version = 0
        self._transport = open_transport(100)
        self._identity = Endpoint()  # the platform's, which gives Vertex its access token
        self.edges: dict[str, Edge] = {}

    async def open(self) -> None:
        """Let every endpoint listen."""
        for endpoint in (*self.endpoints, self._identity):
            await endpoint.open()

    async def close(self) -> None:
        """End all of it."""
        await self._transport.close()
        for endpoint in (*self.endpoints, self._identity):
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
            {**one, "base_url": endpoint.origin + PATHS_OF_PROVIDERS.get(one["provider"], "/v1")}
            for one, endpoint in zip(document["deployments"], self.endpoints, strict=False)
        ]
        return {**document, "deployments": placed}

    def apply(self, document: dict[str, Any]) -> None:
        """Serve under this document from the next request on."""
        self._version += 1
        policy = policy_of(json.dumps(document))
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

    async def ask(self, ask: Ask, *, path: str = "", body: bytes = b"") -> Reply:
        """Send one request through the gateway that runs in the region that the request says; a
        plain one in its dialect without a path and a body.
        """
        path = path or PATHS[ask.dialect]
        body = body or json.dumps({"model": ROUTE, **BODIES[ask.dialect]}).encode()
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
        budget_leases = BudgetLeases(FakeLeases(), clock, worker=uuid4(), lease_s=900, wait_s=5.0)
        limiter = Limiter(LimitWindows(database), clock, worker=uuid4())
        claims = Claims(ClaimTable(database), clock, secret=b"secret", journal_id=uuid4())
        counted = FakeRefusals()
        refusals = Refusals(counted, clock, journal_id=uuid4(), files=counted)
        limits = DrainLimits(answers=0, seconds=1, events=1)
        service = RequestService(
            transport=self._transport,
            providers={**build_providers(salt_key=b"salt"), "vertex": self._vertex()},
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

    def _vertex(self) -> Vertex:
        """Vertex AI with the platform's identity."""
        return Vertex(GoogleTokens(self.clock.now, metadata_url=f"{self._identity.origin}/token"))

    def _new_id(self) -> UUID:
        return uuid7(int(self.clock.now().timestamp() * 1000), os.urandom(ID_BYTES))
