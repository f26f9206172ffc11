"""A server that leads the engine's commands, and the key that they hold, to another address."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine.errors import UsageError
from engine.load import json_answer
from engine.load.json_answer import ask_json
from engine.load.prompts import WORDS, prompt_writer
from engine.serving.readiness import probe_of
from tests.attacks.odd_engine import http, odd_engine

MODELS = b'{"data": [{"id": "m"}]}'


@contextmanager
def dripping(head: bytes) -> Iterator[str]:
    """Serve a head, then a byte of white space every 10 ms without end; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(head)
                    while True:
                        connection.sendall(b" ")
                        time.sleep(0.01)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_the_key_goes_to_no_other_address(status: str) -> None:
    """The standard library's client repeats all headers, `authorization` too, at any address."""
    with odd_engine(MODELS) as elsewhere, odd_engine() as engine:
        engine.page = http(b"", f"location: {elsewhere.url}/models", status=status)
        url = engine.url.removesuffix("/v1")
        assert probe_of(url, key="sk-of-the-engine").failure() == f"HTTP {status[:3]}"
        with pytest.raises(UsageError, match=f"answers HTTP {status[:3]}"):
            prompt_writer(url, model=None, key="sk-of-the-engine", seed=1)
        assert (engine.pages, elsewhere.pages) == (2, 0)


@pytest.mark.parametrize(
    "page",
    [b"SSH-2.0-OpenSSH_9\r\n", http(b"[" * 100_000), http(b"[]"), http(b'{"data": 5}')],
    ids=["no HTTP", "deep", "a list", "a number"],
)
def test_an_answer_of_another_kind_is_told_in_words(page: bytes) -> None:
    """It ended with a traceback."""
    with odd_engine() as engine:
        engine.page = page
        url = engine.url.removesuffix("/v1")
        assert probe_of(url).failure()
        with pytest.raises(UsageError, match="lists no model"):
            prompt_writer(url, model=None, key=None, seed=1)


@pytest.mark.parametrize("count", [b"-1000000000", b"1e999", b"1000000000"])
def test_an_absurd_template_makes_no_prompt_of_gigabytes(count: bytes) -> None:
    """`/tokenize` says how many words are to be left out; a negative number added them."""
    with odd_engine(MODELS) as engine:
        # Both questions get this answer: words of one token, and the count of a template.
        strings = json.dumps([f" {word}" for word in WORDS]).encode()
        engine.answer = http(b'{"token_strs": %b, "count": %b}' % (strings, count))
        writer = prompt_writer(engine.url.removesuffix("/v1"), model=None, key=None, seed=1)
    assert not writer.is_exact
    assert writer.template_tokens == 0


def test_a_body_that_drips_ends_in_time() -> None:
    """The timeout of a socket begins anew with each byte: `engine wait --timeout 180` waited for
    ever.
    """
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n"
    with dripping(head) as url, pytest.raises(TimeoutError, match="did not end in time"):
        ask_json(url, key=None, body=None, limit_s=0.1)


def test_a_body_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it was held in memory before it was read."""
    monkeypatch.setattr(json_answer, "MOST_BYTES", 100_000)
    with odd_engine(b" " * 200_000) as engine, pytest.raises(ValueError, match="longer than"):
        ask_json(engine.url, key=None, body=None, limit_s=10)
