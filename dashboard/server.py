"""Builds the web application that Streamlit serves: `app.py` behind a check of the Host header,
which answers a foreign name with 400.

Streamlit only compares Origin with Host, which agree after DNS rebinding.
"""

from __future__ import annotations

import os
from pathlib import Path

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send
from streamlit.starlette import App

from dashboard.return_address import ReturnAddress
from dashboard.sign_in_guard import SignInGuard
from gateway.domain.allowed_hosts import answers_to

# `tollgate dashboard` sets both: the server's bound address, and its accepted names.
BOUND_VARIABLE, HOSTS_VARIABLE = "TOLLGATE_DASHBOARD_BOUND", "TOLLGATE_DASHBOARD_NAMES"
REFUSED = (
    b"This dashboard does not answer to that Host. Add the name to TOLLGATE_DASHBOARD_HOSTS.\n"
)


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


app = App(
    str(Path(__file__).parent / "app.py"),
    middleware=[Middleware(HostCheck), Middleware(SignInGuard), Middleware(ReturnAddress)],
)
