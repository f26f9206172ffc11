"""Without a sign-in, or after its end, a browser gets no file of a page and no figure, and cannot
fill the memory of the dashboard.

Found by an attacker who played a hostile team lead at the dashboard's own addresses, on 2026-11-27.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import streamlit
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli, cli, cli_at
from tests.dashboard.books.test_close_page import ROLES
from tests.dashboard.browser import signing_in
from tests.dashboard.conftest import write
from tests.dashboard.raw_visitor import FORGERY_COOKIE, RawVisitor, elements
from tests.dashboard.test_pages import Write
from tests.deploy.test_sign_in_through_a_provider import provider
from tests.storage.factories import event

__all__ = ["cli", "cli_at", "provider", "write"]  # fixtures of other tests


@pytest.fixture
def address(
    cli: Cli, provider: str, database_url: str, tmp_path: Path, write: Write
) -> Iterator[str]:
    """The address of a dashboard that people sign in to, over two events."""
    document = tmp_path / "policy.yaml"
    document.write_text(ROLES)
    cli.ok("policy", "apply", str(document), "--yes")
    write(event(1), event(2, team="search"))
    home = cli.toolbox.options.home
    with signing_in(database_url, home=home, folder=tmp_path, provider=provider) as (address, _):
        yield address


def test_files_and_tabs_end_with_the_sign_in(address: str, database: Database) -> None:
    """A file was sent to everyone who had its address. After the sign-out, a second tab and a copy
    of the cookie went on for twelve hours, and a kept page made files of new rows without end.
    """
    ada, anyone = RawVisitor(address), RawVisitor(address)
    ada.sign_in()
    copied = ada.cookies
    with ada.tab() as tab, ada.tab() as second:
        buttons: list[Any] = elements(tab.open("events", "month=2026-11"), "download_button")
        saved = next(one.url for one in buttons if one.url)
        later = next(one.deferred_file_id for one in buttons if one.deferred_file_id)
        made = tab.ask_file(later)
        assert elements(second.open("close"), "heading")
        font = next((Path(streamlit.__file__).parent / "static/static/media").glob("*.woff2"))
        assert anyone.http.get(f"/static/media/{font.name}").status_code == 200
        for file in (saved, made):
            assert ada.http.get(file).text.startswith("occurred_at,")
            assert anyone.http.get(file).status_code == 403
            forged = {"cookie": f"_streamlit_user={'x' * 40}"}
            assert anyone.http.get(file, headers=forged).status_code == 403
        ada.sign_out()
        assert tab.ask_file(later) == ""
        shown: list[Any] = elements(second.open("close"), "button")
        assert [one.label for one in shown] == ["Sign in"]
        assert anyone.http.get(saved, headers={"cookie": copied}).status_code == 403
        ada.sign_in()
        assert ada.http.get(saved).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/_stcore/upload_file/{session}/1"),
        ("GET", "/_stcore/metrics"),
        ("GET", "/_stcore/agent/openapi.json"),
    ],
)
def test_no_route_that_no_page_uses_is_open(address: str, method: str, path: str) -> None:
    """Without signing in, 250 MB of files were sent in 7 s, and were kept in memory."""
    anyone, ada = RawVisitor(address), RawVisitor(address)
    ada.sign_in()
    with ada.tab() as tab:
        tab.open("")
        answer = anyone.http.request(
            method,
            path.format(session=tab.session_id),
            files={"file": ("a.bin", b"x")} if method == "PUT" else None,
            headers={"X-Xsrftoken": anyone.http.cookies[FORGERY_COOKIE]},
        )
    assert answer.status_code == 404


def test_a_visitor_cannot_empty_the_caches(address: str, cli: Cli) -> None:
    """700 such messages made every page three times as slow.

    The check of the audit log is kept for five minutes.
    """
    ada, other = RawVisitor(address), RawVisitor(address)
    ada.sign_in()
    other.sign_in()
    with ada.tab() as tab, other.tab() as foreign:
        before = _checked_rows(tab.open("audit"))
        cli.ok("key", "create", "payments")
        foreign.send(BackMsg(clear_cache=True))
        foreign.open("")  # the message before it was read
        assert _checked_rows(tab.open("audit")) == before


def _checked_rows(messages: Sequence[ForwardMsg]) -> str:
    """Return the sentence about the state of the audit log."""
    shown: list[Any] = elements(messages, "alert")
    return str(shown[0].body)
