"""Builds the web application that Streamlit serves: `app.py` behind a check of the Host header,
which answers a foreign name with 400, and without the parts of Streamlit that no page uses.

Streamlit only compares Origin with Host, which agree after DNS rebinding.
"""

from __future__ import annotations

import os
from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.starlette import App

from dashboard.visitors.return_address import ReturnAddress
from dashboard.visitors.sign_in_guard import SignInGuard
from gateway.domain.allowed_hosts import answers_to

# `tollgate dashboard` sets both: the server's bound address, and its accepted names.
BOUND_VARIABLE, HOSTS_VARIABLE = "TOLLGATE_DASHBOARD_BOUND", "TOLLGATE_DASHBOARD_NAMES"
REFUSED = (
    b"This dashboard does not answer to that Host. Add the name to TOLLGATE_DASHBOARD_HOSTS.\n"
)
# Streamlit's own, open to people who have not signed in: files from the browser, which are kept in
# memory; the sizes of the caches; and an interface for programs.
UNUSED = ("/_stcore/upload_file/", "/_stcore/metrics", "/_stcore/agent/")


class HostCheck:
    """Answers 400 to requests, and closes WebSockets, for a host that is not this dashboard's."""

    def __init__(self, app: ASGIApp) -> None:
        """Read the accepted hosts from the variables that `tollgate dashboard` sets."""
        self._app = app
        self._bound = os.environ.get(BOUND_VARIABLE, "127.0.0.1")
        self._listed = os.environ.get(HOSTS_VARIABLE, "").split()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or refuse it if its Host header is not this dashboard's."""
        hosts = [value for name, value in scope.get("headers", ()) if name == b"host"]
        host = hosts[0].decode("latin-1") if len(hosts) == 1 else None
        if scope["type"] == "lifespan" or answers_to(host, bound=self._bound, listed=self._listed):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [
                (b"content-type", b"text/plain"),
                (b"content-length", str(len(REFUSED)).encode()),
            ]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSED})


class UnusedParts:
    """Answers 404 to requests for Streamlit's routes that no page uses, and drops the message by
    which any visitor empties the caches of everybody.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Serve the app behind it."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and any(route in scope["path"] for route in UNUSED):
            await PlainTextResponse("Not found.\n", status_code=404)(scope, receive, send)
            return

        async def received() -> Message:
            while _empties_caches(message := await receive()):
                pass
            return message

        await self._app(scope, received if scope["type"] == "websocket" else receive, send)


def _empties_caches(message: Message) -> bool:
    """Return True for the message of a browser that empties all caches."""
    try:
        asked = BackMsg.FromString(message.get("bytes") or b"")
    except DecodeError:  # Streamlit ends such a connection
        return False
    return bool(asked.WhichOneof("type") == "clear_cache")


app = App(
    str(Path(__file__).parent / "app.py"),
    middleware=[Middleware(each) for each in (HostCheck, UnusedParts, SignInGuard, ReturnAddress)],
)
