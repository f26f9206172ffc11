"""Members of Anthropic's messages that the gateway looked for by their bytes, or not at all: an
escape in a name hid a second answer, whose cost was above the hold, and sealed text; a template of
the caller's own passed at vLLM.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api.dialect_headers import with_needs
from gateway.domain.operation import Operation
from gateway.domain.request.request import RequestFacts
from tests.factories import read

SEALED = "A" * 10_000
COMPACTS = {"edits": [{"type": "compact_20260112"}]}
LARGER = "CONTEXT-1M-2025-08-07"


def facts(written: dict[str, Any], *escaped: str) -> RequestFacts:
    """Return the facts of a messages request; the first letter of each of `escaped` is escaped."""
    turns = written.pop("messages", [{"role": "user", "content": "x"}])
    body = json.dumps({"model": "m", "max_tokens": 5, "messages": turns, **written})
    for word in escaped:
        body = body.replace(word, f"\\u{ord(word[0]):04x}{word[1:]}")
    return read(body.encode(), Operation.MESSAGES).facts


@pytest.mark.parametrize("escaped", [(), ("compact",)], ids=["plain", "escaped"])
def test_a_compaction_needs_permission(escaped: tuple[str, ...]) -> None:
    """It cost USD 0.081 of a hard budget of USD 0.05: its summary is beside the maximum."""
    assert facts({"context_management": COMPACTS}, *escaped).features == {"other_maximum"}


@pytest.mark.parametrize("escaped", [(), ("encrypted_content",)], ids=["plain", "escaped"])
def test_sealed_text_of_a_search_counts_four_tokens_a_byte(escaped: tuple[str, ...]) -> None:
    page = {"type": "web_search_result", "url": "x", "title": "t", "encrypted_content": SEALED}
    block = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [page]}
    turn = {"role": "assistant", "content": [block]}
    expansion_tokens = facts({"messages": [turn]}, *escaped).expansion_tokens
    assert expansion_tokens is not None
    assert expansion_tokens >= 3 * len(SEALED)


@pytest.mark.parametrize(
    "arguments",
    [{"chat_template": "{% for a in range(9999999) %}x{% endfor %}"}, {"documents": [{}]}],
)
def test_an_argument_that_steers_the_template_needs_permission(arguments: dict[str, Any]) -> None:
    """As in a chat: GHSA-69j4-grxj-j64p."""
    assert facts({"chat_template_kwargs": arguments}).features == {"engine_control"}


def test_a_scalar_argument_of_a_template_passes() -> None:
    assert facts({"chat_template_kwargs": {"enable_thinking": False}}).features == frozenset()


def test_a_larger_window_needs_permission_in_any_case() -> None:
    body = {"model": "m", "max_tokens": 5, "messages": []}
    asked = read(json.dumps(body).encode(), Operation.MESSAGES)
    assert with_needs(asked, [("anthropic-beta", LARGER)]).facts.features == {"other_maximum"}
