"""Google's token host on this machine: it takes the statements of one service account, under TLS.

The gateway calls the host's public name and no other, so its processes find the name at this
address: `resolver/sitecustomize.py` is their substitute for a line in `/etc/hosts`.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15

NAME = "oauth2.googleapis.com"
ADDRESS = "127.86.84.1"  # nothing else on this machine listens there
TOKEN_URL = f"https://{NAME}/token"
ACCOUNT = "chaos@project.iam.gserviceaccount.com"
LIFETIME_S = 3599


class TokenHost:
    """The host, as a context manager. `granted` counts the tokens that it gave, `refused` the
    statements that it did not believe. `variables` are for the gateway's processes.
    """

    def __init__(self, folder: Path) -> None:
        self.granted = self.refused = 0
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        trusted, own = folder / "token-host.pem", folder / "token-host-key.pem"
        trusted.write_bytes(_certificate(self._key).public_bytes(serialization.Encoding.PEM))
        own.write_text(_pem(self._key))
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status, answer = host.answer(body.decode())
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer((ADDRESS, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(trusted, own)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,))
        account = {
            "type": "service_account",
            "client_email": ACCOUNT,
            "private_key_id": "k1",
            "private_key": _pem(self._key),
            "token_uri": TOKEN_URL,
        }
        self.variables = {
            "FAKE_GOOGLE_KEY": json.dumps(account),
            "SSL_CERT_FILE": str(trusted),
            "PYTHONPATH": str(Path(__file__).parent / "resolver"),
            "CHAOS_TOKEN_HOST": f"{NAME}:{ADDRESS}:{self._server.server_port}",
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, form: str) -> tuple[int, dict[str, Any]]:
        """Return status and body for the form of a request (RFC 7523)."""
        (statement,) = parse_qs(form).get("assertion", [""])
        signed, _, signature = statement.rpartition(".")
        try:
            self._key.public_key().verify(
                _bytes(signature), signed.encode(), PKCS1v15(), hashes.SHA256()
            )
            claims = json.loads(_bytes(signed.partition(".")[2]))
        except (InvalidSignature, ValueError):
            claims = {}
        now_s = datetime.now(UTC).timestamp()
        is_ours = (claims.get("iss"), claims.get("aud")) == (ACCOUNT, TOKEN_URL)
        if not is_ours or not claims["iat"] - 60 <= now_s <= claims["exp"]:
            self.refused += 1
            return 400, {"error": "invalid_grant"}
        self.granted += 1
        return 200, {"access_token": f"ya29.{self.granted}", "expires_in": LIFETIME_S}


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def _pem(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _certificate(key: rsa.RSAPrivateKey) -> x509.Certificate:
    """Return a certificate of a day for the host's name, signed by itself."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1))
    builder = builder.not_valid_after(now + timedelta(days=1))
    named = x509.SubjectAlternativeName([x509.DNSName(NAME)])
    builder = builder.add_extension(named, critical=False)
    return builder.sign(key, hashes.SHA256())
