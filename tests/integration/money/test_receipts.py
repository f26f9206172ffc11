"""A receipt equals the answer's figures, digit for digit; it is there when the answer ends, and
does not change.
"""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest

from tests.gateway_process import Gateway
from tests.integration.edge.test_sdk import MESSAGES, fake

COST = re.compile(r'"cost_usd":\s*([0-9.]+|null)')
# Odd token counts, so that the costs have many digits.
BODIES: dict[str, dict[str, Any]] = {
    "plain": {"model": "chat", **fake(**{"in": 1237}, cached=401, out=59, think=13)},
    "a stream": {
        "model": "vllm",
        "stream": True,
        "stream_options": {"include_usage": True},
        **fake(out=7),
    },
    "after another deployment failed": {"model": "after-500", **fake(out=11)},
    "a provider's own": {"model": "hosted", **fake(**{"in": 333}, out=3)},
}


def receipt_text(gateway: Gateway, http: httpx2.Client, request_id: str) -> str:
    """Return the receipt as its team reads it."""
    answer = http.get(f"/v1/requests/{request_id}")
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_receipt_is_there_when_the_answer_ends_and_never_changes(
    gateway: Gateway, http: httpx2.Client, body: dict[str, Any]
) -> None:
    """The answer's body, the receipt a moment later and the ledger must have the same cost,
    digit for digit.
    """
    answer = http.post(
        "/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 90, **body}
    )
    assert answer.status_code == 200, answer.text
    request_id = answer.headers["x-request-id"]

    at_once = receipt_text(gateway, http, request_id)
    attempts = int(answer.headers["x-tollgate-attempts"])
    events = gateway.events(request_id, count=attempts)

    assert receipt_text(gateway, http, request_id) == at_once
    (shown_cost,) = COST.findall(answer.text)
    last = httpx2.Response(200, text=at_once).json()["attempts"][-1]
    assert at_once.count(f'"cost_usd":{shown_cost}') >= 2, (
        "the last attempt's, and one of its lines or the total"
    )
    assert [
        attempt["attempt"] for attempt in httpx2.Response(200, text=at_once).json()["attempts"]
    ] == list(range(1, attempts + 1))
    assert f"{events[-1]['cost_usd'].normalize():f}" == shown_cost
    assert last["usage_obtained"] == "the upstream's final figure"
    assert last["price_obtained"].startswith("policy, in the price book since 20")


def test_an_unknown_cost_is_shown_as_unknown(gateway: Gateway, http: httpx2.Client) -> None:
    """The upstream hung, so the cost is neither zero nor a guess."""
    answer = http.post(
        "/v1/chat/completions", json={"model": "chat", "messages": MESSAGES, "fake": "hang"}
    )
    request_id = answer.headers["x-request-id"]
    gateway.events(request_id)
    (attempt,) = httpx2.Response(200, text=receipt_text(gateway, http, request_id)).json()[
        "attempts"
    ]
    assert (attempt["cost_usd"], attempt["total_usd"], attempt["usage_source"]) == (
        None,
        None,
        "unknown",
    )
    assert attempt["held_usd"] > 0
    assert attempt["cost_obtained"] == "unknown: the amount held is the most it can be"
