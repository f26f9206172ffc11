"""Each request that a dialect of callers allows is sent in a form that the target takes, or is
refused by a name before anything is sent. `CASES=20000` judges as many.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment, FieldLoss
from gateway.domain.providers.table import PROVIDERS
from gateway.domain.request.request import RequestBody
from gateway.errors import InvalidRequest, Untranslatable
from gateway.providers.registry import build_providers
from tests import factories
from tests.answers import at_once
from tests.oracles.requests.chat_judges import (
    chat_faults,
    deepseek_faults,
    mistral_faults,
    ollama_faults,
    responses_faults,
)
from tests.oracles.requests.conversations import LONG_NAME, draw
from tests.oracles.requests.judges import (
    converse_faults,
    generate_content_faults,
    messages_faults,
    one_sampler,
    thinking_of,
    without_prefill,
)

CASES = int(os.environ.get("CASES", "200"))


ADAPTERS = build_providers(salt_key=bytes(32))


Target = tuple[str, str, frozenset[Operation]]


def deployed(target: Target) -> Deployment:
    """Return a deployment that drops each field without a place."""
    provider, model, native = target
    return factories.deployment(
        provider=provider,
        base_url="http://127.0.0.1:9",  # without a path: in Ollama's own dialect
        model=model,
        native=native,
        untranslatable=FieldLoss.DROP,
        output_limit=PROVIDERS[provider].output_limit,
    )


def sent_to(target: Target, read: RequestBody) -> Any:
    """Return the body of the request that a provider is sent."""
    one, adapter = deployed(target), ADAPTERS[target[0]]
    translation = adapter.translate(one, read)
    call = at_once(adapter.call(one, factories.request(read), translation=translation))
    return json.loads(call.body)


TRANSLATED: frozenset[Operation] = frozenset()
CHAT = frozenset({Operation.CHAT})
TARGETS: dict[str, tuple[Target, Callable[[Any], list[str]]]] = {
    "bedrock-claude": (
        ("bedrock", "eu.anthropic.claude-opus-4-6-v1", TRANSLATED),
        without_prefill(one_sampler(converse_faults)),
    ),
    "bedrock-nova": (("bedrock", "amazon.nova-pro-v1:0", TRANSLATED), converse_faults),
    "anthropic": (
        ("anthropic", "claude-opus-4-6", TRANSLATED),
        without_prefill(one_sampler(messages_faults)),
    ),
    "anthropic-budget": (
        ("anthropic", "claude-sonnet-4-5", TRANSLATED),
        one_sampler(messages_faults),
    ),
    "gemini": (
        ("gemini", "gemini-3-pro", TRANSLATED),
        thinking_of(generate_content_faults, "LOW", "HIGH"),
    ),
    "gemini-budget": (
        ("gemini", "gemini-2.5-pro", TRANSLATED),
        thinking_of(generate_content_faults, 128),
    ),
    "openai": (("openai", "gpt-5.2", CHAT), chat_faults),
    "deepseek": (("deepseek", "deepseek-v4-pro", CHAT), deepseek_faults),
    "mistral": (("mistral", "mistral-large-latest", CHAT), mistral_faults),
    "ollama": (("ollama", "llama4", TRANSLATED), ollama_faults),
}


# What has no legal form there: a name that begins with a digit, or is too long.
_LONG = f"The tool's name '{LONG_NAME[:64]}' is refused there"
REFUSED = {
    "gemini": ("The tool's name '0' is refused there",),
    "bedrock": (_LONG,),
    "openai": (_LONG,),
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_takes_what_the_callers_dialect_allows(target: str) -> None:
    """Faults are counted by their kind, each with the smallest number that draws it."""
    one, judge = TARGETS[target]
    faults: Counter[str] = Counter()
    first: dict[str, int] = {}
    for seed in range(CASES):
        operation, body = draw(seed)
        try:
            sent = sent_to(one, factories.read(body, operation))
            found = set(judge(sent))
            if operation in one[2]:  # its own dialect goes through: the additions are judged
                own = {fault.partition(" ")[0] for fault in judge(json.loads(body))}
                found = {fault for fault in found if fault.partition(" ")[0] not in own}
        except (InvalidRequest, Untranslatable) as refused:
            is_known = any(str(refused).startswith(one) for one in REFUSED.get(one[0], ()))
            found = set() if is_known else {f"refused: {refused}"}
        for fault in found:
            faults[fault] += 1
            first.setdefault(fault, seed)
    lines = [
        f"{number} × {fault} (first: {first[fault]})" for fault, number in faults.most_common()
    ]
    assert not lines, "\n".join(lines[:30])


def names_in(value: Any) -> set[str]:
    """Return the names of members, and the types and roles, in a JSON value."""
    if isinstance(value, list):
        return set().union(*map(names_in, value))
    if not isinstance(value, dict):
        return set()
    kinds = {value[one] for one in ("type", "role") if isinstance(value.get(one), str)}
    return {*value, *kinds}.union(*map(names_in, value.values()))


@pytest.mark.parametrize("target", TARGETS)
def test_a_lost_field_has_the_callers_own_name(target: str) -> None:
    """A caller cannot find `sealed` or `document` in its request. A prefill has no member."""
    one = deployed(TARGETS[target][0])
    for seed in range(CASES):
        operation, body = draw(seed)
        try:
            made = ADAPTERS[one.provider].translate(one, factories.read(body, operation))
        except InvalidRequest:  # the name of a tool
            continue
        lost = () if made is None else made.dropped_fields
        parts = {part for field in lost for part in re.sub(r"\[\d+\]", "", field).split(".")}
        assert parts <= {*names_in(json.loads(body)), "prefill"}, (seed, lost)


@pytest.mark.parametrize(
    ("operation", "judge"),
    [(Operation.CHAT, chat_faults), (Operation.RESPONSES, responses_faults)],
)
def test_what_the_gateway_adds_is_legal_in_the_callers_own_dialect(
    operation: Operation, judge: Callable[[Any], list[str]]
) -> None:
    """A request that goes through has no fault at another place than its caller's own."""
    target = "openai", "gpt-5.2", frozenset({operation})
    judged = 0
    for seed in range(200):
        drawn, body = draw(seed)
        if drawn is operation:
            asked = json.loads(body) | {"stream": seed % 2 == 0}
            sent = sent_to(target, factories.read(json.dumps(asked).encode(), operation))
            assert sent != asked
            own = {fault.partition(" ")[0] for fault in judge(asked)}
            assert {fault for fault in judge(sent) if fault.partition(" ")[0] not in own} == set()
            judged += 1
    assert judged > 60


@pytest.mark.parametrize(
    ("judge", "body"),
    [
        (chat_faults, {"model": "m", "messages": [{"role": "user", "content": "a", "x": 1}]}),
        (chat_faults, {"model": "m", "messages": [{"role": "user", "content": "a"}], "x": 1}),
        (responses_faults, {"model": "m", "input": "a", "x": 1}),
        (responses_faults, {"model": "m", "input": [{"role": "tool", "content": "a"}]}),
        (ollama_faults, {"model": "m", "messages": [{"role": "developer", "content": "a"}]}),
        (ollama_faults, {"model": "m", "messages": [], "options": {"top_k": "1"}}),
    ],
)
def test_a_judge_refuses_what_its_description_does_not_have(
    judge: Callable[[Any], list[str]], body: dict[str, Any]
) -> None:
    """A judge that takes anything would find nothing."""
    assert judge(body)
