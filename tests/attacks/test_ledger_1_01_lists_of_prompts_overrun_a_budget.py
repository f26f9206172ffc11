"""Ledger 1.1: the hold for several prompts or inputs was as small as for one.

The tests run both of the audit's sequences through a real gateway and an engine that answers each
prompt.
"""

from __future__ import annotations

from decimal import Decimal

from tests.attacks.bounded import Bounded, bounded, settled_spent
from tests.attacks.permissive_engine import WINDOW, Engine
from tests.gateway_process import StartGateway


def test_fifty_prompts_need_room_for_fifty_answers(
    start_gateway: StartGateway, permissive_engine: Engine
) -> None:
    """Sequence A: the request was held for one answer and charged five times the whole limit."""
    on = bounded(start_gateway, permissive_engine, team=budget("0.01"))
    asked = {"model": "older", "prompt": ["a"] * 50, "max_tokens": 100}
    refused = on.post("completions", asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (402, "budget_exhausted")
    assert on.engine.bills == []
    few = on.post("completions", {**asked, "prompt": ["a"] * 5})
    assert few.status_code == 200, few.text
    event = on.event(few)
    assert (event["output_tokens"], event["is_suspect"]) == (500, False)
    assert settled_spent(on, "poor/month") <= Decimal("0.01")


def test_a_batch_of_inputs_is_not_capped_at_one_window(poor: Bounded) -> None:
    """Sequence B: each input may fill the window by itself, and an honest batch was flagged."""
    inputs = ["b" * (WINDOW + 200)] * 20
    bill = poor.try_one("embeddings", {"model": "windowed", "input": inputs})
    assert bill is not None
    assert bill.input_tokens == 20 * WINDOW
    (event,) = poor.gateway.query(
        "SELECT * FROM finance.usage_events WHERE key_id = %s", poor.key.split("_")[1]
    )
    assert event["features"]["input_bound_tokens"] == 20 * WINDOW
    assert event["features"]["prompts"] == 20


def test_token_ids_are_one_prompt_and_lists_of_them_are_many(poor: Bounded) -> None:
    """Some clients send ids instead of text."""
    poor.provide(2)
    for prompt, answers in (([1, 2, 3], 1), ([[1, 2], [3]], 2)):
        poor.renew()
        bill = poor.try_one("completions", {"model": "older", "prompt": prompt, "max_tokens": 30})
        assert bill is not None
        assert bill.output_tokens == 30 * answers


def test_prompts_that_cannot_be_counted_are_refused_under_a_hard_budget(poor: Bounded) -> None:
    """No dialect has a mixture of texts and ids, and a guessed count would let a request overrun
    the budget.
    """
    for model in ("older", "windowed"):
        asked = {"model": model, "prompt": ["a", [1, 2]], "max_tokens": 1}
        answer = poor.post("completions", asked)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert poor.engine.bills == []


def budget(limit_usd: str) -> str:
    return f", budgets: [{{period: month, limit_usd: {limit_usd}}}]"
