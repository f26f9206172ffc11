"""Headers of an answer that hold a number beyond every type: the answer was bought and lost."""

from __future__ import annotations

import httpx2

from tests import plain_http
from tests.attacks.odd_engine import ANSWER, http, odd_engine
from tests.attacks.raw_callers import CHAT, question, two_teams
from tests.gateway_process import Gateway, StartGateway
from tests.waiting import eventually

DIGITS = "9" * 400
LOADS = (
    f'JSON {{"named_metrics":{{"num_requests_waiting":{DIGITS}}}}}',
    f'JSON {{"named_metrics":{{"kv_cache_usage_perc":-{DIGITS}}}}}',
    'JSON {"named_metrics":{"num_requests_waiting":1e999}}',
    f"TEXT named_metrics.num_requests_waiting={DIGITS}",
)
WAITS = (
    f"Fri, 31 Dec {DIGITS[:20]} 23:59:59 GMT",
    f"Thu, 31 Dec 2026 {DIGITS[:20]}:59:59 GMT",
    f"Thu, 31 Dec 2026 23:59:59 +{DIGITS[:20]}",
    "inf",
    DIGITS,
)


def ask(gateway: Gateway) -> httpx2.Response:
    """Return the answer to one chat."""
    return plain_http.post(
        f"http://127.0.0.1:{gateway.port}{CHAT}",
        content=question(max_tokens=5),
        headers={"authorization": f"Bearer {gateway.key}", "content-type": "application/json"},
        timeout=30,
    )


def test_no_header_costs_an_answer(start_gateway: StartGateway) -> None:
    """The load that an engine reports beside an answer is a hint. Its `retry-after` is one too:
    the caller gets the upstream's error, not one of the gateway.
    """
    with odd_engine(b"vllm:num_requests_running 1\n") as engine:
        gateway = start_gateway(two_teams(engine.url))
        eventually(lambda: engine.pages > 0, "a look at the engine")
        for load in LOADS:
            engine.answer = http(
                ANSWER, "content-type: application/json", f"endpoint-load-metrics: {load}"
            )
            answer = ask(gateway)
            assert answer.status_code == 200, (load, answer.text)
            (event,) = gateway.events(answer.headers["x-request-id"])
            assert (event["outcome"], event["output_tokens"]) == ("ok", 5)
        for wait in WAITS:
            date = "date: Thu, 31 Dec 2026 23:00:00 GMT"
            engine.answer = http(b"{}", f"retry-after: {wait}", date, status="429 Busy")
            answer = ask(gateway)
            assert answer.status_code == 429, (wait, answer.text)
            assert 1 <= int(answer.headers["retry-after"]) <= 120
