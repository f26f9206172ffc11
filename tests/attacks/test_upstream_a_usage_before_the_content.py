"""A usage before the content of a stream lost its prompt: the gateway's own estimate was booked if
it was dearer, the receipt named no usage of the upstream, and the caller saw other figures.

The rule: the last usage counts wherever it stands. If content follows it, its prompt is the
upstream's, and its output is the least.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UsageSource
from tests import factories
from tests.attacks.every_target import ASKED
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import Stage, once, rest_of

OPERATIONS = (Operation.CHAT, Operation.MESSAGES, Operation.RESPONSES)
TEXT = {"choices": [{"index": 0, "delta": {"content": "word"}, "finish_reason": None}]}
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
CONTENT = [TEXT, TEXT, STOP]


def used(prompt: int) -> dict[str, Any]:
    """Return a chunk with a usage alone."""
    usage = {"prompt_tokens": prompt, "completion_tokens": 20, "total_tokens": prompt + 20}
    return {"choices": [], "usage": usage}


async def streamed(operation: Operation, chunks: list[dict[str, Any]]) -> tuple[Stage, bytes]:
    """Return the stage and the caller's stream."""
    sent = [b"data: " + json.dumps({"model": "m-1", **one}).encode() + b"\n\n" for one in chunks]
    on = once(FakeUpstreamAnswer([*sent, b"data: [DONE]\n\n"]))
    asked: dict[str, Any] = {"model": "assistant", "stream": True, **ASKED[operation]}
    if operation is Operation.CHAT:
        asked["stream_options"] = {"include_usage": True}
    one = factories.deployment(native=frozenset({Operation.CHAT}))
    answer = await on.answer(json.dumps(asked).encode(), one, operation=operation)
    return on, await rest_of(answer)


def shown(sent: bytes) -> dict[str, int]:
    """Return the last two counts that the caller saw, by their side."""
    found: dict[str, int] = {}
    for line in sent.splitlines():
        if line.startswith(b"data: {"):
            event = json.loads(line.removeprefix(b"data: "))
            usage = event.get("usage") or event.get("response", {}).get("usage") or {}
            for name, side in (("prompt", "in"), ("input", "in"), ("completion", "out")):
                found[side] = usage.get(f"{name}_tokens", found.get(side, 0))
            found["out"] = usage.get("output_tokens", found["out"])
    return found


@pytest.mark.parametrize("prompt", [7, 5000])
@pytest.mark.parametrize("place", range(len(CONTENT) + 1))
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_the_upstreams_prompt_counts_wherever_it_stands(
    operation: Operation, place: int, prompt: int
) -> None:
    chunks = [*CONTENT[:place], used(prompt), *CONTENT[place:]]
    on, sent = await streamed(operation, chunks)
    event = on.event
    assert event.outcome is Outcome.OK
    assert (event.usage.input_tokens, event.usage.output_tokens) == (prompt, 20)
    assert shown(sent) == {"in": prompt, "out": 20}
    if event.usage_source is not UsageSource.PROVIDER:
        assert event.reported is not None
        assert event.reported.input_tokens == prompt


async def test_the_last_of_two_usages_counts() -> None:
    """One before the content and one behind it."""
    on, _ = await streamed(Operation.MESSAGES, [used(7), *CONTENT, used(9)])
    assert on.event.usage.input_tokens == 9
    assert on.event.usage_source is UsageSource.PROVIDER
