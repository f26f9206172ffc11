"""Ledger §2, bullet 8: a derived settlement with several choices charged cached input at the full
rate.
"""

from __future__ import annotations

import json

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.observed import Observed
from gateway.wire.openai.usage import usage_from_wire


def test_choices_share_their_prompts_cached_tokens() -> None:
    """Two prompts have two choices each: input counts once per prompt, output once per choice."""
    seen = Observed()
    for choice in range(4):
        usage = {
            "prompt_tokens": 100 + choice // 2,
            "prompt_tokens_details": {"cached_tokens": 80},
            "completion_tokens": 10 + choice,
            "completion_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": 110 + choice // 2 + choice,
        }
        seen.note_running(
            msgspec.Raw(json.dumps(usage).encode()),
            usage_from_wire,
            choice=choice,
            choices_per_prompt=2,
        )
    assert seen.running == TokenUsage(
        input_tokens=201, cached_input_tokens=160, output_tokens=46, reasoning_tokens=4
    )
