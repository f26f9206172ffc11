"""Security F1: one ordinary request overran a hard budget by any factor.

A real gateway stands before an engine that honours one maximum for each endpoint and bills
everything else. After every request the engine's ledger, the event and the budget are compared.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.attacks.bounded import PATHS, Bounded, bounded
from tests.attacks.permissive_engine import Engine
from tests.gateway_process import StartGateway

EXAMPLES = 120
KINDS = ("older", "newer", "windowed", "capped", "strict", "openai")
MAXIMA = ("max_tokens", "max_completion_tokens", "max_output_tokens")
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "enum": [[[1, 2], [3]], [[4]]]}},
}
IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}
OWN_TOOL = {"name": "f", "input_schema": {"type": "object", "enum": [[[1, 2], [3]], [[4]]]}}
text = st.text(alphabet='ab ["\\{,\u00e4\u4e2d', max_size=12)
ids = st.lists(st.integers(0, 9), min_size=1, max_size=6)
prompts = st.one_of(
    text,
    ids,
    st.lists(text, min_size=1, max_size=6),
    st.lists(ids, min_size=1, max_size=6),
    st.lists(st.one_of(text, ids), min_size=1, max_size=4),
)
contents = st.one_of(
    text, st.lists(st.sampled_from([PICTURE, {"type": "text", "text": "hi"}]), min_size=1)
)
blocks = st.one_of(
    text, st.lists(st.sampled_from([IMAGE, {"type": "text", "text": "hi"}]), min_size=1)
)
maximum = st.one_of(st.none(), st.sampled_from([0, 1, 7, 100, 900, 2**24, 2**24 + 1]))


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw an endpoint and a body with any spelling of a maximum."""
    path = draw(st.sampled_from(PATHS))
    body: dict[str, Any] = {"model": draw(st.sampled_from(KINDS))}
    if path == "chat/completions":
        body["messages"] = [{"role": "user", "content": draw(contents)}]
        if draw(st.booleans()):
            body["tools"] = [TOOL] * draw(st.integers(1, 2))
        if draw(st.sampled_from([False, False, True])):
            body["prediction"] = {"type": "content", "content": draw(text)}
    elif path == "messages":
        body["messages"] = [{"role": "user", "content": draw(blocks)}]
        if draw(st.booleans()):
            body["system"] = draw(text)
        if draw(st.booleans()):
            body["tools"] = [OWN_TOOL] * draw(st.integers(1, 2))
    elif path == "responses":
        turns = st.lists(
            st.builds(lambda content: {"role": "user", "content": content}, text), min_size=1
        )
        body["input"] = draw(st.one_of(text, turns, st.lists(text, min_size=2, max_size=3)))
    else:
        body["prompt" if path == "completions" else "input"] = draw(prompts)
    for name in draw(st.sets(st.sampled_from(MAXIMA))):
        body[name] = draw(maximum)
    if path in ("chat/completions", "completions") and draw(st.booleans()):
        body["n"] = draw(st.integers(1, 3))
    if path in ("chat/completions", "completions", "messages") and draw(st.booleans()):
        body["stream"] = draw(st.booleans())
    if path == "completions" and draw(st.booleans()):
        body["best_of"] = draw(st.integers(0, 4))
    return path, body


def test_no_request_makes_spending_exceed_the_limit(poor: Bounded) -> None:
    """The requests cover all endpoints, lists, token ids, pictures and every spelling of a maximum,
    on one budget each.

    A failure prints the request, so that it can be replayed alone.
    """
    sent = 0
    poor.provide(EXAMPLES + 1)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(requests(), min_size=1, max_size=3))
    def drive(asked: list[tuple[str, dict[str, Any]]]) -> None:
        nonlocal sent
        poor.renew()
        for path, body in asked:
            sent += poor.try_one(path, body) is not None

    drive()
    assert sent >= 60, "nearly everything was refused: the property was not tested"
    assert poor.gateway.query("SELECT * FROM tollgate.budget_mistakes()") == []
    assert poor.engine.refused == [], "a server that takes one maximum alone was sent both"


def test_a_maximum_unknown_to_the_endpoint_is_ignored(poor: Bounded) -> None:
    """Under a hard budget such a request has no bound, and is refused before anything is sent."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("chat/completions", {"messages": [], "max_output_tokens": 1}),
        ("chat/completions", {"messages": [], "max_tokens": 0}),
        ("responses", {"input": "hi", "max_tokens": 1}),
        ("responses", {"input": "hi", "max_completion_tokens": 1}),
        ("completions", {"prompt": "hi", "max_completion_tokens": 1}),
        ("messages", {"messages": MESSAGES, "max_completion_tokens": 1}),
        ("messages", {"messages": MESSAGES, "max_output_tokens": 1}),
    ]
    for path, members in asked:
        answer = poor.post(path, {"model": "older", **members})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert poor.engine.bills == []


@pytest.mark.parametrize("tools", [[], [{"name": "f", "input_schema": {"type": "object"}}]])
def test_a_messages_maximum_of_0_bounds_an_engine_too(
    poor: Bounded, tools: list[dict[str, Any]]
) -> None:
    """An engine that reads 0 as no maximum was held to 1 token, and billed its cap."""
    body = {"model": "capped", "messages": MESSAGES, "max_tokens": 0, "tools": tools}
    bill = poor.try_one("messages", body)
    assert bill is not None
    assert bill.output_tokens == 1


def test_the_cap_of_a_deployment_is_sent_beside_a_member_that_does_not_count(poor: Bounded) -> None:
    """The caller's own member replaced the cap and bounded nothing."""
    body = {
        "model": "capped",
        "messages": [{"role": "user", "content": "hi"}],
        "max_output_tokens": 1,
    }
    bill = poor.try_one("chat/completions", body)
    assert bill is not None
    assert bill.output_tokens == 100
    assert bill.body["max_tokens"] == bill.body["max_completion_tokens"] == 100


def test_the_bound_is_sent_as_each_upstream_honours_it(poor: Bounded) -> None:
    """The caller may use either member. The gateway omits the other one if the upstream would
    refuse it.
    """
    poor.provide(len(KINDS))
    for model in KINDS:
        poor.renew()
        for named in ("max_tokens", "max_completion_tokens"):
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}], named: 50}
            bill = poor.try_one("chat/completions", body)
            assert bill is not None, (model, named)
            assert bill.output_tokens == 50, (model, named)
    assert poor.engine.refused == []


def test_a_plain_request_without_a_budget_passes_as_it_came(
    start_gateway: StartGateway, permissive_engine: Engine
) -> None:
    """Without a budget nothing depends on the bound, so no member is added, replaced or left
    out.
    """
    on = bounded(start_gateway, permissive_engine, team="")
    seed = random.Random(16)
    for named in [*MAXIMA, None]:
        body = {
            "model": "older",
            "messages": [{"role": "user", "content": "hi"}],
            "n": seed.randint(1, 3),
        }
        body |= {} if named is None else {named: 50}
        assert on.post("chat/completions", json.dumps(body).encode()).status_code == 200
        assert on.engine.bills[-1].body == {**body, "model": "m"}


def test_a_token_limit_sends_the_bound_too(
    start_gateway: StartGateway, permissive_engine: Engine
) -> None:
    """Tokens are taken at the bound before a request is sent, so the upstream must get it."""
    team = ", limits: {tokens_per_minute: 100000}"
    on = bounded(start_gateway, permissive_engine, team=team)
    body = {"model": "newer", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}
    assert on.post("chat/completions", body).status_code == 200
    assert on.engine.bills[-1].output_tokens == 50


def test_more_than_any_engine_writes_is_refused_and_that_much_is_not(
    start_gateway: StartGateway, permissive_engine: Engine
) -> None:
    """The maximum is 16,777,216 tokens per request, times answers and prompts, even without a
    budget.
    """
    on = bounded(start_gateway, permissive_engine, team="")
    prompts = {"model": "windowed", "prompt": ["a"] * 16, "n": 4}
    assert on.post("completions", {**prompts, "max_tokens": 2**18}).status_code == 200
    refused = on.post("completions", {**prompts, "max_tokens": 2**18 + 1})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
    assert "16,777,216" in refused.json()["error"]["message"]
    assert len(on.engine.bills) == 1
