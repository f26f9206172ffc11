"""A compaction in a request of responses is a pass of its own, whose output stands beside the
maximum of the response, as in messages: a hard budget relied on that maximum.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.request.bound import bound_of
from gateway.domain.request.request import RequestFacts
from tests.factories import deployment, price, read

ENTRY = {"type": "compaction", "compact_threshold": 1000}
TRIGGER = {"type": "compaction_trigger"}
QUESTION = {"role": "user", "content": "x"}


def facts(body: dict[str, Any], *, escaped: bool = False) -> RequestFacts:
    """Return the facts of a response with a maximum of 16 tokens."""
    sent = json.dumps({"model": "m", "input": [QUESTION], "max_output_tokens": 16, **body})
    if escaped:
        sent = sent.replace('"compaction', '"\\u0063ompaction')
    return read(sent.encode(), Operation.RESPONSES).facts


@pytest.mark.parametrize(
    "body",
    [{"context_management": [ENTRY]}, {"input": [QUESTION, TRIGGER]}],
    ids=["managed", "trigger"],
)
@pytest.mark.parametrize("escaped", [False, True], ids=["plain", "escaped"])
def test_a_compaction_needs_permission_and_has_no_bound(
    body: dict[str, Any], escaped: bool
) -> None:
    asked = facts(body, escaped=escaped)
    assert asked.features == {"other_maximum"}
    route = Route(name="assistant", deployments=("one",))
    bound = bound_of(asked, route=route, deployment=deployment(), price=price(), is_relied_on=True)
    assert not bound.is_certain


@pytest.mark.parametrize(
    "body",
    [
        {"context_management": None},
        {"context_management": []},
        {"input": [QUESTION, {"type": "compaction", "encrypted_content": "gAAAA"}]},
    ],
    ids=["null", "empty", "an earlier summary"],
)
def test_a_request_without_a_new_summary_passes(body: dict[str, Any]) -> None:
    assert facts(body).features == frozenset()
