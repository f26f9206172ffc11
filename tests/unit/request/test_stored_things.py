"""A stored prompt may bring a container of USD 1.92 or any other tool, and was held with the fee of
one search. Under a hard budget a thing that is stored at the provider, and may have tools, a model
or a maximum of its own, is refused unless the operator knows that it brings none.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gateway.domain.budgets import messages
from gateway.domain.budgets.budgets import Account, BudgetPeriod, BudgetRule, BudgetScope
from gateway.domain.operation import Operation
from gateway.domain.policy.known_members import KNOWN_MEMBERS
from gateway.domain.policy.listed_members import TABLES, bounded_members
from gateway.domain.policy.policy import Route
from gateway.domain.policy.request_fields import FEATURE_OF_MEMBER, FEATURES
from gateway.domain.providers.table import PROVIDERS
from gateway.domain.providers.unasked import BRINGS_ITS_OWN, PREVIOUS
from gateway.domain.request.bound import Bound, bound_of
from gateway.domain.request.request import RequestFacts
from gateway.domain.request.unpriced import Unpriced
from tests import factories

STORED = re.compile(
    r"agent|assist|cached|conversation|preset|previous|prompt|session|stored|template|thread",
    re.IGNORECASE,
)
PUBLISHED = {
    name
    for operations in TABLES.values()
    for names in operations.values()
    for name in names.split()
} | {*KNOWN_MEMBERS, *FEATURE_OF_MEMBER}
# Names with these words that bring nothing that is stored: flags, keys, counts, texts of the
# request itself, and members of engines of one's own.
_NAMES = """
    add_generation_prompt agent_count agent_hierarchy cache_prompt chat_template
    chat_template_kwargs conversation_params generation_prompt
    injected_chat_template_kwargs previous_input_messages promptVariables prompt_cache_isolation_key
    prompt_cache_key prompt_cache_options prompt_cache_retention prompt_embeds prompt_ignore_length
    prompt_logprobs prompt_mode prompt_token_ids prompt_token_ids_b64 prompt_truncate_len
    return_cached_tokens_details return_prompt_text return_prompt_token_ids
    routed_experts_prompt_start safe_prompt session_id session_params top_prompt_logprobs
    truncate_prompt_tokens
"""
BRINGS_NOTHING = set(_NAMES.split())
PROMPTS: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: {"messages": [{"role": "user", "content": "x"}]},
    Operation.RESPONSES: {"input": "x"},
    Operation.MESSAGES: {"messages": [{"role": "user", "content": "x"}]},
}


def read(operation: Operation, name: str) -> RequestFacts:
    """The facts of a request with a stored thing."""
    value: Any = {"id": "x"} if name == "prompt" else "x"
    body = {"model": "m", **PROMPTS[operation], name: value}
    return factories.read(json.dumps(body).encode(), operation).facts


def hard(facts: RequestFacts, **deployment: Any) -> Bound:
    """The bound of a request under a hard budget, at a deployment with a window."""
    made = {
        "provider": "openai",
        "model": "gpt-5",
        "is_self_hosted": False,
        "context_window": 1000,
        "max_output_tokens": 100,
        "native": frozenset({facts.operation}),
    }
    return bound_of(
        facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(**(made | deployment)),
        price=factories.price("1", "1"),
        is_relied_on=True,
        bounds_rounds=True,
    )


def test_every_published_name_of_a_stored_thing_is_judged() -> None:
    """A newer schema brings names: each one needs a decision here."""
    found = {name for name in PUBLISHED if STORED.search(name)}
    assert found == BRINGS_ITS_OWN | BRINGS_NOTHING | {PREVIOUS}
    assert {*FEATURES["stored_state"].members} == BRINGS_ITS_OWN - {"prompt"} | {PREVIOUS}


@pytest.mark.parametrize("operation", PROMPTS)
@pytest.mark.parametrize("name", sorted(BRINGS_ITS_OWN | {PREVIOUS}))
def test_it_has_no_bound_unless_the_deployment_lists_it(operation: Operation, name: str) -> None:
    """The ledger knows the responses of a team, which were bounded when they were made."""
    if name == "prompt" and operation is not Operation.RESPONSES:
        assert name not in bounded_members("openai", operation)
        return
    facts = read(operation, name)
    found = hard(facts)
    if name == PREVIOUS and operation is Operation.RESPONSES:
        assert (found.unpriced, found.is_certain) == (None, True)
        return
    missing = Unpriced(where=name, field=None, listed_as=name)
    assert (found.unpriced, found.is_certain) == (missing, False)
    assert hard(facts, is_self_hosted=True).unpriced is None
    listed = hard(facts, listed=frozenset({name}))
    assert (listed.unpriced, listed.is_certain) == (None, True)
    if name == "prompt":
        assert listed.rounds is not None
        assert listed.rounds.members == (("max_tool_calls", 4),), "its tools are bounded still"


@pytest.mark.parametrize(
    ("provider", "model", "word"),
    [
        ("openrouter", "@preset/ours", "preset"),
        ("openrouter", "openai/gpt-5@preset/ours", "preset"),
        ("bedrock", "arn:aws:bedrock:eu-west-1:1:prompt/P1:2", "prompt"),
        ("mistral", "ag:1:20250101:ours:2", "agent"),
        ("openrouter", "openai/gpt-5", None),
        ("bedrock", "arn:aws:bedrock:eu-west-1:1:inference-profile/eu.x", None),
        ("mistral", "mistral-large-latest", None),
        ("openai", "gpt-5", None),
    ],
)
def test_a_model_that_is_a_stored_configuration_is_one_too(
    provider: str, model: str, word: str | None
) -> None:
    """A preset may have plugins, and a stored prompt tools: a plain request does not show them."""
    facts = factories.facts(output_bound_tokens=10)
    found = hard(facts, provider=provider, model=model)
    expected = None
    if word is not None:
        expected = Unpriced(where=f"model: {word}", field=None, listed_as=word)
    assert (found.unpriced, found.is_certain) == (expected, word is None)
    listed = hard(facts, provider=provider, model=model, listed=frozenset({word or ""}))
    assert listed.is_certain


@pytest.mark.parametrize("name", ["agent", "agent_id", "assistant_id", "preset", "prompt_id"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_one_that_no_schema_names_is_not_known_to_a_hard_budget(provider: str, name: str) -> None:
    """It is refused there with every other unknown name."""
    assert not any(name in bounded_members(provider, operation) for operation in PROMPTS)


def test_the_message_names_the_thing_and_the_remedies() -> None:
    """A rate would not bound it, so none is offered."""
    rule = BudgetRule(
        rule_id="payments/day",
        scope=BudgetScope.TEAM,
        team="payments",
        owner="payments",
        period=BudgetPeriod.DAY,
        limit_nusd=1,
    )
    account = Account(account_id="payments/day", rule=rule)
    text = messages.unpriced(
        account, "one", where="prompt", rate=None, can_drop=False, listed_as="prompt"
    )
    assert "'prompt' at one is stored at the provider" in text
    assert "`listed: [prompt]`" in text
    assert "price" not in text
