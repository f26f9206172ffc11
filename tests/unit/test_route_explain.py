"""`POST /v1/route/explain`: the caller's own decision, from a short question or a body as it would be sent."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from gateway.api.route_explain import explained
from gateway.domain.policy import DataClass, Operation
from gateway.domain.replay import Place
from gateway.errors import InvalidRequest, ModelNotFound, RouteNotAllowed
from tests import factories

PLACE = Place(gateway_region="unknown", day=date(2026, 11, 22))
POLICY = factories.policy(
    factories.deployment("us", region="us-east", capabilities=frozenset({"tools"})),
    factories.deployment("eu", capabilities=frozenset()),
    teams={"payments": factories.team(), "legal": factories.team("legal", data_class=DataClass.CONFIDENTIAL)},
)
CHAT = {"model": "assistant", "messages": [{"role": "user", "content": "hello"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def ask(body: Any, *, team: str = "payments", label: str = "") -> dict[str, Any]:
    """What a key of a team is told."""
    known = factories.snapshot(document=POLICY)
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"x-tollgate-data-class": label}
    told = explained(sent, headers, caller=factories.caller(team), snapshot=known, place=PLACE)
    return dict(json.loads(told))


def ranks(told: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(one["deployment"], one["rank"]) for one in told["candidates"]]


def test_a_short_question_is_enough() -> None:
    """Nobody needs a prompt to ask where it would go."""
    told = ask({"model": "gpt-4o"})
    assert (told["policy_version"], told["team"], told["route"], told["data_class"]) == (
        7, "payments", "assistant", "internal",
    )  # fmt: skip
    assert (told["outcome"], told["is_refused"], ranks(told)) == ("Goes to us.", False, [("us", 1), ("eu", 2)])
    assert "cost_usd" not in told["candidates"][0]


def test_a_body_is_decided_as_it_would_be_sent() -> None:
    """The same reader as for the request itself: what a field needs is found here too."""
    assert ranks(ask({**CHAT, "tools": [TOOL]})) == [("us", 1), ("eu", None)]
    assert ranks(ask(CHAT, label="confidential")) == [("us", None), ("eu", 1)]


def test_a_class_may_be_raised_in_the_body_and_never_lowered() -> None:
    """As by the header."""
    assert ranks(ask({"model": "assistant", "data_class": "confidential"})) == [("us", None), ("eu", 1)]
    assert ask({"model": "assistant", "data_class": "internal"}, team="legal")["data_class"] == "confidential"
    with pytest.raises(InvalidRequest, match="phi"):
        ask({"model": "assistant", "data_tags": ["phi"]})


def test_each_caller_gets_the_decision_of_its_own_team() -> None:
    """Another team's rules are nobody's business, and nothing in the body can ask for them."""
    assert ask({"model": "assistant"}, team="legal")["team"] == "legal"
    with pytest.raises(InvalidRequest, match="team"):
        ask({"model": "assistant", "team": "legal"})


def test_a_refusal_is_an_answer() -> None:
    """Whoever asks why wants to hear it, not to get the error."""
    told = ask({"model": "assistant", "data_class": "confidential", "needs": ["tools"]})
    assert told["is_refused"]
    assert told["outcome"].startswith("Refused by residency rule")
    assert [rank for _, rank in ranks(told)] == [None, None]


def test_tokens_are_priced_exactly() -> None:
    """Plain decimals, digit by digit."""
    told = ask(b'{"model": "assistant", "tokens": 1000, "answer_tokens": 1}')
    assert told["candidates"][0]["cost_usd"] == 0.001004


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
    told = explained(json.dumps(body).encode(), {}, caller=factories.caller(), snapshot=known, place=PLACE)
    assert json.loads(told)["is_refused"] is False


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b"\xff", b'{"model": 3}', b'{}', b'{"model": "assistant", "tokens": -1}',
        b'{"model": "assistant", "tokens": 1, "answer_tokens": -1}', b'{"model": "assistant", "operation": "sing"}',
        b'{"messages": []}', b'{"model": "assistant", "messages": [], "operation": 3}',
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_words(body: bytes) -> None:
    """A 400 that says what to send, never a failure of ours."""
    with pytest.raises(InvalidRequest):
        ask(body)


def test_an_unknown_route_is_the_requests_own_error() -> None:
    """The same message as the request would get."""
    with pytest.raises(ModelNotFound):
        ask({"model": "nowhere"})
    lonely = factories.policy(teams={"payments": factories.team(routes=())})
    known = factories.snapshot(document=lonely)
    with pytest.raises(RouteNotAllowed):
        explained(b'{"model": "assistant"}', {}, caller=factories.caller(), snapshot=known, place=PLACE)
