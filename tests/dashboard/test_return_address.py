"""After the sign-in a person is on the asked page, and never on another site."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from dashboard.visitors.return_address import COOKIE, ReturnAddress

HOST = "spend.example.com"


async def streamlit(scope: Scope, receive: Receive, send: Send) -> None:
    """Redirect as Streamlit does at both addresses."""
    head = [(b"location", b"/"), (b"set-cookie", b"_streamlit_user=x")]
    await send({"type": "http.response.start", "status": 302, "headers": head})
    await send({"type": "http.response.body", "body": b""})


def answered(path: str, **headers: str) -> list[tuple[str, str]]:
    """Return the headers of the answer to a request."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    given = {"host": HOST, **headers}
    scope = {
        "type": "http",
        "path": path,
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
    }
    asyncio.run(ReturnAddress(streamlit)(scope, receive, send))
    return [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]


def test_the_asked_page_is_kept_through_the_sign_in() -> None:
    """A link in a mail leads to its page, with its filters."""
    asked = "/close?month=2026-10&tag=env%3Dprod"
    login = dict(answered("/auth/login", referer=f"https://{HOST}{asked}"))
    kept, _, attributes = login["set-cookie"].partition(";")
    assert "HttpOnly; SameSite=Lax" in attributes
    callback = answered("/oauth2callback", cookie=f"a=b; {kept}")
    assert ("location", asked) in callback
    assert ("set-cookie", "_streamlit_user=x") in callback
    assert any(value.startswith(f"{COOKIE}=; Max-Age=0") for _, value in callback)


@pytest.mark.parametrize(
    "referer",
    [
        *("", "https://evil.example/close", f"https://{HOST}.evil.example/"),
        *(f"https://{HOST}//evil/x", "http://[", f"https://{HOST}/\xe9"),
    ],
)
def test_another_site_is_not_kept(referer: str) -> None:
    """A login that another site opened ends on the first page."""
    assert COOKIE not in str(answered("/auth/login", referer=referer))


@pytest.mark.parametrize(
    "kept",
    [
        *("//evil.example", "%2F%2Fevil.example", "/a%0d%0ax: y", "x", ""),
        *("/%E2%82%AC", "/%09/evil.example", "/%5Cevil.example"),
    ],
)
def test_a_forged_cookie_leads_to_the_first_page(kept: str) -> None:
    """A cookie comes from the browser: it is checked again."""
    callback = answered("/oauth2callback", cookie=f"{COOKIE}={kept}")
    assert ("location", "/") in callback


def test_other_addresses_are_left_alone() -> None:
    """Neither a page nor a sign-out carries the cookie."""
    for path in ("/close", "/auth/logout", "/_stcore/health"):
        assert COOKIE not in str(answered(path, referer=f"https://{HOST}/close"))
