"""Makes upstream connections, keeps idle ones for reuse, and bounds their number in all and per
address; it sends no request.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from aiohappyeyeballs import start_connection

from gateway.providers.http1.connection import ErrorOf, UpstreamConnection
from gateway.providers.http1.errors import (
    AnswerFailed,
    ConnectFailed,
    ConnectTimeout,
    OriginFull,
    PoolFull,
)

ADDRESSES_FRESH_S = 30.0
NEXT_ADDRESS_AFTER_S = 0.25  # RFC 8305 §8
MAX_IDLE_PER_ORIGIN = 256
# A server may close an idle connection while our next request is on its way, and a POST may not be
# repeated (RFC 9110 §9.2.2). So we close first: uvicorn, on which vLLM runs, closes after 5 s.
IDLE_S = 4.0
MAX_IDLE_S = 30.0
IDLE_MARGIN_S = 1.0  # before the time at which a server closes by its own statement
SWEEP_S = 1.0

AddressInfo = tuple[int, int, int, str, Any]


def own_error(failed: AnswerFailed) -> Exception:
    """Return an exchange's error unchanged: the default of a pool without errors of its own."""
    return failed


class Origin:
    """One `scheme://host:port`: its addresses and its idle connections, most recently used last."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Start without addresses and connections; `tls` is None for plain HTTP."""
        self.host, self.port, self.tls = host, port, tls
        # Kept, because asking for it is a system call before Python 3.12.
        self._loop = asyncio.get_running_loop()
        # The loop time until which it may be reused.
        self.idle: dict[UpstreamConnection, float] = {}
        self.busy = 0  # its share of the pool's
        self._addresses: list[AddressInfo] = []
        self._addresses_until_s = 0.0
        self._lookup: asyncio.Task[list[AddressInfo]] | None = None

    def take_idle(self) -> UpstreamConnection | None:
        """Return the most recently used good connection, None without one; surplus ones grow old
        and are dropped.
        """
        now_s = self._loop.time()
        while self.idle:
            connection, until_s = self.idle.popitem()
            # A server may close right behind an answer.
            if now_s < until_s and connection.is_quiet():
                return connection
            connection.abort()
        return None

    def drop_idle(self, now_s: float) -> None:
        """Close the idle connections that are too old for reuse."""
        for connection in [one for one, until_s in self.idle.items() if until_s <= now_s]:
            connection.abort()

    async def connect(self) -> socket.socket:
        """Return a connected socket: the first address that answers, trying IPv6 and IPv4 in turn.

        Raises `OSError`.
        """
        addresses = await self._look_up()
        try:
            return await start_connection(addresses, happy_eyeballs_delay=NEXT_ADDRESS_AFTER_S)
        except OSError:
            self._addresses_until_s = 0.0  # the name may resolve to another address now
            raise
        except RuntimeError as broken:  # uvloop raises it for some of them
            raise OSError(str(broken)) from None

    def stop(self) -> None:
        """Cancel the address lookup under way."""
        if self._lookup is not None:
            self._lookup.cancel()

    async def _look_up(self) -> list[AddressInfo]:
        """Look up the host's addresses, once for all waiters: a slow resolver blocks one thread,
        not one per request.
        """
        if self._loop.time() < self._addresses_until_s:
            return self._addresses
        if self._lookup is None:
            self._lookup = self._loop.create_task(self._ask_resolver())
            self._lookup.add_done_callback(self._looked_up)
        return await asyncio.shield(self._lookup)

    async def _ask_resolver(self) -> list[AddressInfo]:
        """Return the host's addresses from the system's resolver."""
        found = await self._loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        return [
            (family, kind, proto, name, address) for family, kind, proto, name, address in found
        ]

    def _looked_up(self, lookup: asyncio.Task[list[AddressInfo]]) -> None:
        """Keep the addresses of an ended lookup until they are too old."""
        self._lookup = None
        if not lookup.cancelled() and lookup.exception() is None:
            self._addresses = lookup.result()
            self._addresses_until_s = self._loop.time() + ADDRESSES_FRESH_S


class Pool:
    """All connections of a transport. Never more than `max_connections`, busy and idle together.

    One origin has at most `max_per_origin` connections busy or awaited: a hung one must not take
    those of others.
    """

    def __init__(
        self,
        max_connections: int,
        tls: ssl.SSLContext,
        *,
        max_per_origin: int | None = None,
        error_of: ErrorOf = own_error,
    ) -> None:
        """Make an empty pool of connections inside the running loop.

        `error_of` makes the error that exchanges raise, so that a caller with errors of its own
        needs no layer around every read.
        """
        self._error_of = error_of
        self._max = max_connections
        self.max_per_origin = max_connections if max_per_origin is None else max_per_origin
        self._bounds_origins = max_per_origin is not None
        self._slots = asyncio.Semaphore(max_connections)  # one for each busy connection
        self.busy = 0  # open exchanges, and connections being made
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._origins: dict[tuple[str, int, bool], Origin] = {}
        self.connections: dict[UpstreamConnection, Origin] = {}
        self._taken: dict[UpstreamConnection, Origin] = {}  # by an exchange, even after its close
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        """Return True if a further exchange would have to wait for a connection."""
        return self._slots.locked()

    def origin(self, host: str, port: int, *, is_tls: bool) -> Origin:
        """Return the origin with this address, made at its first use."""
        key = (host, port, is_tls)
        origin = self._origins.get(key)
        if origin is None:
            origin = self._origins[key] = Origin(host, port, self._tls if is_tls else None)
        return origin

    async def take(self, origin: Origin, connect_s: float) -> UpstreamConnection:
        """Return an idle connection to an origin or a new one; its exchange gives it back.

        Raises `OriginFull`, `PoolFull`, `ConnectTimeout` or `ConnectFailed`: nothing was sent.
        """
        if self._bounds_origins and origin.busy >= self.max_per_origin:
            raise OriginFull
        if not self._slots.locked():
            connection = origin.take_idle()
            if connection is not None:
                await self._slots.acquire()  # does not wait: a slot is free
                self.busy += 1
                origin.busy += 1
                self._taken[connection] = origin
                return connection
        origin.busy += 1
        try:
            connection = await self._idle_or_new(origin, connect_s)
        except BaseException:
            origin.busy -= 1
            raise
        self._taken[connection] = origin
        return connection

    def give_back(self, connection: UpstreamConnection, keep_alive_s: float | None) -> None:
        """Take a connection back after its exchange; keep it for reuse as long as the upstream
        surely does, or close it.
        """
        self._release()
        self._taken.pop(connection).busy -= 1
        origin = self.connections.get(connection)
        if origin is None:
            return
        idle_s = IDLE_S if keep_alive_s is None else min(keep_alive_s - IDLE_MARGIN_S, MAX_IDLE_S)
        if idle_s <= 0 or len(origin.idle) >= MAX_IDLE_PER_ORIGIN:
            connection.abort()
            return
        now_s = self._loop.time()
        origin.idle[connection] = now_s + idle_s
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def forget(self, connection: UpstreamConnection) -> None:
        """Remove a closed connection from the pool."""
        origin = self.connections.pop(connection, None)
        if origin is not None:
            origin.idle.pop(connection, None)

    def close(self) -> None:
        """Close all upstream connections and stop all timers."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.abort()
        for origin in self._origins.values():
            origin.stop()

    async def _idle_or_new(self, origin: Origin, connect_s: float) -> UpstreamConnection:
        """Return an idle connection or a new one, after waiting for a free place. Raises one of the
        `NotSent` errors.
        """
        try:
            async with asyncio.timeout(connect_s):
                await self._slots.acquire()
                self.busy += 1
                try:
                    return origin.take_idle() or await self._connect(origin)
                except BaseException:
                    self._release()
                    raise
        except TimeoutError:
            raise (PoolFull if self.is_full else ConnectTimeout) from None
        except (OSError, UnicodeError) as broken:  # UnicodeError: an invalid host name
            raise ConnectFailed(_reason(broken)) from None

    async def _connect(self, origin: Origin) -> UpstreamConnection:
        """Open a new connection to an origin, and add it to the pool."""
        self._make_room()
        connected = await origin.connect()
        _, connection = await self._loop.create_connection(
            self._new_connection,
            sock=connected,
            ssl=origin.tls,
            server_hostname=origin.host if origin.tls else None,
        )
        if not connection.is_open:
            raise ConnectionResetError("closed as soon as it was open")
        self.connections[connection] = origin
        return connection

    def _new_connection(self) -> UpstreamConnection:
        """Make the protocol object of a new connection, which reports to this pool."""
        return UpstreamConnection(
            give_back=self.give_back, forget=self.forget, error_of=self._error_of
        )

    def _make_room(self) -> None:
        """Close one idle connection of any origin if idle and busy ones exceed the maximum."""
        idle = sum(len(origin.idle) for origin in self._origins.values())
        if idle + self.busy > self._max:
            longest = next(
                next(iter(origin.idle)) for origin in self._origins.values() if origin.idle
            )
            longest.abort()

    def _release(self) -> None:
        """Free the place of a connection that is no longer busy."""
        self.busy -= 1
        self._slots.release()

    def _sweep(self) -> None:
        """Close the connections that were idle too long, and repeat this later while any are
        idle.
        """
        now_s = self._loop.time()
        for origin in self._origins.values():
            origin.drop_idle(now_s)
        has_idle = any(origin.idle for origin in self._origins.values())
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep) if has_idle else None


def _reason(broken: OSError | UnicodeError) -> str:
    """Return the reason why a connection failed, in words for the caller."""
    if isinstance(broken, ssl.SSLCertVerificationError):
        return f"its certificate is refused ({broken.verify_message})"
    if isinstance(broken, ConnectionRefusedError):
        return "it refused the connection"
    if isinstance(broken, socket.gaierror):
        return "its name has no address"
    return getattr(broken, "strerror", None) or type(broken).__name__
