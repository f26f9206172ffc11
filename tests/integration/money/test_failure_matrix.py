"""The failure matrix: for each row the caller's answer, the tried deployments and the ledger.

The faults of these rows are tested closer to the code that meets them:

| row | fault | test |
|---|---|---|
| 3 | bad certificates, broken handshakes | \
tests/providers/test_http1_tls.py::\
test_a_bad_certificate_is_unreachable |
| 3 | a reset in the handshake | \
tests/providers/test_http1_tls.py::\
test_a_broken_handshake_is_unreachable |
| 4 | a black hole | \
tests/providers/test_http1_pool.py::\
test_a_black_hole_is_unreachable_after_the_connect_timeout |
| 14 | a stream cut at every byte | \
tests/unit/request/test_cuts.py::\
test_a_stream_cut_at_every_byte_is_never_free_and_never_looks_whole |
| 16 | a stream split at any byte | \
tests/unit/openai/test_openai_answer.py::\
test_a_stream_split_anywhere_gives_the_same_answer |
| 16 | comments, CR and LF in any mixture | \
tests/unit/openai/test_sse.py::\
test_a_stream_split_anywhere_has_the_same_events |
| 22 | the client is gone before the first token | \
tests/integration/money/test_endings.py::\
test_a_client_that_leaves_before_the_first_token_is_not_lost |
| 22 | the engine stops | \
tests/integration/money/test_endings.py::\
test_a_client_that_leaves_stops_the_engine |
| 23 | the client is gone after it | \
tests/integration/money/test_endings.py::\
test_a_client_that_leaves_mid_stream_is_charged_to_the_token |
| 25 | a slow reader | \
tests/providers/test_http1_exchange.py::\
test_a_slow_reader_stops_the_upstream_and_is_not_idle |
| 26 | bodies that cannot be trusted | \
tests/unit/openai/test_openai_request.py::\
test_a_body_that_cannot_be_trusted_is_refused |
| 26 | any body | \
tests/unit/openai/test_openai_request.py::\
test_any_body_is_understood_or_refused |
| 48 | an engine that hangs | \
tests/unit/deployments/test_engine_probes.py::\
test_an_engine_that_stands_still_is_passed_over |
| 48 | a real one | \
tests/engine/test_engine_real.py::\
test_rows_46_and_48_a_hung_and_a_killed_engine_are_passed_over |
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.gateway_process import FakeUpstreamProcess, Gateway, free_port, new_database
from tests.integration.policy import PRICE
from tests.integration.raw_upstream import (
    STREAM,
    RawUpstream,
    event,
    raw_upstream,
    sends,
    token,
    whole,
)

ROOT = Path(__file__).parents[3]
MESSAGES = [{"role": "user", "content": "hello"}]
TIMEOUTS = "{connect_s: 1, first_byte_s: 0.4, first_token_s: 0.6, idle_s: 0.5, total_s: 10}"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
ANSWER = {
    "id": "c",
    "model": "m",
    "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
}
TAIL = event({"id": "c", "model": "m", "choices": [], "usage": USAGE})
DONE = event(b"[DONE]")

PARTS = 6
# Instructions for the fake upstream, by row.
FAKE = {
    "r05": "429+ra:9999",
    "r06": "429+quota",
    "r06b": "429",
    "r07a": "500",
    "r07b": "502",
    "r07c": "503",
    "r08": "529",
    "r10": "hang",
    "r11": "early+ttft:30000",
    "r13": "hang@4+style:vllm",
    "r14": "end@3+style:vllm",
    "r17": "nousage",
    "r46b": "404",
    "r47": "503+style:vllm",
    "r49": "style:vllm",
}
# The bytes on the bare socket, by row.
RAW = {
    "r12a": sends(b"HTTP/1.1 200 OK\r\nx-long: " + b"a" * 200_000 + b"\r\n\r\n"),
    "r12b": sends(b"HTTP/1.1 100 Continue\r\n\r\n" * 50),
    "r12c": sends(
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    ),
    "r15": sends(STREAM, token("a"), token("b"), resets=True),
    "r16": sends(STREAM, b": ping\r\n\r\n", token("a"), event(b"{not json"), TAIL, DONE),
    "r18a": sends(
        whole(json.dumps({**ANSWER, "usage": {**USAGE, "completion_tokens": -4}}).encode())
    ),
    "r18b": sends(
        whole(json.dumps({**ANSWER, "usage": {**USAGE, "completion_tokens": "many"}}).encode())
    ),
    "r18c": sends(
        whole(
            json.dumps(
                {**ANSWER, "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 9}}}
            ).encode()
        )
    ),
    "r19": sends(STREAM, token("a"), token("b"), TAIL, TAIL, DONE, DONE, token("late")),
    "r20": sends(STREAM, token("a"), b"data: " + b"x" * (3 << 20)),
    "r21": sends(
        whole(
            gzip.compress(json.dumps({**ANSWER, "usage": USAGE}).encode()), "content-encoding: gzip"
        )
    ),
}


def document(fake: str, raw: str) -> str:
    """Return a policy with a deployment and two routes for each row: the deployment alone, and
    before a working one.

    There are several working deployments and several teams, because retry budgets are per
    deployment and team.
    """
    common = f"region: eu-de, price: {PRICE}, timeouts: {TIMEOUTS}"
    deployments = [
        f'{{name: well-{part}, provider: openai_compatible, model: "fake/out:2", base_url: '
        f'"{fake}/v1", {common}}}'
        for part in range(PARTS)
    ]
    for name, plan in FAKE.items():
        provider = "vllm" if "vllm" in plan else "openai_compatible"
        deployments.append(
            f'{{name: {name}, provider: {provider}, model: "fake/{plan}", base_url: '
            f'"{fake}/v1", {common}}}'
        )
    deployments += [
        f'{{name: {name}, provider: openai_compatible, model: {name}, base_url: "{raw}", {common}}}'
        for name in RAW
    ]
    closed = f'base_url: "http://127.0.0.1:{free_port()}/v1"'
    deployments += [
        f"{{name: r01, provider: openai_compatible, model: m, {closed}, {common}}}",
        f"{{name: r02, provider: openai_compatible, model: m, base_url: "
        f'"https://nobody.invalid:9/v1", {common}}}',
        f"{{name: r46a, provider: vllm, model: m, {closed}, {common}}}",
        f'{{name: r09, provider: openai_compatible, model: m, base_url: "{fake}/v1", {common}}}',
    ]
    names = [*FAKE, *RAW, "r01", "r02", "r46a", "r09"]
    routes = [f"{{name: {name}, deployments: [{name}]}}" for name in names]
    routes += [f"{{name: {name}-else, deployments: [{name}, {_well(name)}]}}" for name in names]
    listed = "\n".join(f"  - {one}" for one in deployments)
    routed = "\n".join(f"  - {one}" for one in routes)
    allowed = ", ".join([*names, *(f"{name}-else" for name in names)])
    teams = "\n".join(
        f"  - {{name: team-{part}, cost_centre: CC-1, data_class: internal, routes: [{allowed}]}}"
        for part in range(PARTS)
    )
    return (
        f"version: 1\nregions: {{eu: [eu-de]}}\nclasses: {{internal: {{regions: [any]}}}}\n"
        f"deployments:\n{listed}\nroutes:\n{routed}\n"
        f"teams:\n{teams}\n"
    )


def _part(row: str) -> int:
    return int(row[1:3]) % PARTS


def _well(row: str) -> str:
    return f"well-{_part(row)}"


@pytest.fixture(scope="module")
def raw() -> Iterator[RawUpstream]:
    yield from raw_upstream(RAW)


@pytest.fixture(scope="module")
def matrix(
    launch_gateway: Callable[..., Iterator[Gateway]],
    postgres_url: str,
    migrated_template: str,
    fake_upstream: FakeUpstreamProcess,
    raw: RawUpstream,
) -> Iterator[Gateway]:
    """Yield one gateway for all rows. Each row has its own deployments, so one row's breaker
    does not affect another row.
    """
    for url in new_database(postgres_url, migrated_template):
        yield from launch_gateway(document(fake_upstream.url, raw.url), url)


class Seen:
    """An answer together with the ledger's events of its request."""

    def __init__(self, gateway: Gateway, answer: httpx2.Response) -> None:
        self.status, self.text, self.headers = answer.status_code, answer.text, answer.headers
        count = int(answer.headers["x-tollgate-attempts"])
        self.events: list[dict[str, Any]] = gateway.events(
            answer.headers["x-request-id"], count=count
        )

    @property
    def code(self) -> str:
        """Return the error code of an answer or of a stream's last event."""
        return str(json.loads(self.text.split("data: ")[-1])["error"]["code"])

    @property
    def metered(self) -> list[tuple[str, str]]:
        """Return each attempt's deployment and the source of its usage."""
        return [(one["deployment"], one["usage_source"]) for one in self.events]


Ask = Callable[..., Seen]


@pytest.fixture
def ask(matrix: Gateway) -> Iterator[Ask]:
    with httpx2.Client(verify=plain_http.NO_CERTIFICATES, timeout=30) as http:

        def asked(route: str, **members: Any) -> Seen:
            body = {"model": route, "messages": MESSAGES, "max_tokens": 8, **members}
            headers = {"authorization": f"Bearer {matrix.keys[f'team-{_part(route)}']}"}
            return Seen(
                matrix, http.post(f"{matrix.base_url}/chat/completions", json=body, headers=headers)
            )

        yield asked


def check_failed_over(seen: Seen, row: str, source: str) -> None:
    """Check that another deployment answered and that the ledger has the first attempt
    unchanged.
    """
    assert (seen.status, seen.metered) == (200, [(row, source), (_well(row), "provider")])


def check_failed(seen: Seen, status: int, code: str, source: str) -> None:
    """Check that the caller has one error and that the ledger has every attempt without a price."""
    assert (seen.status, seen.code) == (status, code)
    assert {one["usage_source"] for one in seen.events} == {source}
    assert {one["cost_usd"] for one in seen.events} == ({0} if source == "none" else {None})


def test_row_01_a_refused_connection_is_tried_elsewhere(ask: Ask) -> None:
    """Another deployment answers with 200, else the caller gets 502; nothing is charged."""
    check_failed_over(ask("r01-else"), "r01", "none")
    check_failed(ask("r01"), 502, "upstream_unreachable", "none")


def test_row_02_a_name_that_does_not_resolve_is_tried_elsewhere(ask: Ask) -> None:
    """It is handled like a refused connection."""
    check_failed_over(ask("r02-else"), "r02", "none")
    check_failed(ask("r02"), 502, "upstream_unreachable", "none")


def test_row_05_an_upstream_limit_reaches_the_caller_with_a_bounded_wait(ask: Ask) -> None:
    """Another deployment is tried at once. Without one, the caller gets 429 with a time that
    SDKs accept, and the deployment is not tried meanwhile.
    """
    check_failed_over(ask("r05-else"), "r05", "none")
    seen = ask("r05")
    check_failed(seen, 429, "rate_limited", "none")
    assert (len(seen.events), seen.headers["retry-after"]) == (1, "120")


def test_row_06_a_used_up_quota_is_not_asked_again(ask: Ask) -> None:
    """The first caller's attempt discovers the used-up quota; the next request is not sent
    there. A plain 429 means no such thing.
    """
    check_failed_over(ask("r06-else"), "r06", "none")
    assert ask("r06-else").metered == [(_well("r06"), "provider")]
    check_failed_over(ask("r06b-else"), "r06b", "none")
    check_failed_over(ask("r06b-else"), "r06b", "none")


@pytest.mark.parametrize(
    ("row", "code"),
    [("r07a", "upstream_error"), ("r07b", "upstream_error"), ("r07c", "overloaded")],
)
def test_row_07_a_failing_server_is_tried_elsewhere(ask: Ask, row: str, code: str) -> None:
    """Another deployment answers with 200, else the caller gets 502 or 503 after at most three
    attempts.
    """
    check_failed_over(ask(f"{row}-else"), row, "none")
    seen = ask(row)
    check_failed(seen, 503 if code == "overloaded" else 502, code, "none")
    assert len(seen.events) == 3


def test_row_08_an_overloaded_provider_is_tried_elsewhere(ask: Ask) -> None:
    """The caller gets 529 as 503 with a retry time."""
    check_failed_over(ask("r08-else"), "r08", "none")
    seen = ask("r08")
    check_failed(seen, 503, "overloaded", "none")
    assert int(seen.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("400", (400, "invalid_request")),
        ("404", (502, "upstream_error")),
        ("413", (400, "invalid_request")),
        ("422", (400, "invalid_request")),
        ("400,toolong", (400, "context_length_exceeded")),
    ],
)
def test_row_09_a_refused_request_is_mapped_and_not_repeated(
    ask: Ask, status: str, expected: tuple[int, str]
) -> None:
    """The same request would be wrong at every deployment."""
    seen = ask("r09", fake=status)
    check_failed(seen, *expected, source="none")
    assert len(seen.events) == 1


@pytest.mark.parametrize("status", ["401", "403"])
def test_row_09_the_gateways_own_credential_is_not_the_callers(ask: Ask, status: str) -> None:
    """The upstream's 401 must not reach the caller, who would replace a valid key."""
    check_failed(ask("r09", fake=status), 502, "upstream_auth", "none")


def test_row_10_a_timeout_before_the_headers_is_repeated_once_and_elsewhere(ask: Ask) -> None:
    """The attempt may have been billed: its cost is unknown, never zero, and the same deployment
    is not tried again.
    """
    check_failed_over(ask("r10-else"), "r10", "unknown")
    seen = ask("r10")
    check_failed(seen, 504, "upstream_timeout", "unknown")
    assert len(seen.events) == 1


def test_row_11_headers_without_a_first_token_are_a_timeout(ask: Ask) -> None:
    """No byte was forwarded yet, so another deployment may answer."""
    check_failed_over(ask("r11-else", stream=True), "r11", "unknown")
    check_failed(ask("r11", stream=True), 504, "upstream_timeout", "unknown")


@pytest.mark.parametrize("row", ["r12a", "r12b", "r12c"])
def test_row_12_abusive_answers_become_a_502(ask: Ask, row: str) -> None:
    """A huge header, a flood of 1xx answers and a redirect are limited and never followed. The
    first is behind a 200: it was bought, and nothing else is tried.
    """
    seen = ask(f"{row}-else")
    is_bought = row == "r12a"
    tried = [row] if is_bought else [row, _well(row)]
    expected = (502 if is_bought else 200, tried)
    assert (seen.status, [one["deployment"] for one in seen.events]) == expected
    seen = ask(row)
    assert (seen.status, seen.code) == (502, "upstream_error")


def test_row_13_a_stall_in_the_stream_ends_it_with_an_error(ask: Ask) -> None:
    """Bytes were already sent, so no other deployment is tried, and the received part is
    charged.
    """
    seen = ask("r13-else", stream=True)
    assert (seen.status, seen.code, "[DONE]" in seen.text) == (200, "upstream_timeout", False)
    assert (seen.metered, seen.events[0]["output_tokens"]) == ([("r13", "derived")], 4)


def test_row_14_a_stream_without_its_end_is_an_error(ask: Ask) -> None:
    """A clean close does not complete a stream."""
    seen = ask("r14-else", stream=True)
    assert (seen.status, seen.code, "[DONE]" in seen.text) == (200, "upstream_error", False)
    assert (seen.metered, seen.events[0]["output_tokens"]) == ([("r14", "derived")], 3)


def test_row_15_a_reset_in_the_stream_is_an_error(ask: Ask) -> None:
    """No usage was reported, so the received text is counted; it is never free."""
    seen = ask("r15", stream=True)
    if seen.status == 200:  # otherwise the reset overtook the bytes, and three attempts have failed
        assert (seen.code, "[DONE]" in seen.text) == ("upstream_error", False)
    assert all(
        one["usage_source"] in ("estimated", "unknown") and one["cost_usd"] != 0
        for one in seen.events
    )


def test_row_16_legal_events_pass_and_a_broken_one_does_not_end_a_stream(ask: Ask) -> None:
    """Comments, CR LF and an event that is no JSON must not end a stream."""
    seen = ask("r16", stream=True)
    assert (seen.status, seen.text.endswith("data: [DONE]\n\n"), ": ping" in seen.text) == (
        200,
        True,
        True,
    )
    assert seen.metered == [("r16", "provider")]


def test_row_17_an_answer_without_usage_is_flagged(ask: Ask) -> None:
    """The caller gets the answer, and the ledger has an estimate instead of zero."""
    seen = ask("r17", stream=True)
    assert (seen.status, seen.metered, seen.events[0]["cost_usd"] > 0) == (
        200,
        [("r17", "estimated")],
        True,
    )


@pytest.mark.parametrize("row", ["r18a", "r18b", "r18c"])
def test_row_18_usage_that_cannot_be_true_is_held_and_not_believed(ask: Ask, row: str) -> None:
    """A negative count, a word, or more cached tokens than sent ones cannot be true."""
    seen = ask(row)
    assert (seen.status, seen.metered) == (200, [(row, "unknown")])
    assert (seen.events[0]["cost_usd"], seen.events[0]["held_usd"] > 0) == (None, True)


def test_row_19_a_repeated_end_counts_once(ask: Ask) -> None:
    """Two usage chunks and two ends, with more data after them, must count once."""
    seen = ask("r19", stream=True)
    assert (seen.text.count("[DONE]"), "late" in seen.text) == (1, False)
    assert (seen.metered, seen.events[0]["output_tokens"]) == ([("r19", "provider")], 2)


def test_row_20_an_endless_line_ends_the_stream(ask: Ask) -> None:
    """Its bytes are bounded, and what it holds is unknown: an estimate would leave it out."""
    seen = ask("r20", stream=True)
    assert (seen.status, seen.code, len(seen.text) < 1 << 20) == (200, "upstream_error", True)
    assert seen.metered == [("r20", "unknown")]


def test_row_21_an_answer_in_an_unrequested_encoding_is_opened(ask: Ask) -> None:
    """The caller gets it without the coding, and it is paid once, at its own usage."""
    for model in ("r21-else", "r21"):
        seen = ask(model)
        assert (seen.status, seen.metered) == (200, [("r21", "provider")])


def test_row_24_the_next_request_after_a_reset_is_clean(matrix: Gateway, ask: Ask) -> None:
    """A caller that breaks off in the middle of a stream must not affect the next one."""
    content = json.dumps(
        {"model": "r49", "messages": MESSAGES, "stream": True, "fake": "out=500,tps=50"}
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {matrix.key}\r\n"
    )
    with socket.create_connection(("127.0.0.1", matrix.port), timeout=20) as connection:
        connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        read = b""
        while b"data: " not in read:
            read += connection.recv(65536)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request_id = re.search(rb"x-request-id: ([0-9a-f-]+)", read)
    assert request_id is not None
    (left,) = matrix.events(request_id[1].decode())
    assert (left["outcome"], left["usage_source"]) == ("client_gone", "derived")
    assert ask("r49").metered == [("r49", "provider")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"model":',
        b'{"model":"r49","messages":[],"max_tokens":"x"}',
        b'{"model":"\xff"}',
        b'{"model":"r49","model":"r49","messages":[]}',
        b'{"model":"r49","messages":' + b"[" * 10_000 + b"]" * 10_000,
    ],
    ids=["empty", "no object", "cut", "wrong type", "no UTF-8", "twice", "deep"],
)
def test_row_26_a_body_that_cannot_be_read_is_a_400(matrix: Gateway, body: bytes) -> None:
    """Such a body must never reach an upstream."""
    answer = plain_http.post(
        f"{matrix.base_url}/chat/completions",
        content=body,
        headers={"authorization": f"Bearer {matrix.key}"},
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert answer.headers["x-tollgate-attempts"] == "0"


def test_row_46_an_engine_that_restarts_is_tried_elsewhere(ask: Ask) -> None:
    """The engine refuses connections while it loads, and answers 404 while the model is missing."""
    check_failed_over(ask("r46a-else"), "r46a", "none")
    check_failed_over(ask("r46b-else"), "r46b", "none")
    check_failed(ask("r46a"), 502, "upstream_unreachable", "none")


def test_row_47_an_engine_with_a_full_queue_is_tried_elsewhere(ask: Ask) -> None:
    """vLLM answers with its own 503, without a retry time."""
    check_failed_over(ask("r47-else"), "r47", "none")
    seen = ask("r47")
    check_failed(seen, 503, "overloaded", "none")
    assert int(seen.headers["retry-after"]) >= 1


def test_row_49_a_request_that_an_engine_dies_of_harms_no_other(ask: Ask) -> None:
    """One request runs out of memory and fails; the next one is served by the same engine."""
    assert ask("r49", fake="500").status == 502
    assert ask("r49").metered == [("r49", "provider")]


def test_every_row_has_a_test() -> None:
    """Each row has a test by its name here, or in the table above, whose tests must exist."""
    named = set()
    for row, path, name in re.findall(
        r"^\| (\d+) \|.*?(tests/\S+\.py)::(\w+) \|", __doc__ or "", re.M
    ):
        tree = ast.parse((ROOT / path).read_text())
        functions = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in functions, f"row {row}: {path}::{name}"
        named.add(int(row))
    here = {int(name[9:11]) for name in globals() if re.match(r"test_row_\d\d_", name)}
    assert here | named == {*range(1, 27), *range(46, 50)}
