"""Before any sign-in, 252 WebSockets closed the dashboard for everybody and each run of its first
page cost 45 ms; after it, one person's tabs made everybody else's pages wait.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import ClassVar

import pytest
import uvicorn
from streamlit.proto.BackMsg_pb2 import BackMsg
from websockets.exceptions import InvalidStatus

from dashboard.visitors.connections import SIGNED_IN, LimitedConnection
from dashboard.visitors.person_limits import MOST_TABS, PAGES_AT_ONCE, PageTurns, Tabs, TooManyPages
from tests.attacks.raw_callers import is_ended
from tests.attacks.test_lead_after_the_sign_out import address, cli, cli_at, provider, write
from tests.attacks.test_security_f10_a_page_reads_the_dashboard import AUTH, status
from tests.bare_environment import BARE
from tests.dashboard.raw_visitor import RawVisitor
from tests.gateway_process import free_port
from tests.waiting import eventually

__all__ = ["address", "cli", "cli_at", "provider", "write"]  # fixtures of other tests
FLOOD = 200
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_a_stranger_gets_a_fixed_page_and_no_tab(address: str) -> None:
    """Each tab was a session: memory, four descriptors, and a run of the app's script."""
    anyone, ada = RawVisitor(address), RawVisitor(address)
    for path in ("", "close", "spend?team=payments", "no-such-page"):
        page = anyone.http.get(path)
        assert page.status_code == 200
        assert "Sign in" in page.text
        assert "<script" not in page.text
        assert page.headers["cache-control"] == "no-store"
    for _ in range(3):
        with pytest.raises(InvalidStatus, match="403"), anyone.tab():
            pass
    begun = anyone.http.get("auth/begin")
    assert begun.status_code == 307
    assert begun.headers["location"].startswith("/auth/login?provider=")
    ada.sign_in()
    assert "<script" in ada.http.get("close").text
    with ada.tab() as tab:
        assert tab.open("")
    ada.sign_out()
    assert "<script" not in ada.http.get("close").text
    with pytest.raises(InvalidStatus, match="403"), ada.tab():
        pass


def test_a_person_has_so_many_tabs_and_others_have_theirs(address: str) -> None:
    """A person's tabs end with the person's bound; a closed one makes room."""
    ada = RawVisitor(address)
    ada.sign_in()
    with ExitStack() as stack:
        tabs = [stack.enter_context(ada.tab()) for _ in range(MOST_TABS)]
        with pytest.raises(InvalidStatus, match="403"), ada.tab():
            pass
        tabs[0].send(BackMsg(clear_cache=True))  # it is still open
    eventually(lambda: can_open(ada), "a tab after the others closed")


def can_open(visitor: RawVisitor) -> bool:
    """Return True if a person can open a tab."""
    with contextlib.suppress(InvalidStatus), visitor.tab():
        return True
    return False


def test_tabs_are_counted_by_person() -> None:
    """One person's tabs are not another's."""
    tabs = Tabs()
    assert [tabs.enter("ada") for _ in range(MOST_TABS + 1)] == [True] * MOST_TABS + [False]
    assert tabs.enter("bob")
    tabs.leave("ada")
    assert tabs.enter("ada")


def test_a_persons_pages_take_turns() -> None:
    """Twelve wide pages of one lead at once made a page of finance take 5 to 12 s."""
    turns = PageTurns()
    with ExitStack() as stack:
        for _ in range(PAGES_AT_ONCE):
            stack.enter_context(turns.turn("ada"))
        with pytest.raises(TooManyPages), turns.turn("ada", patience_s=0):
            pass
        with turns.turn("bob", patience_s=0), turns.turn(None, patience_s=0):
            pass
        waits, drawn = threading.Event(), threading.Event()

        def draw() -> None:
            waits.set()
            with turns.turn("ada"):
                drawn.set()

        waiting = threading.Thread(target=draw)
        waiting.start()
        assert waits.wait(60)
        assert not drawn.is_set()
    waiting.join(60)
    assert drawn.is_set()
    with pytest.raises(ValueError, match="page"), turns.turn("ada"):
        raise ValueError("page")  # a page that fails gives its turn back
    assert turns._drawn == {}


class Impatient(LimitedConnection):
    """The dashboard's connection with short deadlines, and few places."""

    unasked: ClassVar[dict[LimitedConnection, None]] = {}
    idle: ClassVar[dict[LimitedConnection, None]] = {}
    unread: ClassVar[dict[LimitedConnection, None]] = {}
    people: ClassVar[dict[LimitedConnection, None]] = {}
    by_address: ClassVar[Counter[str]] = Counter()
    most, request_s, write_s = 8, 0.3, 0.3


class Patient(Impatient):
    """A connection with long deadlines, and few places: four for one address."""

    unasked: ClassVar[dict[LimitedConnection, None]] = {}
    idle: ClassVar[dict[LimitedConnection, None]] = {}
    unread: ClassVar[dict[LimitedConnection, None]] = {}
    people: ClassVar[dict[LimitedConnection, None]] = {}
    by_address: ClassVar[Counter[str]] = Counter()
    request_s, write_s = 60, 60


class OneUnread(Patient):
    """A patient connection, one of which may leave its answer unread."""

    unread: ClassVar[dict[LimitedConnection, None]] = {}
    most, most_unread = 100, 1


@contextmanager
def impatient(connection: type[LimitedConnection] = Impatient) -> Iterator[int]:
    """Yield the port of a server of such connections. The answer to `/` has 16 MB, and `/ada` is
    asked by a signed-in person.
    """

    async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        if scope["path"] == "/ada":
            scope["state"][SIGNED_IN] = True
        size = 16_000_000 if scope["path"] == "/" else 2
        length = (b"content-length", str(size).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": b"x" * size})

    config = uvicorn.Config(
        app,
        http=connection,
        port=free_port(),
        lifespan="off",
        log_level="critical",
        timeout_keep_alive=60,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started, "the server")
        yield config.port
    finally:
        server.should_exit = True
        thread.join(60)


def connected(port: int) -> socket.socket:
    """Return a new connection."""
    return socket.create_connection(("127.0.0.1", port), timeout=30)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        GET[:-2],
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc",
    ],
)
def test_a_request_that_does_not_come_ends_the_connection(sent: bytes) -> None:
    """The library's server waited for it as long as the visitor liked."""
    with impatient() as port, closing(connected(port)) as connection:
        connection.sendall(sent)
        while not is_ended(connection):
            pass


def test_an_answer_that_is_not_read_ends_the_connection() -> None:
    """A large file for each of a thousand visitors who read none of it."""
    with impatient() as port, closing(connected(port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(GET)
        eventually(lambda: not Impatient.by_address, "the end of the unread answer")


def test_at_the_cap_those_that_asked_nothing_make_room() -> None:
    """A flood of idle connections displaces itself, and a visitor is served."""
    with impatient() as port, ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(closing(connected(port)))
        with closing(connected(port)) as visitor:
            visitor.sendall(GET)
            assert visitor.recv(15) == b"HTTP/1.1 200 OK"


def test_answered_connections_of_strangers_make_room(port_of_patient: int) -> None:
    """Each had counted as served, so a few hundred of them were all places."""
    with ExitStack() as stack:
        ada = stack.enter_context(closing(connected(port_of_patient)))
        asked(ada, b"/ada")
        for _ in range(10):
            asked(stack.enter_context(closing(connected(port_of_patient))), b"/small")
        asked(ada, b"/ada")


def test_strangers_who_do_not_read_make_room(port_of_patient: int) -> None:
    """A large file for each place, read by none of them."""
    with ExitStack() as stack:
        ada = stack.enter_context(closing(connected(port_of_patient)))
        asked(ada, b"/ada")
        for _ in range(10):
            unread = stack.enter_context(closing(connected(port_of_patient)))
            unread.sendall(GET)
            eventually(lambda: Patient.unread, "an unread answer")
        asked(stack.enter_context(closing(connected(port_of_patient))), b"/small")
        asked(ada, b"/ada")


def test_few_answers_wait_for_a_stranger() -> None:
    """Each compressed file took 260 KB, also while there were places."""
    with impatient(OneUnread) as port, ExitStack() as stack:
        first, second = (stack.enter_context(closing(connected(port))) for _ in range(2))
        first.sendall(GET)
        eventually(lambda: OneUnread.unread, "an unread answer")
        second.sendall(GET)
        eventually(lambda: OneUnread.by_address.total() == 1, "the end of the first one")
        assert len(OneUnread.unread) == 1


@pytest.fixture
def port_of_patient() -> Iterator[int]:
    """Yield the port of a server of patient connections."""
    with impatient(Patient) as port:
        yield port


def asked(connection: socket.socket, path: bytes) -> None:
    """Ask for a small answer, which must come."""
    connection.sendall(GET.replace(b"/", path, 1))
    answer = HTTPResponse(connection)
    answer.begin()
    assert (answer.status, answer.read()) == (200, b"xx")


def test_the_dashboard_is_served_beside_half_heads_and_idle_strangers(
    database_url: str, tmp_path: Path
) -> None:
    """The real one, with 256 descriptors, uses these connections."""
    port, home = free_port(), tmp_path / "home"
    (home / ".streamlit").mkdir(parents=True)
    (home / ".streamlit" / "secrets.toml").write_text(AUTH)
    (home / ".streamlit" / "secrets.toml").chmod(0o600)
    command = f"ulimit -n 256; exec {sys.executable} -m gateway.main dashboard"
    environment = {
        **BARE,
        "HOME": str(home),
        "TOLLGATE_HOME": str(home),
        "TOLLGATE_DATABASE_URL": database_url,
        "TOLLGATE_DASHBOARD_PORT": str(port),
    }
    with (
        subprocess.Popen(
            ["/bin/sh", "-c", command],
            env=environment,
            cwd=Path(__file__).parents[2],
            stderr=subprocess.DEVNULL,
        ) as process,
        ExitStack() as stack,
    ):
        try:
            eventually(
                lambda: status(port, "/_stcore/health", "localhost") == 200,
                "the dashboard",
                within_s=120,
            )
            for number in range(FLOOD):
                half = stack.enter_context(closing(connected(port)))
                with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                    half.sendall(GET[:20] if number % 2 else GET)
            assert status(port, "/", "localhost") == 200
        finally:
            process.terminate()
