"""Access tokens for Vertex AI, from a token host on a real socket."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15

from gateway.domain.policy.policy import AMBIENT, Deployment
from gateway.errors import UpstreamAuth
from gateway.providers.access_tokens.renewal import REFUSED_S
from gateway.providers.google.gemini import Vertex
from gateway.providers.google.google_tokens import GoogleTokens
from tests import factories
from tests.factories import NOW
from tests.token_host import Seconds, TokenHost, listening

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: Any) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


@pytest.fixture
def host() -> Iterator[TokenHost]:
    with listening() as one:
        yield one


def tokens_of(host: TokenHost, clock: Seconds | None = None) -> GoogleTokens:
    return GoogleTokens(
        lambda: NOW,
        token_url=host.url,
        sts_url=host.url,
        metadata_url=host.url + "/default",
        clock_s=clock or Seconds(),
    )


def account(host: TokenHost, **changes: Any) -> dict[str, Any]:
    return {
        "type": "service_account",
        "client_email": "bot@p.iam.gserviceaccount.com",
        "private_key_id": "k1",
        "private_key": pem(KEY),
        "token_uri": host.url,
    } | changes


def vertex(tmp_path: Path, content: Any) -> Deployment:
    path = tmp_path / "key.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return factories.deployment(provider="vertex", api_key=f"file:{path}")


def decoded(part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=="))
    return found


async def test_a_key_signs_for_a_token(host: TokenHost, tmp_path: Path) -> None:
    """The statement has Google's claims, and its signature is the account's."""
    host.grant("ya29.one")
    tokens = tokens_of(host)
    one = vertex(tmp_path, account(host))
    assert [await tokens.token(one) for _ in range(2)] == ["ya29.one"] * 2
    [(path, headers, body)] = host.seen
    form = parse_qs(body.decode())
    assert path == "/token"
    assert headers["content-type"] == "application/x-www-form-urlencoded"
    assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    head, claims, signature = form["assertion"][0].split(".")
    assert decoded(head) == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    issued_s = int(NOW.timestamp())
    assert decoded(claims) == {
        "iss": "bot@p.iam.gserviceaccount.com",
        "scope": "https://www.googleapis.com/auth/cloud-platform",
        "aud": host.url,
        "iat": issued_s,
        "exp": issued_s + 3600,
    }
    KEY.public_key().verify(
        base64.urlsafe_b64decode(signature + "=="),
        f"{head}.{claims}".encode(),
        PKCS1v15(),
        hashes.SHA256(),
    )


async def test_many_requests_make_one_exchange(host: TokenHost, tmp_path: Path) -> None:
    """And one that leaves does not end it for the others."""
    host.may_answer.clear()
    host.grant("t")
    tokens, one = tokens_of(host), vertex(tmp_path, account(host))
    waiting = [asyncio.create_task(tokens.token(one)) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    host.may_answer.set()
    assert await asyncio.gather(*waiting[1:]) == ["t"] * 4
    assert len(host.seen) == 1


async def test_a_token_is_renewed_while_it_is_valid(host: TokenHost, tmp_path: Path) -> None:
    """No request waits for the renewal; one with an ended token does."""
    clock = Seconds()
    tokens, one = tokens_of(host, clock), vertex(tmp_path, account(host))
    host.grant("first")
    assert await tokens.token(one) == "first"
    clock.now_s += 3100
    host.grant("second")
    assert await tokens.token(one) == "first"
    async with asyncio.timeout(10):
        while await tokens.token(one) == "first":  # noqa: ASYNC110 - it waits for a thread
            await asyncio.sleep(0.001)
    clock.now_s += 3600
    host.grant("third")
    assert await tokens.token(one) == "third"
    assert len(host.seen) == 3


async def test_a_failed_renewal_is_tried_again_later(host: TokenHost, tmp_path: Path) -> None:
    """A valid token is used on; without one the request is refused, with the reference alone."""
    clock = Seconds()
    tokens, one = tokens_of(host, clock), vertex(tmp_path, account(host))
    host.answers.append((401, b'{"error":"invalid_grant","error_description":"secret"}'))
    for _ in range(2):
        with pytest.raises(UpstreamAuth, match="invalid_grant") as refused:
            await tokens.token(one)
        assert str(one.api_key) in str(refused.value)
        assert "secret" not in str(refused.value)
    assert len(host.seen) == 1
    clock.now_s += 6
    host.grant("t")
    assert await tokens.token(one) == "t"


async def test_a_token_that_ends_soon_is_not_fetched_for_each_request(
    host: TokenHost, tmp_path: Path
) -> None:
    """A metadata server answers from its own cache: the same token, again and again, near its
    end.
    """
    clock = Seconds()
    tokens, one = tokens_of(host, clock), vertex(tmp_path, account(host))
    host.grant("short", 300)
    assert [await tokens.token(one) for _ in range(5)] == ["short"] * 5
    assert len(host.seen) == 1
    clock.now_s += 6
    host.grant("next", 300)
    assert await tokens.token(one) == "short"
    async with asyncio.timeout(10):
        while await tokens.token(one) == "short":  # noqa: ASYNC110 - it waits for a thread
            await asyncio.sleep(0.001)
    assert len(host.seen) == 2


async def test_the_machines_own_identity(host: TokenHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """`credentials: ambient` asks the metadata server with its header."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    host.grant("own....")
    one = factories.deployment(provider="vertex", credentials=AMBIENT)
    assert await tokens_of(host).token(one) == "own"
    [(path, headers, _)] = host.seen
    assert path == "/token/default"
    assert headers["metadata-flavor"] == "Google"


@pytest.mark.parametrize(
    ("content", "form"),
    [
        ("statement", None),
        ('{"token":"statement"}', {"type": "json", "subject_token_field_name": "token"}),
    ],
)
async def test_a_workload_identity(
    host: TokenHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, form: Any
) -> None:
    """The platform's statement is exchanged at Google's token service."""
    (tmp_path / "statement").write_text(content)
    source = {"file": str(tmp_path / "statement")} | ({"format": form} if form else {})
    identity = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/pool",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": host.url,
        "credential_source": source,
    }
    (tmp_path / "identity.json").write_text(json.dumps(identity))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "identity.json"))
    host.grant("federated")
    one = factories.deployment(provider="vertex", credentials=AMBIENT)
    assert await tokens_of(host).token(one) == "federated"
    assert parse_qs(host.seen[0][2].decode()) == {
        "grant_type": ["urn:ietf:params:oauth:grant-type:token-exchange"],
        "audience": ["//iam.googleapis.com/pool"],
        "scope": ["https://www.googleapis.com/auth/cloud-platform"],
        "requested_token_type": ["urn:ietf:params:oauth:token-type:access_token"],
        "subject_token_type": ["urn:ietf:params:oauth:token-type:jwt"],
        "subject_token": ["statement"],
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token_uri": "https://evil.example/token"}, "another token host"),
        ({"private_key": "no key"}, "no readable private key"),
        ({"private_key": pem(ec.generate_private_key(ec.SECP256R1()))}, "not RSA"),
        ({"type": "authorized_user"}, "neither"),
        ({"type": "external_account", "token_url": "https://evil.example"}, "another token host"),
        (
            {
                "type": "external_account",
                "token_url": "HOST",
                "service_account_impersonation_url": "https://evil.example/",
            },
            "another token host",
        ),
        ({"type": "external_account", "token_url": "HOST"}, "not in a file"),
        (
            {
                "type": "external_account",
                "token_url": "HOST",
                "credential_source": {"file": "KEY", "format": {"type": "json"}},
            },
            "has no statement",
        ),
    ],
)
async def test_a_key_that_cannot_be_used_sends_nothing(
    host: TokenHost, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    """Only Google's hosts get a signed statement."""
    path = str(tmp_path / "key.json")
    text = (
        json.dumps(account(host, **changes)).replace("HOST", host.url).replace('KEY"', f'{path}"')
    )
    with pytest.raises(UpstreamAuth, match=reason):
        await tokens_of(host).token(vertex(tmp_path, text))
    assert host.seen == []


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (200, b"{}", "got no access token"),
        (200, b"[", "got no access token"),
        (200, b'{"access_token":"a\\nb","expires_in":5}', "got no access token"),
        (302, b"", "HTTP 302"),
        (200, b" " * 70_000, "more than"),
    ],
)
async def test_answers_that_hold_no_token(
    host: TokenHost, tmp_path: Path, status: int, answer: bytes, reason: str
) -> None:
    """Whatever the host sends, the request is refused with a reason."""
    host.answers.append((status, answer))
    with pytest.raises(UpstreamAuth, match=reason):
        await tokens_of(host).token(vertex(tmp_path, account(host)))


async def test_a_host_that_does_not_answer(host: TokenHost, tmp_path: Path) -> None:
    """Refused by name, and a missing file too."""
    tokens = GoogleTokens(lambda: NOW, token_url="http://127.0.0.1:9/token")
    with pytest.raises(UpstreamAuth, match=r"127\.0\.0\.1 does not answer"):
        await tokens.token(vertex(tmp_path, account(host, token_uri="http://127.0.0.1:9/token")))
    with pytest.raises(UpstreamAuth, match="cannot be read"):
        await tokens.token(factories.deployment(api_key="file:/does/not/exist"))
    with pytest.raises(UpstreamAuth, match="in JSON"):
        await tokens.token(vertex(tmp_path, "no json"))


async def test_a_refused_token_is_exchanged_for_another(host: TokenHost, tmp_path: Path) -> None:
    """It would be sent for the rest of its hour. A new one that is refused too stays for a minute:
    its account is at fault, and the token host must not be asked by each request.
    """
    clock = Seconds()
    tokens = tokens_of(host, clock)
    adapter, one = Vertex(tokens), vertex(tmp_path, account(host))
    host.grant("ya29.one")
    host.grant("ya29.two")
    assert await tokens.token(one) == "ya29.one"
    clock.now_s += REFUSED_S
    for _ in range(3):
        error = adapter.error(one, 401, {}, body=b"{}")
        assert type(error) is UpstreamAuth
        assert await tokens.token(one) == "ya29.two"
    assert len(host.seen) == 2
    clock.now_s += REFUSED_S
    adapter.error(one, 403, {}, body=b"{}")
    assert await tokens.token(one) == "ya29.two"
