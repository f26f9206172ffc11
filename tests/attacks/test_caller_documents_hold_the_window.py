"""Documents of other dialects were bounded by their bytes: 4 KB of PDF were billed as 200,000
tokens of pages.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.wire.openai.request.read import read_request
from tests.attacks.bounded import Bounded

PDF = "JVBERi0xLjQK"
PARTS: list[dict[str, Any]] = [
    {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
    },
    {"type": "document_url", "document_url": f"data:application/pdf;base64,{PDF}"},
    {"inlineData": {"mimeType": "application/pdf", "data": PDF}},
    {"type": "blob", "blob": PDF},
    {"type": "file", "file": {"file_data": PDF}},
]


@pytest.mark.parametrize(
    "part", PARTS, ids=lambda part: next(iter(part.values())) if "type" in part else "inline"
)
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
def test_without_a_window_a_hard_budget_refuses_it(
    poor: Bounded, path: str, part: dict[str, Any]
) -> None:
    """Nothing bounds the text that a provider reads from a document."""
    member = "input" if path == "responses" else "messages"
    content = [{"type": "text", "text": "hi"}, part]
    body = {"model": "older", member: [{"role": "user", "content": content}], "max_tokens": 9}
    answer = poor.post(path, body)
    assert answer.status_code == 400, answer.text
    assert poor.engine.bills == []


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "data:text/plain,hi"}],
        [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
        [{"type": "refusal", "refusal": "no"}],
    ],
)
def test_text_is_still_bounded_by_its_bytes(content: list[dict[str, Any]]) -> None:
    """The usual requests of agents need no window."""
    import msgspec

    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": content}]})
    assert read_request(Operation.CHAT, body).facts.expansion_tokens is not None
