"""Media that name addresses passed as media that hold all that they mean.

Found by a hostile caller on 2026-11-23.
"""

from __future__ import annotations

import base64
import json

import pytest

from gateway.domain.operation import Operation
from gateway.wire.data_urls import holds_all
from gateway.wire.openai.request.read import read_request

PIXELS = b"\x89PNG\r\n\x1a\n" + bytes(60)
FILM = b"\x00\x00\x00\x20ftypisom" + bytes(60)
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><image href='http://evil.example/x'/></svg>"
PLAY_LIST = b"#EXTM3U\n#EXTINF:1,\nhttp://evil.example/x\n"


def data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


HOLD_ALL = [
    data_url("image/png", PIXELS),
    data_url("IMAGE/PNG", PIXELS),
    data_url("image/png", PIXELS[:7]),
    data_url("image/jpeg;charset=x", b"\xff\xd8\xff\xe0" + bytes(20)),
    data_url("video/mp4", FILM),
    data_url("audio/wav", b"RIFF\x24\x00\x00\x00WAVEfmt "),
    data_url("audio/mpeg", b"ID3\x03" + bytes(20)),
    data_url("video/jpeg", b"\xff\xd8\xff\xe0" + bytes(20)) + ",/9j/4AAQSkZJ",
    "data:image/png;base64,",
    "data:image/png;base64," + base64.encodebytes(PIXELS).decode(),
]
DOCUMENTS = [
    data_url("application/pdf", b"%PDF-1.7 see http://x.example"),
    data_url("text/html", b"see http://x.example"),
]
MAY_NAME_ADDRESSES = [
    data_url("image/svg+xml", SVG),
    data_url("application/x-mpegURL", PLAY_LIST),
    data_url("text/html", SVG),
    data_url("application/dash+xml", SVG),
    data_url("image/png", SVG),
    data_url("video/mp4", PLAY_LIST),
    data_url("audio/mpeg", PLAY_LIST),
    data_url("video/mp4", b"\xef\xbb\xbf" + PLAY_LIST),
    data_url("video/mp4", "<svg>".encode("utf-16")),
    "data:image/svg+xml,<svg/>",
    "data:http://evil.example/x",
    "data:,http://evil.example/x",
    "data:image/png,%89PNG",
    "data:;base64,AAAA",
    "data:image/png;base64",
    "data:video/mp4;base64,I0VY*VE0zVQ==I0VYVE0zVSBodHRw",
    data_url("image/unheard-of", PIXELS),
]


@pytest.mark.parametrize("url", HOLD_ALL)
def test_pixels_sound_and_documents_hold_all(url: str) -> None:
    """The URLs that SDKs send."""
    assert holds_all(url)


@pytest.mark.parametrize("url", MAY_NAME_ADDRESSES)
def test_a_data_url_that_may_hold_an_address_is_refused(url: str) -> None:
    """By its type, or because it begins as a text despite its type."""
    assert not holds_all(url)


@pytest.mark.parametrize("url", DOCUMENTS)
def test_a_document_is_read_for_its_text(url: str) -> None:
    """In a file part, and in no other place."""
    assert holds_all(url, is_document=True)
    assert not holds_all(url)
    content = [{"type": "file", "file": {"filename": "x", "file_data": url}}]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    assert read_request(Operation.CHAT, json.dumps(body).encode()).facts.features == set()


@pytest.mark.parametrize("url", [*HOLD_ALL, *DOCUMENTS, *MAY_NAME_ADDRESSES])
def test_an_incomplete_data_url_counts_as_remote_media(url: str) -> None:
    """The feature that a rule refuses, and that no bound of a prompt covers."""
    content = [{"type": "image_url", "image_url": {"url": f" {url}"}}]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    features = read_request(Operation.CHAT, json.dumps(body).encode()).facts.features
    assert features == (set() if holds_all(url) else {"remote_media"})


@pytest.mark.parametrize("kind", ["reasoning", "compaction"])
def test_a_sealed_item_without_its_content_is_kept_elsewhere(kind: str) -> None:
    """Its id alone refers to data that another request stored at the provider."""

    def features(**members: object) -> frozenset[str]:
        body = {"model": "m", "input": [{"type": kind, **members}]}
        return read_request(Operation.RESPONSES, json.dumps(body).encode()).facts.features

    assert features(id="rs_1", summary=[]) == {"stored_state"}
    assert features(id=7, summary=[]) == {"stored_state"}
    assert features(id="rs_tg_1", summary=[]) == frozenset(), "the gateway's own, handed back"
    assert features(id="rs_1", encrypted_content="gAAA") == frozenset()
    assert features(id="rs_1", content=[{"type": "reasoning_text", "text": "so"}]) == frozenset()
    assert features(summary=[]) == frozenset()
