"""LiteLLM's accounting bugs that are about usage and identity, as tests of ours.

Of the five that we know by number, two are here: an aborted stream that cost nothing (its pull
request 37558) and rows dropped for an empty id (issue 6633). The row that was silently dropped
(36426), the counters that drifted (30460) and the stale value of one process (34238) are in
tests/storage: they are about the ledger.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from tests.answers import chat_stream
from tests.factories import price, request_id, settled
from tests.storage.factories import event

VLLM = (Path(__file__).parents[2] / "golden" / "vllm" / "chat-stream" / "upstream.sse").read_bytes()
OPENAI = (
    Path(__file__).parents[2] / "golden" / "openai" / "chat-stream" / "upstream.sse"
).read_bytes()


@pytest.mark.parametrize(("sent", "says_running"), [(VLLM, True), (OPENAI, False)])
def test_litellm_37558_an_aborted_stream_is_not_free(sent: bytes, says_running: bool) -> None:
    """Its caller left after the third event. LiteLLM booked 0 tokens and $0 until August 2026."""
    stream = chat_stream(
        model="assistant",
        cost=lambda usage: None,
        wants_usage=False,
        wants_running_usage=False,
        asked_running_usage=says_running,
    )
    stream.feed(b"\n\n".join(sent.split(b"\n\n")[:3]) + b"\n\n")
    assert stream.observed.has_content
    found = settled(
        stream.observed.final,
        running=stream.observed.running,
        held_nusd=99_000_000,
        least_output_tokens=stream.observed.least_output_tokens,
    )
    if says_running:
        assert (found.source, found.usage.output_tokens) == (UsageSource.DERIVED, 2)
        assert found.cost_nusd is not None
        assert found.cost_nusd > 0
    else:
        assert (found.source, found.cost_nusd, found.held_nusd) == (
            UsageSource.UNKNOWN,
            None,
            99_000_000,
        )


@pytest.mark.parametrize("upstream_id", ["", "chatcmpl-the-same-for-all", None])
def test_litellm_6633_an_upstreams_id_never_names_an_event(upstream_id: str | None) -> None:
    """LiteLLM's primary key was the upstream's id: an empty one dropped rows.

    Ours is fixed before anything is sent.
    """
    stream = chat_stream(
        model="a",
        cost=lambda usage: None,
        wants_usage=False,
        wants_running_usage=False,
        asked_running_usage=False,
    )
    stream.feed(b"data: " + json.dumps({"id": upstream_id, "choices": []}).encode() + b"\n\n")
    assert stream.observed.upstream_id == (upstream_id or None)
    many = [
        event(
            request_id=request_id(random=number), attempt=attempt, upstream_request_id=upstream_id
        )
        for number in range(3)
        for attempt in (1, 2)
    ]
    assert len({one.key for one in many}) == len(many)


def test_litellm_37992_an_explicit_zero_is_not_a_missing_figure() -> None:
    """Cached tokens of 0 were taken for missing, and the whole prompt was billed at another
    rate.
    """
    priced: Price = price("1", "4", cached="0.1")
    usage = TokenUsage(input_tokens=100, cached_input_tokens=0, output_tokens=0)
    found = settled(usage, price=priced, held_nusd=10**9)
    assert (found.source, found.cost_nusd, found.usage) == (UsageSource.PROVIDER, 100_000, usage)
