"""Ledger 1.6: a maximum in a member that the endpoint does not know counted as the bound.

The route's cap was then not sent, and an engine with a window filled the window.
"""

from __future__ import annotations

from tests.attacks.bounded import Bounded
from tests.attacks.permissive_engine import WINDOW


def test_the_window_is_held_and_not_the_foreign_maximum(poor: Bounded) -> None:
    """The engine ignores the member and writes up to its window, so that much must be held."""
    poor.provide(6)
    for path, named in (
        ("chat/completions", "max_output_tokens"),
        ("responses", "max_tokens"),
        ("responses", "max_completion_tokens"),
        ("completions", "max_output_tokens"),
        ("messages", "max_completion_tokens"),
        ("messages", "max_output_tokens"),
    ):
        poor.renew()
        prompt = {"responses": "input", "completions": "prompt"}.get(path, "messages")
        content = [{"role": "user", "content": "hi"}] if prompt == "messages" else "hi"
        bill = poor.try_one(path, {"model": "windowed", prompt: content, named: 1})
        assert bill is not None, (path, named)
        assert bill.output_tokens == WINDOW


def test_a_foreign_maximum_does_not_keep_the_cap_from_being_sent(poor: Bounded) -> None:
    """Without the cap this engine writes 4,000 tokens."""
    turns = [{"role": "user", "content": "hi"}]
    for path, named, prompt in (
        ("responses", "max_tokens", {"input": "hi"}),
        ("completions", "max_completion_tokens", {"prompt": "hi"}),
        ("messages", "max_completion_tokens", {"messages": turns}),
    ):
        bill = poor.try_one(path, {"model": "capped", **prompt, named: 1})
        assert bill is not None
        assert bill.output_tokens == 100
        assert bill.body[named if path == "responses" else "max_tokens"] in (1, 100)


def test_a_foreign_maximum_passes_whatever_it_is(poor: Bounded) -> None:
    """To that endpoint it may be a future field: the gateway must judge neither its value nor
    its type.
    """
    for value in ("many", -1, 10**12):
        body = {"model": "capped", "messages": [], "max_output_tokens": value}
        bill = poor.try_one("chat/completions", body)
        assert bill is not None
        assert bill.body["max_output_tokens"] == value
