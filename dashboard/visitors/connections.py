"""Limits the connections to the dashboard before any sign-in, as the gateway's edge does: deadlines
for a request and for an unread answer, a cap, and an order in which connections make room.

uvicorn has none of them: connections that sent nothing stayed, and took all descriptors.
"""

from __future__ import annotations

import asyncio
import fcntl
import resource
import termios
from array import array
from asyncio import TimerHandle
from collections import Counter
from itertools import islice
from typing import ClassVar

import uvicorn.config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST_S = 10.0  # until a request is whole; no page sends a large one
WRITE_S = 60.0  # until a browser reads on
WANTED_DESCRIPTORS = 16_384
# Of the descriptors, for connections that are no tab of a signed-in person. The rest is for tabs,
# Postgres and files.
SHARE = 0.3
SHARE_OF_ADDRESS = 0.5  # of those; a proxy in front is one address
SHARE_OF_UNASKED = 0.1  # of those, before connections without a request displace each other
# Answers to strangers that wait for their reader: a compressed file takes 260 KB each.
MOST_UNREAD = 100
MOST_TRIES = 16  # idle connections that are looked at for each new one
SIGNED_IN = "is_signed_in"  # in a request's state, set by the guard of the sign-in


class LimitedConnection(HttpToolsProtocol):
    """One HTTP connection. It leaves the limits when it becomes a tab's WebSocket.

    At the cap connections make room in this order, of each the oldest first: strangers' that are
    answered, strangers' that do not read their answer, those without a whole request if they are
    many, and idle ones of signed-in people. The new one may be among them.
    """

    # Of the process, oldest first: those without a whole request; strangers' without a request and
    # those whose answer waits for them; signed-in people's without a request.
    unasked: ClassVar[dict[LimitedConnection, None]] = {}
    idle: ClassVar[dict[LimitedConnection, None]] = {}
    unread: ClassVar[dict[LimitedConnection, None]] = {}
    people: ClassVar[dict[LimitedConnection, None]] = {}
    # All of them, by address.
    by_address: ClassVar[Counter[str]] = Counter()
    most: ClassVar[int] = 300
    most_unread: ClassVar[int] = MOST_UNREAD
    request_s: ClassVar[float] = REQUEST_S
    write_s: ClassVar[float] = WRITE_S

    _late: TimerHandle | None = None
    _unread: TimerHandle | None = None
    _address: str | None = None  # None: not counted
    _is_person: bool = False  # a signed-in person asked on it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take an accepted socket, start its first deadline, and make room for it."""
        super().connection_made(transport)
        self._address = address = self.client[0] if self.client else ""
        self.by_address[address] += 1
        self._expect_request()
        if self.by_address.total() > self.most:
            self._least_needed(None)._make_room()
        elif self.by_address[address] > self.most * SHARE_OF_ADDRESS:
            self._least_needed(address)._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a closed connection."""
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read bytes; the first ones of a later request start its deadline."""
        if self._late is None and self._address is not None:
            self._expect_request()
        super().data_received(data)

    def on_message_complete(self) -> None:
        """End the deadline of a request that is whole."""
        self._request_came()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Have an answered connection make room for others, until its next request."""
        super().on_response_complete()
        if self.cycle.scope["state"].get(SIGNED_IN):
            self._is_person = True
        if self._address is not None and self._late is None and not self.pipeline:
            (self.people if self._is_person else self.idle)[self] = None

    def handle_websocket_upgrade(self) -> None:
        """Leave the limits: only a signed-in person's WebSocket is accepted."""
        self._leave()
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        """Start the deadline of a browser that does not read."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.write_s, self.transport.abort)
        if self._address is not None and not self._is_person:
            self.unread[self] = None
            if len(self.unread) > self.most_unread:
                next(iter(self.unread))._make_room()

    def resume_writing(self) -> None:
        """End that deadline."""
        self._end_unread()
        super().resume_writing()

    def _least_needed(self, address: str | None) -> LimitedConnection:
        """Return the connection of an address, or of any, that makes room for this newest one."""
        is_flood = len(self.unasked) > 1 + SHARE_OF_UNASKED * self.most
        for queue in (self.idle, self.unread, self.unasked if is_flood else {}, self.people):
            theirs = (one for one in queue if address in (None, one._address))
            for one in islice(theirs, MOST_TRIES):
                if queue is self.unread or queue is self.unasked or not one._has_arrivals():
                    return one
        return next(one for one in self.unasked if address in (None, one._address))

    def _has_arrivals(self) -> bool:
        """Return True if bytes of a next request wait in the kernel: it is not lost."""
        socket = self.transport.get_extra_info("socket")
        waiting = array("i", [0])
        if socket is not None and socket.fileno() >= 0:
            fcntl.ioctl(socket.fileno(), termios.FIONREAD, waiting)
        return waiting[0] > 0

    def _make_room(self) -> None:
        """Close this connection for a newer one."""
        self._leave()
        self.transport.abort()

    def _expect_request(self) -> None:
        """Start the deadline of a request. A signed-in person's makes no room."""
        self._leave_idle()
        if not self._is_person:
            self.unasked[self] = None
        self._late = self.loop.call_later(self.request_s, self.transport.abort)

    def _request_came(self) -> None:
        """End the deadline of a request."""
        self.unasked.pop(self, None)
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _leave_idle(self) -> None:
        """Leave the idle connections."""
        self.idle.pop(self, None)
        self.people.pop(self, None)

    def _end_unread(self) -> None:
        """End the deadline of an unread answer."""
        self.unread.pop(self, None)
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _leave(self) -> None:
        """End all deadlines and places of this connection."""
        self._request_came()
        self._leave_idle()
        self._end_unread()
        if self._address is not None:
            self.by_address[self._address] -= 1
            if not self.by_address[self._address]:
                del self.by_address[self._address]
            self._address = None


def limit_connections() -> None:
    """Have uvicorn use limited connections, and raise the process's limit on open files as far as
    it may be. Streamlit names no class, so uvicorn takes the one that its table calls `auto`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(WANTED_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY:
        LimitedConnection.most = max(16, int(soft * SHARE))
    uvicorn.config.HTTP_PROTOCOLS["auto"] = "dashboard.visitors.connections:LimitedConnection"
