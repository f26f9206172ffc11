"""`POST /v1/route/explain`: the caller's own decision, from a short question or a body as it would
be sent.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from gateway.api.plain.route_explain import explained, read_question
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import DataClass, LatencyPrior, Policy, Route
from gateway.domain.routing.replay import Place
from gateway.errors import InvalidRequest, ModelNotFound, RouteNotAllowed
from gateway.services.deployments.estimates import Estimates
from tests import factories
from tests.fakes import FakeClock

PLACE = Place(gateway_region="unknown", day=date(2026, 11, 22))
POLICY = factories.policy(
    factories.deployment("us", region="us-east", capabilities=frozenset({"tools"})),
    factories.deployment("eu", capabilities=frozenset()),
    teams={
        "payments": factories.team(),
        "legal": factories.team("legal", data_class=DataClass.CONFIDENTIAL),
    },
)
CHAT = {"model": "assistant", "messages": [{"role": "user", "content": "hello"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def ask(body: Any, *, team: str = "payments", label: str = "") -> dict[str, Any]:
    """Return the answer to a team's key."""
    known = factories.snapshot(document=POLICY)
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"x-tollgate-data-class": label}
    explanation = explained(
        read_question(sent), headers, caller=factories.caller(team), snapshot=known, place=PLACE
    )
    return dict(json.loads(explanation))


def ranks(explanation: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(one["deployment"], one["rank"]) for one in explanation["candidates"]]


def test_a_short_question_is_enough() -> None:
    """A prompt is not needed to ask for the destination."""
    explanation = ask({"model": "gpt-4o"})
    assert (
        explanation["policy_version"],
        explanation["team"],
        explanation["route"],
        explanation["data_class"],
    ) == (
        7,
        "payments",
        "assistant",
        "internal",
    )
    assert (explanation["outcome"], explanation["is_refused"], ranks(explanation)) == (
        "Goes to us.",
        False,
        [("us", 1), ("eu", 2)],
    )
    assert "cost_usd" not in explanation["candidates"][0]


def test_a_body_is_decided_as_it_would_be_sent() -> None:
    """The same reader as for the request itself finds the needs of fields here too."""
    assert ranks(ask({**CHAT, "tools": [TOOL]})) == [("us", 1), ("eu", None)]
    assert ranks(ask(CHAT, label="confidential")) == [("us", None), ("eu", 1)]


def test_a_class_may_be_raised_in_the_body_and_never_lowered() -> None:
    """As by the header."""
    assert ranks(ask({"model": "assistant", "data_class": "confidential"})) == [
        ("us", None),
        ("eu", 1),
    ]
    assert (
        ask({"model": "assistant", "data_class": "internal"}, team="legal")["data_class"]
        == "confidential"
    )
    with pytest.raises(InvalidRequest, match="phi"):
        ask({"model": "assistant", "data_tags": ["phi"]})


def test_each_caller_gets_the_decision_of_its_own_team() -> None:
    """Another team's rules are private, and nothing in the body can ask for them."""
    assert ask({"model": "assistant"}, team="legal")["team"] == "legal"
    with pytest.raises(InvalidRequest, match="team"):
        ask({"model": "assistant", "team": "legal"})


def test_a_refusal_is_an_answer() -> None:
    """Whoever asks why wants to hear it, not to get the error."""
    explanation = ask({"model": "assistant", "data_class": "confidential", "needs": ["tools"]})
    assert explanation["is_refused"]
    assert explanation["outcome"].startswith("Refused by residency rule")
    assert [rank for _, rank in ranks(explanation)] == [None, None]


def test_tokens_are_priced_exactly() -> None:
    """Plain decimals, digit by digit."""
    explanation = ask(b'{"model": "assistant", "tokens": 1000, "answer_tokens": 1}')
    assert explanation["candidates"][0]["cost_usd"] == 0.001004


@pytest.mark.parametrize(
    ("body", "operation"),
    [
        ({"model": "assistant", "prompt": "x"}, Operation.COMPLETIONS),
        ({"model": "assistant", "input": "x"}, Operation.RESPONSES),
        ({"model": "assistant", "input": "x", "operation": "embeddings"}, Operation.EMBEDDINGS),
        ({"model": "assistant", "operation": "embeddings"}, Operation.EMBEDDINGS),
    ],
)
def test_the_endpoint_is_known_from_the_body(body: dict[str, Any], operation: Operation) -> None:
    """A deployment that does not serve it loses for that reason."""
    only = factories.deployment("only", operations=frozenset({operation}))
    known = factories.snapshot(document=factories.policy(only))
    explanation = explained(
        read_question(json.dumps(body).encode()),
        {},
        caller=factories.caller(),
        snapshot=known,
        place=PLACE,
    )
    assert json.loads(explanation)["is_refused"] is False


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"model": 3}',
        b"{}",
        b'{"model": "assistant", "tokens": -1}',
        b'{"model": "assistant", "tokens": 1, "answer_tokens": -1}',
        b'{"model": "assistant", "operation": "sing"}',
        b'{"messages": []}',
        b'{"model": "assistant", "messages": [], "operation": 3}',
    ],
)
def test_an_unreadable_question_is_refused_with_the_correct_form(body: bytes) -> None:
    """A 400 with the correct form, never an internal error."""
    with pytest.raises(InvalidRequest):
        ask(body)


def test_an_unknown_route_is_the_requests_own_error() -> None:
    """The same message as the request would get."""
    with pytest.raises(ModelNotFound):
        ask({"model": "nowhere"})
    lonely = factories.policy(teams={"payments": factories.team(routes=())})
    known = factories.snapshot(document=lonely)
    with pytest.raises(RouteNotAllowed):
        explained(
            read_question(b'{"model": "assistant"}'),
            {},
            caller=factories.caller(),
            snapshot=known,
            place=PLACE,
        )


PRICED = factories.policy(
    factories.deployment(
        "a", price=factories.price("2", "8"), prior=LatencyPrior(ttft_s=0.3, tpot_s=0.01)
    ),
    factories.deployment(
        "b", price=factories.price("1", "4"), prior=LatencyPrior(ttft_s=2.0, tpot_s=0.01)
    ),
    factories.deployment("c", price=factories.price("1", "4"), capabilities=frozenset()),
    routes={
        "assistant": Route(
            name="assistant",
            deployments=("a", "b"),
            objective="cheapest",
            ttft_p95_s=1.0,
            degrade_to="small",
        ),
        "small": Route(name="small", deployments=("c",)),
    },
)


def priced(
    body: Any, *, estimates: Estimates | None = None, policy: Policy = PRICED
) -> dict[str, Any]:
    prices = {name: one.price for name, one in policy.deployments.items() if one.price is not None}
    known = replace(factories.snapshot(document=policy), prices=prices)
    question = read_question(json.dumps(body).encode())
    explanation = explained(
        question, {}, caller=factories.caller(), snapshot=known, place=PLACE, estimates=estimates
    )
    return dict(json.loads(explanation))


def test_the_arithmetic_of_each_candidate_is_shown() -> None:
    """The reasons for this one and not the cheaper one: the figures, the bound, and their basis."""
    explanation = priced({"model": "assistant", "tokens": 1000, "answer_tokens": 101})
    a, b = explanation["candidates"]
    assert (
        explanation["outcome"]
        == "Goes to a (spill: b would take 2 s to its first token, 1 s are allowed)."
    )
    assert explanation["degraded"] == "spill: b would take 2 s to its first token, 1 s are allowed"
    assert explanation["basis"].startswith(
        "For a prompt of 1,000 tokens and an answer of 101, from the policy's declarations"
    )
    assert a["arithmetic"] == (
        "1,000 × 2 + 101 × 8 USD per million tokens = 0.002808 USD; 0.3 s + 100 × 0.01 s = 1.3 "
        "s (declared, no samples)"
    )
    assert a["expected"]["cost_nusd"] == 2_808_000
    assert (b["rank"], b["expected"]["misses"]) == (2, ["ttft_p95"])
    assert b["reason"] == (
        "eligible, but after others by cheapest; would take 2 s to its first token, 1 s are allowed"
    )


def test_a_worker_shows_its_own_figures() -> None:
    """Its figures order the requests, so its figures explain them."""
    estimates = Estimates(FakeClock())
    explanation = priced({"model": "assistant"}, estimates=estimates)
    assert (
        explanation["basis"]
        == "For a prompt of 1,000 tokens, from this gateway worker's recent observations."
    )
    sent = priced(
        {"model": "assistant", "messages": [{"role": "user", "content": "x" * 400}]},
        estimates=Estimates(FakeClock()),
    )
    assert sent["basis"].startswith("For the request's own prompt, from this gateway worker")
    assert 100 < sent["candidates"][0]["expected"]["input_tokens"] < 130


def test_the_route_that_is_degraded_to_is_explained_too() -> None:
    """Its deployments come first then, although the team does not list it; if they are not
    eligible they do not.
    """
    slow = {
        n: replace(d, prior=LatencyPrior(ttft_s=9.0))
        for n, d in PRICED.deployments.items()
        if n in "ab"
    }
    late = replace(PRICED, deployments={**PRICED.deployments, **slow})
    explanation = priced({"model": "assistant"}, policy=late)
    assert [
        (one["deployment"], one["rank"], one.get("route")) for one in explanation["candidates"]
    ] == [
        ("a", 3, None),
        ("b", 2, None),
        ("c", 1, "small"),
    ]
    assert explanation["outcome"].startswith("Goes to c (degraded to route small: b would take 9 s")
    kept = priced({"model": "assistant", "needs": ["tools"]}, policy=late)
    assert (kept["outcome"], kept["degraded"]) == ("Goes to b.", None)
