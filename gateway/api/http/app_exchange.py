"""Has FastAPI answer one request that goes to no upstream (models, receipts, usage, readiness), by
uvicorn's own cycle and with the interface of `CallerExchange`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import unquote

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.api.http.caller_socket import CallerSocket
from gateway.api.http.parser import RequestHead
from gateway.errors import RequestError

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_LOG = logging.getLogger("uvicorn.error")


class AppExchange:
    """A request that the FastAPI application answers, with the interface of `CallerExchange`."""

    __slots__ = ("_app", "_cut", "_cycle", "_on_answered", "_socket", "is_whole", "received_bytes")

    def __init__(
        self,
        app: Any,
        head: RequestHead,
        socket: CallerSocket,
        *,
        path: bytes,
        query: bytes,
        on_answered: Callable[[AppExchange], None],
        cut: Callable[[], None],
    ) -> None:
        """Make an exchange for FastAPI; `cut` ends the connection if the application ends without a
        complete answer.
        """
        self._app, self._socket, self._on_answered, self._cut = app, socket, on_answered, cut
        self.is_whole = False
        self.received_bytes = 0
        scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": "1.0" if head.is_http_1_0 else "1.1",
            "server": socket.server,
            "client": socket.client,
            "scheme": "http",
            "root_path": "",
            "headers": head.fields,
            "state": {},
            "method": head.method.decode(),
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
        }
        self._cycle = RequestResponseCycle(
            scope=cast("Any", scope),
            transport=socket.transport,
            flow=socket.flow,
            logger=_LOG,
            access_logger=_LOG,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=head.awaits_continue,
            keep_alive=head.keeps_alive,
            on_response=self._tell_connection,
        )

    @property
    def keeps_alive(self) -> bool:
        """Return True if the connection stays open after the answer."""
        return self._cycle.keep_alive

    @keeps_alive.setter
    def keeps_alive(self, stays: bool) -> None:
        """Decide whether the caller's connection stays open after the answer."""
        self._cycle.keep_alive = stays

    @property
    def has_begun(self) -> bool:
        """Return True if a part of the answer may have been written to the caller."""
        return self._cycle.response_started

    @property
    def is_answered(self) -> bool:
        """Return True if the answer to the caller is complete."""
        return self._cycle.response_complete

    async def run(self) -> None:
        """Run the FastAPI application until it has answered this request; cut the connection if it
        did not.
        """
        await self._cycle.run_asgi(self._app)
        if not self._cycle.response_complete:
            self._cut()

    def add_to_body(self, piece: bytes) -> None:
        """Pass a received part of the request body to the application."""
        self.received_bytes += len(piece)
        if self._cycle.response_complete:
            return
        self._cycle.body += piece
        if len(self._cycle.body) > HIGH_WATER_LIMIT:
            self._socket.flow.pause_reading()
        self._cycle.message_event.set()

    def end_body(self) -> None:
        """Mark the request body as complete for the application."""
        self.is_whole = True
        self._cycle.more_body = False
        self._cycle.message_event.set()

    def fail_body(self, error: RequestError) -> bool:
        """Fail the request body: the application sees a disconnect, and the connection sends the
        caller the error.
        """
        self._cycle.disconnected = True
        self._cycle.message_event.set()
        return False

    def note_caller_left(self) -> None:
        """Record that the caller left, so that the application sees a disconnect."""
        if not self._cycle.response_complete:
            self._cycle.disconnected = True
        # Our own callback would keep this object and the cycle alive if it never runs.
        self._cycle.on_response = _nothing
        self._cycle.message_event.set()

    def _tell_connection(self) -> None:
        """Tell the connection that the answer is complete, so that it begins the next request."""
        self._on_answered(self)


def _nothing() -> None:
    """Do nothing: it replaces the callback at the answer's end after the caller left."""
