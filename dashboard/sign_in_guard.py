"""Applies a browser's sign-in outside of the pages: a page's files are sent to signed-in people
alone, and a sign-out ends the sign-in in every tab.

Streamlit sends a file to whoever has its address. Its sign-out only deletes the cookie: an open tab
and a copy of the cookie would stay signed in.
"""

from __future__ import annotations

import json

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config
from streamlit.auth_util import get_cookie_with_chunks
from streamlit.url_util import make_url_path
from streamlit.web.server.server_util import get_cookie_secret
from streamlit.web.server.starlette.starlette_app_utils import decode_signed_value
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME

from dashboard import access
from dashboard.access import Claims

PAGE = "text/html"
LOGOUT, FILES = "/auth/logout", "media/"
REFUSED = "Sign in to the dashboard to save this file.\n"


class SignInGuard:
    """Answers 403 to a file's request without a sign-in, and ends a sign-in at the sign-out.

    The browser keeps no page and no file: its back button showed the next person those of the last.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Serve the app behind it."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        path = scope["path"] if scope["type"] == "http" and access.needs_sign_in() else ""
        if path.startswith(_files()) and not access.is_signed_in(claims_of_browser(scope)):
            await PlainTextResponse(REFUSED, status_code=403)(scope, receive, send)
            return
        if path.endswith(LOGOUT) and (claims := claims_of_browser(scope)):
            access.ENDED.add(claims)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if path.startswith(_files()) or headers.get("content-type", "").startswith(PAGE):
                    headers["cache-control"] = "no-store"
            await send(message)

        await self._app(scope, receive, sent if path else send)


def _files() -> str:
    """Return the beginning of the addresses of files; Streamlit's own fonts have another one."""
    return make_url_path(config.get_option("server.baseUrlPath") or "", FILES)


def claims_of_browser(scope: Scope) -> Claims:
    """Return the claims in a browser's signed cookie; none without one or with a wrong one."""
    cookies, secret = HTTPConnection(scope).cookies, get_cookie_secret()

    def signed(name: str) -> bytes | None:
        given = cookies.get(name, "").encode("latin-1")
        return decode_signed_value(secret, name, given) if given else None

    found = get_cookie_with_chunks(signed, USER_COOKIE_NAME)
    claims = None if found is None else json.loads(found)
    return claims if isinstance(claims, dict) else {}
