"""`n_predict` beside `max_tokens`: llama.cpp obeys the first, so USD 12 of a budget of USD 2 were
spent.

The gateway sends its bound in the members of OpenAI's dialect. A member by which some server
overrules that bound needs permission, and a request with it has no bound.
"""

from __future__ import annotations

import pytest

from gateway.domain.policy.policy import Route
from gateway.domain.policy.request_fields import FEATURES
from gateway.domain.request.bound import bound_of
from tests import factories
from tests.attacks.bounded import Bounded

MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("member", FEATURES["other_maximum"].members)
def test_it_is_refused_and_nothing_is_sent(poor: Bounded, member: str) -> None:
    """The answer names the member, so that the caller can leave it out."""
    body = {"model": "older", "messages": MESSAGES, "max_tokens": 10, member: 100_000}
    answer = poor.post("chat/completions", body)
    assert answer.status_code == 400
    assert f"'{member}'" in answer.text or member in answer.json()["error"]["message"]
    assert poor.engine.bills == []


def test_a_request_with_another_maximum_has_no_certain_bound() -> None:
    """Without a bound, no hard budget may admit the request."""
    asked = factories.facts(features=frozenset({"other_maximum"}), output_bound_tokens=10)
    found = bound_of(
        asked,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(),
        price=factories.price("1", "1"),
    )
    assert not found.is_certain
