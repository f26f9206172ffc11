"""A budget of thinking above `max_tokens`: Claude thinks between calls of tools up to its context
window, and USD 0.90 were billed at a hold of USD 0.02. Alibaba's and SiliconFlow's maximum leaves
the thinking out, so that a plain chat there had no bound.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.providers.members.effects import EFFECTS, PARTS, THINKING_BUDGETS
from gateway.domain.request.bound import Bound, bound_of
from gateway.domain.request.unpriced import unbounded_member
from gateway.errors import InvalidRequest
from tests import factories
from tests.attacks.bounded import LIMIT_USD, Bounded
from tests.attacks.permissive_engine import WINDOW, running_engine
from tests.gateway_process import Gateway
from tests.integration.policy import PRICE

TOOL = {"name": "f", "input_schema": {"type": "object"}}
# Each member that states a budget, as a request writes it.
STATED: list[tuple[str, str | None]] = [
    (name, part) for name, parts in THINKING_BUDGETS.items() for part in parts or (None,)
]
# Names of published members about thinking that state no number of tokens.
WORDS = {
    *("clear_thinking", "disable_reasoning", "enable_thinking", "include_reasoning"),
    *("reasoning_budget_end_tag", "reasoning_budget_end_tags", "reasoning_budget_message"),
    *("reasoning_budget_start_tag", "reasoning_control", "reasoning_effort", "reasoning_format"),
    *("reasoning_history", "separate_reasoning", "stream_reasoning", "think"),
    "thinkingConfig",  # the gateway writes it itself, below the maximum
    # Anthropic's budget of a whole task is a wish; `max_tokens` stays the maximum of a request.
    "output_config.task_budget",
}


@pytest.fixture(scope="module")
def claude(
    launch_gateway: Callable[..., Iterator[Gateway]], module_database_url: str
) -> Iterator[Bounded]:
    """Yield a gateway before an upstream that thinks as Claude does, with a window and without."""
    with running_engine() as engine:
        common = (
            f"model: claude-sonnet-4-5, region: unknown, price: {PRICE}, operations: [messages]"
        )
        url, key = engine.url("max_tokens", "thinks"), 'api_key: "env:FAKE_KEY"'
        at = f'provider: anthropic, base_url: "{url}", {key}'
        policy = f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: windowed, {common}, {at}, context_window: {WINDOW}}}
  - {{name: open, {common}, {at}}}
routes:
  - {{name: windowed, deployments: [windowed]}}
  - {{name: open, deployments: [open]}}
teams:
  - name: poor
    cost_centre: CC-1
    data_class: internal
    routes: [windowed, open]
    keys: [{{key: "*", budgets: [{{period: month, limit_usd: {LIMIT_USD}}}]}}]
"""
        for gateway in launch_gateway(policy, module_database_url):
            yield Bounded(gateway, engine, gateway.key)


def _thinks(route: str, budget: object, maximum: int = 100) -> dict[str, Any]:
    """Return a request with interleaved thinking."""
    return {
        "model": route,
        "max_tokens": maximum,
        "messages": [{"role": "user", "content": "x"}],
        "thinking": {"type": "enabled", "budget_tokens": budget},
        "tools": [TOOL],
    }


def test_the_window_is_held_for_a_budget_above_the_maximum(claude: Bounded) -> None:
    """All that the model thought was inside the hold."""
    bill = claude.try_one("messages", _thinks("windowed", 100_000))
    assert bill is not None
    assert (bill.output_tokens, bill.body["max_tokens"]) == (WINDOW, 100)


def test_without_a_window_the_member_is_named_and_nothing_is_sent(claude: Bounded) -> None:
    """The caller can lower the budget, and an admin can declare the window."""
    before = len(claude.engine.bills)
    answer = claude.post("messages", _thinks("open", 100_000))
    assert answer.status_code == 400
    assert "thinking: budget_tokens" in answer.json()["error"]["message"]
    assert len(claude.engine.bills) == before
    bill = claude.try_one("messages", _thinks("open", 1024, maximum=2000))
    assert bill is not None
    assert bill.output_tokens == 2000


def _bound(
    members: dict[str, Any], operation: Operation = Operation.CHAT, **deployment: Any
) -> Bound:
    """Return the bound of a request under a hard budget."""
    body = {
        "model": "m",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "x"}],
        **members,
    }
    made: dict[str, Any] = {
        "provider": "openai_compatible",
        "native": frozenset({operation}),
        "context_window": 200_000,
    }
    return bound_of(
        factories.read(json.dumps(body).encode(), operation).facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(**(made | deployment)),
        price=factories.price("1", "1"),
        is_relied_on=True,
        bounds_rounds=True,
    )


def _stated(name: str, part: str | None, value: object) -> dict[str, Any]:
    return {name: value if part is None else {part: value}}


@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.MESSAGES])
@pytest.mark.parametrize(("name", "part"), STATED)
@settings(max_examples=20)
@given(budget=st.integers(-5, 400_000) | st.sampled_from(["9" * 6, 1e5, True, False, None, [], {}]))
@example(budget=99)
@example(budget=100)
def test_any_stated_budget_is_below_the_maximum_or_holds_the_window(
    operation: Operation, name: str, part: str | None, budget: object
) -> None:
    """A budget in a form that no schema has may be read as any number."""
    found = _bound(_stated(name, part, budget), operation)
    is_below = budget is None or budget is False
    is_below |= isinstance(budget, int) and not isinstance(budget, bool) and 0 <= budget < 100
    assert (found.output_tokens, found.output_cap_tokens) == (100 if is_below else 200_000, 100)
    assert found.is_certain


@pytest.mark.parametrize(("name", "part"), STATED)
def test_an_engine_counts_its_thinking(name: str, part: str | None) -> None:
    """It draws no token beyond its maximum, so the window need not be held."""
    found = _bound(_stated(name, part, 100_000), provider="vllm")
    assert found.output_tokens == 100


@pytest.mark.parametrize(("name", "part"), [one for one in STATED if one[1] is not None])
def test_an_object_with_two_budgets_is_refused(name: str, part: str | None) -> None:
    """One parser takes the first of them, another one the last."""
    twice = f'{{"{part}": 1, "{part}": 100000}}'
    body = f'{{"model": "m", "messages": [], "max_tokens": 100, "{name}": {twice}}}'
    with pytest.raises(InvalidRequest, match="two ways"):
        factories.read(body.encode(), Operation.CHAT)


def test_every_published_member_about_thinking_is_judged() -> None:
    """A new budget in a newer schema cannot do nothing to the bound unseen."""
    parts = {f"{top}.{part}" for top, names in PARTS.items() for part in names}
    about = {
        name for name in EFFECTS if any(word in name for word in ("budget", "think", "reason"))
    }
    about |= {part for part in parts if "budget" in part or "token" in part}
    stated = {name if part is None else f"{name}.{part}" for name, part in STATED}
    assert about - stated - THINKING_BUDGETS.keys() == WORDS


ALIBABA = "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"
SILICONFLOW = "https://api.siliconflow.com/v1"


@pytest.mark.parametrize(
    ("base_url", "model", "output_tokens"),
    [
        (ALIBABA, "qwen3-235b-a22b-thinking-2507", 200_000),
        (ALIBABA, "qwen-plus", 200_000),
        (ALIBABA, "qwen3.5-plus", 100),
        (ALIBABA, "qwen3.7-max-2026-05-20", 100),
        (ALIBABA, "kimi-k2.6", 100),
        (ALIBABA, "qwen2.5-72b-instruct", 100),
        (SILICONFLOW, "Qwen/Qwen3-32B", 200_000),
        (SILICONFLOW, "Qwen/Qwen3-30B-A3B-Instruct-2507", 100),
        ("https://llm.example.org/v1", "qwen3-32b", 100),
    ],
)
def test_a_maximum_that_leaves_the_thinking_out_holds_the_window(
    base_url: str, model: str, output_tokens: int
) -> None:
    """A plain chat thinks there as long as it likes, unless it states a budget."""
    at = {"base_url": base_url, "model": model}
    assert _bound({}, **at).output_tokens == output_tokens
    if output_tokens != 100:
        assert _bound({"thinking_budget": 500}, **at).output_tokens == 600
        open_bound = _bound({}, context_window=None, **at)
        assert open_bound.unpriced == unbounded_member("model: thinking")
        served = _bound({}, context_window=None, listed=frozenset({"thinking"}), **at)
        assert (served.output_tokens, served.is_certain) == (100, True)
