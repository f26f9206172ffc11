"""A plain chat through the whole gateway in one process, without sockets: the cost of its own
steps.

    python -m bench.in_process [--requests N]      # µs of CPU a request, the least and the median of many rounds
    python -m bench.in_process --instructions      # instructions a request, counted by valgrind
    python -m bench.in_process --budgets           # each request is held on four hot budgets

Real: the server's protocol, edge, forwarding, journal (not synced), log line, metrics. Not
included: sockets, the upstream, Postgres; with budgets a store grants everything. Instruction
counts do not depend on the machine's load, so they show a change of one percent.
"""  # noqa: E501

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID

import uvloop

from bench.budgets import BUDGETS, CENTRE
from bench.stand import machine
from bench.stand.gateways import TEAM, policy_of
from bench.stand.nginx import whole_answer
from gateway.api.edge import Drain, Edge
from gateway.api.forward import Forwarder
from gateway.api.http.connection import Connection
from gateway.api.http.connection_table import ConnectionTable
from gateway.api.http.limits import HttpLimits
from gateway.api.large_bodies import LargeBodies
from gateway.api.request_slots import RequestSlots
from gateway.api.server import tune_collector
from gateway.domain.budgets.budgets import SliceAsk, SliceGranted
from gateway.domain.policy.api_keys import RANDOM_BYTES, KeyRecord, Pepper, key_id_of, mint
from gateway.domain.policy.stored_policy import StoredPolicy
from gateway.domain.request.end_user import end_user_key
from gateway.main import SystemClock
from gateway.providers.registry import build_providers
from gateway.providers.token_counting import OfflineTokenCounter
from gateway.services.budgets.leases import BudgetLeases
from gateway.services.deployments.ejections import Ejections
from gateway.services.deployments.estimates import Estimates
from gateway.services.deployments.state import DeploymentHealth
from gateway.services.limits.limiter import Limiter
from gateway.services.policy.apply import prices_of, version_of
from gateway.services.request.abandoned import AbandonedAnswers, DrainLimits
from gateway.services.request.admission import Admission
from gateway.services.request.attempt import Attempts
from gateway.services.request.idempotency import Claims
from gateway.services.request.meter import Meter
from gateway.services.request.refusals import Refusals
from gateway.services.request.service import RequestService
from gateway.services.request.shedding import Shedding
from gateway.services.snapshot.snapshot import Snapshot, SnapshotHolder
from gateway.serving.context import request_ids
from gateway.storage.budgets.budgets import BudgetLeaseTable
from gateway.storage.budgets.idempotency import ClaimTable
from gateway.storage.budgets.limits import LimitWindows
from gateway.storage.budgets.refusals import RefusalFolder, RefusalStore
from gateway.storage.deployments.ejections import EjectionStore
from gateway.storage.ledger.event_journal import open_own
from gateway.storage.postgres.database import Database
from gateway.telemetry.logs import RequestLog
from gateway.telemetry.metrics import Metrics

AT_ONCE = 50
WARM_UP = 1000
ROUND = 500
KEY = mint(b"a key for the bench, never for use, 64 bytes long".ljust(RANDOM_BYTES, b"."))
PEPPER = Pepper(b"a pepper for the bench, never for use")
ANSWER = whole_answer().encode()
QUESTION = "Which of these three incidents needs a person tonight, and why? " * 12
BODY = json.dumps(
    {
        "model": "plain",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 200,
        "user": "bench",
    },
    separators=(",", ":"),
).encode()
REQUEST = (
    f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    f"authorization: Bearer {KEY}\r\ncontent-length: {len(BODY)}\r\n\r\n"
).encode() + BODY


def stored_policy(*, has_budgets: bool) -> StoredPolicy:
    """Return the policy as if it had been applied."""
    document = policy_of({"plain": 9}, team_fields=BUDGETS) + CENTRE if has_budgets else None
    return StoredPolicy(
        version=1,
        sha256="0" * 64,
        document=document or policy_of({"plain": 9}),
        author="",
        message="",
        is_demo=False,
        applied_at=datetime.now(UTC),
    )


class Lender(BudgetLeaseTable):
    """A Postgres with room for everything."""

    def exchange(self, journal_id: UUID, asks: Sequence[SliceAsk]) -> tuple[SliceGranted, ...]:
        return tuple(
            SliceGranted(
                account_id=ask.account_id,
                starts_s=int(ask.starts_at.timestamp()),
                granted_nusd=ask.most_nusd,
                limit_nusd=None,
                spent_nusd=0,
                leased_nusd=0,
                outstanding_nusd=0,
            )
            for ask in asks
        )


class Upstream:
    """An answer that is available at once."""

    async def head(self) -> tuple[int, Mapping[str, str]]:
        return 200, {"content-type": "application/json"}

    async def chunk(self) -> bytes:
        return b""

    async def read(self, limit_bytes: int) -> bytes:
        return ANSWER

    def has_stated_end(self) -> bool:
        return True

    def arrived_bytes(self) -> int:
        return 0

    def give_up(self) -> None:
        pass

    def note_first_token(self) -> None:
        pass

    def close(self) -> None:
        pass


class Transport:
    """A transport without a destination."""

    async def send(self, permit: object, call: object, *, within_s: float = 0.0) -> Upstream:
        return Upstream()


class Caller:
    """One connection, as its server sees it."""

    def __init__(self, edge: Edge, table: ConnectionTable) -> None:
        self._loop = asyncio.get_running_loop()
        self._answered: asyncio.Future[None] = self._loop.create_future()
        self._protocol = Connection(edge, table)
        self._protocol.connection_made(self)  # type: ignore[arg-type]

    async def ask(self) -> None:
        self._answered = self._loop.create_future()
        self._protocol.data_received(REQUEST)
        await self._answered

    def write(self, data: bytes) -> None:
        assert data.startswith(b"HTTP/1.1 200 "), data
        self._answered.set_result(None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


class Stage:
    """A gateway without its ends."""

    def __init__(self, folder: Path, *, has_budgets: bool) -> None:
        clock, metrics = SystemClock(), Metrics()
        self._journal = open_own(
            folder,
            max_bytes=256 * 2**20,
            syncs=False,
            on_failed_sync=print,
            on_synced=lambda seconds: None,
        )
        # Opened by budgets, limits and keys, which are absent here.
        database = Database("postgresql://nobody@localhost/none")
        worker = self._journal.journal_id
        self._leases = budget_leases = BudgetLeases(
            Lender(database), clock, worker=worker, lease_s=900
        )
        limiter = Limiter(LimitWindows(database), clock, worker=worker)
        claims = Claims(ClaimTable(database), clock, secret=PEPPER.secret, journal_id=worker)
        refusals = Refusals(
            RefusalStore(database),
            clock,
            journal_id=worker,
            files=RefusalFolder(folder / "refusals"),
        )
        admission = Admission(
            budget_leases=budget_leases,
            limiter=limiter,
            claims=claims,
            refusals=refusals,
            clock=clock,
        )
        ejections = Ejections(EjectionStore(database), clock, on_ejected=metrics.count_ejection)
        self._meter = Meter(self._journal, on_settled=(metrics.count_event,), ejections=ejections)
        limits = DrainLimits(answers=1, seconds=1, events=1)
        service = RequestService(
            transport=Transport(),
            providers=build_providers(salt_key=PEPPER.secret),
            admission=admission,
            attempts=Attempts(self._meter, clock),
            abandoned=AbandonedAnswers(OfflineTokenCounter({}), limits, is_stopping=lambda: False),
            clock=clock,
            max_attempts=3,
            refusals=refusals,
            ejections=ejections,
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
            holder=SnapshotHolder(
                current=_snapshot(has_budgets=has_budgets), refreshed_at=clock.now()
            ),
            lines=RequestLog("info", lambda piece: None),
            clock=clock,
            new_id=request_ids(clock),
            is_full=lambda: self._journal.is_full,
            max_body_bytes=2**20,
            allows_demo_keys=False,
            shedding=shedding,
            end_user_key=end_user_key(PEPPER),
            slots=RequestSlots(1000),
            large_bodies=LargeBodies(),
        )
        edge = Edge(
            forward=forward,
            plain=None,
            allowed_hosts=frozenset(),
            max_in_flight=1000,
            metrics_address="",
            drain=Drain(),
        )
        self._callers = [Caller(edge, ConnectionTable(HttpLimits())) for _ in range(AT_ONCE)]
        self._exchanging = asyncio.ensure_future(budget_leases.run())

    async def serve(self, requests: int) -> None:
        """Answer that many, and release them as the writer would."""
        for _ in range(requests // AT_ONCE):
            await asyncio.gather(*[caller.ask() for caller in self._callers])
            while (batch := self._journal.read(self._journal.end(), max_events=AT_ONCE)).documents:
                self._journal.acknowledge(batch)
                self._meter.note_written(batch.keys)

    async def close(self) -> None:
        self._exchanging.cancel()
        await self._leases.close()
        self._journal.finish(is_recorded=True)


async def measure(rounds: int, *, has_budgets: bool) -> list[float]:
    """Return this thread's CPU in µs per request, for each round."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), has_budgets=has_budgets)
        await stage.serve(WARM_UP)
        tune_collector()
        found = []
        for _ in range(rounds):
            began_s = time.thread_time()
            await stage.serve(ROUND)
            found.append((time.thread_time() - began_s) / ROUND * 1e6)
        await stage.close()
    return found


def instructions(*, has_budgets: bool) -> float:
    """Return instructions per request: the difference between a long run and a short one.

    Raises if valgrind is not installed.
    """
    counts = []
    for rounds in (1, 5):
        done = subprocess.run(
            [
                "valgrind",
                "--tool=cachegrind",
                "--cache-sim=no",
                "--cachegrind-out-file=/dev/null",
                sys.executable,
                "-m",
                "bench.in_process",
                "--requests",
                str(rounds * ROUND),
                *(["--budgets"] if has_budgets else []),
            ],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
        found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
        assert found is not None, done.stderr
        counts.append(int(found[1].replace(",", "")))
    return (counts[1] - counts[0]) / (4 * ROUND)


def _snapshot(*, has_budgets: bool) -> Snapshot:
    version = version_of(stored_policy(has_budgets=has_budgets))
    key_id = key_id_of(KEY)
    assert key_id is not None
    record = KeyRecord(
        key_id=key_id,
        team=TEAM,
        project=None,
        digest=PEPPER.digest(KEY),
        pepper_id=PEPPER.pepper_id,
    )
    prices = prices_of(version.policy, at=datetime.now(UTC), builtin=lambda **_: None)
    return Snapshot(
        policy=version, prices=prices, keys={key_id: record}, peppers={PEPPER.pepper_id: PEPPER}
    )


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.in_process",
        description="What the gateway's own steps cost, without sockets.",
    )
    parser.add_argument("--requests", type=int, default=20_000, help=f"a multiple of {ROUND}")
    parser.add_argument(
        "--instructions", action="store_true", help="count them with valgrind (Debian: valgrind)"
    )
    parser.add_argument("--budgets", action="store_true", help="hold each request on four budgets")
    chosen = parser.parse_args()
    if chosen.instructions:
        print(machine.describe())
        print(f"{instructions(has_budgets=chosen.budgets):,.0f} instructions a request")
        return 0
    found = uvloop.run(measure(max(1, chosen.requests // ROUND), has_budgets=chosen.budgets))
    print(machine.describe())
    print(
        f"{min(found):.1f} µs a request at best, {median(found):.1f} in the middle of "
        f"{len(found)} rounds"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
