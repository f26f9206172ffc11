"""A translation to Gemini or Ollama writes the tool's name beside each result of a call. One name
of 100,000 letters and 500 results made 50 MB of 124 KB: memory, and a prompt far above its hold.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.domain.operation import Operation
from gateway.domain.providers.table import PROVIDERS
from gateway.errors import InvalidRequest
from gateway.providers.registry import build_providers
from gateway.wire.translation.conversation import MOST_TOOL_NAME_CHARS
from tests.factories import deployment, read

ADAPTERS = build_providers(salt_key=bytes(32))
RESULTS = 200
OWN_BYTES = 400  # of the request's frame in the upstream's dialect


def chat(name: str) -> bytes:
    """Return a chat with many results of one call."""
    call = {"id": "a", "type": "function", "function": {"name": name, "arguments": "{}"}}
    turns: list[dict[str, Any]] = [{"role": "assistant", "tool_calls": [call]}]
    turns += [{"role": "tool", "tool_call_id": "a", "content": ""}] * RESULTS
    return encoded(messages=turns)


def response(name: str) -> bytes:
    """Return a request of responses with many results of one call."""
    call = {"type": "function_call", "call_id": "a", "name": name, "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "a", "output": ""}
    return encoded(input=[call, *[result] * RESULTS])


def messages(name: str) -> bytes:
    """Return a messages request with many results of one call."""
    call = {"type": "tool_use", "id": "a", "name": name, "input": {}}
    results = [{"type": "tool_result", "tool_use_id": "a", "content": ""}] * RESULTS
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": results}]
    return encoded(messages=turns, max_tokens=5)


def encoded(**members: Any) -> bytes:
    """Return a request's body without blanks."""
    return json.dumps({"model": "m", **members}, separators=(",", ":")).encode()


def at(provider: str) -> Any:
    """Return a deployment that speaks no dialect of callers."""
    address = {"base_url": "http://127.0.0.1:9"} if provider == "ollama" else {}
    native = PROVIDERS[provider].native if provider == "gemini" else frozenset()
    return deployment(provider=provider, native=native, **address)


CALLERS = [
    (Operation.CHAT, chat),
    (Operation.RESPONSES, response),
    (Operation.MESSAGES, messages),
]


@pytest.mark.parametrize(
    ("operation", "written"), CALLERS, ids=lambda one: getattr(one, "__name__", str(one))
)
def test_many_results_of_one_call_are_refused_at_gemini(operation: Operation, written: Any) -> None:
    """Gemini refuses another number of results than of calls."""
    with pytest.raises(InvalidRequest, match="two results: send one for each"):
        ADAPTERS["gemini"].translate(at("gemini"), read(written("n"), operation))


@pytest.mark.parametrize("provider", ["ollama"])
@pytest.mark.parametrize(
    ("operation", "written"), CALLERS, ids=lambda one: getattr(one, "__name__", str(one))
)
def test_the_names_beside_the_results_are_in_the_hold(
    provider: str, operation: Operation, written: Any
) -> None:
    """A byte is a token: the names that are sent again must be in the bound."""
    name = "n" * MOST_TOOL_NAME_CHARS
    asked = read(written(name), operation)
    made = ADAPTERS[provider].translate(at(provider), asked)
    assert made is not None
    facts = asked.facts
    assert facts.expansion_tokens is not None
    names = msgspec.json.encode(made.body).count(name.encode()) * len(name)
    assert names > RESULTS * len(name)
    assert names <= facts.body_bytes + facts.expansion_tokens + OWN_BYTES


@pytest.mark.parametrize("provider", ["ollama"])
@pytest.mark.parametrize(
    ("operation", "written"), CALLERS, ids=lambda one: getattr(one, "__name__", str(one))
)
def test_a_long_name_is_refused(provider: str, operation: Operation, written: Any) -> None:
    asked = read(written("n" * (MOST_TOOL_NAME_CHARS + 1)), operation)
    with pytest.raises(InvalidRequest, match="shorter name"):
        ADAPTERS[provider].translate(at(provider), asked)
