"""Endpoints of other APIs that are not offered: 404 in the shape of their dialect, with the
endpoint to use instead. And the gateway's own first page.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from gateway import __version__
from gateway.api.plain.probes import DOCS_URL
from gateway.api.routes import ENDPOINTS
from tests import plain_http
from tests.gateway_process import Gateway

ROOT = Path(__file__).parents[3]
LISTED = Path(__file__).with_name("openai_endpoints.txt").read_text(encoding="utf-8")
OPENAI = [tuple(line.split()) for line in LISTED.splitlines() if not line.startswith("#")]
OFFERED = {(one.method, one.path) for one in ENDPOINTS}
PATTERNS = [
    (one.method, re.compile(re.sub(r"\{\w+\}", "[^/]+", one.path.replace(".", r"\."))))
    for one in ENDPOINTS
]
NAMED = re.compile(r"\b(GET|POST|HEAD|DELETE) (/[\w/{}.-]*)")
GEMINI = [
    "/v1beta/models/gemini-pro:generateContent",
    "/v1beta/models/gemini-pro:streamGenerateContent",
    "/v1beta/models/embed:embedContent",
    "/v1beta/models/embed:batchEmbedContents",
    "/v1beta/models/embed:asyncBatchEmbedContent",
    "/v1beta/models/gemini-pro:countTokens",
    "/v1beta/models",
    "/v1beta/cachedContents",
    "/v1beta1/publishers/google/models/gemini-pro:generateContent",
    "/v1/models/gemini-pro:generateContent",
    "/v1/models/gemini-pro:streamGenerateContent",
    "/v1/models/embed:embedContent",
    "/v1/projects/p/locations/eu/publishers/google/models/gemini-pro:generateContent",
]
OLLAMA = [
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("POST", "/api/embed"),
    ("POST", "/api/embeddings"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
    ("POST", "/api/show"),
    ("GET", "/api/version"),
    ("POST", "/api/pull"),
    ("POST", "/api/push"),
    ("POST", "/api/create"),
    ("POST", "/api/copy"),
    ("DELETE", "/api/delete"),
    ("HEAD", "/api/blobs/sha256:0"),
]


def named_endpoint(message: str) -> str:
    """Return the first offered endpoint that a message names after the refused one, before the list
    of all of them.
    """
    hint = message.partition(" is not offered")[2].partition(" Offered: ")[0]
    found = NAMED.search(hint)
    assert found is not None, message
    method, path = found.groups()
    path = path.rstrip(".")
    assert (method, path) in OFFERED or path.startswith("/v1/models/"), message
    return f"{method} {path}"


def is_offered(method: str, path: str) -> bool:
    """Return True if the gateway's table has a method and path."""
    return any(method == own and pattern.fullmatch(path) for own, pattern in PATTERNS)


def test_each_endpoint_of_openai_is_offered_or_says_what_is(http: httpx2.Client) -> None:
    """The list is OpenAI's own description: an SDK's method must not end in a puzzle."""
    asked = [(method, "/v1" + re.sub(r"\{\w+\}", "x-1", path)) for method, path in OPENAI]
    others = [one for one in asked if not is_offered(*one)]
    assert len(others) > 250
    for method, path in others:
        answer = http.request(method, path)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (404, "not_supported")
        assert set(error) == {"message", "type", "param", "code"}
        named_endpoint(error["message"])


@pytest.mark.parametrize("path", GEMINI)
def test_geminis_paths_get_googles_error(http: httpx2.Client, path: str) -> None:
    """Its SDKs read `error.status`."""
    answer = http.post(path)
    body = answer.json()
    assert answer.status_code == 404
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "status"}
    assert (body["error"]["code"], body["error"]["status"]) == (404, "NOT_FOUND")
    wanted = "/v1/embeddings" if "mbed" in path else "/v1/"
    assert wanted in named_endpoint(body["error"]["message"])


@pytest.mark.parametrize(("method", "path"), OLLAMA)
def test_ollamas_paths_get_its_error(http: httpx2.Client, method: str, path: str) -> None:
    """Its clients print `error` as it is."""
    answer = http.request(method, path)
    assert answer.status_code == 404
    assert answer.headers["x-should-retry"] == "false"
    if method == "HEAD":
        assert answer.content == b""
        return
    body = answer.json()
    assert set(body) == {"error"}
    assert named_endpoint(body["error"])


def test_an_unknown_path_needs_no_key_and_ends_its_connection(gateway: Gateway) -> None:
    """As before: nothing is looked up for it, and a flood of such requests keeps no connection."""
    for path in ("/v1/files", "/v1beta/models/x:generateContent", "/api/chat"):
        answer = plain_http.post(f"http://127.0.0.1:{gateway.port}{path}", content=b"{}")
        assert (answer.status_code, answer.headers["connection"]) == (404, "close")


def test_the_official_client_reads_the_refusal(client: openai.OpenAI) -> None:
    """As its own exception, with the code."""
    with pytest.raises(openai.NotFoundError) as refused:
        client.moderations.create(input="x")
    assert refused.value.code == "not_supported"
    with pytest.raises(openai.NotFoundError, match="POST /v1/chat/completions"):
        client.files.list()


def _first_page(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.status_code == 200
    return dict(answer.json())


def test_the_first_page_needs_no_key_and_shows_no_state(gateway: Gateway) -> None:
    """Name, version and documentation, and nothing of this gateway's policy."""
    base = f"http://127.0.0.1:{gateway.port}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = _first_page(plain_http.get(f"{base}/"))
    assert page == {"name": "tollgate", "version": __version__, "docs": DOCS_URL}
    assert (project["name"], project["urls"]["Documentation"]) == ("tollgate", DOCS_URL)
    assert _first_page(plain_http.get(base, headers={"authorization": "Bearer wrong"})) == page
    head = httpx2.head(f"{base}/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == "application/json"
    assert json.loads(plain_http.post(f"{base}/").content)["error"]["code"] == "not_supported"
