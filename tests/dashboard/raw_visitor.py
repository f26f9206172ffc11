"""A visitor of a dashboard without a browser: sends any message over its WebSocket, also those that
no page offers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx2
from joserfc import jwt
from joserfc.jwk import OctKey
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME
from websockets.sync.client import ClientConnection, connect

from tests import plain_http
from tests.deploy.openid_provider import COOKIE_SECRET

ANSWER_S = 60
FORGERY_COOKIE = "_streamlit_xsrf"  # every visitor has one, signed in or not


def signed_in_cookie(cookie_secret: str) -> str:
    """Return the cookie of a sign-in, as Streamlit signs it with this secret."""
    claims = json.dumps({"is_logged_in": True, "iat": time.time(), "iss": "x", "sub": "ada"})
    signed = create_signed_value(cookie_secret, USER_COOKIE_NAME, claims).decode()
    return f"{USER_COOKIE_NAME}={signed}"


class RawVisitor:
    """A visitor with the cookies of one browser."""

    def __init__(self, address: str) -> None:
        """Visit a dashboard at its address without signing in."""
        self._address = address.rstrip("/")
        self.http = httpx2.Client(
            verify=plain_http.NO_CERTIFICATES,
            base_url=self._address,
            timeout=ANSWER_S,
            trust_env=False,
        )
        self.http.get("/_stcore/health")  # sets the cookie against forgery

    def sign_in(self) -> None:
        """Go through the provider, as the button does."""
        button = {"provider": "default", "exp": int(time.time()) + 60}
        token = jwt.encode({"alg": "HS256"}, button, OctKey.import_key(COOKIE_SECRET))
        self.http.get("/auth/login", params={"provider": token}, follow_redirects=True)

    def sign_out(self) -> None:
        """Do what the button does."""
        self.http.get("/auth/logout", follow_redirects=True)

    @property
    def cookies(self) -> str:
        """The cookies, as a copy of them would be sent."""
        return "; ".join(f"{each.name}={each.value}" for each in self.http.cookies.jar)

    @contextmanager
    def tab(self) -> Iterator[RawTab]:
        """Open a tab."""
        with connect(
            f"ws://{urlsplit(self._address).netloc}/_stcore/stream",
            additional_headers={"Cookie": self.cookies},
            subprotocols=["streamlit", self.http.cookies[FORGERY_COOKIE]],  # type: ignore[list-item]  # texts are what it takes
            origin=self._address,  # type: ignore[arg-type]
            max_size=None,
        ) as connection:
            yield RawTab(connection)


class RawTab:
    """A session of a visitor: what a browser's tab is to Streamlit."""

    def __init__(self, connection: ClientConnection) -> None:
        """Use an open WebSocket."""
        self._connection = connection
        self.session_id = ""

    def open(self, page: str, query: str = "") -> Sequence[ForwardMsg]:
        """Run a page; return its messages."""
        asked = BackMsg()
        asked.rerun_script.page_name, asked.rerun_script.query_string = page, query
        self.send(asked)
        found = []
        while not found or found[-1].WhichOneof("type") != "script_finished":
            found.append(self._receive())
            if found[-1].WhichOneof("type") == "new_session":
                self.session_id = found[-1].new_session.initialize.session_id
        return found

    def ask_file(self, file_id: str) -> str:
        """Press a button whose file is made now; return the file's address, empty if refused."""
        asked = BackMsg()
        operation = asked.backend_operation_request
        operation.request_id, operation.session_id = "r1", self.session_id
        operation.deferred_file.file_id = file_id
        self.send(asked)
        while (answer := self._receive()).WhichOneof("type") != "backend_operation_response":
            pass
        return answer.backend_operation_response.deferred_file.url

    def send(self, message: BackMsg) -> None:
        """Send any message."""
        self._connection.send(message.SerializeToString())

    def _receive(self) -> ForwardMsg:
        """Return the next message."""
        message = ForwardMsg()
        message.ParseFromString(self._connection.recv(ANSWER_S))
        return message


def elements(messages: Sequence[ForwardMsg], kind: str) -> list[object]:
    """Return the elements of a kind, as `download_button`, that messages put onto a page."""
    shown = [m.delta.new_element for m in messages if m.WhichOneof("type") == "delta"]
    return [getattr(one, kind) for one in shown if one.WhichOneof("type") == kind]
