"""Postgres misbehaves in every way a database does, under steady requests.

None of it may reach callers or books.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

import psycopg

from bench.stand import machine
from gateway.storage.postgres.embedded import DATABASE, PORT, SUPERUSER
from tests.chaos.checker import Books
from tests.chaos.fleet import RATES, Fleet
from tests.chaos.load import Load, idle
from tests.chaos.report import Result

WRITTEN_WITHIN_S = 60.0
WRITTEN = "tollgate_written_events_total"
OURS = "chaos"  # the application name of connections that faults themselves hold
END_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tollgate' AND "
    f"application_name <> '{OURS}'"
)


class DeafProxy:
    """A socket in front of Postgres that, on demand, swallows the acknowledgement of a commit
    and hangs up.
    """

    def __init__(self) -> None:
        self.is_deaf = False
        self.swallowed = 0
        self.ended = 0  # backends that faults have ended or killed
        self._target = ""
        self._server: asyncio.Server | None = None

    def address(self, database_url: str, folder: Path) -> str:
        """The URL that goes through here. `open` starts it."""
        parts = urlsplit(database_url)
        self._target = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.{PORT}"
        self._place = folder / "through"
        self._place.mkdir()
        return urlunsplit(parts._replace(query=f"host={self._place}&port={PORT}"))

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(
            self._serve, str(self._place / f".s.PGSQL.{PORT}")
        )

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the run is over
            await self._join(reader, writer)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.close()
            return
        there = asyncio.create_task(_pump(reader, upstream_writer, lambda _: False))
        back = asyncio.create_task(_pump(upstream_reader, writer, self._swallows))
        await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
        for one in (writer, upstream_writer):
            one.close()
        for task in (there, back):
            task.cancel()

    def _swallows(self, data: bytes) -> bool:
        if self.is_deaf and b"COMMIT\x00" in data:
            self.swallowed += 1
            return True
        return False


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends: Callable[[bytes], bool]
) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            if ends(data):
                return
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def _superuser(fleet: Fleet):  # type: ignore[no-untyped-def]  # a connection, whose type is long
    host = parse_qs(urlsplit(fleet.database_url).query)["host"][0]
    with psycopg.connect(
        host=host, port=PORT, user=SUPERUSER, dbname=DATABASE, autocommit=True
    ) as connection:
        yield connection


def _postmaster(fleet: Fleet) -> int:
    return int((fleet.postgres.data / "postmaster.pid").read_text().split()[0])


# ---- the faults: each is a context in which it lasts


@asynccontextmanager
async def paused(fleet: Fleet, _: DeafProxy) -> AsyncIterator[None]:
    """SIGSTOP: connections stay open without answers."""
    pids = machine.tree(_postmaster(fleet))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def read_only(fleet: Fleet, _: DeafProxy) -> AsyncIterator[None]:
    """As after a failover to a standby."""
    await asyncio.to_thread(_set, fleet, "default_transaction_read_only = on")
    try:
        yield
    finally:
        await asyncio.to_thread(_set, fleet, "default_transaction_read_only = off")


@asynccontextmanager
async def exhausted(fleet: Fleet, _: DeafProxy) -> AsyncIterator[None]:
    """Every connection taken by somebody else; the gateway's own are ended first."""
    taken: list[psycopg.Connection] = []

    def fill() -> None:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                taken.append(psycopg.connect(fleet.database_url, application_name=OURS))

    def take() -> None:
        fill()
        with _superuser(fleet) as connection:
            connection.execute(END_ALL)
        fill()

    await asyncio.to_thread(take)
    again = asyncio.create_task(_every(0.2, lambda: asyncio.to_thread(take)))
    try:
        yield
    finally:
        again.cancel()
        for connection in taken:
            connection.close()


@asynccontextmanager
async def ended_backends(fleet: Fleet, proxy: DeafProxy) -> AsyncIterator[None]:
    """Every 50 ms the gateway's connections are ended by an administrator."""

    def end() -> None:
        with _superuser(fleet) as connection:
            proxy.ended += connection.execute(END_ALL).rowcount

    ending = asyncio.create_task(_every(0.05, lambda: asyncio.to_thread(end)))
    try:
        yield
    finally:
        ending.cancel()


@asynccontextmanager
async def killed_backend(fleet: Fleet, proxy: DeafProxy) -> AsyncIterator[None]:
    """`kill -9` of a backend: Postgres throws everybody out and recovers."""

    def kill() -> None:
        with _superuser(fleet) as connection:
            row = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE usename = 'tollgate' LIMIT 1"
            ).fetchone()
        if row is not None:
            os.kill(int(row[0]), signal.SIGKILL)
            proxy.ended += 1

    await asyncio.to_thread(kill)
    yield


@asynccontextmanager
async def restarted(fleet: Fleet, _: DeafProxy) -> AsyncIterator[None]:
    """An immediate stop, as a power cut, and crash recovery."""
    os.kill(_postmaster(fleet), signal.SIGQUIT)
    try:
        yield
    finally:
        await asyncio.to_thread(fleet.postgres.start)


@asynccontextmanager
async def locked(fleet: Fleet, _: DeafProxy) -> AsyncIterator[None]:
    """Somebody holds the events' table."""
    connection = await asyncio.to_thread(
        lambda: psycopg.connect(fleet.database_url, application_name=OURS)
    )
    try:
        await asyncio.to_thread(
            connection.execute, "LOCK TABLE tollgate.usage_events IN ACCESS EXCLUSIVE MODE"
        )
        yield
    finally:
        connection.close()


@asynccontextmanager
async def deaf(fleet: Fleet, proxy: DeafProxy) -> AsyncIterator[None]:
    """Commits happen, and the gateway never hears of them."""
    proxy.is_deaf = True
    try:
        yield
    finally:
        proxy.is_deaf = False


@asynccontextmanager
async def full(fleet: Fleet, _: DeafProxy) -> AsyncIterator[None]:
    """Fill the disk of the data directory to the last byte (only if it is a separate file
    system).
    """
    ballast = fleet.postgres.data.resolve().parent / "ballast"
    await asyncio.to_thread(_fill, ballast)
    try:
        yield
    finally:
        ballast.unlink()
        # It may have crashed for want of space; joining it is enough else.
        with contextlib.suppress(Exception):
            await asyncio.to_thread(fleet.postgres.start)


FAULTS = {
    "paused": paused,
    "read-only": read_only,
    "connections exhausted": exhausted,
    "backends ended": ended_backends,
    "backend killed": killed_backend,
    "restarted": restarted,
    "table locked": locked,
    "commits unheard": deaf,
    "disk full": full,
}


# These end connections and leave the rest as it is; every other fault keeps Postgres from taking
# anything.
ENDING = frozenset({"backends ended", "backend killed"})


async def run(result: Result, *, fault_s: float, per_s: float, only: str | None) -> None:
    """One fault after another, each between two quiet seconds; then all books."""
    proxy = DeafProxy()
    with (
        _own_disk() as disk,
        Fleet(
            seed=result.seed,
            mix="healthy",
            replicas=1,
            most_output=12,
            through=proxy.address,
            server_folder=disk,
        ) as fleet,
    ):
        await proxy.open()
        await asyncio.to_thread(fleet.start)
        load = Load(fleet=fleet, stream_share=0.3)
        await _steady(load, per_s, 2.0)
        for name, fault in FAULTS.items():
            if only not in (None, name):
                continue
            if name == "disk full" and disk is None:
                result.say(
                    "disk full",
                    "not tried: it needs a file system of its own (root, or CAP_SYS_ADMIN)",
                )
                continue
            await _one(
                result, fleet, load, proxy, name, fault(fleet, proxy), fault_s=fault_s, per_s=per_s
            )
        result.say("commits unheard, acknowledgements swallowed", proxy.swallowed)
        result.demand(
            proxy.swallowed > 0 or only not in (None, "commits unheard"),
            "not fired",
            "no commit was unheard",
        )
        result.demand(await idle(fleet), "hanging", "requests are still in flight")
        attempts = fleet.attempts()
        await fleet.settled(len(attempts))
        for replica in fleet.replicas:
            result.demand(replica.is_alive, "ended", "the gateway's process ended")
        result.judge(
            Books(
                attempts=attempts,
                events=fleet.events(),
                calls=load.calls,
                kills_s=(),
                rates=RATES,
                counted=fleet.counted(),
            )
        )
        await proxy.close()


async def _one(
    result: Result,
    fleet: Fleet,
    load: Load,
    proxy: DeafProxy,
    name: str,
    fault: contextlib.AbstractAsyncContextManager[None],
    *,
    fault_s: float,
    per_s: float,
) -> None:
    first, ended = len(load.calls), proxy.ended
    (replica,) = fleet.replicas
    async with fault:
        await _steady(load, per_s, fault_s / 2)
        half, written = len(load.calls), replica.gauge(WRITTEN)
        await _steady(load, per_s, fault_s / 2)
        taken = (replica.gauge(WRITTEN) or 0) - (written or 0)
        has_fired = (
            proxy.ended > ended if name in ENDING else taken < 0.5 * (len(load.calls) - half)
        )
    result.demand(
        has_fired, "not fired", f"{name}: the gateway went on writing as if nothing had happened"
    )
    during = load.calls[first:]
    attempts = fleet.attempts()
    took_s = await fleet.settled(len(attempts), within_s=WRITTEN_WITHIN_S, still_s=0.5)
    missing = len(attempts) - await asyncio.to_thread(fleet.count_events)
    failed = [call for call in during if call.ending != "complete"]
    slowest_ms = max(
        (1000 * (call.first_s - call.sent_s) for call in during if call.first_s), default=0.0
    )
    result.say(
        name,
        f"{len(during)} requests, {len(failed)} failed, slowest first byte {slowest_ms:.0f} ms, "
        f"all written {took_s:.1f} s after it{f', {missing} MISSING' if missing else ''}",
    )
    for call in failed[:2]:
        result.demand(
            False,
            "failed",
            f"{name}: request {call.index}: {call.ending} {call.status} {call.code}",
        )
    result.demand(
        not missing, "late", f"{name}: {missing} events are not in after {WRITTEN_WITHIN_S:.0f} s"
    )
    await _steady(load, per_s, 1.0)


async def _steady(load: Load, per_s: float, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    await load.stream_of(per_s, lambda: time.monotonic() > end_s)


async def _every(seconds: float, act: Callable[[], object]) -> None:
    while True:
        with contextlib.suppress(psycopg.Error):
            await act()  # type: ignore[misc]  # a coroutine
        await asyncio.sleep(seconds)


def _set(fleet: Fleet, setting: str) -> None:
    """Change a setting and make running sessions take it."""
    with _superuser(fleet) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f"ALTER SYSTEM SET {setting}")
        connection.execute("SELECT pg_reload_conf()")


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


@contextlib.contextmanager
def _own_disk():  # type: ignore[no-untyped-def]  # yields a path, or None if no file system may be mounted
    folder = Path(f"/tmp/tollgate-chaos-disk-{os.getpid()}")
    folder.mkdir(mode=0o711)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=320m,mode=0711", "tollgate-chaos", str(folder)],
        capture_output=True,
        check=False,
    )
    try:
        yield folder if mounted.returncode == 0 else None
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)
