"""The cost of a query to Postgres by the kind of session, in one run.

    python -m bench.postgres_sessions [--rounds N]

Two queries: the exchange of the budget leases (one statement), and the writer's batch of 1,000
events (one transaction with a COPY). Three kinds, in turn: a thread with a plain connection, which
only another thread can break (`shutdown` of its socket); the same with a deadline on each wait of
the driver; and psycopg's `AsyncConnection`, whose await can be cancelled. The event loop is uvloop,
as in `serve`. docs/decisions/0019 uses the result.

The last table has the time until a query on a frozen connection fails, with a timeout of one
second.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit
from uuid import UUID, uuid4

import msgspec
import psycopg
import uvloop

from bench.stand import machine
from gateway.domain.budgets.budgets import BudgetKind, BudgetPeriod, BudgetRule, BudgetScope
from gateway.domain.ids import uuid7
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.storage.budgets.budgets import _EXCHANGE, write_rules
from gateway.storage.ledger import ledger as ledger_module
from gateway.storage.ledger.documents import encode_event
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres

PLAIN, DEADLINE, ASYNC = "thread, interruptible", "thread, deadline", "AsyncConnection"
KINDS = (PLAIN, DEADLINE, ASYNC)
EXCHANGES, BATCHES, BATCH_EVENTS = 300, 3, 1000
LIMIT_S = 20.0
PATIENCE_S = 1.0


class WithDeadline(psycopg.Connection[Any]):
    """A connection each of whose waits has a deadline."""

    limit_s = LIMIT_S

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait no longer than `limit_s`."""
        return super().wait(
            gen, interval, self.limit_s if timeout is None else min(timeout, self.limit_s)
        )


@dataclass
class Figures:
    """Wall and CPU time of each round, by kind, in milliseconds per query."""

    wall_ms: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    cpu_ms: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def rows(self, title: str) -> str:
        """Each kind's median, and its ratio to the first kind: the median of the ratios of single
        rounds.
        """
        lines = []
        for kind in KINDS:
            pairs = zip(self.wall_ms[kind], self.wall_ms[PLAIN], strict=True)
            cpu_pairs = zip(self.cpu_ms[kind], self.cpu_ms[PLAIN], strict=True)
            lines.append(
                f"| {title} | {kind} | {median(self.wall_ms[kind]):.3f} | "
                f"{median(a / b for a, b in pairs):.2f} | {median(self.cpu_ms[kind]):.3f} | "
                f"{median(a / b for a, b in cpu_pairs):.2f} |"
            )
        return "\n".join(lines)


class Asker:
    """One connection of each kind, with their queries."""

    def __init__(
        self,
        plain: psycopg.Connection[Any],
        limited: WithDeadline,
        awaited: psycopg.AsyncConnection[Any],
    ):
        self.plain, self.limited, self.awaited = plain, limited, awaited
        self.journal, self.turn, self.event = uuid4(), 0, 0
        self.thread = ThreadPoolExecutor(1)

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        """Run it as the leases and the writer do."""
        asking = asyncio.get_running_loop().run_in_executor(self.thread, work)
        await asyncio.wait({asking}, timeout=LIMIT_S)
        return await asking

    def ask(self) -> tuple[UUID, str, int]:
        """Ask for a slice of one budget."""
        self.turn += 1
        row = {
            "account_id": "team/month",
            "rule_id": "team/month",
            "starts_s": 1_793_491_200,
            "ends_s": 1_796_083_200,
            "turn": self.turn,
            "returned_nusd": 1000 * (self.turn > 1),
            "least_nusd": 1000,
            "needed_nusd": 1000,
            "most_nusd": 1000,
            "held_nusd": 0,
        }
        return self.journal, msgspec.json.encode([row]).decode(), 0

    def copied(self) -> bytes:
        """Return a batch of new events in COPY's form."""
        documents = []
        for _ in range(BATCH_EVENTS):
            self.event += 1
            documents.append(ledger_module._copy_line(encode_event(_event(self.event))))
        return b"".join(documents)

    async def exchange(self, kind: str) -> None:
        """Run the leases' query once."""
        values = self.ask()
        if kind == ASYNC:
            async with asyncio.timeout(LIMIT_S):
                await (await self.awaited.execute(_EXCHANGE.encode(), values)).fetchall()
            return
        connection = self.plain if kind == PLAIN else self.limited
        await self.in_thread(lambda: connection.execute(_EXCHANGE.encode(), values).fetchall())

    async def batch(self, kind: str, data: bytes) -> None:
        """Write one batch."""
        if kind == ASYNC:
            async with (
                asyncio.timeout(LIMIT_S),
                self.awaited.transaction(),
                self.awaited.cursor() as cursor,
            ):
                async with cursor.copy(ledger_module._COPY) as copy:
                    await copy.write(data)
                await cursor.execute(ledger_module._TAKE_APART.encode())
                await cursor.execute(ledger_module._INSERT.encode())
                await cursor.fetchone()
            return
        await self.in_thread(partial(_write, self.plain if kind == PLAIN else self.limited, data))


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        prog="bench.postgres_sessions", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="rounds, each with all kinds in turn (15)"
    )
    rounds = parser.parse_args().rounds
    home = Path(tempfile.mkdtemp(prefix="tollgate-bench-"))
    try:
        with EmbeddedPostgres(home) as server:
            url = server.start()
            database = Database(url)
            migrations.upgrade(database)
            with database.begin() as connection:
                write_rules(connection, [_rule()], policy_version=1)
            print(uvloop.run(_measured(url, rounds)))
            print(uvloop.run(_frozen(url)))
            database.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(f"machine: {machine.describe()}\ncommit: {machine.commit()}")
    print("command: python -m " + " ".join(["bench.postgres_sessions", *sys.argv[1:]]))
    return 0


async def _measured(url: str, rounds: int) -> str:
    asker = await _asker(url)
    exchanges, batches = Figures(), Figures()
    for number in range(rounds + 1):
        # So that none always follows the same one.
        kinds = KINDS[number % len(KINDS) :] + KINDS[: number % len(KINDS)]
        for kind in kinds:
            await _timed(exchanges, kind, [partial(asker.exchange, kind)] * EXCHANGES)
        for kind in kinds:
            await _timed(
                batches, kind, [partial(asker.batch, kind, asker.copied()) for _ in range(BATCHES)]
            )
    for figures in (exchanges, batches):
        for kind in KINDS:  # the first round warms everything up
            del figures.wall_ms[kind][0], figures.cpu_ms[kind][0]
    head = (
        "| question | session | wall ms | ratio | CPU ms of the gateway | ratio "
        "|\n|---|---|---|---|---|---|"
    )
    return "\n".join(
        [head, exchanges.rows("leases' exchange"), batches.rows("writer's batch of 1,000")]
    )


async def _timed(
    figures: Figures, kind: str, questions: Sequence[Callable[[], Awaitable[None]]]
) -> None:
    began_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    for question in questions:
        await question()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    figures.wall_ms[kind].append((time.perf_counter() - began_s) * 1000 / len(questions))
    figures.cpu_ms[kind].append(cpu_s * 1000 / len(questions))


async def _frozen(url: str) -> str:
    """Return how long a query on a frozen connection lasts, while new connections work."""
    lines = ["\n| session | fails after s, patience 1 s |", "|---|---|"]
    for kind in (DEADLINE, ASYNC):
        with ExitStack() as stack:
            relay = _Relay(url)
            stack.callback(relay.close)
            asker = await _asker(relay.url)
            await asker.exchange(kind)
            relay.is_frozen = True
            asker.limited.limit_s = PATIENCE_S
            began_s = time.monotonic()
            with suppress(TimeoutError, psycopg.Error):
                async with asyncio.timeout(PATIENCE_S if kind == ASYNC else None):
                    await asker.exchange(kind)
            lines.append(f"| {kind} | {time.monotonic() - began_s:.1f} |")
    return "\n".join(lines)


class _Relay:
    """Forwards connections to Postgres until it is frozen; later connections are still
    forwarded.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        self.is_frozen = False
        self._folder = Path(tempfile.mkdtemp(prefix="tollgate-relay-", dir="/tmp"))
        self.url = urlunsplit(parts._replace(query=f"host={self._folder}&port=5432"))
        self._target = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        self._listener = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        server = await asyncio.start_unix_server(self._join, str(self._folder / ".s.PGSQL.5432"))
        async with server:
            await server.serve_forever()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        was_frozen = self.is_frozen
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)

        async def pump(one: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
            while data := await one.read(1 << 16):
                if self.is_frozen and not was_frozen:
                    await asyncio.sleep(3600)
                other.write(data)

        with suppress(asyncio.CancelledError):  # the run is over
            await asyncio.gather(
                pump(reader, up_writer), pump(up_reader, writer), return_exceptions=True
            )

    def close(self) -> None:
        self._listener.cancel()
        shutil.rmtree(self._folder, ignore_errors=True)


async def _asker(url: str) -> Asker:
    await asyncio.sleep(0.1)  # until the relay listens
    plain: psycopg.Connection[Any] = await asyncio.to_thread(
        lambda: psycopg.connect(url, autocommit=True)
    )
    limited = await asyncio.to_thread(lambda: WithDeadline.connect(url, autocommit=True))
    awaited = await psycopg.AsyncConnection.connect(url, autocommit=True)
    for connection in (plain, limited):
        await asyncio.to_thread(connection.execute, ledger_module._STAGES)
    await awaited.execute(ledger_module._STAGES.encode())
    return Asker(plain, limited, awaited)


def _write(connection: psycopg.Connection[Any], data: bytes) -> None:
    with connection.transaction():
        cursor = connection.cursor()
        with cursor.copy(ledger_module._COPY) as copy:
            copy.write(data)
        cursor.execute(ledger_module._TAKE_APART.encode())
        cursor.execute(ledger_module._INSERT.encode())
        cursor.fetchone()


def _rule() -> BudgetRule:
    return BudgetRule(
        rule_id="team/month",
        scope=BudgetScope.TEAM,
        team="team",
        owner="team",
        period=BudgetPeriod.MONTH,
        limit_nusd=10**18,
        kind=BudgetKind.HARD,
        alert_at=(),
        time_zone="UTC",
        overdraft_nusd=0,
    )


def _event(number: int) -> UsageEvent:
    at = datetime(2026, 11, 20, 12, tzinfo=UTC)  # a month that has its partition
    return UsageEvent(
        request_id=uuid7(int(at.timestamp() * 1000), number.to_bytes(10, "big")),
        attempt=1,
        started_at=at + timedelta(milliseconds=7),
        team="payments",
        project="checkout",
        cost_centre="CC-1207",
        key_id="k123456789",
        route="assistant",
        deployment="gpt-eu",
        provider="openai",
        model="m",
        region="eu",
        is_self_hosted=False,
        data_class="confidential",
        policy_version=3,
        operation="chat",
        outcome=Outcome.OK,
        http_status=200,
        streamed=True,
        usage=TokenUsage(input_tokens=1000, output_tokens=50),
        usage_source=UsageSource.PROVIDER,
        cost_nusd=600_000,
        lines=(),
        end_user=None,
        tags={},
        price_id=None,
        held_nusd=900_000,
        ttft_s=0.2,
        tpot_s=0.01,
        duration_s=1.0,
        overhead_s=0.001,
    )


if __name__ == "__main__":
    sys.exit(main())
