"""Unreported tokens: counted off the event loop, or estimated, and never invented."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.domain.operation import Operation
from gateway.domain.pricing.settlement import Counted
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.domain.request.request import RequestBody
from gateway.domain.request.token_estimate import estimate, tokens_in
from gateway.providers.token_counting import (
    MAX_INPUT_BYTES,
    LoadTokenizer,
    OfflineTokenCounter,
    Tokenizer,
    load_tokenizer,
)
from gateway.wire.observed import MAX_TEXT_CHARS, Observed
from tests.factories import facts, read, settled


def by_words(path: str) -> Tokenizer:
    """A tokenizer whose tokens are words; `path` must be known."""
    if path != "/words":
        raise FileNotFoundError(path)
    return lambda texts: sum(len(text.split()) for text in texts)


@asynccontextmanager
async def counter(
    load: LoadTokenizer = by_words, **more: Any
) -> AsyncIterator[OfflineTokenCounter]:
    made = OfflineTokenCounter({"m-1": "/words", "m-broken": "/missing"}, load=load, **more)
    try:
        yield made
    finally:
        made.close()


def observed(*texts: str) -> Observed:
    found = Observed(collects_text=True)
    for text in texts:
        found.note_text(text)
    return found


def chat(**members: Any) -> RequestBody:
    return read(json.dumps({"model": "assistant", "messages": [], **members}).encode())


async def test_the_models_own_tokenizer_counts_prompt_and_output() -> None:
    """Texts of messages in any shape, roles, and a template's additions around each."""
    body = chat(
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "one two three"}]},
        ]
    )
    async with counter() as made:
        found = await made.count("m-1", body, observed("four five", " six"))
    roles, kinds, around = 2, 1, 2 * 3
    assert found == Counted(
        usage=TokenUsage(input_tokens=2 + 3 + roles + kinds + around, output_tokens=3),
        is_exact=True,
    )


@pytest.mark.parametrize(
    ("operation", "members", "tokens"),
    [
        (Operation.COMPLETIONS, {"prompt": "one two"}, 2),
        (Operation.COMPLETIONS, {"prompt": [5, 6, 7, True]}, 3),
        (
            Operation.RESPONSES,
            {"input": [{"role": "user", "content": "one two"}], "instructions": "be brief"},
            5,
        ),
        (Operation.CHAT, {"messages": "odd", "tools": [{"function": {"name": "get"}}]}, 2),
        (Operation.CHAT, {"messages": [], "user": "not counted"}, 0),
    ],
)
async def test_every_operation_says_its_input_somewhere(
    operation: Operation, members: dict[str, Any], tokens: int
) -> None:
    """Token ids count as one each; other members are not read by a model."""
    body = read(json.dumps({"model": "assistant", **members}).encode(), operation)
    async with counter() as made:
        found = await made.count("m-1", body, observed("x"))
    assert found.usage.input_tokens == tokens


async def test_calls_of_tools_are_not_counted_exactly() -> None:
    """They are rewritten on their way to us."""
    async with counter() as made:
        found = await made.count(
            "m-1", chat(tools=[{"type": "function", "function": {"name": "f"}}]), observed("x")
        )
    assert not found.is_exact


async def test_text_that_was_not_kept_is_estimated() -> None:
    """And the whole then is no exact count."""
    rest = 40_000
    async with counter() as made:
        found = await made.count("m-1", chat(), observed("x" * MAX_TEXT_CHARS, "y" * rest))
    assert found == Counted(
        usage=TokenUsage(input_tokens=0, output_tokens=1 + rest // 4), is_exact=False
    )


async def test_a_large_request_is_not_read_again() -> None:
    """Its size is estimated: litellm#36429 tokenised 5 MiB bodies and stopped answering."""
    body = chat(messages=[{"role": "user", "content": "x " * MAX_INPUT_BYTES}])
    async with counter() as made:
        found = await made.count("m-1", body, observed("x"))
    assert found.usage.input_tokens == tokens_in(len(body.body)) > MAX_INPUT_BYTES // 4


MEDIA = {
    "messages": [
        {"role": "user", "content": [{"image_url": {"url": "data:image/png;base64,AAAA"}}]}
    ]
}


async def test_the_tokens_of_an_image_are_not_guessed() -> None:
    """Its bytes say nothing about its tokens, so the input stays unknown; and with it the cost."""
    async with counter() as made:
        for model in ("m-1", "m-unnamed"):
            found = await made.count(model, chat(**MEDIA), observed("one two"))
            assert found.usage.input_tokens is None
            settlement = settled(counted=found, held_nusd=99)
            assert settlement.source is UsageSource.UNKNOWN


@pytest.mark.parametrize("model", ["m-unnamed", "m-broken"])
async def test_without_a_tokenizer_it_is_an_estimate(model: str) -> None:
    """None named, or none readable: only sizes remain, and the event is marked."""
    body = chat()
    async with counter() as made:
        found = await made.count(model, body, observed("12345"))
    assert found == Counted(
        usage=TokenUsage(input_tokens=tokens_in(len(body.body)), output_tokens=2), is_exact=False
    )
    settlement = settled(counted=found, held_nusd=10**9)
    assert settlement.source is UsageSource.ESTIMATED


@pytest.mark.parametrize("model", ["m-1", "m-unnamed"])
async def test_nothing_seen_is_nothing_counted(model: str) -> None:
    """An answer of which nothing came may have been written all the same: unknown, not the price of
    its input.
    """
    async with counter() as made:
        found = await made.count(model, chat(), observed())
    assert found.usage.output_tokens is None
    settlement = settled(counted=found, held_nusd=99)
    assert settlement.source is UsageSource.UNKNOWN


async def test_the_event_loop_is_never_held() -> None:
    """Counting waits in its own thread, for as long as it likes; the loop goes on, and the estimate
    comes in time.
    """
    is_counting, may_end = threading.Event(), threading.Event()

    def stuck(path: str) -> Tokenizer:
        def count(texts: Sequence[str]) -> int:
            is_counting.set()
            may_end.wait()
            return 1

        return count

    async with counter(stuck, deadline_s=0.01, max_waiting=1) as made:
        first = asyncio.create_task(made.count("m-1", chat(), observed("12345")))
        await asyncio.to_thread(is_counting.wait)
        assert await first == estimate(chat().facts, output_bytes=5)
        # The only place is still taken, so the next is not even asked.
        assert await made.count("m-1", chat(), observed("12345")) == estimate(
            chat().facts, output_bytes=5
        )
        may_end.set()


async def test_a_place_is_given_back() -> None:
    """Otherwise the sixty-fifth answer and all after it would be estimates."""
    async with counter(max_waiting=1) as made:
        assert [(await made.count("m-1", chat(), observed("x"))).is_exact for _ in range(3)] == [
            True
        ] * 3


async def test_a_count_that_fails_is_an_estimate() -> None:
    """A library's own exceptions must not lose an attempt."""

    def broken(path: str) -> Tokenizer:
        def count(texts: Sequence[str]) -> int:
            raise RuntimeError("no such token")

        return count

    async with counter(broken) as made:
        assert not (await made.count("m-1", chat(), observed("x"))).is_exact
        assert "no such token" in made.check()["m-1"]


async def test_a_failing_tokenizer_is_logged_once_and_without_its_words() -> None:
    """Every answer without usage is then charged by its size: an operator must learn of it. The
    error of a library may quote the prompt.
    """

    class Panic(BaseException):
        """A library in another language may raise no `Exception`."""

    failures: list[BaseException] = [RuntimeError("a secret"), RuntimeError("another"), Panic()]

    def broken(path: str) -> Tokenizer:
        def count(texts: Sequence[str]) -> int:
            raise failures.pop(0)

        return count

    async with counter(broken) as made:
        with capture_logs() as logs:
            for _ in range(3):
                found = await made.count("m-1", chat(), observed("12345"))
                assert found == estimate(chat().facts, output_bytes=5)
    assert logs == [
        {"event": "tokens_not_counted", "log_level": "warning", "model": "m-1", "problem": problem}
        for problem in ("RuntimeError", "Panic")
    ]


async def test_a_stop_leaves_estimates() -> None:
    """A count that waits for the thread, or that is asked for later, must still end its attempt:
    a cancellation that nobody asked for would look like the caller's.
    """
    is_counting, may_end = threading.Event(), threading.Event()

    def slow(path: str) -> Tokenizer:
        def count(texts: Sequence[str]) -> int:
            is_counting.set()
            may_end.wait()
            return 1

        return count

    guess = estimate(chat().facts, output_bytes=5)
    async with counter(slow) as made:
        counting = asyncio.create_task(made.count("m-1", chat(), observed("12345")))
        await asyncio.to_thread(is_counting.wait)
        waiting = asyncio.create_task(made.count("m-1", chat(), observed("12345")))
        await asyncio.sleep(0)
        made.close()
        assert await waiting == guess
        assert await made.count("m-1", chat(), observed("12345")) == guess
        may_end.set()
        assert (await counting).is_exact


async def test_a_wrong_tokenizer_file_is_reported_at_start() -> None:
    """An admin who named a file expects it to be read."""
    async with counter() as made:
        assert set(made.check()) == {"m-broken"}


def test_an_estimate_comes_from_sizes_alone() -> None:
    """For endings that cannot wait: a stopping gateway settles at once."""
    found = estimate(facts(body_bytes=401), output_bytes=9)
    assert found == Counted(usage=TokenUsage(input_tokens=101, output_tokens=3), is_exact=False)
    assert estimate(facts(features=frozenset({"audio"})), output_bytes=0).usage == TokenUsage()


def test_a_real_tokenizer_file(tmp_path: Path) -> None:
    """Read from a file, offline; special tokens are not added."""
    tokenizers = pytest.importorskip(
        "tokenizers", reason="needs the package tokenizers: pip install -e '.[counting]'"
    )
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"one": 0, "two": 1, "[UNK]": 2}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    count = load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert (count(["one two", "three"]), count([])) == (3, 0)
