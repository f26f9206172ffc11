"""An OpenID provider of the tests, on this machine: everybody is ada, with the chosen groups."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

COOKIE_SECRET = "c" * 40
CLIENT, SECRET = "tollgate", "client-secret"
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})


class SignInServer(ThreadingHTTPServer):
    """A running provider. The next person who signs in has its `groups`."""

    def __init__(self, groups: Sequence[str]) -> None:
        """Listen on a free port of this machine."""
        super().__init__(("127.0.0.1", 0), Provider)
        self.groups = groups

    @property
    def address(self) -> str:
        """The provider's address, which is its name in tokens too."""
        return f"http://127.0.0.1:{self.server_port}"


class Provider(BaseHTTPRequestHandler):
    """Whoever comes is ada. The code carries the nonce that must come back in the token."""

    server: SignInServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        given = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/.well-known/openid-configuration":
            self._answer(
                {
                    "issuer": self._issuer,
                    "authorization_endpoint": f"{self._issuer}/authorize",
                    "token_endpoint": f"{self._issuer}/token",
                    "jwks_uri": f"{self._issuer}/keys",
                    "id_token_signing_alg_values_supported": ["RS256"],
                }
            )
        elif url.path == "/authorize":
            back = urlencode({"code": given.get("nonce", "none"), "state": given["state"]})
            self.send_response(302)
            self.send_header("location", f"{given['redirect_uri']}?{back}")
            self.end_headers()
        else:
            self._answer(KeySet([KEY]).as_dict(private=False))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        code = parse_qs(body)["code"][0]
        now_s = int(time.time())
        claims: dict[str, Any] = {
            "iss": self._issuer,
            "aud": CLIENT,
            "sub": "ada",
            "email": "ada@example.org",
            "groups": list(self.server.groups),
        }
        claims |= {"iat": now_s, "exp": now_s + 600, "nonce": code}
        token = jwt.encode({"alg": "RS256", "kid": "one"}, claims, KEY)
        self._answer(
            {"access_token": "a", "token_type": "Bearer", "expires_in": 600, "id_token": token}
        )

    @property
    def _issuer(self) -> str:
        return self.server.address

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@contextmanager
def sign_in_server(groups: Sequence[str] = ("finops",)) -> Iterator[SignInServer]:
    """Run a provider."""
    server = SignInServer(groups)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_secrets(home: Path, *, dashboard_port: int, provider: str) -> None:
    """Write Streamlit's secrets into a home: a dashboard at this port signs in at the provider."""
    folder = home / ".streamlit"
    folder.mkdir(exist_ok=True)
    (folder / "secrets.toml").touch(mode=0o600)
    (folder / "secrets.toml").write_text(
        f'[auth]\nredirect_uri = "http://127.0.0.1:{dashboard_port}/oauth2callback"\n'
        f'cookie_secret = "{COOKIE_SECRET}"\n'
        f'client_id = "{CLIENT}"\nclient_secret = "{SECRET}"\n'
        f'server_metadata_url = "{provider}/.well-known/openid-configuration"\n'
    )
