"""The hold of a translated request counts the tools that the translation adds."""

from __future__ import annotations

import json

import pytest

from gateway.domain.policy.policy import Route
from gateway.domain.providers.table import TextForms
from gateway.domain.request.bound import TOOL_PREFACE_TOKENS, bound_of
from gateway.errors import InvalidRequest, Untranslatable
from tests import factories
from tests.oracles.requests.conversations import draw
from tests.oracles.requests.test_translated_requests import TARGETS, sent_to


@pytest.mark.parametrize("target", TARGETS)
def test_a_hold_counts_the_tools_that_a_translation_adds(target: str) -> None:
    """And none where nothing is added: at each target, for calls without tools."""
    (provider, model, native), _ = TARGETS[target]
    there = factories.deployment(provider=provider, model=model, native=native)
    elsewhere = factories.deployment(provider="openai_compatible", native=frozenset())
    seen: set[bool] = set()
    for seed in range(300):
        operation, body = draw(seed)
        read = factories.read(body, operation)
        asked = json.loads(body)
        try:
            sent = sent_to(TARGETS[target][0], read)
        except (InvalidRequest, Untranslatable):
            continue
        if read.facts.expansion_tokens is None:  # its window is held
            continue
        has_added = bool(sent.get("tools") or "toolConfig" in sent) and "tools" not in asked
        held = [
            bound_of(
                read.facts,
                route=Route(name="assistant", deployments=("one",)),
                deployment=one,
                price=factories.price(),
                text_forms=TextForms.NONE,
            ).input_tokens
            for one in (there, elsewhere)
        ]
        assert held[0] - held[1] == (TOOL_PREFACE_TOKENS if has_added else 0), seed
        seen.add(has_added)
    assert seen == ({False, True} if provider == "bedrock" else {False})
