"""Leads a person back to the asked page after the sign-in: Streamlit itself returns to the first.

The button *Sign in* loads Streamlit's login from the asked page, whose address the browser names. A
cookie keeps it while the person is at the provider.
"""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "tollgate_asked_page"
LOGIN, CALLBACK = "/auth/login", "/oauth2callback"
KEPT_S = 600  # as long as a sign-in at a provider may take
MOST_CHARS = 2_000  # browsers drop larger cookies
_ATTRIBUTES = "; Path=/; HttpOnly; SameSite=Lax"


class ReturnAddress:
    """Keeps the asked page when a sign-in begins, and redirects to it when the sign-in ends."""

    def __init__(self, app: ASGIApp) -> None:
        """Serve the app behind it."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; change the answers of the login and of its callback alone."""
        path = scope.get("path", "") if scope["type"] == "http" else ""
        headers = Headers(scope=scope) if path.endswith((LOGIN, CALLBACK)) else Headers()
        if path.endswith(LOGIN) and (asked := _asked_page(headers)) is not None:
            cookie, leads_to = f"{quote(asked, safe='')}; Max-Age={KEPT_S}", None
        elif path.endswith(CALLBACK) and (leads_to := _kept_page(headers)) is not None:
            cookie = "; Max-Age=0"
        else:
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                answered.append("set-cookie", f"{COOKIE}={cookie}{_ATTRIBUTES}")
                if leads_to is not None and "location" in answered:
                    answered["location"] = leads_to
            await send(message)

        await self._app(scope, receive, sent)


def _asked_page(headers: Headers) -> str | None:
    """Return the page of this dashboard that a login was opened from, None for another site's."""
    try:
        page = urlsplit(headers.get("referer", ""))
    except ValueError:  # no address, as `http://[`
        return None
    if not page.netloc or page.netloc != headers.get("host"):
        return None
    return _own_path(f"{page.path}?{page.query}" if page.query else page.path)


def _kept_page(headers: Headers) -> str | None:
    """Return the page that the cookie has, None without one."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return None if found is None else _own_path(unquote(found.value))


def _own_path(address: str) -> str | None:
    """Return an address if it is a path of this server: `//host` and a line break are none, and a
    header has no letters beyond ASCII.
    """
    is_own = address.startswith("/") and not address.startswith(("//", "/\\"))
    is_plain = address.isascii() and address.isprintable() and len(address) <= MOST_CHARS
    return address if is_own and is_plain else None
