"""Draws the page of a person who has not signed in, as a fixed document: no script of the app runs
and no WebSocket is open for an unknown visitor.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from streamlit import config
from streamlit.url_util import make_url_path

BEGIN = "auth/begin"  # redirects to Streamlit's login, whose address counts for two minutes
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "referrer-policy": "same-origin",  # the login leads back to the asked page
    "x-content-type-options": "nosniff",
}
_LOGO = (Path(__file__).parents[1] / "logo.svg").read_text(encoding="utf-8")
_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tollgate</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>
body {{ font: 15px/1.5 system-ui, "Liberation Sans", sans-serif; margin: 4rem auto;
  max-width: 32rem; padding: 0 1.25rem }}
button {{ background: #1F6FB2; border: 0; border-radius: .4rem; color: #fff; cursor: pointer;
  font: inherit; padding: .5rem 1.25rem }}
</style></head><body>
{logo}
<h1>Tollgate</h1>
<p>Sign in to see what your organisation's teams spend.</p>
<form action="{begin}"><button type="submit">Sign in</button></form>
</body></html>
"""


def begin_path() -> str:
    """Return the path that begins a sign-in."""
    return make_url_path(config.get_option("server.baseUrlPath") or "", BEGIN)


def sign_in_page() -> str:
    """Return the document."""
    return _PAGE.format(logo=_LOGO, begin=escape(begin_path(), quote=True))
