"""Upstreams whose usage has a name twice, with two values: the last one was booked, unmarked."""

from __future__ import annotations

import json

import pytest

from gateway.domain.pricing.settlement import Settlement
from gateway.domain.pricing.tokens import UsageSource
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import rewrite_chat
from gateway.wire.openai.answer.responses import rewrite_response
from tests.attacks.streamed import settlement_of

CHAT = b'{"prompt_tokens":100,"completion_tokens":%d,"completion_tokens":%d}'
ESCAPED = rb'{"prompt_tokens":100,"completion_tokens":%d,"completion\u005ftokens":%d}'
RESPONSE = b'{"input_tokens":100,"output_tokens":%d, "output_tokens" : %d}'


def settled_of(dialect: str, usage: bytes) -> Settlement:
    return settlement_of(read(dialect, usage))


def read(dialect: str, usage: bytes) -> Observed:
    seen = Observed()
    body = (
        b'{"id":"a","model":"m","status":"completed","choices":[],"output":[],"usage":%b}' % usage
    )
    (rewrite_chat if dialect == "chat" else rewrite_response)(body, seen, model="m")
    return seen


@pytest.mark.parametrize("values", [(2000, 1), (1, 2000)])
@pytest.mark.parametrize(
    ("dialect", "usage"), [("chat", CHAT), ("chat", ESCAPED), ("responses", RESPONSE)]
)
def test_the_dearer_value_is_charged_and_flagged(
    dialect: str, usage: bytes, values: tuple[int, int]
) -> None:
    found = settled_of(dialect, usage % values)
    assert (found.usage.output_tokens, found.source) == (2000, UsageSource.PROVIDER)
    assert found.is_suspect
    assert found.reported is not None


@pytest.mark.parametrize(
    "more", [{}, {"cost": 0.5}, {"prompt_tokens_details": {"audio_tokens": 1}}]
)
def test_a_name_in_two_objects_is_no_repetition(more: dict[str, object]) -> None:
    """OpenAI's usage has `audio_tokens` in both of its details."""
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "completion_tokens_details": {"audio_tokens": 1},
        **more,
    }
    assert read("chat", json.dumps(usage).encode()).impossible is None
    same = b'{"prompt_tokens":100,"completion_tokens":20,"completion_tokens":20}'
    assert read("chat", same).impossible is None
