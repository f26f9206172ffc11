"""`ht<TAB>tps://…` is no address for a list of beginnings, and one for the servers' URL parsers: a
file, a file's name and a part of an unknown type carried 40 of 54 spellings out of the region.
"""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.domain.policy.request_fields import UNKNOWN_FIELDS
from gateway.wire.data_urls import is_base64
from tests.factories import read

_SCHEMES = [
    "oss",
    "az",
    "abfs",
    "hf",
    "sftp",
    "smb",
    "rtsp",
    "view-source:https",
    "concat:https",
    "jar:https",
    "tcp",
    "ws",
]
ADDRESSES = (
    "ht\ttps://evil.example/x",
    "h\nttps://evil.example/x",
    "https:\\\\evil.example\\x",
    "//evil.example/x",
    "\\\\evil.example\\share\\x",
    *(f"{scheme}://evil/x" for scheme in _SCHEMES),
)
PATHS = ("/etc/passwd", "../../etc/passwd", "evil.example/x.png", "cid:x@evil.example")
NAMES = ("report.pdf", "a b (1).tar.gz", "Übersicht.docx", "报告.pdf", "x")


def needs(part: dict[str, object]) -> frozenset[str]:
    """The permissions of a chat with one part."""
    body = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
    return read(json.dumps(body).encode(), Operation.CHAT).facts.features


OTHER_TEXTS = (*ADDRESSES, *PATHS, "ht\ttps://e", "data:,x", " AAAA")


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (name, address)
        for name in ("file_data", "filename", "inlineData", "fileData")
        for address in OTHER_TEXTS
        if name != "filename" or any(mark in address for mark in "/:\\")  # else it is a name
    ],
)
def test_a_place_for_bytes_or_a_name_takes_nothing_else(name: str, address: str) -> None:
    """Any other text may be fetched or opened by the server."""
    if name == "filename":
        part: dict[str, object] = {"filename": address, "file_data": "JVBERi0="}
    else:
        part = {name: {"data": address} if name == "inlineData" else address}
    assert "remote_media" in needs({"type": "file", "file": part})


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_in_another_part_is_seen_however_it_is_spelled(address: str) -> None:
    """URL parsers drop tabs and line ends, and know more schemes than a list."""
    assert "remote_media" in needs({"type": "thing", "thing": address})


def test_a_part_of_an_unknown_type_needs_the_permission_of_unknown_fields() -> None:
    """Its members may hold anything; without a rule it passes."""
    assert UNKNOWN_FIELDS in needs({"type": "thing", "thing": "/etc/passwd"})
    for kind in ("text", "file", "input_audio", "document", "tool_reference", "image_url"):
        assert UNKNOWN_FIELDS not in needs({"type": kind})


@given(st.binary(min_size=1, max_size=200), st.booleans(), st.sampled_from(NAMES))
def test_every_file_and_its_name_pass(content: bytes, is_url_safe: bool, name: str) -> None:
    """In both alphabets, as bytes or as a `data:` URL; a path of one's own does not."""
    encode = base64.urlsafe_b64encode if is_url_safe else base64.b64encode
    text = encode(content).decode()
    if text.startswith("/") and not text.startswith("/9j/"):
        assert not is_base64(text)  # no format of documents begins with these bytes
        return
    assert is_base64(text)
    for data in (text, f"data:application/pdf;base64,{text}"):
        part = {"type": "file", "file": {"filename": name, "file_data": data}}
        assert "remote_media" not in needs(part)
