"""A picture of Anthropic's messages in base64 was never looked at. Translated, an SVG became a
`data:` URL that passing a chat through refuses: the upstream fetches the addresses in it.
"""

from __future__ import annotations

import json

import pytest

from gateway.domain.operation import Operation
from gateway.providers.openai import OpenAI
from tests.factories import deployment, read

ADDRESS = "PHN2ZyB4bWxucz0iaHR0cDovL2V2aWwvIj4="  # <svg xmlns="http://evil/">
PIXELS = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)


def messages(kind: str, media_type: str, data: str) -> bytes:
    """Return a messages request with one block of bytes."""
    source = {"type": "base64", "media_type": media_type, "data": data}
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
