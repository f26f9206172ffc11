"""Containers of OpenAI's code interpreter: five calls in one container were five fees, and the
container that an answer without a call had made was none.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.settlement import Settlement
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.domain.request.bound import Bound, bound_of
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.responses import rewrite_response
from tests import factories
from tests.attacks.streamed import read

FEE = Decimal(30_000)  # a million fees: USD 0.03 for one
RATES = (
    Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal(1)),
    Rate(kind=TokenKind.OUTPUT, usd_per_mtok=Decimal(4)),
)
CODE = Rate(kind=TokenKind.CODE_INTERPRETER, usd_per_mtok=FEE)
AUTO = {"type": "code_interpreter", "container": {"type": "auto"}}
NAMED = {"type": "code_interpreter", "container": "cntr_1"}


def price(*rates: Rate) -> Price:
    return Price(provider="openai", model="m", source="policy", rates=(*RATES, *rates))


def call(container: str | None, place: int) -> dict[str, Any]:
    item = {"type": "code_interpreter_call", "id": f"c{place}", "status": "completed"}
    return item if container is None else {**item, "container_id": container}


def calls_of(items: list[dict[str, Any]], *, is_stream: bool, **usage: Any) -> Observed:
    counts = {"input_tokens": 9, "output_tokens": 9, **usage}
    body = {"id": "r", "model": "m", "status": "completed", "output": items, "usage": counts}
    if is_stream:
        done = [{"type": "response.output_item.done", "item": item} for item in items]
        return read("responses", [*done, {"type": "response.completed", "response": body}])
    seen = Observed(is_whole=True)
    rewrite_response(json.dumps(body).encode(), seen, model="m")
    return seen


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=8), st.booleans())
def test_each_container_is_one_fee(containers: list[str | None], is_stream: bool) -> None:
    items = [call(one, place) for place, one in enumerate(containers)]
    seen = calls_of(items, is_stream=is_stream)
    fees = len(set(containers) - {None}) + containers.count(None)
    assert seen.final is not None
    assert seen.final.code_interpreter_calls == (fees or None)
    assert seen.calls.get("code_interpreter_calls", 0) == fees


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_stated_number_of_calls_stands(is_stream: bool) -> None:
    """xAI bills each call, and its usage counts them."""
    items = [call("a", place) for place in range(3)]
    stated = {"server_side_tool_usage_details": {"code_interpreter_calls": 3}}
    seen = calls_of(items, is_stream=is_stream, **stated)
    assert seen.final is not None
    assert (seen.final.code_interpreter_calls, seen.calls) == (3, {"code_interpreter_calls": 3})


def bound(tool: dict[str, Any], made: Price, *, is_hard: bool) -> Bound:
    body = json.dumps({"model": "m", "input": "a", "max_output_tokens": 10, "tools": [tool]})
    asked = factories.read(body.encode(), Operation.RESPONSES)
    return bound_of(
        asked.facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(
            provider="openai", native=frozenset({Operation.RESPONSES}), is_self_hosted=False
        ),
        price=made,
        is_relied_on=is_hard,
        bounds_rounds=is_hard,
    )


def settled(tool: dict[str, Any], made: Price, calls: int | None, *, is_hard: bool) -> Settlement:
    """Return the settlement of an answer with so many containers to a request with this tool."""
    rounds = bound(tool, made, is_hard=is_hard).rounds
    assert rounds is not None
    shown = {} if calls is None else {"code_interpreter_calls": calls}
    usage = TokenUsage(input_tokens=100, output_tokens=50, **shown)
    return factories.settled(
        usage, fee=rounds.fee, calls=rounds.with_made(shown), price=made, held_nusd=10**12
    )


@pytest.mark.parametrize("is_hard", [True, False])
@pytest.mark.parametrize(("calls", "fees"), [(None, 1), (1, 1), (2, 2)])
def test_an_automatic_container_is_billed_without_a_call(
    calls: int | None, fees: int, is_hard: bool
) -> None:
    made = settled(AUTO, price(CODE), calls, is_hard=is_hard)
    assert (made.source, made.is_suspect) == (UsageSource.PROVIDER, False)
    assert made.cost_nusd == 100 * 1_000 + 50 * 4_000 + fees * 30_000_000


@pytest.mark.parametrize("is_hard", [True, False])
def test_an_automatic_container_without_a_rate_is_held(is_hard: bool) -> None:
    made = settled(AUTO, price(), None, is_hard=is_hard)
    assert made.source is UsageSource.UNKNOWN


@pytest.mark.parametrize("is_hard", [True, False])
def test_the_hold_covers_the_container(is_hard: bool) -> None:
    for rates in ((CODE,), ()):
        assert bound(AUTO, price(*rates), is_hard=is_hard).nusd >= 30_000_000


@pytest.mark.parametrize("is_hard", [True, False])
def test_a_container_of_the_callers_is_not_made_again(is_hard: bool) -> None:
    rounds = bound(NAMED, price(CODE), is_hard=is_hard).rounds
    assert rounds is not None
    assert rounds.with_made({}) == {}
