"""Applies a browser's sign-in outside of the pages: pages, their files and their WebSockets are for
signed-in people alone, and a sign-out ends the sign-in in every tab.

Streamlit sends a file to whoever has its address. Its sign-out only deletes the cookie: an open tab
and a copy of the cookie would stay signed in.
"""

from __future__ import annotations

import json

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config
from streamlit.auth_util import get_cookie_with_chunks
from streamlit.url_util import make_url_path
from streamlit.user_info import generate_login_redirect_url
from streamlit.web.server.server_util import get_cookie_secret
from streamlit.web.server.starlette.starlette_app_utils import decode_signed_value
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME

from dashboard import access
from dashboard.access import Claims
from dashboard.visitors.connections import SIGNED_IN
from dashboard.visitors.person_limits import TABS
from dashboard.visitors.sign_in_page import HEADERS, begin_path, sign_in_page

PAGE = "text/html"
LOGOUT, FILES = "/auth/logout", "media/"
REFUSED = "Sign in to the dashboard to save this file.\n"


class SignInGuard:
    """Without a sign-in, answers 403 to a file's request and to a tab's WebSocket, and the sign-in
    page in place of any other page; ends a sign-in at the sign-out.

    The browser keeps no page and no file: its back button showed the next person those of the last.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Serve the app behind it."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        is_guarded = scope["type"] in ("http", "websocket") and access.needs_sign_in()
        if is_guarded and scope["type"] == "websocket":
            await self._open_tab(scope, receive, send)
            return
        path = scope["path"] if is_guarded else ""
        is_known = bool(path) and access.is_signed_in(claims_of_browser(scope))
        if is_known:
            scope.setdefault("state", {})[SIGNED_IN] = True
        if path.startswith(_files()) and not is_known:
            await PlainTextResponse(REFUSED, status_code=403)(scope, receive, send)
            return
        if path and path == begin_path():
            await RedirectResponse(generate_login_redirect_url("default"))(scope, receive, send)
            return
        if path.endswith(LOGOUT) and (claims := claims_of_browser(scope)):
            access.ENDED.add(claims)

        is_replaced = False

        async def sent(message: Message) -> None:
            nonlocal is_replaced
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                is_page = headers.get("content-type", "").startswith(PAGE)
                if path.startswith(_files()) or is_page:
                    headers["cache-control"] = "no-store"
                if is_page and not is_known and message["status"] in (200, 304):
                    is_replaced = True
                    await HTMLResponse(sign_in_page(), headers=HEADERS)(scope, receive, send)
            if not is_replaced:
                await send(message)

        await self._app(scope, receive, sent if path else send)

    async def _open_tab(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a tab's WebSocket to a signed-in person with few enough tabs, else refuse it."""
        claims = claims_of_browser(scope)
        person = f"{claims.get('iss')} {claims.get('sub')}"
        if not access.is_signed_in(claims) or not TABS.enter(person):
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            await self._app(scope, receive, send)
        finally:
            TABS.leave(person)


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
