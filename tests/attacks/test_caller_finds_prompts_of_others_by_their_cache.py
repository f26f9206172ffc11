"""A team sent guesses of another team's secret text and read `cached_tokens`: 657 for the right
guess, 0 for one with another figure in it, at every engine but vLLM.

The upstream's cache is modelled as those engines have it: keyed by their salt and the text. vLLM,
SGLang and TensorRT-LLM keep salts apart; at any other upstream `validate` says that teams share it.
With `prompt_cache: shared` a right guess and a wrong one get the same bytes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gateway.wire.parsed_policy import parse
from tests import plain_http
from tests.attacks.raw_callers import two_teams
from tests.gateway_process import Gateway, StartGateway

SECRET = "The price of the acquisition is 4,711 million euros. " * 20


class _Handler(BaseHTTPRequestHandler):
    """An engine with a prefix cache: it reports a prompt that it has read under the same salt."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        dialect = self.path.rpartition("/")[2]
        prompt = body["input"] if dialect == "responses" else body["messages"]
        text = prompt if isinstance(prompt, str) else json.dumps(prompt[-1]["content"])
        key = (body.get("cache_salt"), text)
        seen: set[Any] = self.server.seen  # type: ignore[attr-defined]
        sent = _ANSWERS[dialect](len(text), len(text) if key in seen else 0, body.get("stream"))
        seen.add(key)
        self.send_response(200)
        kind = "text/event-stream" if body.get("stream") else "application/json"
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


def _event(name: str | None, payload: dict[str, Any]) -> bytes:
    """Return an event, with its name as its type if it has one."""
    if name is None:
        return b"data: " + json.dumps(payload).encode() + b"\n\n"
    text = json.dumps({"type": name, **payload})
    return f"event: {name}\ndata: {text}\n\n".encode()


def _chat(tokens: int, found: int, is_stream: bool | None) -> bytes:
    """Return a chat's answer, with llama.cpp's timings, DeepSeek's counts and OpenRouter's cost."""
    usage: dict[str, Any] = {"prompt_tokens": tokens, "completion_tokens": 1}
    usage["total_tokens"] = tokens + 1
    usage["prompt_tokens_details"] = {"cached_tokens": found} if found or not is_stream else None
    more = {"prompt_cache_hit_tokens": found, "cost": (tokens - found) * 1e-6}
    timings = {"cache_n": found, "prompt_n": tokens - found, "predicted_n": 1}
    last = {"usage": usage | more, "timings": timings}
    kind = "chat.completion.chunk" if is_stream else "chat.completion"
    head = {"id": "c-1", "object": kind, "created": 1_764_000_000, "model": "m"}
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}
    message = {"role": "assistant", "content": "cached_tokens"}
    if not is_stream:
        whole = {**head, "choices": [{**choice, "message": message}]}
        return json.dumps(whole | last).encode()
    first = {**head, "choices": [{**choice, "delta": message, "finish_reason": None}]}
    running = {"usage": {**usage, "completion_tokens": 0}}
    end = {**head, "choices": [{**choice, "delta": {}}]}
    chunks = [first | running, end, {**head, "choices": []} | last]
    return b"".join(_event(None, chunk) for chunk in chunks) + b"data: [DONE]\n\n"


def _messages(tokens: int, found: int, is_stream: bool | None) -> bytes:
    """Return a message: tokens that are not read from the cache are written to it."""
    prompt = {"input_tokens": 0, "cache_read_input_tokens": found}
    prompt["cache_creation_input_tokens"] = tokens - found
    usage: dict[str, Any] = {**prompt, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    block = {"type": "text", "text": "cached_tokens"}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    if not is_stream:
        return json.dumps({**message, "content": [block], **end, "usage": usage}).encode()
    start = {**message, "content": [], "stop_reason": None, "usage": usage}
    delta = {"type": "text_delta", "text": "cached_tokens"}
    return b"".join(
        (
            _event("message_start", {"message": start}),
            _event("content_block_start", {"index": 0, "content_block": {**block, "text": ""}}),
            _event("content_block_delta", {"index": 0, "delta": delta}),
            _event("content_block_stop", {"index": 0}),
            _event("message_delta", {"delta": end, "usage": usage}),
            _event("message_stop", {}),
        )
    )


def _response(tokens: int, found: int, is_stream: bool | None) -> bytes:
    """Return a response."""
    details = {"cached_tokens": found, "cache_write_tokens": tokens - found}
    usage = {"input_tokens": tokens, "input_tokens_details": details, "output_tokens": 1}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": tokens + 1}
    text = {"type": "output_text", "text": "cached_tokens", "annotations": []}
    item = {"id": "i", "type": "message", "role": "assistant", "content": [text]}
    response = {"id": "resp_1", "object": "response", "created_at": 1_764_000_000, "model": "m"}
    response |= {"status": "completed", "output": [item], "usage": usage}
    if not is_stream:
        return json.dumps(response).encode()
    began = {**response, "status": "in_progress", "output": [], "usage": None}
    delta = {"output_index": 0, "content_index": 0, "item_id": "i", "delta": "cached_tokens"}
    return b"".join(
        (
            _event("response.created", {"response": began}),
            _event("response.output_text.delta", delta),
            _event("response.completed", {"response": response}),
        )
    )


_ANSWERS = {"completions": _chat, "messages": _messages, "responses": _response}


@contextmanager
def caching_engine() -> Iterator[str]:
    """Serve the engine until the end of the block; its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.seen = set()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def policy(url: str, provider: str, stated: str | None) -> str:
    """Return the policy of two teams at one deployment."""
    text = two_teams(url, model="m", provider=provider)
    return (
        text if stated is None else text.replace("provider:", f"prompt_cache: {stated}, provider:")
    )


def cached(gateway: Gateway, team: str, text: str) -> int:
    """Return the cached tokens that the answer to a team's chat shows."""
    body = {"model": "vllm", "messages": [{"role": "user", "content": text}]}
    answer = plain_http.post(
        f"{gateway.base_url}/chat/completions",
        content=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {gateway.keys[team]}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


@pytest.mark.parametrize(
    ("provider", "stated"), [("sglang", None), ("trtllm", "separate"), ("sglang", "separate")]
)
def test_no_team_finds_the_prompt_of_another(
    start_gateway: StartGateway, provider: str, stated: str | None
) -> None:
    """The right guess looks like a wrong one. The team's own prompt is cached as before."""
    with caching_engine() as url:
        gateway = start_gateway(policy(url, provider, stated))
        assert cached(gateway, "blue", SECRET) == 0
        assert cached(gateway, "red", SECRET) == 0
        assert cached(gateway, "blue", SECRET) > 0


def test_teams_that_trust_each_other_share_a_cache(start_gateway: StartGateway) -> None:
    """An admin may want that, also at an engine that takes salts."""
    with caching_engine() as url:
        gateway = start_gateway(policy(url, "sglang", "trusted"))
        assert cached(gateway, "blue", SECRET) == 0
        assert cached(gateway, "red", SECRET) > 0


WRONG = SECRET.replace("4,711", "4,712")
SHARED = """\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: vllm, model: m, provider: vllm, region: unknown, base_url: "{url}",
     prompt_cache: shared, {price}}}
  - {{name: llamacpp, model: m, provider: llamacpp, region: unknown, base_url: "{url}",
     prompt_cache: shared, {price}}}
  - {{name: translated, model: m, provider: openai_compatible, native: [chat], region: unknown,
     operations: [chat, messages, responses], base_url: "{url}", prompt_cache: shared, {price}}}
routes:
  - {{name: vllm, deployments: [vllm]}}
  - {{name: llamacpp, deployments: [llamacpp]}}
  - {{name: translated, deployments: [translated]}}
teams:
  - {{name: red, cost_centre: CC-1, data_class: internal, routes: [vllm, llamacpp, translated],
     budgets: [{{limit_usd: 100, period: month, kind: hard}}]}}
  - {{name: blue, cost_centre: CC-2, data_class: internal, routes: [vllm, llamacpp, translated]}}
"""
PRICE = (
    "price: {input_usd_per_mtok: 1, cached_input_usd_per_mtok: 0.1, output_usd_per_mtok: 4}, "
    "context_window: 20000, max_output_tokens: 100"
)
_VARIES = {"x-request-id", "request-id", "x-tollgate-overhead-ms", "date"}
PATHS = {"chat": "/chat/completions", "messages": "/messages", "responses": "/responses"}


def guess(gateway: Gateway, team: str, route: str, dialect: str, text: str, stream: bool) -> Any:
    """Return the answer to a team's guess."""
    body: dict[str, Any] = {"model": route, "stream": stream}
    if dialect == "responses":
        body |= {"input": text, "max_output_tokens": 5}
    else:
        body |= {"messages": [{"role": "user", "content": text}], "max_tokens": 5}
    if dialect == "chat" and stream:
        body["stream_options"] = {"include_usage": True}
    answer = plain_http.post(
        gateway.base_url + PATHS[dialect],
        content=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {gateway.keys[team]}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    return answer


def receipt(gateway: Gateway, request_id: str) -> dict[str, Any]:
    """Return the receipt of red's request, without the members that every request has anew."""
    answer = plain_http.get(
        f"{gateway.base_url}/requests/{request_id}",
        headers={"authorization": f"Bearer {gateway.keys['red']}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    times = ("started_at", "ttft_s", "tpot_s", "duration_s", "overhead_s", "queue_s", "max_gap_s")
    for name in times:
        del found["attempts"][0][name]
    return {n: value for n, value in found.items() if n not in ("request_id", "occurred_at")}


def test_a_shared_cache_shows_no_caller_what_others_sent(start_gateway: StartGateway) -> None:
    """The right guess and the wrong one are the same bytes, headers and receipts, in every dialect;
    the ledger has the true figures.
    """
    with caching_engine() as url:
        gateway = start_gateway(SHARED.format(url=url, price=PRICE))
        guess(gateway, "blue", "vllm", "chat", SECRET, False)
        for round_, (route, dialect, stream) in enumerate(
            (route, dialect, stream)
            for route in ("vllm", "llamacpp", "translated")
            for dialect in PATHS
            for stream in (False, True)
        ):
            wrong = WRONG.replace("price", f"pri{round_:02}")
            right = SECRET.replace("price", f"pri{round_:02}")
            guess(gateway, "blue", "vllm", dialect, right, stream)
            guess(gateway, "blue", route, dialect, right, stream)
            answers = [guess(gateway, "red", route, dialect, one, stream) for one in (right, wrong)]
            hit, miss = answers
            assert hit.content == miss.content, (route, dialect, stream)
            assert b"cached_tokens" in hit.content  # the answer's text
            for word in (b"cost", b"cache_n", b"hit_tokens"):
                assert word not in hit.content
            shown = [
                {n: v for n, v in one.headers.items() if n.lower() not in _VARIES}
                for one in answers
            ]
            assert shown[0] == shown[1]
            ids = [one.headers["x-request-id"] for one in answers]
            (booked,), (fresh,) = (gateway.events(one) for one in ids)
            assert booked["cached_input_tokens"] == booked["input_tokens"] > 0
            assert fresh["cached_input_tokens"] in (0, None)
            assert booked["input_tokens"] == fresh["input_tokens"]
            assert booked["cost_usd"] < fresh["cost_usd"]
            assert receipt(gateway, ids[0]) == receipt(gateway, ids[1])


@pytest.mark.parametrize(
    ("provider", "stated", "is_noted"),
    [
        ("vllm", None, False),
        ("sglang", None, False),
        ("trtllm", None, True),  # older builds refuse the salt, so it is sent only if it is stated
        ("trtllm", "separate", False),
        ("openai_compatible", None, True),
        ("llamacpp", None, True),
        ("llamacpp", "shared", False),
        ("llamacpp", "separate", False),
        ("llamacpp", "trusted", False),
    ],
)
def test_validate_says_which_deployments_share_a_cache(
    provider: str, stated: str | None, is_noted: bool
) -> None:
    """It is a note: every request stays served."""
    text = policy("http://127.0.0.1:9/v1", provider, stated)
    notes = [note for note in parse(text).notes if "cached prompts" in note.message]
    assert [note.field for note in notes] == (["deployments"] if is_noted else [])
    assert not any(note.is_error for note in notes)


def test_a_deployment_of_one_team_shares_nothing() -> None:
    """There is no other team whose prompts could be found."""
    text = policy("http://127.0.0.1:9/v1", "llamacpp", None)
    alone = "\n".join(line for line in text.splitlines() if "name: blue" not in line)
    assert not [note for note in parse(alone).notes if "cached prompts" in note.message]
