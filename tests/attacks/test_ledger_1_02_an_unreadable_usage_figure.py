"""Ledger 1.2: one unreadable usage figure left an attempt unsettled and ended a worker's
progress notes.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.pricing.tokens import UsageSource
from gateway.wire.observed import Observed
from gateway.wire.openai.usage import (
    engine_queue_s,
    stated_geo,
    usage_from_groq,
    usage_from_wire,
    with_tool_calls,
)
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import body, piece, rest_of, stage

VLLM: dict[str, Any] = {"provider": "vllm", "is_self_hosted": True}
UNREADABLE = [
    b'{"prompt_tokens":1e400}',
    b'{"prompt_tokens":1.5,"x":1e999}',
    b'{"prompt_tokens":1.5,"x":"\\ud83d"}',
    b'{"prompt_tokens":1.5,"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"prompt_tokens":' + b"9" * 5000 + b"}",
    b'{"prompt_tokens":1.5,"x":"\xff"}',
]
FRAGMENTS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b":",
    b",",
    b"null",
    b"true",
    b"1.5",
    b"-1",
    b"1e400",
    b"9" * 40,
    b"\\ud83d",
    b"\xff",
    b'"prompt_tokens"',
    b'"completion_tokens"',
    b'"prompt_tokens_details"',
    b'"cached_tokens"',
    b'"usage"',
    b"7",
]


def is_bounded(value: Any) -> bool:
    counts = [] if value is None else [getattr(value, name) for name in value.__struct_fields__]
    return all(count is None or -(2**63) <= count < 2**63 for count in counts)


@settings(max_examples=500)
@given(
    st.one_of(
        st.binary(max_size=200), st.lists(st.sampled_from(FRAGMENTS), max_size=25).map(b"".join)
    )
)
def test_any_bytes_give_a_usage_or_nothing(raw: bytes) -> None:
    """The settlement reads these bytes, and must not raise to any caller."""
    assert is_bounded(usage_from_wire(raw))
    assert is_bounded(usage_from_groq(raw, model="m"))
    engine_queue_s(raw)
    stated_geo(b'{"inference_geo":' + raw)
    with_tool_calls(
        msgspec.convert({}, type=type(usage_from_wire(b'{"prompt_tokens":1}'))),
        b'[{"type":"_call"' + raw,
    )


@pytest.mark.parametrize("raw", UNREADABLE)
async def test_a_stream_with_it_is_settled(raw: bytes) -> None:
    """One odd figure used to cost the event, leave the hold forever and block the
    Idempotency-Key with 409.
    """
    odd = piece("b", 2).replace(
        json.dumps({"prompt_tokens": 10, "completion_tokens": 2}).encode(), raw
    )
    assert raw in odd
    on = stage(FakeUpstreamAnswer([piece("a"), odd, piece("c"), b"data: [DONE]\n\n"]))
    await rest_of(await on.answer(body(stream=True), factories.deployment(**VLLM)))
    assert on.event.outcome is Outcome.OK
    assert on.event.usage_source in (UsageSource.ESTIMATED, UsageSource.UNKNOWN)


@pytest.mark.parametrize("raw", UNREADABLE)
def test_the_progress_of_other_streams_is_noted_beside_it(raw: bytes) -> None:
    """One caller's stream must not stop the notes of all streams; its own says that it was not
    read.
    """
    observed = Observed()
    observed.note_running(msgspec.Raw(raw), usage_from_wire)
    assert observed.usage is None or observed.usage.has_unread


async def test_an_attempt_that_cannot_settle_is_booked_at_its_hold() -> None:
    """The last resort after any failure books an event for the attempt and frees its money and
    slot.
    """
    on = stage(FakeUpstreamAnswer([piece("a", 1), piece("b", 2)]))
    answer = await on.answer(body(stream=True), factories.deployment(**VLLM))
    broken = answer.attempt
    broken.observed = None  # type: ignore[assignment]  # any cause that makes a settlement raise
    event = broken.settle(Outcome.OK)
    assert (event.usage_source, event.cost_nusd, event.is_suspect) == (
        UsageSource.UNKNOWN,
        None,
        True,
    )
    assert event.held_nusd == broken.bound.nusd
    assert on.journal.events == [event]
