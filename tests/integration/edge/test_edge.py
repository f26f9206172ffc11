"""Every bad request gets an error in its dialect: never a stack trace, never `{"detail"}`, never
a leak.
"""

from __future__ import annotations

import json
import socket
from typing import Any
from uuid import UUID

import httpx2
import pytest

from gateway.api.routes import ENDPOINTS
from gateway.domain.ids import occurred_at, uuid7
from tests import factories, plain_http
from tests.canary import UPSTREAM_SECRET
from tests.gateway_process import FakeUpstreamProcess, Gateway
from tests.integration.edge.test_sdk import MESSAGES
from tests.waiting import eventually

CHAT = {"model": "chat", "messages": MESSAGES}


def check_error(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """Check that an answer is an error of the OpenAI dialect without other members; return the
    error.
    """
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == code
    assert UUID(answer.headers["x-request-id"]).version == 7
    assert "Traceback" not in answer.text
    assert ".py" not in answer.text
    return dict(body["error"])


def test_an_unknown_model_lists_the_available_routes(http: httpx2.Client) -> None:
    """The message for the most common mistake must contain its remedy."""
    error = check_error(
        http.post("/v1/chat/completions", json={**CHAT, "model": "gpt-9"}), 404, "model_not_found"
    )
    assert error["param"] == "model"
    assert "No route 'gpt-9' for team payments. Yours: chat, vllm" in error["message"]


def test_another_teams_route_is_not_allowed(gateway: Gateway, http: httpx2.Client) -> None:
    """`search` may use one route only."""
    headers = {"authorization": f"Bearer {gateway.keys['search']}"}
    answer = http.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert "Yours: vllm" in check_error(answer, 403, "route_not_allowed")["message"]


def test_a_model_without_a_price_is_refused(gateway: Gateway, http: httpx2.Client) -> None:
    """The answer is 402 and nothing is sent: a missing price must never become zero."""
    check_error(
        http.post("/v1/chat/completions", json={**CHAT, "model": "unpriced"}), 402, "unpriced_model"
    )
    assert gateway.query("SELECT FROM finance.usage_events WHERE route = 'unpriced'") == []


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/models", "/v1/usage/me", f"/v1/requests/{uuid7(0, bytes(10))}"],
)
@pytest.mark.parametrize("key", [None, "sk-nonsense", factories.key(99), "tg_"])
def test_no_key_or_a_wrong_one(gateway: Gateway, path: str, key: str | None) -> None:
    """Every endpoint that belongs to a team must answer 401."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    url = f"http://127.0.0.1:{gateway.port}{path}"
    answer = (
        plain_http.post(url, json=CHAT, headers=headers)
        if path.endswith("completions")
        else plain_http.get(url, headers=headers)
    )
    check_error(answer, 401, "invalid_api_key")
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("header", ["x-api-key", "api-key"])
def test_other_spellings_of_the_key(gateway: Gateway, header: str) -> None:
    """Anthropic's and Azure's clients send the key in other headers."""
    answer = plain_http.get(f"{gateway.base_url}/models", headers={header: gateway.key})
    assert answer.status_code == 200


def test_a_revoked_key_is_turned_away_within_seconds(gateway: Gateway) -> None:
    """The deadline is five seconds, without a restart."""
    key = gateway.make_key("payments")
    headers = {"authorization": f"Bearer {key}"}

    def status() -> int:
        return plain_http.get(f"{gateway.base_url}/models", headers=headers).status_code

    eventually(lambda: status() == 200, "the new key", within_s=5)
    gateway.revoke_key(key)
    eventually(lambda: status() == 401, "the revocation", within_s=5)


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'"text"', None),
        (b"\xff\xfe", None),
        (b"null", None),
        (b'{"model":"chat","model":"us-only","messages":[]}', None),
        (b'{"model":"chat","n":12.5,"n":12}', None),
        (b'{"messages":[]}', "model"),
        (b'{"model":5}', "model"),
        (b'{"model":"chat","stream":"yes"}', "stream"),
        (b'{"model":"chat","n":100000}', "n"),
        (b'{"model":"chat","messages":' + b"[" * 20_000 + b"]" * 20_000 + b"}", None),
    ],
)
@pytest.mark.parametrize("path", [endpoint.path for endpoint in ENDPOINTS if endpoint.is_metered])
def test_a_malformed_body(
    http: httpx2.Client, path: str, content: bytes, param: str | None
) -> None:
    """Every endpoint answers 400 and names the field at fault, if there is one.

    Anthropic's errors have no member for the field: the message names it.
    """
    answer = http.post(path, content=content)
    if path == "/v1/messages":
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_request")
        assert error["type"] == "invalid_request_error"
        assert (param or "") in error["message"] or param == "n", error  # `n` is OpenAI's alone
        return
    assert check_error(answer, 400, "invalid_request")["param"] == param


@pytest.mark.parametrize(
    ("path", "member"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
    ],
)
def test_a_maximum_below_zero(http: httpx2.Client, path: str, member: str) -> None:
    """Only an endpoint's own maximum is read; another endpoint's maximum is for the upstream to
    refuse.
    """
    answer = http.post(path, json={"model": "chat", member: -1})
    assert check_error(answer, 400, "invalid_request")["param"] == member


def test_a_chat_without_messages_is_refused_before_it_is_routed(http: httpx2.Client) -> None:
    """The engine's own validation error used to reach the caller, with a name that no client
    knows.
    """
    error = check_error(
        http.post("/v1/chat/completions", json={"model": "chat"}), 400, "invalid_request"
    )
    assert (error["param"], error["message"]) == (
        "messages",
        "'messages' is missing. Nothing was sent.",
    )


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        (
            "POST",
            "/chat/completions",
            "Your base_url should end in /v1, so that /v1/chat/completions is asked for.",
        ),
        ("GET", "/models", "Your base_url should end in /v1, so that /v1/models is asked for."),
        ("POST", "/v1/v1/embeddings", "Your base_url ends in /v1 twice; /v1/embeddings is meant."),
        (
            "POST",
            "/v1/chat/completions/chat/completions",
            "Your base_url should end in /v1, so that /v1/chat/completions is asked for.",
        ),
        (
            "POST",
            "/v1/embeddings/chat/completions",
            "Your base_url should end in /v1, so that /v1/chat/completions is asked for.",
        ),
    ],
)
def test_an_address_without_its_version_is_hinted_at(
    http: httpx2.Client, method: str, path: str, hint: str
) -> None:
    """Most often a client's base_url lacks its /v1, and a list of paths alone does not show
    that.
    """
    shown = check_error(http.request(method, path), 404, "not_supported")["message"]
    assert shown == f"{method} {path} is not offered. {hint}"
    other = check_error(http.get("/v1/nothing"), 404, "not_supported")["message"]
    assert "base_url" not in other
    assert "Offered: POST /v1/chat/completions, " in other


@pytest.mark.parametrize("before", ["/v1", "/v1/messages", "/anthropic", "/v1/v1"])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_anthropics_clients_are_told_that_they_add_the_version(
    http: httpx2.Client, before: str, path: str
) -> None:
    """Their users copy OpenAI's address, with /v1: "ends in /v1 twice" was not their own text,
    and an error in OpenAI's shape is one that their client cannot read.
    """
    answer = http.post(before + path)
    body = answer.json()
    assert (answer.status_code, body["type"]) == (404, "error")
    assert (body["error"]["type"], body["error"]["code"]) == ("not_found_error", "not_supported")
    assert "your base_url should be this gateway's address alone" in body["error"]["message"]


def test_a_body_that_declares_too_much(gateway: Gateway) -> None:
    """The body must be refused before it is read."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\n"
    )
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as connection:
        connection.sendall(f"{head}content-length: 100000000\r\n\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_chunked_body_that_turns_out_too_large(gateway: Gateway, http: httpx2.Client) -> None:
    """Without a declared length, the body is refused as soon as it exceeds the limit."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\n"
    )
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as connection:
        # The body never ends.
        connection.sendall(f"{head}transfer-encoding: chunked\r\n\r\n".encode() + chunk * 7)
        seen = b""
        while b"request_too_large" not in seen:
            piece = connection.recv(65536)
            assert piece, seen
            seen += piece
    assert seen.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in seen.lower()


def test_an_encoded_body_is_refused(http: httpx2.Client) -> None:
    """A compressed body could be a bomb, and real clients send none."""
    answer = http.post("/v1/chat/completions", content=b"x", headers={"content-encoding": "gzip"})
    check_error(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/"),
        ("GET", "/v1/nothing"),
        ("POST", "/v1/models"),
        ("GET", "/v1/chat/completions"),
        ("PUT", "/v1/chat/completions"),
        ("GET", "/docs"),
        ("GET", "/metrics"),
        ("POST", "/v1/chat/completions/"),
        ("GET", "/v1/chat/%2e%2e/models"),
        ("DELETE", "/healthz"),
    ],
)
def test_an_unknown_path_lists_the_offered_paths(
    http: httpx2.Client, method: str, path: str
) -> None:
    """Any other path or method gets the dialect's error with a list of the offered ones; metrics
    name their own listener.
    """
    error = check_error(http.request(method, path), 404, "not_supported")
    assert "POST /v1/chat/completions" in error["message"] or "127.0.0.1" in error["message"]


@pytest.mark.parametrize("host", ["", "a b", "evil.example:99999999", "x/y"])
def test_an_invalid_host_is_refused(http: httpx2.Client, host: str) -> None:
    """No decision may depend on a header that a web page in a browser could choose."""
    check_error(http.get("/v1/models", headers={"host": host}), 400, "invalid_request")


@pytest.mark.parametrize(
    ("members", "status", "code", "message"),
    [
        ({"cache_salt": "theirs"}, 400, "invalid_request", "does not allow engine_control"),
        ({"store": True}, 403, "residency_denied", "does not allow store"),
        (
            {"tools": [{"type": "web_search"}]},
            403,
            "residency_denied",
            "does not allow hosted_tools",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}
                        ],
                    }
                ]
            },
            403,
            "residency_denied",
            "does not allow remote_media",
        ),
    ],
)
def test_fields_that_need_leave_are_refused_by_name(
    http: httpx2.Client, members: dict[str, Any], status: int, code: str, message: str
) -> None:
    """Such fields store, fetch or send data elsewhere, or change the settings of a shared
    engine.
    """
    assert (
        message
        in check_error(http.post("/v1/chat/completions", json={**CHAT, **members}), status, code)[
            "message"
        ]
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"x-tollgate-data-class": "secret"},
        {"x-tollgate-data-class": "restricted"},
        {"x-tollgate-tags": "a"},
        {"x-tollgate-project": "-"},
    ],
)
def test_bad_attribution_is_refused(http: httpx2.Client, headers: dict[str, str]) -> None:
    """Spending that is booked to the wrong team is worse than a refused request."""
    check_error(
        http.post("/v1/chat/completions", json=CHAT, headers=headers), 400, "invalid_request"
    )


def test_a_header_may_raise_the_class_and_never_lower_it(
    gateway: Gateway, http: httpx2.Client
) -> None:
    """`search` is internal and may raise its class to confidential; `payments` stays
    confidential with any header.
    """
    url, body = "/v1/chat/completions", {**CHAT, "model": "vllm"}
    theirs = {
        "authorization": f"Bearer {gateway.keys['search']}",
        "x-tollgate-data-class": "confidential",
    }
    raised = http.post(url, json=body, headers=theirs)
    lowered = http.post(url, json=body, headers={"x-tollgate-data-class": "internal"})
    for answer in (raised, lowered):
        (event,) = gateway.events(answer.headers["x-request-id"])
        assert event["data_class"] == "confidential"


def test_headers_stay_on_their_own_side(
    gateway: Gateway, http: httpx2.Client, fake_upstream: FakeUpstreamProcess
) -> None:
    """The caller's key and cookies never go upstream; the upstream's cookies and headers never come
    back.
    """
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    sent = {
        "cookie": "session=1",
        "x-api-key": "tg_other",
        "x-private": "1",
        "traceparent": trace,
        "user-agent": "app",
    }
    for stream in (False, True):
        answer = http.post(
            "/v1/chat/completions", json={**CHAT, "model": "hosted", "stream": stream}, headers=sent
        )
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers
        assert "x-upstream-secret" not in answer.headers
        assert "server" not in answer.headers
        seen = dict(fake_upstream.entry(answer.headers["x-request-id"])["headers"])
        assert set(seen) == {
            "host",
            "content-type",
            "accept",
            "accept-encoding",
            "user-agent",
            "x-request-id",
            "traceparent",
            "authorization",
            "content-length",
        }
        assert (seen["authorization"], seen["traceparent"]) == (f"Bearer {UPSTREAM_SECRET}", trace)
        assert UPSTREAM_SECRET not in answer.text + str(answer.headers)


def test_the_cache_is_kept_apart_by_team(
    gateway: Gateway, http: httpx2.Client, fake_upstream: FakeUpstreamProcess
) -> None:
    """No team may detect another team's prompts by cached tokens. Salts differ by team and are
    constant within a team.
    """
    salts: dict[str, set[str]] = {}
    for team in ("payments", "search", "payments", "search"):
        headers = {"authorization": f"Bearer {gateway.keys[team]}"}
        answer = http.post("/v1/chat/completions", json={**CHAT, "model": "vllm"}, headers=headers)
        entry = fake_upstream.entry(answer.headers["x-request-id"])
        salts.setdefault(team, set()).add(json.loads(entry["body"])["cache_salt"])
    assert [len(found) for found in salts.values()] == [1, 1]
    assert salts["payments"] != salts["search"]


def test_the_upstream_gets_the_bytes_that_the_caller_sent(
    http: httpx2.Client, fake_upstream: FakeUpstreamProcess
) -> None:
    """Apart from the documented insertions, every byte stays: number forms, escapes, order and
    unknown fields.
    """
    content = (
        b'{ "temperature" : '
        b'1.0e0,"x_new":{"a":[1E2,"\\u00e9\xc3\xa9"]},\n"model":"chat", "messages":[ ] }'
    )
    answer = http.post("/v1/chat/completions", content=content)
    entry = fake_upstream.entry(answer.headers["x-request-id"])
    assert entry["body"].encode() == content.replace(b'"chat"', b'"plain-1"')


def test_a_receipt_for_its_own_team_alone(gateway: Gateway, http: httpx2.Client) -> None:
    """A receipt is 200 for its own team and 404 for others. It is pending while it may still
    come, and 404 when it cannot.
    """
    made = http.post("/v1/chat/completions", json=CHAT)
    request_id = made.headers["x-request-id"]
    gateway.events(request_id)
    mine = http.get(f"/v1/requests/{request_id}")
    assert mine.status_code == 200
    receipt = mine.json()
    assert receipt["request_id"] == request_id
    assert made.headers["x-tollgate-cost-usd"] in mine.text
    theirs = http.get(
        f"/v1/requests/{request_id}", headers={"authorization": f"Bearer {gateway.keys['search']}"}
    )
    assert theirs.status_code in (202, 404)
    assert "cost" not in theirs.text
    moment = int(occurred_at(UUID(request_id)).timestamp() * 1000)
    fresh = http.get(f"/v1/requests/{uuid7(moment, bytes(10))}")
    assert (fresh.status_code, fresh.json()["status"]) == (202, "pending")
    check_error(http.get(f"/v1/requests/{uuid7(0, bytes(10))}"), 404, "not_supported")
    check_error(http.get("/v1/requests/not-an-id"), 400, "invalid_request")


def test_own_usage_is_the_sum_of_the_teams_events(gateway: Gateway, http: httpx2.Client) -> None:
    """A team's own figures equal the ledger's."""
    answer = http.post("/v1/chat/completions", json=CHAT)
    gateway.events(answer.headers["x-request-id"])
    usage = http.get("/v1/usage/me")
    assert usage.status_code == 200
    (row,) = gateway.query(
        "SELECT count(*) AS attempts, sum(cost_usd) AS usd FROM finance.usage_events WHERE team = "
        "'payments' AND date_trunc('month', occurred_at) = date_trunc('month', now())"
    )
    shown = usage.json()
    assert shown["team"] == "payments"
    assert shown["team_month"]["attempts"] == row["attempts"]
    assert f"{row['usd'].normalize():f}" in usage.text


def test_metrics_are_on_their_own_listener(gateway: Gateway) -> None:
    """Metrics have no key check, so they have their own listener; they count metered requests."""
    text = gateway.metrics()
    assert "tollgate_attempts_total{" in text
    assert "tollgate_cost_usd_total{" in text
    assert not any(key in text for key in gateway.all_keys)


def test_each_request_has_one_line_in_the_log(gateway: Gateway, http: httpx2.Client) -> None:
    """The canonical line contains the cost but not the content."""
    answer = http.post("/v1/chat/completions", json=CHAT)
    request_id = answer.headers["x-request-id"]
    (line,) = eventually(
        lambda: [each for each in gateway.log_lines() if each.get("request_id") == request_id],
        "the log line",
    )
    assert (line["event"], line["team"], line["route"], line["status"]) == (
        "request",
        "payments",
        "chat",
        200,
    )
    assert line["cost_usd"] == answer.headers["x-tollgate-cost-usd"]
    assert not any("request_failed" in each["event"] for each in gateway.log_lines())


def test_alive_and_ready(http: httpx2.Client) -> None:
    """Orchestrators and load balancers check each replica."""
    assert http.get("/healthz").json()["status"] == "alive"
    ready = http.get("/readyz").json()
    assert (ready["status"], ready["policy_version"]) == ("ready", 1)
    assert {check["check"] for check in ready["checks"]} >= {
        "journal",
        "unsettled attempts",
        "writer",
    }


def test_the_description_lists_every_endpoint(http: httpx2.Client) -> None:
    """One table feeds the dispatcher and the OpenAPI description."""
    paths = http.get("/openapi.json").json()["paths"]
    assert set(paths) == {endpoint.path for endpoint in ENDPOINTS}
