"""Ledger 1.3, 1.4, 1.14 to 1.16, checks D1 and D2, security F15: end to end, with upstreams on bare
sockets.

The files of those names test the rules one by one; this file shows the views of a caller and an
auditor.
"""

from __future__ import annotations

import bisect
import fcntl
import gzip
import json
import select
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.attacks.settling import BODIES, DONE, USAGE, ask, only_event, open_stream, policy
from tests.gateway_process import Gateway, new_database
from tests.integration.policy import USD_PER_TOKEN
from tests.integration.raw_upstream import (
    STREAM,
    Answering,
    RawUpstream,
    event,
    sends,
    token,
    whole,
)

ERROR = json.dumps({"error": {"message": "no", "type": "server_error"}}).encode()
CHAT = {
    "id": "c",
    "model": "m",
    "choices": [{"message": {"content": "hi " * 20}, "finish_reason": "stop"}],
}
EMBEDDING = {"object": "list", "model": "m", "data": [{"embedding": [0.5], "index": 0}]}
RESPONSE = {
    "id": "r",
    "model": "m",
    "status": "completed",
    "output": [{"type": "message", "content": []}],
}
CREATED = event(
    {"type": "response.created", "response": {"id": "r", "model": "m", "status": "in_progress"}}
)
FAILED = event(
    {"type": "response.failed", "response": {"id": "r", "model": "m", "error": {"message": "no"}}}
)
COMPLETED = event(
    {
        "type": "response.completed",
        "response": {**RESPONSE, "usage": {"input_tokens": 3, "output_tokens": 2}},
    }
)
HALF = b'{"id":"c-9","model":"m","choices":[{"message":{"content":"\\ud83d"}}],"usage":%s}'
HALF_CHUNK = b'{"model":"m","choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}'
TAIL = event({"id": "c", "model": "m", "choices": [], "usage": USAGE})
EARLY = event({"model": "m", "choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 0}})
SMALLER = event(
    {"model": "m", "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 1}}
)
LATE_TIER = event({"model": "m", "choices": [], "service_tier": "priority"})
ENDED = event({"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
MOONSHOT = event(
    {"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]}
)
LONG = json.dumps({**CHAT, "choices": [{"message": {"content": "hi " * 50_000}}]}).encode()
MADE = 40_000
QUIET_S = 1.0  # seconds without progress, after which every buffer on the way is full
SLOW_CALLER_READS = 3_000


def status(code: int) -> bytes:
    return b"HTTP/1.1 %d Timed Out\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % code


def slowly(*parts: bytes) -> Answering:
    """Return a handler whose parts the gateway reads one by one."""

    def answer(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.3)

    return answer


def plain(value: object) -> Answering:
    return sends(whole(value if isinstance(value, bytes) else json.dumps(value).encode()))


class Flood:
    """A stream of many tokens with running usage, written as fast as the gateway's kernel
    accepts it.
    """

    def __init__(self) -> None:
        self.acknowledged = 0  # tokens whose bytes the gateway's kernel has when its buffer is full
        self.is_over = threading.Event()

    def __call__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection.sendall(STREAM)
        connection.setblocking(False)
        self._ends = [len(STREAM)]  # total bytes sent, after each token
        for made in range(1, MADE + 1):
            part = json.dumps(
                {
                    "id": "c",
                    "model": "m",
                    "choices": [{"index": 0, "delta": {"content": "a"}}],
                    "usage": {"prompt_tokens": 10, "completion_tokens": made},
                }
            )
            if not self._sent(connection, event(part.encode())):
                return
            self._ends.append(self._ends[-1] + len(event(part.encode())))
        self._note_over(connection)
        connection.settimeout(30)
        connection.recv(1)  # until the gateway closes

    def _sent(self, connection: socket.socket, data: bytes) -> bool:
        while data:
            try:
                data = data[connection.send(data) :]
            except BlockingIOError:
                if select.select([], [connection], [], QUIET_S)[1]:
                    continue
                self._note_over(connection)  # every buffer is full: now the caller may leave
                connection.settimeout(20)
                try:
                    connection.sendall(data)
                except OSError:
                    return False
                finally:
                    connection.setblocking(False)
                return True
            except OSError:
                return False
        return True

    def _note_over(self, connection: socket.socket) -> None:
        """Record which tokens have left our own kernel, which may keep 64 KiB of them."""
        if not self.is_over.is_set():
            (unacknowledged,) = struct.unpack(
                "i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))
            )
            self.acknowledged = bisect.bisect_right(self._ends, self._ends[-1] - unacknowledged) - 1
            self.is_over.set()


SPOKEN = {"content": None, "audio": {"id": "a", "data": "AAAA", "transcript": "hi"}}
SEARCHED = {
    "content": "hi",
    "annotations": [{"type": "url_citation", "url_citation": {"url": "https://example.org"}}],
}
FLOOD = Flood()
UPSTREAMS: dict[str, Answering] = {
    "good": plain({**CHAT, "usage": USAGE, "data": [], "output": []}),
    "good-stream": sends(STREAM, token("hi"), TAIL, DONE),
    "good-responses": sends(STREAM, CREATED, COMPLETED),
    "failed": sends(STREAM + CREATED + FAILED),
    "flood": FLOOD,
    "t408": sends(status(408)),
    "t504": sends(status(504)),
    "t524": sends(status(524)),
    "t500": sends(status(500)),
    "half": plain(HALF % json.dumps(USAGE).encode()),
    "half-stream": sends(STREAM, event(HALF_CHUNK), TAIL, DONE),
    "no-blank": sends(STREAM, token("hi"), TAIL, b"data: [DONE]\n"),
    "cr-only": sends(STREAM, (token("hi") + TAIL + DONE).replace(b"\n", b"\r")),
    "mute-chat": plain(CHAT),
    "mute-completions": plain({**CHAT, "choices": [{"text": "hi " * 20}]}),
    "mute-embeddings": plain(EMBEDDING),
    "mute-responses": plain(
        {
            **RESPONSE,
            "output": [
                {"type": "message", "content": [{"type": "output_text", "text": "hi " * 20}]}
            ],
        }
    ),
    "e200": plain(ERROR),
    "e200-stream": sends(STREAM, event(ERROR), DONE),
    "gzip": plain(b"\x1f\x8b\x08\x00junk"),
    "page": plain(b"<html>" * 50),
    "early": sends(STREAM, EARLY, *[token("hi ")] * 50, DONE),
    "early-cut": sends(STREAM, EARLY, *[token("hi ")] * 50),
    "early-vllm": sends(STREAM, EARLY, *[token("hi ")] * 50, ENDED, DONE),
    "early-response": sends(
        STREAM, COMPLETED, *[event({"type": "response.output_text.delta", "delta": "hi "})] * 50
    ),
    "queued": plain({"id": "r", "model": "m", "status": "queued", "output": []}),
    "smaller-later": sends(STREAM, token("hi"), TAIL, SMALLER, DONE),
    "late-tier": slowly(STREAM + token("hi"), TAIL, LATE_TIER, DONE),
    "moonshot": sends(STREAM, *[token("hi ")] * 5, MOONSHOT, DONE),
    "gzip-usage": plain(gzip.compress(json.dumps({**CHAT, "usage": USAGE}).encode())),
    "gzip-long": plain(gzip.compress(LONG)),
    "spoken": plain({**CHAT, "choices": [{"message": SPOKEN}], "usage": USAGE}),
    "searched": plain({**CHAT, "choices": [{"message": SEARCHED}], "usage": USAGE}),
    "spoken-own": plain({**CHAT, "choices": [{"message": SPOKEN}], "usage": USAGE}),
    "searched-own": plain({**CHAT, "choices": [{"message": SEARCHED}], "usage": USAGE}),
}
ROUTES = {
    "failed-else": ["failed", "good-responses"],
    "e200-else": ["e200", "good"],
    "gzip-else": ["gzip", "good"],
    "page-stream-else": ["page", "good-stream"],
    "e200-stream-else": ["e200-stream", "good-stream"],
    "e200-json-stream-else": ["e200", "good-stream"],
    "half-else": ["half", "good"],
}


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawUpstream]:
    made = RawUpstream(UPSTREAMS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    postgres_url: str,
    migrated_template: str,
    upstream: RawUpstream,
) -> Iterator[Gateway]:
    providers = {
        name: "vllm"
        if name in ("flood", "early-vllm") or name.endswith("-own")
        else "openai_compatible"
        for name in UPSTREAMS
    }
    with _database(postgres_url, migrated_template) as url:
        yield from launch_gateway(policy(upstream.url, providers, ROUTES), url)


@contextmanager
def _database(postgres_url: str, template: str) -> Iterator[str]:
    made = new_database(postgres_url, template)
    yield next(made)
    list(made)


def booked(row: dict[str, Any]) -> tuple[str, str]:
    return row["outcome"], row["usage_source"]


def test_1_03_a_response_that_fails_at_once_is_tried_elsewhere(gateway: Gateway) -> None:
    """The caller got 502 "the gateway failed", the event was `ok`, and the good deployment was
    never tried.
    """
    answer = ask(gateway, "failed-else", "responses", stream=True)
    assert (answer.status_code, "response.completed" in answer.text) == (200, True)
    rows = gateway.events(answer.headers["x-request-id"], count=2)
    assert [row["outcome"] for row in rows] == ["upstream_error", "ok"]


def test_1_04_output_in_the_kernel_buffer_at_a_disconnect_is_metered(gateway: Gateway) -> None:
    """17,133 of 40,000 tokens were booked, and the rest was charged to other teams' unknown
    attempts.
    """
    with open_stream(gateway, "flood") as connection:
        head = b""
        while len(head) < SLOW_CALLER_READS:
            head += connection.recv(SLOW_CALLER_READS)
        assert FLOOD.is_over.wait(30)
        acknowledged = FLOOD.acknowledged
    request_id = next(
        line for line in head.decode().split("\r\n") if line.startswith("x-request-id: ")
    )[14:]
    (row,) = gateway.events(request_id)
    assert booked(row) in (("client_gone", "derived"), ("client_gone", "provider"))
    assert row["output_tokens"] >= acknowledged
    assert row["output_tokens"] <= MADE
    assert not row["is_suspect"] or row["held_usd"] is not None


@pytest.mark.parametrize("model", ["t408", "t504", "t524"])
def test_1_14_a_timeout_of_a_proxy_is_unknown_at_its_hold(gateway: Gateway, model: str) -> None:
    """The upstream behind the proxy may have generated an answer, and bills it."""
    answer = ask(gateway, model)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")
    row = only_event(gateway, answer)
    assert booked(row) == ("upstream_timeout", "unknown")
    assert row["held_usd"] > 0


def test_1_14_an_error_that_says_so_is_free(gateway: Gateway) -> None:
    """A 500 is the upstream's own statement that there is no answer."""
    answer = ask(gateway, "t500")
    rows = gateway.events(
        answer.headers["x-request-id"], count=int(answer.headers["x-tollgate-attempts"])
    )
    assert {booked(row) for row in rows} == {("upstream_error", "none")}


def test_1_15_half_a_surrogate_pair_is_bought_once_and_read(
    gateway: Gateway, upstream: RawUpstream
) -> None:
    """The answer was paid three times and refused, although each answer had its usage."""
    before = len(upstream.asked)
    answer = ask(gateway, "half-else")
    assert upstream.asked[before:] == ["half"]
    assert b'"content":"\\ud83d"' in answer.content
    assert b'"model":"half-else"' in answer.content
    row = only_event(gateway, answer)
    assert (booked(row), row["output_tokens"], row["upstream_request_id"]) == (
        ("ok", "provider"),
        5,
        "c-9",
    )


def test_1_15_in_a_stream_too(gateway: Gateway) -> None:
    """The upstream's model name reached the caller, and no content was recorded."""
    answer = ask(gateway, "half-stream", stream=True)
    assert b'"\\ud83d"' in answer.content
    assert b'"model":"m"' not in answer.content
    assert booked(only_event(gateway, answer)) == ("ok", "provider")


@pytest.mark.parametrize("model", ["no-blank", "cr-only"])
def test_1_16_a_last_event_without_its_blank_line_is_read(gateway: Gateway, model: str) -> None:
    """The caller got an error after the whole answer, and the attempt was recorded as cut."""
    answer = ask(gateway, model, stream=True)
    assert "[DONE]" in answer.text
    assert '"error"' not in answer.text
    assert booked(only_event(gateway, answer)) == ("ok", "provider")


@pytest.mark.parametrize("operation", BODIES)
def test_d1_a_whole_answer_without_usage_is_counted(gateway: Gateway, operation: str) -> None:
    """61 % of a hard budget could not be spent that day, because each such answer stood at its
    whole hold.
    """
    answer = ask(gateway, "mute-" + operation.partition("/")[0], operation)
    assert answer.status_code == 200
    row = only_event(gateway, answer)
    assert (booked(row), row["held_usd"]) == (("ok", "estimated"), None)
    bound = (len(answer.request.content) + 64) * USD_PER_TOKEN["input"] + 20 * USD_PER_TOKEN[
        "output"
    ]
    assert 0 < row["cost_usd"] * 10**9 <= bound


@pytest.mark.parametrize("operation", BODIES)
def test_d2_a_200_that_is_an_error_is_tried_elsewhere(gateway: Gateway, operation: str) -> None:
    """Official SDKs return such a body as a completion whose `choices` is None."""
    answer = ask(gateway, "e200-else", operation)
    assert (
        answer.status_code,
        answer.headers["x-tollgate-attempts"],
        "error" in answer.json(),
    ) == (200, "2", False)
    rows = gateway.events(answer.headers["x-request-id"], count=2)
    assert [row["outcome"] for row in rows] == ["upstream_error", "ok"]


@pytest.mark.parametrize("operation", BODIES)
def test_d2_alone_it_is_502(gateway: Gateway, operation: str) -> None:
    """The error is in the caller's dialect, and its own usage counts; here it has no usage."""
    answer = ask(gateway, "e200", operation)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")
    rows = gateway.events(
        answer.headers["x-request-id"], count=int(answer.headers["x-tollgate-attempts"])
    )
    assert {booked(row) for row in rows} == {("upstream_error", "none")}


@pytest.mark.parametrize("route", ["e200-stream-else", "e200-json-stream-else"])
@pytest.mark.parametrize("operation", ["chat/completions", "completions"])
def test_d2_streamed_it_is_the_same(gateway: Gateway, route: str, operation: str) -> None:
    """The error may come as an event, or as a JSON body although the caller requested a stream."""
    answer = ask(gateway, route, operation, stream=True)
    assert "[DONE]" in answer.text
    rows = gateway.events(answer.headers["x-request-id"], count=2)
    assert [booked(row) for row in rows] == [("upstream_error", "none"), ("ok", "provider")]


@pytest.mark.parametrize(("route", "first"), [("gzip-else", "gzip"), ("page-stream-else", "page")])
def test_f15_a_200_that_cannot_be_read_is_bought_once(
    gateway: Gateway, upstream: RawUpstream, route: str, first: str
) -> None:
    """An upstream that answered with success did the work. Three tries would be billed three
    times.
    """
    before = len(upstream.asked)
    answer = ask(gateway, route, stream="stream" in route)
    assert (answer.status_code, upstream.asked[before:]) == (502, [first])
    assert booked(only_event(gateway, answer)) == ("upstream_error", "unknown")


@pytest.mark.parametrize("model", ["early", "early-cut", "early-vllm"])
@pytest.mark.parametrize("asks", [False, True])
def test_usage_that_content_follows_is_not_the_last_word(
    gateway: Gateway, model: str, asks: bool
) -> None:
    """The caller's own `include_usage` made the usage before the text final, so 2,000 pieces
    were booked as 0 tokens.
    """
    members = {"stream_options": {"include_usage": True}} if asks else {}
    answer = ask(gateway, model, stream=True, max_tokens=60, **members)
    assert answer.text.count("hi ") == 50
    row = only_event(gateway, answer)
    assert row["usage_source"] in ("estimated", "unknown")
    assert (row["output_tokens"] or 0) > 20 or row["held_usd"] > 0


def test_a_response_that_goes_on_after_its_end_is_not_booked_at_its_figure(
    gateway: Gateway,
) -> None:
    """The rule for a chat holds here too."""
    answer = ask(gateway, "early-response", "responses", stream=True)
    assert booked(only_event(gateway, answer))[1] in ("estimated", "unknown")


def test_a_response_that_is_only_queued_is_unknown(gateway: Gateway) -> None:
    """It was booked with 0 output tokens, although its upstream reports that the work continues."""
    row = only_event(gateway, ask(gateway, "queued", "responses"))
    assert booked(row) == ("ok", "unknown")
    assert row["held_usd"] > 0


def test_usage_in_the_last_choice_is_read(gateway: Gateway) -> None:
    """Moonshot reports usage there; 5 tokens were estimated as 22."""
    row = only_event(gateway, ask(gateway, "moonshot", stream=True))
    assert (booked(row), row["input_tokens"], row["output_tokens"]) == (("ok", "provider"), 10, 5)


def test_a_compressed_answer_is_read_for_its_usage(gateway: Gateway) -> None:
    """Gzip was not requested, and the answer is paid for, so its caller gets it.

    The gateway used to estimate it by its compressed size.
    """
    answer = ask(gateway, "gzip-usage")
    assert answer.status_code == 200
    assert answer.json()["choices"] == CHAT["choices"]
    row = only_event(gateway, answer)
    assert (row["usage_source"], row["input_tokens"], row["output_tokens"]) == ("provider", 10, 5)
    row = only_event(gateway, ask(gateway, "gzip-long", max_tokens=60_000))
    assert (row["usage_source"], row["output_tokens"] > 30_000) == ("estimated", True)


def test_a_smaller_usage_after_a_larger_one_is_flagged(gateway: Gateway) -> None:
    """The last figure was booked alone: 1 of 5 tokens."""
    row = only_event(gateway, ask(gateway, "smaller-later", stream=True))
    assert booked(row) == ("ok", "provider")
    assert (row["input_tokens"], row["output_tokens"], row["is_suspect"]) == (10, 5, True)


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
def test_a_tier_that_comes_after_the_usage_counts(
    gateway: Gateway, options: dict[str, Any]
) -> None:
    """The cost that a caller had been shown was booked, whatever the stream stated later: its
    packets and `include_usage` changed the bill.
    """
    row = only_event(gateway, ask(gateway, "late-tier", stream=True, **options))
    assert booked(row) == ("ok", "unknown"), "no price of this tier is known"
    assert (row["service_tier"], row["is_suspect"]) == ("priority", True)
    assert row["held_usd"] > 0


@pytest.mark.parametrize("model", ["spoken", "searched"])
def test_a_sound_and_a_search_that_no_usage_counts_are_unknown(
    gateway: Gateway, model: str
) -> None:
    """They were booked as text, as the provider's own figure; on an engine of one's own they are
    its tokens.
    """
    answer = ask(gateway, model)
    assert "x-tollgate-cost-usd" not in answer.headers
    row = only_event(gateway, answer)
    assert (booked(row), row["cost_usd"]) == (("ok", "unknown"), None)
    assert row["held_usd"] > 0
    own = only_event(gateway, ask(gateway, f"{model}-own"))
    assert booked(own) == ("ok", "provider")
