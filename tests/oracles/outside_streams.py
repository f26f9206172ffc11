"""Translated streams of chat upstreams before the official SDKs' own stream helpers: every block, in its
order, with every byte of every argument, as in the plain answer.
"""  # noqa: E501

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import anthropic
import openai
import pytest

from tests.oracles.mixed_streams import MixedStream, mixed_stream, translated

SEEDS = range(int(os.environ.get("STREAMS", "100")))
# `make clients` installs the official libraries for TypeScript here.
_CLIENTS = Path(
    os.environ.get("TOLLGATE_CLIENTS_HOME") or Path.home() / ".cache" / "tollgate-clients"
)
NODE = _CLIENTS / "node"
SCRIPT = Path(__file__).with_name("streams.mjs")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a server that answers with the translation of the seed in `model`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """Answer with the stream of a seed, or with the plain answer of the same events."""
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            seed, operation = int(asked["model"]), self.path.partition("?")[0].rpartition("/")[2]
            stream, plain = translated(mixed_stream(seed).sent, operation, step=1 + seed % 97)
            body = stream if asked.get("stream") else plain
            kind = "text/event-stream" if asked.get("stream") else "application/json"
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def check_message(stream: MixedStream, *, shown: Sequence[Any], final: Any, plain: Any) -> None:
    """Assert that a helper showed each block of a message at its end, and that all of them arrived.
    A block that the plain answer has is the one of the stream.
    """
    assert shown == final == plain
    calls = [(one["name"], one["input"]) for one in final if one["type"] == "tool_use"]
    assert calls == [(call.name, json.loads(call.arguments or "{}")) for call in stream.calls]
    for kind, member, sent in (
        ("text", "text", stream.text),
        ("thinking", "thinking", stream.thought),
    ):
        assert "".join(one[member] for one in final if one["type"] == kind) == sent


def check_response(stream: MixedStream, *, shown: Sequence[Any], final: Any, plain: Any) -> None:
    """Assert that a helper showed each item at its end, and that all of a response arrived."""
    assert shown == final == plain
    calls = [(one["name"], one["arguments"]) for one in final if one["type"] == "function_call"]
    assert calls == [(call.name, call.arguments or "{}") for call in stream.calls]
    texts = [part["text"] for one in final if one["type"] == "message" for part in one["content"]]
    assert "".join(texts) == stream.text


@pytest.mark.parametrize("seed", SEEDS)
def test_anthropics_python_helper_shows_every_block(seed: int, address: str) -> None:
    """At its end, and in the final message."""
    client = anthropic.Anthropic(base_url=address, api_key="k", max_retries=0)
    asked: Any = {
        "model": str(seed),
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "Hi"}],
    }
    shown = []
    with client.messages.stream(**asked) as helper:
        for event in helper:
            if event.type == "content_block_stop":
                shown.append(event.content_block.to_dict())
        final = helper.get_final_message().to_dict()
    plain: Any = client.messages.create(**asked).to_dict()
    check_message(mixed_stream(seed), shown=shown, final=final["content"], plain=plain["content"])
    assert {**final, "content": None, "usage": None} == {**plain, "content": None, "usage": None}


@pytest.mark.parametrize("seed", SEEDS)
def test_openais_python_helper_shows_every_item(seed: int, address: str) -> None:
    """At its end, and in the final response."""
    client = openai.OpenAI(base_url=address, api_key="k", max_retries=0)
    shown: list[Any] = []
    with client.responses.stream(model=str(seed), input="Hi") as helper:
        for event in helper:
            if event.type == "response.output_item.done":
                shown.append(_plain(event.item.to_dict()))
        final: Any = helper.get_final_response().to_dict()
    plain: Any = client.responses.create(model=str(seed), input="Hi").to_dict()
    check_response(
        mixed_stream(seed),
        shown=shown,
        final=[_plain(item) for item in final["output"]],
        plain=[_plain(item) for item in plain["output"]],
    )


@pytest.mark.skipif(not (NODE / "node_modules" / "openai").is_dir(), reason="`make clients` first")
def test_the_typescript_helpers_show_every_block_and_item(address: str) -> None:
    """The official libraries for TypeScript take the newest block for the one that ends."""
    node = NODE / "node_modules" / ".bin" / "node"
    done = subprocess.run(
        [node, SCRIPT, NODE, address, str(len(SEEDS))], capture_output=True, text=True, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 2 * len(SEEDS)
    for one in found:
        stream = mixed_stream(one.pop("seed"))
        if one.pop("dialect") == "messages":
            check_message(stream, **one)
        else:
            check_response(
                stream, **{name: [_plain(item) for item in items] for name, items in one.items()}
            )


def _plain(item: Any) -> Any:
    """Return an item without the members that a helper adds for the caller's own types."""
    if isinstance(item, list):
        return [_plain(one) for one in item]
    if not isinstance(item, dict):
        return item
    added = {"parsed", "parsed_arguments"}
    return {name: _plain(value) for name, value in item.items() if name not in added}
