"""Members beside which another model, price or maximum may count. No setting served them under a
hard budget, and the refusal named neither the member nor a remedy that works.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from gateway.api.dialect_headers import with_needs
from gateway.domain.budgets import messages
from gateway.domain.budgets.budgets import Account, BudgetPeriod, BudgetRule, BudgetScope
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.policy.request_fields import FEATURES, WITHOUT_BOUND
from gateway.domain.policy.unlisted import DROP_UNLISTED, Unlisted
from gateway.domain.request.bound import Bound, bound_of
from gateway.domain.request.request import RequestFacts
from gateway.domain.request.unpriced import Unpriced
from tests import factories

MESSAGES = [{"role": "user", "content": "x"}]
PROMPTS: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: {"messages": MESSAGES, "max_tokens": 10},
    Operation.RESPONSES: {"input": MESSAGES, "max_output_tokens": 10},
    Operation.MESSAGES: {"messages": MESSAGES, "max_tokens": 10},
}
MEMBERS = sorted(member for name in WITHOUT_BOUND for member in FEATURES[name].members)
ADVISOR = {"type": "advisor_20260301", "name": "advisor", "model": "m"}
# The members, the place that is named, and the name by which a deployment lists it.
NESTED: list[tuple[Operation, dict[str, Any], str, str]] = [
    (
        Operation.RESPONSES,
        {"context_management": [{"type": "compaction"}]},
        "context_management: compaction",
        "context_management=compaction",
    ),
    (
        Operation.MESSAGES,
        {"context_management": {"edits": [{"type": "compact_20260112"}]}},
        "context_management: compact",
        "context_management=compact",
    ),
    (Operation.MESSAGES, {"tools": [ADVISOR]}, "tools: advisor_20260301", "advisor_20260301"),
    (
        Operation.RESPONSES,
        {"input": [*MESSAGES, {"type": "compaction_trigger"}]},
        "input: compaction_trigger",
        "compaction_trigger",
    ),
]
EVERY = [
    *((operation, {name: {"a": "b"}}, name, name) for operation in PROMPTS for name in MEMBERS),
    *NESTED,
]


def read(operation: Operation, members: dict[str, Any]) -> RequestFacts:
    """Return the facts of a request with some members."""
    body = {"model": "m", **PROMPTS[operation], **members}
    return factories.read(json.dumps(body).encode(), operation).facts


def hard(facts: RequestFacts, **deployment: Any) -> Bound:
    """Return the bound of a request under a hard budget, at a deployment with a window."""
    made = {
        "context_window": 1000,
        "is_self_hosted": False,
        "native": frozenset({facts.operation}),
        "provider": "openrouter",
    }
    return bound_of(
        facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(**(made | deployment)),
        price=factories.price("1", "1"),
        is_relied_on=True,
        bounds_rounds=True,
    )


@pytest.mark.parametrize(("operation", "members", "where", "listed_as"), EVERY)
@pytest.mark.parametrize("is_self_hosted", [False, True])
def test_it_is_named_and_two_switches_serve_it(
    operation: Operation,
    members: dict[str, Any],
    where: str,
    listed_as: str,
    is_self_hosted: bool,
) -> None:
    """`listed` for one that does nothing to the cost, a factor for one that multiplies it."""
    facts = read(operation, members)
    at: dict[str, Any] = {"is_self_hosted": is_self_hosted}
    for drops in ({}, {"unlisted": DROP_UNLISTED}):  # such a member is never left out
        found = hard(facts, **at, **drops)
        assert (found.is_certain, found.unpriced) == (
            False,
            Unpriced(where=where, field=None, listed_as=listed_as, is_unbounded=True),
        )
    served = hard(facts, listed=frozenset({listed_as}), **at)
    assert (served.is_certain, served.unpriced) == (True, None)
    factor = hard(facts, unlisted=Unlisted(factor=Decimal(8)), **at)
    assert (factor.is_certain, factor.unpriced, factor.nusd) == (True, None, served.nusd * 8)


def test_each_of_several_members_is_listed_by_itself() -> None:
    """Only the first one of a feature was kept."""
    facts = read(Operation.CHAT, {"provider": {"order": ["x"]}, "models": ["x"]})
    found = hard(facts, listed=frozenset({"models"}))
    assert found.unpriced is not None
    assert found.unpriced.where == "provider"
    assert hard(facts, listed=frozenset({"models", "provider"})).is_certain


def test_the_larger_window_of_a_beta_is_one_too() -> None:
    """It is named beside another maximum."""
    body = {"model": "m", **PROMPTS[Operation.MESSAGES], "options": {"a": 1}}
    read_body = factories.read(json.dumps(body).encode(), Operation.MESSAGES)
    facts = with_needs(read_body, [("anthropic-beta", "context-1m-2025-08-07")]).facts
    place = "anthropic-beta: context-1m"
    assert facts.unbounded == {place, "options"}
    found = hard(facts, listed=frozenset({"options"}))
    assert found.unpriced == Unpriced(where=place, field=None, listed_as=place, is_unbounded=True)
    assert hard(facts, listed=frozenset({"options", place})).is_certain


def test_a_past_request_has_no_bound_either() -> None:
    """A replay knows of the feature alone."""
    facts = factories.facts(features=frozenset({"rerouting"}))
    found = hard(facts)
    assert not found.is_certain
    assert found.unpriced is not None
    assert found.unpriced.where == "rerouting"


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("provider", "`listed: [provider]`"),
        ("anthropic-beta: context-1m", '`listed: ["anthropic-beta: context-1m"]`'),
    ],
)
def test_the_message_names_the_member_and_the_switches(where: str, shown: str) -> None:
    """It asked for a maximum, which was set."""
    rule = BudgetRule(
        rule_id="payments/day",
        scope=BudgetScope.TEAM,
        team="payments",
        owner="payments",
        period=BudgetPeriod.DAY,
        limit_nusd=1,
    )
    account = Account(account_id="payments/day", rule=rule)
    text = messages.unbounded_member(account, "one", where=where, listed_as=where)
    assert f"'{where}' at one" in text
    assert shown in text
    assert "`unlisted: {factor: N}`" in text
    assert "max_tokens" not in text
