"""Cache hits and misses that are not the prompt, pixels beside tokens, and counts outside of a
usage: each was booked as if it were not there.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.tokens import UsageSource
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import rewrite_chat
from gateway.wire.openai.usage import usage_from_wire, usage_of_embeddings
from tests.attacks.streamed import settlement_of
from tests.factories import settled

PARTS = st.integers(0, 200)


@given(hit=PARTS, miss=PARTS, prompt=st.integers(1, 300))
def test_a_discount_counts_only_if_hit_and_miss_are_the_prompt(
    hit: int, miss: int, prompt: int
) -> None:
    """DeepSeek states both. A 0 beside another is a default of several gateways."""
    counts = {"prompt_tokens": prompt, "completion_tokens": 9}
    cache = {"prompt_cache_hit_tokens": hit, "prompt_cache_miss_tokens": miss}
    found = usage_from_wire(json.dumps(counts | cache).encode())
    assert found is not None
    is_whole = hit + miss == prompt or not miss or not hit
    assert found.is_plausible is (is_whole and hit <= prompt)
    if not found.is_plausible:
        assert settled(found).source is UsageSource.UNKNOWN


@pytest.mark.parametrize(
    "name", ["image_pixels", "video_pixels", "input_pixels", "frames", "words"]
)
def test_pixels_and_other_units_beside_tokens_are_held(name: str) -> None:
    """Voyage AI bills the pixels of pictures and videos beside the tokens."""
    vectors = {"text_tokens": 10, "total_tokens": 17_867}
    found = usage_of_embeddings(json.dumps({**vectors, name: 2_000_000}).encode())
    assert settled(found, writes_output=False).source is UsageSource.UNKNOWN
    found = usage_of_embeddings(json.dumps({**vectors, name: 0}).encode())
    assert settled(found, writes_output=False).source is UsageSource.PROVIDER
    chat = {"prompt_tokens": 9, "completion_tokens": 9}
    found = usage_from_wire(json.dumps({**chat, name: 2_000_000}).encode())
    assert settled(found).source is UsageSource.UNKNOWN


# Members of an answer without a usage, and the least of its input and its output.
ELSEWHERE: dict[str, tuple[dict[str, Any], int, int]] = {
    "TGI": ({"details": {"generated_tokens": 500, "prefill": [], "tokens": []}}, 1, 500),
    "Fireworks": (
        {"perf_metrics": {"prompt-tokens": 1000, "cached-prompt-tokens": 10, "server-ttft": 0.1}},
        1000,
        1,
    ),
    "texts": ({"meta_data": {"num_input_tokens": "700", "num_output_tokens": "80"}}, 700, 80),
    "llama.cpp": ({"tokens_evaluated": 60, "tokens_predicted": 70}, 60, 70),
    "limits": ({"max_output_tokens": 4000, "limits": {"prompt_tokens_remaining": 9000}}, 1, 1),
    "words": ({"details": {"token": "12", "output": 900, "input_text": 800}}, 1, 1),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_plain_answer_costs_no_less_than_counts_anywhere_in_it(name: str) -> None:
    members, least_input, least_output = ELSEWHERE[name]
    seen = Observed(is_whole=True)
    body = {"model": "m", "choices": [{"index": 0, "message": {"content": "a"}}], **members}
    rewrite_chat(json.dumps(body).encode(), seen, model="m", lists_items=False)
    dearest = seen.dearest
    found = (None, None) if dearest is None else (dearest.input_tokens, dearest.output_tokens)
    assert [count or 1 for count in found] == [least_input, least_output]
    assert settlement_of(seen).source is not UsageSource.PROVIDER
