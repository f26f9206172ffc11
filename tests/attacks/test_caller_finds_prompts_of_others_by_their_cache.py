"""A team sent guesses of another team's secret text and read `cached_tokens`: 657 for the right
guess, 0 for one with another figure in it, at every engine but vLLM.

The upstream's cache is modelled as those engines have it: keyed by their salt and the text. vLLM,
SGLang and TensorRT-LLM keep salts apart; at any other upstream `validate` says that teams share it.
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
        key = (body.get("cache_salt"), json.dumps(body["messages"]))
        seen: set[Any] = self.server.seen  # type: ignore[attr-defined]
        tokens = len(key[1])
        usage: dict[str, Any] = {"prompt_tokens": tokens, "completion_tokens": 1}
        usage["total_tokens"] = tokens + 1
        usage["prompt_tokens_details"] = {"cached_tokens": tokens if key in seen else 0}
        seen.add(key)
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
        message = {"role": "assistant", "content": "t"}
        answer = {"id": "c-1", "object": "chat.completion", "created": 1_764_000_000, "model": "m"}
        choices = [{**choice, "message": message}]
        sent = json.dumps({**answer, "choices": choices, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


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


def test_a_cache_that_the_policy_shares_is_shared(start_gateway: StartGateway) -> None:
    """An admin whose teams trust each other may want that, also at an engine that takes salts."""
    with caching_engine() as url:
        gateway = start_gateway(policy(url, "sglang", "shared"))
        assert cached(gateway, "blue", SECRET) == 0
        assert cached(gateway, "red", SECRET) > 0


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
