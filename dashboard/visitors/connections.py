"""Limits the connections to the dashboard before any sign-in, as the gateway's edge does: deadlines
for a request and for an unread answer, and a cap.

uvicorn has none of them: connections that sent nothing stayed, and took all descriptors.
"""

from __future__ import annotations

import asyncio
import resource
from asyncio import TimerHandle
from collections import Counter
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


class LimitedConnection(HttpToolsProtocol):
    """One HTTP connection. It leaves the limits when it becomes a tab's WebSocket.

    At the cap the oldest connection without a whole request makes room, which may be the new one.
    """

    # Of the process: those without a whole request, oldest first; all of them, by address.
    unasked: ClassVar[dict[LimitedConnection, None]] = {}
    by_address: ClassVar[Counter[str]] = Counter()
    most: ClassVar[int] = 300
    request_s: ClassVar[float] = REQUEST_S
    write_s: ClassVar[float] = WRITE_S

    _late: TimerHandle | None = None
    _unread: TimerHandle | None = None
    _address: str | None = None  # None: not counted

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take an accepted socket, start its first deadline, and make room for it."""
        super().connection_made(transport)
        self._address = address = self.client[0] if self.client else ""
        self.by_address[address] += 1
        self._expect_request()
        if self.by_address.total() > self.most:
            next(iter(self.unasked))._make_room()
        elif self.by_address[address] > self.most * SHARE_OF_ADDRESS:
            next(one for one in self.unasked if one._address == address)._make_room()

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

    def handle_websocket_upgrade(self) -> None:
        """Leave the limits: only a signed-in person's WebSocket is accepted."""
        self._leave()
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        """Start the deadline of a browser that does not read."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        """End that deadline."""
        self._end_unread()
        super().resume_writing()

    def _make_room(self) -> None:
        """Close this connection for a newer one."""
        self._leave()
        self.transport.abort()

    def _expect_request(self) -> None:
        """Start the deadline of a request."""
        self.unasked[self] = None
        self._late = self.loop.call_later(self.request_s, self.transport.abort)

    def _request_came(self) -> None:
        """End the deadline of a request."""
        self.unasked.pop(self, None)
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end_unread(self) -> None:
        """End the deadline of an unread answer."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _leave(self) -> None:
        """End all deadlines and places of this connection."""
        self._request_came()
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
