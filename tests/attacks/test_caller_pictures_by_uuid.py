"""vLLM caches pictures by a `uuid` that the caller names, so a caller could read or replace
another team's picture.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.attacks.bounded import Bounded

PARTS: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": None, "uuid": "abc"},
    {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="},
        "uuid": "abc",
    },
    {"type": "image_embeds", "image_embeds": "AAAA"},
    {"type": "audio_embeds", "audio_embeds": "AAAA"},
]


@pytest.mark.parametrize("part", PARTS)
def test_it_needs_leave(poor: Bounded, part: dict[str, Any]) -> None:
    """The salt of a team's cache is not a part of that key, so `uuid` needs permission."""
    body = {"model": "windowed", "messages": [{"role": "user", "content": [part]}]}
    answer = poor.post("chat/completions", body)
    assert answer.status_code == 400, answer.text
    assert "engine_control" in answer.text
    assert poor.engine.bills == []
