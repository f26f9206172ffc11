"""A picture of Anthropic's messages in base64 was never looked at, and later one with another type
of source. Translated, or at vLLM, an SVG became a `data:` URL that passing a chat through refuses:
the upstream fetches the addresses in it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.errors import Untranslatable
from gateway.providers.openai import OpenAI
from tests.factories import deployment, read

SVG = '<svg xmlns="http://evil/">'
ADDRESS = "PHN2ZyB4bWxucz0iaHR0cDovL2V2aWwvIj4="  # the same in base64
PIXELS = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)


def messages(kind: str, media_type: str, data: str) -> bytes:
    """Return a messages request with one block of bytes."""
    return with_source(kind, {"type": "base64", "media_type": media_type, "data": data})


def with_source(kind: str, source: dict[str, Any]) -> bytes:
    """Return a messages request with one block of this source."""
    turn = {"role": "user", "content": [{"type": kind, "source": source}]}
    return json.dumps({"model": "m", "max_tokens": 5, "messages": [turn]}).encode()


@pytest.mark.parametrize("kind", ["image", "document"])
@pytest.mark.parametrize(
    "media_type",
    ["image/svg+xml", "image/png;base64,AA==#", "image/png,", "audio/x-mpegurl", "image/png;x=,"],
)
def test_bytes_that_may_name_an_address_need_permission(kind: str, media_type: str) -> None:
    asked = read(messages(kind, media_type, ADDRESS), Operation.MESSAGES)
    assert asked.facts.features == {"remote_media"}


@pytest.mark.parametrize(
    ("kind", "media_type", "data"),
    [
        ("image", "image/png", PIXELS),
        ("document", "application/pdf", "JVBERi0xLjcK"),
        ("document", "text/html", ADDRESS),
    ],
)
def test_what_is_translated_needs_no_more_than_what_was_asked(
    kind: str, media_type: str, data: str
) -> None:
    """The text of a document is read, and its addresses are not fetched."""
    asked = read(messages(kind, media_type, data), Operation.MESSAGES)
    chat = OpenAI().translate(deployment(), asked)
    assert chat is not None
    assert chat.body.facts.features == asked.facts.features == frozenset()


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("image", {"type": "text", "media_type": "image/svg+xml", "data": SVG}),
        ("image", {"type": "text", "data": SVG}),
        ("image", {"type": "other", "media_type": "image/svg+xml", "data": ADDRESS}),
        ("image", {"media_type": "image/svg+xml", "data": ADDRESS}),
        ("image", {"type": "base64", "data": ADDRESS}),
        ("document", {"type": "text", "media_type": "image/svg+xml", "data": SVG}),
        ("document", {"type": "text", "media_type": "audio/x-mpegurl", "data": "http://evil/"}),
    ],
)
def test_a_source_of_any_type_is_looked_at(kind: str, source: dict[str, Any]) -> None:
    """vLLM takes the bytes of each source that is no address, and a translation took text."""
    asked = read(with_source(kind, source), Operation.MESSAGES)
    assert asked.facts.features == {"remote_media"}


def test_the_text_of_a_document_needs_no_permission() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": SVG}
    assert read(with_source("document", source), Operation.MESSAGES).facts.features == frozenset()


def test_a_picture_that_is_text_is_not_translated() -> None:
    asked = read(with_source("image", {"type": "text", "data": "x" * 100}), Operation.MESSAGES)
    with pytest.raises(Untranslatable) as refused:
        OpenAI().translate(deployment(), asked)
    assert refused.value.param == "messages[0].content[0]"
