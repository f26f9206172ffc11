"""Security F15: encoded bodies got 400 and multipart was read as JSON; both are 415 (R12, R14)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.attacks.raw_callers import CHAT, answer, connected, question, refusal, request
from tests.gateway_process import REPOSITORY, Gateway

CURL = re.compile(r"curl (?:[^\n]|\\\n)*")


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/v1/route/explain"])
@pytest.mark.parametrize(
    "header",
    [
        "content-type: multipart/form-data; boundary=x",
        "content-type: application/x-www-form-urlencoded",
        "content-type: text/plain",
        "content-type: application/jsonp",
        "content-encoding: gzip",
        "content-encoding: identity\r\ncontent-encoding: br",
        "content-encoding: gzip\r\ncontent-encoding: identity",
    ],
)
def test_another_media_type_or_a_coding_is_a_415(
    red_and_blue: Gateway, path: str, header: str
) -> None:
    """Every endpoint that reads a body refuses it, whichever of the two headers declares it."""
    with connected(red_and_blue) as connection:
        connection.sendall(request(red_and_blue, question(), path=path, headers=f"{header}\r\n"))
        assert refusal(connection) == (415, "unsupported_media_type")


def test_the_message_gives_the_header_that_is_missing(red_and_blue: Gateway) -> None:
    """`curl -d` declares a form."""
    headers = "content-type: application/x-www-form-urlencoded\r\n"
    with connected(red_and_blue) as connection:
        connection.sendall(request(red_and_blue, question(), headers=headers))
        assert b"-H 'Content-Type: application/json'" in answer(connection)[1]


@pytest.mark.parametrize(
    "header",
    [
        "",
        "content-type: application/json\r\n",
        "content-type: Application/JSON; charset=utf-8\r\n",
        "content-type:\r\n",
        "content-type: application/vnd.api+json\r\n",
        "content-encoding: identity\r\n",
    ],
)
def test_json_passes_under_every_name_and_without_one(red_and_blue: Gateway, header: str) -> None:
    """A request without Content-Type is read as JSON."""
    with connected(red_and_blue) as connection:
        connection.sendall(request(red_and_blue, question(), headers=header))
        assert answer(connection)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        path.relative_to(REPOSITORY)
        for folder in ("README.md", "docs", "gateway", "dashboard", "engine")
        for path in (
            [REPOSITORY / folder]
            if folder.endswith(".md")
            else sorted((REPOSITORY / folder).rglob("*"))
        )
        if path.suffix in (".md", ".py")
        and re.search(r"curl (?:[^\n]|\\\n)*\s(?:-d|--data)", path.read_text("utf-8"))
    ],
    ids=str,
)
def test_each_curl_line_with_a_body_sends_the_header(path: Path) -> None:
    """A line that is copied from a guide must work; without the header, curl declares a form."""
    for line in CURL.findall((REPOSITORY / path).read_text("utf-8").replace("\\\\\n", "\\\n")):
        if re.search(r"\s(-d|--data)", line):
            assert "content-type: application/json" in line.lower(), line
