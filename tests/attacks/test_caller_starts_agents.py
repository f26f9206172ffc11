"""`grok-4.20-multi-agent` starts 16 agents at a high effort and bills the tokens of all, whatever
the maximum: USD 1.49 at a hold of USD 0.05. No page states the most rounds of such models, so a
hard budget refuses them by name, and a switch serves them.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import HostedToolsRule, Route
from gateway.domain.providers.hosted_tools import SEARCH_MODELS, search_model
from gateway.domain.request.bound import Bound, bound_of
from tests import factories

WINDOW, MAXIMUM, PROMPT = 1_000_000, 16, 200
MODELS = [
    ("xai", "grok-4.20-multi-agent", 16),
    ("xai", "grok-4.20-multi-agent-beta-0309", 16),
    ("openrouter", "x-ai/grok-4.20-multi-agent", 16),
    ("openai_compatible", "xai/Grok-4.20-Multi-Agent", 16),
    ("openai_compatible", "sonar-deep-research", 1),
    ("openai_compatible", "qwen-deep-research", 1),
    ("openrouter", "perplexity/sonar-deep-research", 1),
    ("openrouter", "openai/o3-deep-research", 1),
    ("openrouter", "openrouter/fusion", 1),
]
REST = [
    ("xai", "grok-4.20-0309-reasoning"),
    ("openai", "o3-deep-research"),  # `max_tool_calls` bounds its tools
    ("openai", "gpt-5.5"),
    ("anthropic", "claude-opus-5"),
]


def _bound(provider: str, model: str, *, is_hard: bool = True, **deployment: Any) -> Bound:
    """Return the bound of a plain request with a small maximum, at a dollar a million tokens."""
    made: dict[str, Any] = {
        "provider": provider,
        "model": model,
        "native": frozenset({Operation.RESPONSES}),
        "is_self_hosted": False,
        "context_window": WINDOW,
        "listed": frozenset({"web_search"}),
    }
    return bound_of(
        factories.facts(
            operation=Operation.RESPONSES, output_bound_tokens=MAXIMUM, body_bytes=PROMPT
        ),
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(**(made | deployment)),
        price=factories.price("1", "1"),
        is_relied_on=is_hard,
        bounds_rounds=is_hard,
    )


@pytest.mark.parametrize(("provider", "model", "agents"), MODELS)
def test_a_hard_budget_refuses_it_by_name(provider: str, model: str, agents: int) -> None:
    """The admin's word on the rounds holds a window and an answer of the window for each."""
    found = _bound(provider, model)
    assert found.rounds is not None
    assert found.rounds.unbounded is not None
    assert found.rounds.unbounded.where == f"model: {model}"
    assert not found.is_certain
    served = _bound(provider, model, hosted_tools=HostedToolsRule.HOLD, hosted_rounds=19)
    assert served.is_certain
    assert served.nusd >= 20 * 2 * WINDOW * 1000
    assert served.output_cap_tokens == MAXIMUM


@pytest.mark.parametrize(("provider", "model", "agents"), MODELS)
def test_its_hold_without_a_hard_budget_is_not_that_of_a_chat(
    provider: str, model: str, agents: int
) -> None:
    """A window and an answer of the window for each agent that its page states."""
    found = _bound(provider, model, is_hard=False)
    assert found.nusd >= agents * 2 * WINDOW * 1000
    assert found.sent_output_tokens in (None, agents * WINDOW)


@pytest.mark.parametrize(("provider", "model"), REST)
def test_another_model_keeps_the_hold_of_its_chat(provider: str, model: str) -> None:
    """Its own maximum bounds the answer."""
    found = _bound(provider, model)
    assert (found.rounds, found.output_tokens, found.is_certain) == (None, MAXIMUM, True)


def test_an_engine_of_ones_own_is_no_such_model() -> None:
    """Its name is the operator's, and it makes one answer."""
    found = _bound("vllm", "my-multi-agent", is_self_hosted=True)
    assert (found.rounds, found.output_tokens) == (None, MAXIMUM)


def test_a_model_without_end_states_no_rounds() -> None:
    """One with a stated number is held at it, and needs no switch."""
    for entry in SEARCH_MODELS:
        assert not entry.is_unbounded or entry.tool.most_rounds is None
        assert entry.agents == 1 or entry.is_unbounded
    assert search_model("groq", "groq/compound") is not None
