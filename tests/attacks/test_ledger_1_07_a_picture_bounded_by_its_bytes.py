"""Ledger 1.7: a picture inside the body was bounded by its bytes, but providers charge by its
pixels.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.attacks.bounded import Bounded
from tests.attacks.permissive_engine import WINDOW

TINY = "data:image/png;base64,iVBORw0KGgo="
CHAT_PARTS = [
    {"type": "image_url", "image_url": {"url": TINY}},
    {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}},
]
RESPONSE_PARTS = [
    {"type": "input_image", "image_url": TINY},
    {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"},
]


BLOCKS = [
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
    {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"},
    },
]


def bodies() -> list[tuple[str, dict[str, Any]]]:
    chats = [
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [part] * 20}], "max_tokens": 5},
        )
        for part in CHAT_PARTS
    ]
    responses = [
        ("responses", {"input": [{"role": "user", "content": [part] * 20}], "max_output_tokens": 5})
        for part in RESPONSE_PARTS
    ]
    messages = [
        ("messages", {"messages": [{"role": "user", "content": [block] * 20}], "max_tokens": 5})
        for block in BLOCKS
    ]
    return [*chats, *responses, *messages]


@pytest.mark.parametrize("model", ["older", "capped"])
def test_without_a_window_a_picture_has_no_bound(poor: Bounded, model: str) -> None:
    """Twenty pictures of a few bytes cost 30,000 tokens; the hold was for 4,000 or less."""
    for path, body in bodies():
        answer = poor.post(path, {"model": model, **body})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert poor.engine.bills == []


def test_with_a_window_it_holds_the_window(poor: Bounded) -> None:
    """The engine cannot read more than its window."""
    poor.provide(len(bodies()))
    for path, body in bodies():
        poor.renew()
        bill = poor.try_one(path, {"model": "windowed", **body})
        assert bill is not None, body
        assert bill.input_tokens <= WINDOW


def test_a_text_about_pictures_is_a_text(poor: Bounded) -> None:
    """A text may contain the names of parts."""
    prompt = 'Set "image_url", "file_data" and "input_image" in the part.'
    body = {"model": "older", "messages": [{"role": "user", "content": prompt}], "max_tokens": 5}
    assert poor.try_one("chat/completions", body) is not None
