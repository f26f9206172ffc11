"""For every ending of an attempt, the ledger's row equals the upstream's own ledger; nothing is
lost or invented.
"""

from __future__ import annotations

import json
import socket
from decimal import Decimal
from typing import Any

import httpx2
import openai
import pytest

from tests.fakes import CountingListener
from tests.gateway_process import FakeUpstreamProcess, Gateway
from tests.integration.edge.test_sdk import MESSAGES, check_event
from tests.integration.policy import USD_PER_TOKEN

STREAM = {"messages": MESSAGES, "stream": True, "max_tokens": 8}


def nusd(inputs: int, outputs: int) -> int:
    return inputs * USD_PER_TOKEN["input"] + outputs * USD_PER_TOKEN["output"]


def post(http: httpx2.Client, **members: Any) -> httpx2.Response:
    return http.post("/v1/chat/completions", json={"messages": MESSAGES, **members})


def all_events(gateway: Gateway, answer: httpx2.Response) -> list[dict[str, Any]]:
    """Return one event for each attempt that the answer's header counts."""
    return gateway.events(
        answer.headers["x-request-id"], count=int(answer.headers["x-tollgate-attempts"])
    )


def only_event(gateway: Gateway, answer: httpx2.Response) -> dict[str, Any]:
    (event,) = gateway.events(answer.headers["x-request-id"])
    return event


@pytest.mark.parametrize("made", [1, 3, 8])
def test_a_cut_stream_is_charged_to_the_token(
    gateway: Gateway, http: httpx2.Client, fake_upstream: FakeUpstreamProcess, made: int
) -> None:
    """The connection breaks after a known number of tokens. The caller gets an error event
    without `[DONE]`; the row has vLLM's running count.
    """
    answer = post(http, model="vllm", stream=True, fake=f"cut@{made}")
    assert answer.status_code == 200
    assert "[DONE]" not in answer.text
    assert json.loads(answer.text.split("data: ")[-1])["error"]["code"] == "upstream_error"
    entry = fake_upstream.entry(answer.headers["x-request-id"])
    event = only_event(gateway, answer)
    assert (entry["generated"], entry["ending"]) == (made, "cut")
    assert (event["output_tokens"], event["outcome"], event["usage_source"]) == (
        made,
        "upstream_cut",
        "derived",
    )
    assert event["cost_usd"] * 10**9 == nusd(10, made)


def test_a_stream_that_ends_without_done_is_cut(gateway: Gateway, http: httpx2.Client) -> None:
    """A clean end of the connection does not complete the answer."""
    answer = post(http, model="vllm", stream=True, fake="end@3")
    assert '"code":"upstream_error"' in answer.text
    assert only_event(gateway, answer)["outcome"] == "upstream_cut"


def test_a_cut_stream_of_a_provider_without_running_usage_is_counted(
    gateway: Gateway, http: httpx2.Client
) -> None:
    """No usage was reported, so the received text is counted and marked as an estimate, never as
    zero.
    """
    answer = post(http, model="chat", stream=True, max_tokens=8, fake="cut@3")
    event = only_event(gateway, answer)
    assert (event["outcome"], event["usage_source"], event["held_usd"]) == (
        "upstream_cut",
        "estimated",
        None,
    )
    assert event["cost_usd"] > 0
    assert event["output_tokens"] > 0


@pytest.mark.parametrize("is_stream", [True, False])
def test_an_answer_without_usage_is_never_zero(
    gateway: Gateway, http: httpx2.Client, is_stream: bool
) -> None:
    """The answer is complete, so the ledger has an estimate. A plain answer's header says so."""
    answer = post(http, model="chat", stream=is_stream, max_tokens=8, fake="nousage")
    assert answer.status_code == 200
    assert "cost_usd" not in answer.text
    event = only_event(gateway, answer)
    assert (event["outcome"], event["usage_source"], event["held_usd"]) == ("ok", "estimated", None)
    assert 0 < event["cost_usd"] * 10**9 <= nusd(len(answer.request.content) + 64, 8)
    shown_cost = answer.headers.get("x-tollgate-cost-usd")
    assert (shown_cost is None) if is_stream else (Decimal(shown_cost or 0) == event["cost_usd"])


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("429", 429, "rate_limited"),
        ("500", 502, "upstream_error"),
        ("503", 503, "overloaded"),
        ("400", 400, "invalid_request"),
        ("401", 502, "upstream_auth"),
        ("404", 502, "upstream_error"),
        ("422", 400, "invalid_request"),
        ("redirect", 502, "upstream_error"),
    ],
)
@pytest.mark.parametrize("is_stream", [True, False])
def test_a_refusing_upstream_costs_nothing(
    gateway: Gateway,
    http: httpx2.Client,
    fake_upstream: FakeUpstreamProcess,
    fault: str,
    status: int,
    code: str,
    is_stream: bool,
) -> None:
    """The caller gets the error in its own dialect; the row has zero cost and the source of that
    fact.
    """
    answer = post(http, model="chat", stream=is_stream, fake=fault)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    events = all_events(gateway, answer)
    entries = fake_upstream.entries(answer.headers["x-request-id"])
    for event in events:
        assert (event["outcome"], event["usage_source"], event["cost_usd"]) == (
            "upstream_error",
            "none",
            0,
        )
        assert event["http_status"] == (302 if fault == "redirect" else int(fault))
    assert [entry["generated"] for entry in entries] == [0] * len(events)
    assert fake_upstream.ledger()["followed"] == 0


def test_a_rate_limit_says_how_long_to_wait(http: httpx2.Client) -> None:
    """Official SDKs wait for the given time, and give up on more than two minutes."""
    assert post(http, model="chat", fake="429,ra=2").headers["retry-after"] == "2"
    assert post(http, model="chat", fake="429,ra=9999").headers["retry-after"] == "120"


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_silent_upstream_is_a_timeout(
    gateway: Gateway, http: httpx2.Client, fake_upstream: FakeUpstreamProcess, is_stream: bool
) -> None:
    """The upstream may be working, so the cost is unknown; the connection is closed."""
    answer = post(http, model="chat", stream=is_stream, max_tokens=8, fake="hang")
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")
    for event in all_events(gateway, answer):
        assert (event["outcome"], event["usage_source"], event["cost_usd"]) == (
            "upstream_timeout",
            "unknown",
            None,
        )
    for entry in fake_upstream.entries(answer.headers["x-request-id"]):
        assert entry["ending"] == "hang"


def test_a_stalled_stream_times_out_and_charges_the_received_part(
    gateway: Gateway, http: httpx2.Client, fake_upstream: FakeUpstreamProcess
) -> None:
    """The wait between two bytes is bounded; the caller gets an error event."""
    answer = post(http, model="vllm", stream=True, fake="hang@4")
    assert answer.status_code == 200
    assert '"code":"upstream_timeout"' in answer.text
    assert "[DONE]" not in answer.text
    event = only_event(gateway, answer)
    made = fake_upstream.entry(answer.headers["x-request-id"])["generated"]
    assert (event["output_tokens"], event["outcome"], event["usage_source"]) == (
        made,
        "upstream_timeout",
        "derived",
    )
    assert event["cost_usd"] * 10**9 == nusd(10, 4)


def test_an_engine_that_dies_mid_stream_is_no_success(
    gateway: Gateway, http: httpx2.Client
) -> None:
    """vLLM then sends an error and `[DONE]` under status 200; official clients must raise."""
    answer = post(http, model="vllm", stream=True, fake="miderr@3")
    assert answer.text.count('"error"') == 1
    assert "[DONE]" not in answer.text
    event = only_event(gateway, answer)
    assert (event["output_tokens"], event["outcome"], event["usage_source"]) == (
        3,
        "upstream_error",
        "derived",
    )


@pytest.mark.parametrize("fault", ["cut@3", "miderr@3", "hang@3"])
def test_the_official_client_raises_on_a_broken_stream(client: openai.OpenAI, fault: str) -> None:
    """It takes a clean close for success: so a broken stream is never closed cleanly."""
    stream = client.chat.completions.create(
        model="vllm", messages=MESSAGES, stream=True, extra_body={"fake": fault}
    )
    with pytest.raises(openai.APIError):
        list(stream)


def test_one_event_that_is_no_json_does_not_end_a_stream(
    gateway: Gateway, http: httpx2.Client, fake_upstream: FakeUpstreamProcess
) -> None:
    """The event is forwarded unchanged, and the rest is metered."""
    answer = post(http, model="vllm", stream=True, fake="badjson")
    assert answer.text.endswith("data: [DONE]\n\n")
    check_event(only_event(gateway, answer), fake_upstream.entry(answer.headers["x-request-id"]))


def test_a_plain_answer_that_is_no_json_is_an_error(gateway: Gateway, http: httpx2.Client) -> None:
    """Half an answer under status 200 must not be forwarded as a complete answer."""
    answer = post(http, model="chat", fake="badjson")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")
    assert [event["usage_source"] for event in all_events(gateway, answer)] == ["unknown"]


def leave(gateway: Gateway, body: dict[str, Any], *, after: bytes) -> str:
    """Send a request on a raw socket, read until the answer contains `after`, and close; return
    the request id.
    """
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\n"
    )
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as connection:
        connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        seen = b""
        while after not in seen:
            piece = connection.recv(65536)
            assert piece, f"the gateway closed first: {seen!r}"
            seen += piece
    return seen.partition(b"x-request-id: ")[2].partition(b"\r\n")[0].decode()


@pytest.mark.parametrize("made", [1, 5])
def test_a_client_that_leaves_mid_stream_is_charged_to_the_token(
    gateway: Gateway, fake_upstream: FakeUpstreamProcess, made: int
) -> None:
    """The upstream waits after a known number of tokens and the client leaves. Both ledgers must
    have the same number.
    """
    last = b"t%d " % (made - 1) if made > 1 else b"canary-completion"
    body = {"model": "vllm", **STREAM, "fake": f"hang@{made}"}
    request_id = leave(gateway, body, after=last)
    (event,) = gateway.events(request_id)
    assert fake_upstream.entry(request_id)["generated"] == made
    assert (event["output_tokens"], event["outcome"], event["usage_source"]) == (
        made,
        "client_gone",
        "derived",
    )
    assert event["cost_usd"] * 10**9 == nusd(10, made)


def test_a_client_that_leaves_stops_the_engine(
    gateway: Gateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """A GPU must not work for an absent caller: the upstream sees the close and stops far from
    the answer's end.
    """
    body = {"model": "vllm", "messages": MESSAGES, "stream": True, "fake": "out=100000,tps=200"}
    request_id = leave(gateway, body, after=b"t3 ")
    entry = fake_upstream.entry(request_id)
    (event,) = gateway.events(request_id)
    assert (entry["ending"], event["outcome"]) == ("client_gone", "client_gone")
    assert 4 <= event["output_tokens"] <= entry["generated"] < 1000


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_before_the_first_token_is_not_lost(
    gateway: Gateway, fake_upstream: FakeUpstreamProcess, is_stream: bool
) -> None:
    """No byte came back but the upstream was working, so the cost is unknown and the event has
    the hold.
    """
    marker = f"leaver-{is_stream}"
    content = json.dumps(
        {"model": "vllm", **STREAM, "stream": is_stream, "user": marker, "fake": "ttft=20000"}
    ).encode()
    before = len(fake_upstream.ledger()["entries"])
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {gateway.key}\r\n"
        connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        while len(fake_upstream.ledger()["entries"]) == before:
            pass  # each poll is a round trip; the connection's own timeout limits the upstream
    request_id = next(
        e["request_id"] for e in reversed(fake_upstream.ledger()["entries"]) if marker in e["body"]
    )
    (event,) = gateway.events(request_id)
    assert (event["outcome"], event["usage_source"], event["cost_usd"]) == (
        "client_gone",
        "unknown",
        None,
    )
    assert event["held_usd"] > 0


FAILOVERS = [
    ("after-500", "upstream_error", "none"),
    ("after-503", "upstream_error", "none"),
    ("after-refused", "upstream_unreachable", "none"),
    ("after-silence", "upstream_timeout", "unknown"),
]


@pytest.mark.parametrize(("route", "outcome", "source"), FAILOVERS)
@pytest.mark.parametrize("is_stream", [True, False])
def test_another_deployment_answers_before_the_first_byte(
    gateway: Gateway, http: httpx2.Client, route: str, outcome: str, source: str, is_stream: bool
) -> None:
    """The caller gets one answer; the ledger has two rows under one request id."""
    assert post(http, model="chat").status_code == 200  # works in any state that earlier tests left
    answer = post(http, model=route, stream=is_stream)
    assert answer.status_code == 200
    assert (answer.headers["x-tollgate-attempts"], answer.headers["x-tollgate-deployment"]) == (
        "2",
        "plain",
    )
    first, second = gateway.events(answer.headers["x-request-id"], count=2)
    assert (first["attempt"], first["outcome"], first["usage_source"]) == (1, outcome, source)
    assert (second["attempt"], second["outcome"], second["usage_source"]) == (2, "ok", "provider")
    assert first["occurred_at"] == second["occurred_at"]


def test_a_deployment_without_its_credential_is_tried_once_and_then_passed_over(
    gateway: Gateway, http: httpx2.Client
) -> None:
    """The deployment would fail each time, so later callers must not wait for it."""
    first, second = (post(http, model="after-no-key") for _ in range(2))
    assert [answer.headers["x-tollgate-deployment"] for answer in (first, second)] == [
        "plain",
        "plain",
    ]
    assert [answer.headers["x-tollgate-attempts"] for answer in (first, second)] == ["2", "1"]
    assert all_events(gateway, first)[0]["usage_source"] == "none"


def test_a_stream_that_dies_before_its_first_byte_is_tried_elsewhere(
    gateway: Gateway, http: httpx2.Client
) -> None:
    """Only the headers had come, and nothing had been forwarded."""
    answer = http.post(
        "/v1/completions", json={"model": "after-cut", "prompt": "x", "stream": True}
    )
    assert answer.text.endswith("data: [DONE]\n\n")
    first, second = gateway.events(answer.headers["x-request-id"], count=2)
    assert (first["outcome"], first["usage_source"]) == ("upstream_cut", "unknown")
    assert second["outcome"] == "ok"


def test_after_the_first_byte_nothing_is_tried_elsewhere(
    gateway: Gateway, http: httpx2.Client
) -> None:
    """The chat role had been forwarded when the stream died. Half an answer from each of two
    models is not an answer.
    """
    answer = post(http, model="after-cut", stream=True)
    assert '"code":"upstream_error"' in answer.text
    assert only_event(gateway, answer)["deployment"] == "cuts-first"


def test_an_unreachable_upstream_costs_nothing(gateway: Gateway, http: httpx2.Client) -> None:
    """A refused connection costs nothing, and the event says so."""
    answer = post(http, model="unreachable")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")
    for event in all_events(gateway, answer):
        assert (event["outcome"], event["usage_source"], event["cost_usd"]) == (
            "upstream_unreachable",
            "none",
            0,
        )


def test_no_attempt_leaves_its_region(
    gateway: Gateway, http: httpx2.Client, forbidden: CountingListener
) -> None:
    """Confidential data stays in the EU at the first try, the second and the fallback. The other
    region gets no connection.
    """
    refused = post(http, model="us-only")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "residency_denied")
    assert "confidential→eu: in-us is in us-east" in refused.json()["error"]["message"]
    assert gateway.query("SELECT FROM finance.usage_events WHERE route = 'us-only'") == []
    skipped = post(http, model="us-first")
    assert skipped.headers["x-tollgate-deployment"] == "plain"
    (event,) = gateway.events(skipped.headers["x-request-id"])
    assert event["decision"]["candidates"][0]["obstacles"] == [
        ["residency", "is in us-east, allowed is eu (class:confidential/regions)"]
    ]
    failed = post(http, model="us-fallback")
    assert failed.status_code == 502
    assert {event["deployment"] for event in all_events(gateway, failed)} == {"down"}
    assert forbidden.connections == 0
