"""Access tokens for Azure OpenAI, from token hosts on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gateway.domain.policy.policy import AMBIENT, Deployment
from gateway.errors import UpstreamAuth
from gateway.providers.access_tokens.renewal import REFUSED_S
from gateway.providers.azure import azure_tokens
from gateway.providers.azure.azure_openai import AzureOpenAI
from gateway.providers.azure.azure_tokens import AzureTokens
from tests import factories
from tests.factories import NOW
from tests.token_host import Seconds, TokenHost, listening

RESOURCE = "https://cognitiveservices.azure.com"
VARIABLES = (
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_TENANT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_AUTHORITY_HOST",
    "AZURE_POD_IDENTITY_AUTHORITY_HOST",
    "IDENTITY_ENDPOINT",
    "IDENTITY_HEADER",
)


@pytest.fixture(autouse=True)
def no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the variables: a developer's machine may have them."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def host() -> Iterator[TokenHost]:
    with listening() as one:
        yield one


def root(host: TokenHost) -> str:
    return host.url.removesuffix("/token")


def tokens_of(host: TokenHost, clock: Seconds | None = None, **seams: Any) -> AzureTokens:
    return AzureTokens(
        lambda: NOW,
        imds_host=root(host),
        authorities={root(host)},
        clock_s=clock or Seconds(),
        **seams,
    )


def azure(base_url: str = "https://one.openai.azure.com/openai/v1") -> Deployment:
    return factories.deployment(provider="azure_openai", base_url=base_url, credentials=AMBIENT)


def asked(host: TokenHost) -> tuple[str, dict[str, list[str]], dict[str, str]]:
    """Return path, query and headers of the only request."""
    [(target, headers, _)] = host.seen
    parts = urlsplit(target)
    return parts.path, parse_qs(parts.query), {name.lower(): v for name, v in headers.items()}


async def refused(tokens: AzureTokens, one: Deployment | None = None) -> str:
    """Return the message of a token that cannot be had."""
    with pytest.raises(UpstreamAuth) as problem:
        await tokens.token(one or azure())
    return str(problem.value)


def test_only_microsofts_hosts_get_a_statement() -> None:
    """Every address that the code itself names."""
    assert azure_tokens.IMDS_HOST == "http://169.254.169.254"
    assert {urlsplit(one).hostname for one in azure_tokens.AUTHORITIES} == {
        "login.microsoftonline.com",
        "login.microsoftonline.us",
        "login.chinacloudapi.cn",
    }
    assert all(one.startswith("https://") for one in azure_tokens.AUTHORITIES)


async def test_the_machines_own_identity(host: TokenHost) -> None:
    """The documented request; numbers of the metadata server's answer are text."""
    body = {"access_token": "eyJ.a", "expires_in": "86399", "expires_on": "1795700000"}
    host.answers.append((200, json.dumps(body).encode()))
    tokens = tokens_of(host)
    assert [await tokens.token(azure()) for _ in range(3)] == ["eyJ.a"] * 3
    path, query, headers = asked(host)
    assert path == "/metadata/identity/oauth2/token"
    assert query == {"api-version": ["2018-02-01"], "resource": [RESOURCE]}
    assert headers["metadata"] == "true"


async def test_one_of_several_identities_is_named(
    host: TokenHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with several refuses a request that names none."""
    monkeypatch.setenv("AZURE_CLIENT_ID", "id-1")
    host.grant("t")
    assert await tokens_of(host).token(azure()) == "t"
    assert asked(host)[1]["client_id"] == ["id-1"]


async def test_app_service(host: TokenHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """It states the token's end alone, as text, and wants its own secret."""
    monkeypatch.setenv("IDENTITY_ENDPOINT", host.url)
    monkeypatch.setenv("IDENTITY_HEADER", "secret-1")
    ends_s, clock = int(NOW.timestamp()) + 700, Seconds()
    body = {"access_token": "t", "expires_on": str(ends_s), "token_type": "Bearer"}
    host.otherwise = (200, json.dumps(body).encode())
    tokens = tokens_of(host, clock)
    assert await tokens.token(azure()) == "t"
    path, query, headers = asked(host)
    assert path == "/token"
    assert query == {"api-version": ["2019-08-01"], "resource": [RESOURCE]}
    assert headers["x-identity-header"] == "secret-1"
    clock.now_s += 99
    assert await tokens.token(azure()) == "t"
    assert len(host.seen) == 1
    clock.now_s += 650
    assert await tokens.token(azure()) == "t"
    assert len(host.seen) == 2


async def test_a_workload_identity(
    host: TokenHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The platform's statement is exchanged at an authority; the file is read at each exchange."""
    (tmp_path / "statement").write_text("first\n")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "statement"))
    monkeypatch.setenv("AZURE_TENANT_ID", "tenant-1")
    monkeypatch.setenv("AZURE_CLIENT_ID", "id-1")
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", root(host) + "/")
    host.grant("one", 3599)
    clock = Seconds()
    tokens = tokens_of(host, clock)
    assert await tokens.token(azure()) == "one"
    [(path, headers, body)] = host.seen
    assert path == "/tenant-1/oauth2/v2.0/token"
    assert headers["content-type"] == "application/x-www-form-urlencoded"
    assert parse_qs(body.decode()) == {
        "grant_type": ["client_credentials"],
        "client_id": ["id-1"],
        "client_assertion_type": ["urn:ietf:params:oauth:client-assertion-type:jwt-bearer"],
        "client_assertion": ["first"],
        "scope": [f"{RESOURCE}/.default"],
    }
    (tmp_path / "statement").write_text("second")
    clock.now_s += 3600
    host.grant("two")
    assert await tokens.token(azure()) == "two"
    assert parse_qs(host.seen[1][2].decode())["client_assertion"] == ["second"]


@pytest.mark.parametrize(
    ("base_url", "resource"),
    [
        ("https://one.openai.azure.us/openai/v1", "https://cognitiveservices.azure.us"),
        ("https://one.openai.azure.cn/openai/v1", "https://cognitiveservices.azure.cn"),
        ("https://llm.example/openai/v1", RESOURCE),
    ],
)
async def test_each_cloud_has_its_own_tokens(host: TokenHost, base_url: str, resource: str) -> None:
    """A token of one cloud is refused in another."""
    host.grant("public")
    host.grant("other")
    tokens = tokens_of(host)
    first = await tokens.token(azure())
    second = await tokens.token(azure(base_url))
    assert (first, second == first) == ("public", resource == RESOURCE)
    query = urlsplit(host.seen[-1][0]).query
    assert parse_qs(query)["resource"] == [resource]


async def test_a_token_is_renewed_while_it_is_valid(host: TokenHost) -> None:
    """No request waits for the renewal, also of one that fails; one without a valid token does."""
    clock = Seconds()
    tokens = tokens_of(host, clock)
    host.grant("first")
    assert await tokens.token(azure()) == "first"
    clock.now_s += 3100
    host.may_answer.clear()
    assert await tokens.token(azure()) == "first"
    host.may_answer.set()  # a 500
    async with asyncio.timeout(10):
        while len(host.seen) < 2:  # noqa: ASYNC110 - it waits for a thread
            await asyncio.sleep(0.001)
    clock.now_s += 100
    host.grant("second")
    async with asyncio.timeout(10):
        while await tokens.token(azure()) == "first":
            await asyncio.sleep(0.001)
            clock.now_s += 0.1
    clock.now_s += 3600
    host.grant("third")
    assert await tokens.token(azure()) == "third"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((500, b'{"error":"internal"}'), "HTTP 500, internal"),
        ((400, b'{"error":"invalid_request","error_description":"x"}'), "400, invalid_request"),
        ((200, b"<html><body>Sign in</body></html>"), "got no access token from 127.0.0.1"),
        ((502, b"<html></html>"), "HTTP 502"),
        ((200, b'{"access_token":"a\\r\\nx: y","expires_in":"99"}'), "got no access token"),
        ((200, b'{"access_token":"","expires_in":"99"}'), "got no access token"),
        ((200, b'{"access_token":"a"}'), "got no access token"),
        ((200, b'{"access_token":"a","expires_on":"1/1/2027 0:00:00 AM"}'), "got no access token"),
        ((200, b'["a"]'), "got no access token"),
        ((200, b" " * 70_000), "more than"),
    ],
)
async def test_answers_that_hold_no_token(
    host: TokenHost, answer: tuple[int, bytes], reason: str
) -> None:
    """Whatever the host sends, the request is refused with a reason, and soon tried again."""
    clock = Seconds()
    tokens = tokens_of(host, clock)
    host.answers.append(answer)
    for _ in range(2):
        message = await refused(tokens)
        assert reason in message
        assert "The credential ambient of deployment" in message
    assert len(host.seen) == 1
    clock.now_s += 6
    host.grant("t")
    assert await tokens.token(azure()) == "t"


async def test_a_redirect_is_not_followed(host: TokenHost) -> None:
    """An answer must not choose the host that gets the secret header."""
    with listening() as other:
        other.grant("stolen")
        host.location, host.otherwise = other.url, (302, b"")
        assert "HTTP 302" in await refused(tokens_of(host))
        assert other.seen == []


async def test_a_host_that_never_answers(host: TokenHost) -> None:
    """Its time is bounded, and so is that of a host that refuses the connection."""
    host.may_answer.clear()
    message = await refused(tokens_of(host, timeout_s=0.05))
    host.may_answer.set()
    assert "127.0.0.1 does not answer" in message
    closed = AzureTokens(lambda: NOW, imds_host="http://127.0.0.1:9")
    assert "127.0.0.1 does not answer" in await refused(closed)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"IDENTITY_ENDPOINT": "HOST"}, "without IDENTITY_HEADER"),
        ({"IDENTITY_ENDPOINT": "http://evil.example/", "IDENTITY_HEADER": "s"}, "no local http"),
        ({"IDENTITY_ENDPOINT": "http://8.8.8.8/", "IDENTITY_HEADER": "s"}, "no local http"),
        ({"IDENTITY_ENDPOINT": "http://u@127.0.0.1/", "IDENTITY_HEADER": "s"}, "no local http"),
        ({"IDENTITY_ENDPOINT": "http://[", "IDENTITY_HEADER": "s"}, "no local http"),
        ({"AZURE_POD_IDENTITY_AUTHORITY_HOST": "http://evil.example"}, "no local http"),
        ({"IDENTITY_ENDPOINT": "HOST", "IDENTITY_HEADER": "a\nb"}, "does not answer"),
        ({"AZURE_FEDERATED_TOKEN_FILE": "FILE"}, "without AZURE_CLIENT_ID"),
        (
            {
                "AZURE_FEDERATED_TOKEN_FILE": "FILE",
                "AZURE_CLIENT_ID": "i",
                "AZURE_TENANT_ID": "a/b",
            },
            "valid AZURE_TENANT_ID",
        ),
        (
            {
                "AZURE_FEDERATED_TOKEN_FILE": "FILE",
                "AZURE_CLIENT_ID": "i",
                "AZURE_TENANT_ID": "t",
                "AZURE_AUTHORITY_HOST": "https://evil.example",
            },
            "none of Microsoft's",
        ),
        (
            {
                "AZURE_FEDERATED_TOKEN_FILE": "/does/not/exist",
                "AZURE_CLIENT_ID": "i",
                "AZURE_TENANT_ID": "t",
                "AZURE_AUTHORITY_HOST": "HOST",
            },
            "cannot be read",
        ),
    ],
)
async def test_an_environment_that_cannot_be_used_sends_nothing(
    host: TokenHost,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    reason: str,
) -> None:
    """Neither a statement nor a secret goes to a host that the platform would not name."""
    (tmp_path / "statement").write_text("statement")
    places = {"HOST": root(host), "FILE": str(tmp_path / "statement")}
    for name, value in variables.items():
        monkeypatch.setenv(name, places.get(value, value))
    message = await refused(tokens_of(host))
    assert reason in message
    assert host.seen == []


def test_an_identity_shows_no_secret() -> None:
    """A traceback prints the locals of its frames."""
    shown = repr(azure_tokens._identity({"IDENTITY_HEADER": "secret-1"}))
    assert "secret-1" not in shown


async def test_a_refused_token_is_not_sent_again(host: TokenHost) -> None:
    """A machine that slept ends a token early. A key that is refused drops no token."""
    clock = Seconds()
    tokens = tokens_of(host, clock)
    adapter = AzureOpenAI(tokens)
    host.grant("one")
    host.grant("two")
    assert await tokens.token(azure()) == "one"
    clock.now_s += REFUSED_S
    adapter.error(replace(azure(), credentials=None), 401, {}, body=b"{}")
    assert await tokens.token(azure()) == "one"
    assert type(adapter.error(azure(), 401, {}, body=b"{}")) is UpstreamAuth
    assert await tokens.token(azure()) == "two"
