"""Sends the three requests of the tour that ends `up` (an answer, a residency refusal, an unknown
model), and returns their results as text.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import httpx2

from gateway.cli.up.demo_policy import OUT_OF_BOUNDS_ROUTE, ROUTE
from gateway.domain.money import format_usd
from gateway.errors import OperatorError

QUESTION = "Count down from 12"
RECEIPT_WITHIN_S = 15.0


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop of the tour: a request and its result as text."""

    title: str
    lines: tuple[str, ...]


class Tour:
    """Sends the tour's requests to the gateway, as any client would."""

    def __init__(self, gateway_url: str, api_key: str) -> None:
        """Make a client of the gateway with the demo key."""
        self._client = httpx2.Client(
            base_url=gateway_url,
            headers={"authorization": f"Bearer {api_key}"},
            timeout=120,
            trust_env=False,
        )

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()

    def answer(self) -> Stop:
        """Send a streamed request, and return its answer and its receipt from the ledger as
        text.
        """
        text, request_id = self._streamed(QUESTION)
        attempt = self.receipt(request_id)["attempts"][-1]
        return Stop(
            f"Asked route {ROUTE}: {QUESTION!r}",
            (
                f"answer    {text!r}",
                f"tokens    {_tokens(attempt)}, as the {attempt['usage_source']} reports",
                f"cost      {format_usd(attempt['cost_usd'])}   first token after "
                f"{attempt['ttft_s'] or 0:.3f} s",
                f"served    {attempt['deployment']} ({attempt['model']}) in {attempt['region']}",
                f"receipt   tollgate report receipt {request_id}",
            ),
        )

    def refusal(self) -> Stop:
        """Send a request whose data class forbids its route's deployment; return the refusal as
        text.
        """
        error = self._error(
            {"model": OUT_OF_BOUNDS_ROUTE}, {"x-tollgate-data-class": "confidential"}
        )
        return Stop(f"Asked route {OUT_OF_BOUNDS_ROUTE} with confidential data", error)

    def unknown_model(self) -> Stop:
        """Send a request for a model without a route; return the error as text."""
        return Stop(
            "Asked for a model that is not offered", self._error({"model": "claude-of-nowhere"}, {})
        )

    def receipt(self, request_id: str) -> dict[str, Any]:
        """Return a request's receipt as soon as the ledger has it."""
        deadline_s = time.monotonic() + RECEIPT_WITHIN_S
        while time.monotonic() < deadline_s:
            answer = self._client.get(f"/v1/requests/{request_id}")
            if answer.status_code == 200:
                receipt: dict[str, Any] = json.loads(answer.text, parse_float=Decimal)
                return receipt
            time.sleep(0.1)
        raise OperatorError(
            f"The receipt of {request_id} did not come within {RECEIPT_WITHIN_S:.0f} s."
        )

    def _streamed(self, question: str) -> tuple[str, str]:
        """Send a question as a stream; return the answer's text and the request id. Raises
        `OperatorError`.
        """
        body = {
            "model": ROUTE,
            "messages": [{"role": "user", "content": question}],
            "stream": True,
            "temperature": 0,
        }
        try:
            return self._read_stream(body)
        except httpx2.HTTPError as broken:
            raise OperatorError(
                f"The first request failed: {broken}. The gateway's log has the reason."
            ) from None

    def _read_stream(self, body: dict[str, Any]) -> tuple[str, str]:
        """Post a body and read the streamed answer; return its text and the request id. Raises
        `OperatorError`.
        """
        text = ""
        with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                raise OperatorError(f"The first request failed: {answer.text}")
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        raise OperatorError(
                            f"The first request failed: {chunk['error']['message']}"
                        )
                    text += "".join(
                        choice["delta"].get("content") or "" for choice in chunk["choices"]
                    )
            return text.strip(), answer.headers["x-request-id"]

    def _error(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[str, ...]:
        """Send a request that the gateway should refuse; return its status, code and message as
        lines.
        """
        answer = self._client.post(
            "/v1/chat/completions",
            json={**body, "messages": [{"role": "user", "content": "Hello"}]},
            headers=headers,
        )
        error = answer.json()["error"]
        return (f"HTTP {answer.status_code} {error['code']}", error["message"])


def _tokens(attempt: dict[str, Any]) -> str:
    """Return an attempt's tokens in words, without those that its provider does not report."""
    if attempt["output_tokens"] is None:
        return "not known"
    reasoning = attempt["reasoning_tokens"]
    of_them = "" if reasoning is None else f" ({reasoning} of them reasoning)"
    return f"{attempt['input_tokens']} in, {attempt['output_tokens']} out{of_them}"
