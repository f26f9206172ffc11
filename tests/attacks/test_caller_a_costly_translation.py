"""A body of 10 MiB was read in a thread and then translated on the event loop: 250 ms, and 1.5 s
for a call whose arguments have 900,000 members.
"""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import FieldLoss
from gateway.domain.providers.table import PROVIDERS
from gateway.errors import InvalidRequest
from gateway.providers.registry import build_providers
from gateway.services.request.service import LARGE_BYTES, MAX_MEMBERS, MAX_OPENS, RequestService
from tests.factories import deployment, read, request

ADAPTERS = build_providers(salt_key=bytes(32))
PLACES = [
    deployment(provider=name, native=PROVIDERS[name].native, untranslatable=FieldLoss.DROP)
    for name in ("anthropic", "bedrock", "gemini")
]
MEMBERS = 300_000
MOST_BYTES_A_MEMBER = 60  # a decoded one has 150


def chat(*turns: dict[str, Any]) -> bytes:
    """Return a chat of these turns."""
    return json.dumps({"model": "m", "messages": turns}, separators=(",", ":")).encode()


def service(threads: list[int], provider: Any) -> RequestService:
    """Return a service that can only translate, and that runs large work in a thread."""

    async def run_large(team: str, work: Callable[..., Any], *content: object) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(work(*content)))
        thread.start()
        thread.join()
        return found[0]

    class Noting:
        """A provider that notes the thread in which it translates."""

        def translate(self, at: Any, body: Any) -> Any:
            threads.append(threading.get_ident())
            return provider.translate(at, body)

    nothing: Any = None
    return RequestService(
        transport=nothing,
        providers={PLACES[0].provider: Noting()},  # type: ignore[dict-item]
        admission=nothing,
        attempts=nothing,
        abandoned=nothing,
        clock=nothing,
        max_attempts=1,
        refusals=nothing,
        ejections=nothing,
        estimates=nothing,
        health=nothing,
        run_large=run_large,
    )


@pytest.mark.parametrize(
    ("body", "is_slow"),
    [
        (chat({"role": "user", "content": "x"}), False),
        (chat({"role": "user", "content": "x" * LARGE_BYTES}), True),
        (chat(*[{"role": "user", "content": "x"}] * (MAX_OPENS + 1)), True),
        (chat({"role": "user", "content": "x", **{f"m{n}": 1 for n in range(MAX_MEMBERS)}}), True),
    ],
    ids=["small", "long", "many turns", "many members"],
)
async def test_a_slow_translation_is_made_in_the_thread(body: bytes, is_slow: bool) -> None:
    threads: list[int] = []
    at = PLACES[0]
    made = await service(threads, ADAPTERS[at.provider])._translated(at, request(read(body)))
    assert made is not None
    assert (threads != [threading.get_ident()]) is is_slow


@pytest.mark.parametrize("at", PLACES, ids=lambda one: one.provider)
def test_the_arguments_of_a_call_are_checked_without_their_members(at: Any) -> None:
    """One decoding step cannot be interrupted: a thread does not help."""
    arguments = "{" + ",".join(f'"{n}":1' for n in range(MEMBERS)) + "}"
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    called = {"role": "assistant", "content": "x", "tool_calls": [call]}
    asked = read(chat(called, {"role": "tool", "tool_call_id": "c", "content": "r"}))
    tracemalloc.start()
    try:
        assert ADAPTERS[at.provider].translate(at, asked) is not None
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MEMBERS * MOST_BYTES_A_MEMBER + 8 * len(arguments)


@pytest.mark.parametrize("at", PLACES, ids=lambda one: one.provider)
def test_a_schema_is_described_without_its_members(at: Any) -> None:
    schema = {f"m{n}": 1 for n in range(3)}
    form = {"name": "n", "description": "d", "schema": schema}
    body = {"model": "m", "messages": [], "response_format": {"type": "json_schema"}}
    body["response_format"] |= {"json_schema": form}  # type: ignore[operator]
    made = ADAPTERS[at.provider].translate(at, read(json.dumps(body).encode()))
    assert made is not None
    assert made.dropped_fields == ()


@pytest.mark.parametrize("at", PLACES, ids=lambda one: one.provider)
def test_the_type_of_a_schema_is_found_without_its_members(at: Any) -> None:
    number = MAX_MEMBERS - 20
    schema = "{" + ",".join(f'"{n}":1' for n in range(number)) + "}"
    function = {"name": "f", "parameters": msgspec.Raw(schema.encode())}
    tool = {"type": "function", "function": function}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    asked = read(msgspec.json.encode(body))
    tracemalloc.start()
    try:
        assert ADAPTERS[at.provider].translate(at, asked) is not None
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < number * MOST_BYTES_A_MEMBER + 8 * len(schema)


def test_the_head_of_a_data_url_is_short() -> None:
    """Each of its parameters was an object."""
    parts = [{"type": "image_url", "image_url": {"url": "data:" + ";" * 100_000 + "base64,AA"}}]
    with pytest.raises(InvalidRequest) as refused:
        ADAPTERS["gemini"].translate(PLACES[2], read(chat({"role": "user", "content": parts})))
    assert refused.value.param == "messages[0].content[0].image_url.url"
    assert PLACES[2].translates(Operation.CHAT)
