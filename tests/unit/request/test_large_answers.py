"""Large answers are read beside the event loop, and nothing of them is lost if their callers
leave meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UsageSource
from gateway.domain.providers.table import AT_ROOT
from gateway.errors import RequestError, UpstreamError
from gateway.services.request.upstream_answer import (
    _LARGE_ANSWERS,
    LARGE_BYTES,
    MAX_ANSWER_BYTES,
    MAX_FED_BYTES,
    MAX_TRANSLATED_BYTES,
)
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import (
    DONE,
    TAIL,
    VLLM,
    WHOLE,
    body,
    once,
    piece,
    rest_of,
    stage,
)
from tests.waiting import soon

TEXT = "word " * (LARGE_BYTES // 5 + 1)
WORDS = TEXT.count(" ")
USAGE = {"prompt_tokens": 10, "completion_tokens": WORDS}
COST_NUSD = 10 * 1_000 + WORDS * 4_000
LARGE = json.dumps(
    {"model": "m-1", "choices": [{"message": {"content": TEXT}}], "usage": USAGE}
).encode()
INPUT = b'{"model":"assistant","input":"x"}'


async def test_a_stream_that_comes_at_once_leaves_the_loop_its_turns() -> None:
    """Two million blank lines in one piece stopped all other callers for 1.4 s."""
    blanks = b"\n\n" * 100_000
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    answer = await stage(FakeUpstreamAnswer([piece("a"), blanks + TAIL + DONE])).answer(
        body(stream=True)
    )
    waiting = asyncio.create_task(others())
    assert (await rest_of(answer)).count(b"\n") >= len(blanks)
    waiting.cancel()
    assert turns >= len(blanks) // MAX_FED_BYTES


async def test_a_translated_stream_that_comes_at_once_leaves_more_turns() -> None:
    """Each line of JSON is decoded and written anew: 16 KiB of the shortest ones took 20 ms."""
    lines = b"{}\n" * 50_000
    end = b'{"message":{"content":"a"},"done":true,"prompt_eval_count":1,"eval_count":1}\n'
    at = factories.deployment(
        provider="ollama", base_url="http://127.0.0.1:9", native=AT_ROOT["ollama"].native
    )
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.create_task(others())
    answer = await stage(FakeUpstreamAnswer([lines + end])).answer(body(stream=True), at)
    assert b'"content":"a"' in await rest_of(answer)
    waiting.cancel()
    assert turns >= len(lines) // MAX_TRANSLATED_BYTES


async def test_a_large_answer_is_charged_as_a_small_one() -> None:
    """Its text goes through a thread."""
    on = stage(FakeUpstreamAnswer([LARGE]))
    answered = json.loads((await on.answer(body())).body)
    assert (answered["model"], answered["choices"][0]["message"]["content"]) == ("assistant", TEXT)
    assert (answered["usage"]["cost_usd"], on.event.cost_nusd) == (COST_NUSD / 10**9, COST_NUSD)


async def test_a_disconnect_while_a_large_answer_is_read_is_charged_once() -> None:
    """The reading is begun again for the settlement, from the bytes that are there."""
    on, others = stage(FakeUpstreamAnswer([LARGE])), threading.Event()
    _LARGE_ANSWERS.submit(others.wait)
    asked = asyncio.create_task(on.answer(body()))
    await soon(
        lambda: on.transport.answers == [] and _LARGE_ANSWERS._work_queue.qsize(),
        "the answer waits",
    )
    asked.cancel()
    await asyncio.sleep(0)
    others.set()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await soon(lambda: on.journal.events, "the event")
    assert (on.event.outcome, on.event.usage_source, on.event.cost_nusd) == (
        Outcome.CLIENT_GONE,
        UsageSource.PROVIDER,
        COST_NUSD,
    )


async def test_a_large_error_is_read_in_the_thread() -> None:
    """A megabyte of short events takes half a second; its usage counts all the same."""
    events = piece("a") * 1000 + TAIL + DONE
    on, others = stage(FakeUpstreamAnswer([events], status=400)), threading.Event()
    _LARGE_ANSWERS.submit(others.wait)
    asked = asyncio.create_task(on.answer(body(stream=True)))
    await soon(_LARGE_ANSWERS._work_queue.qsize, "the error waits")
    others.set()
    with pytest.raises(RequestError):
        await asked
    assert (on.event.usage_source, on.event.usage.output_tokens) == (UsageSource.PROVIDER, 2)


async def test_a_large_answer_that_is_no_json_is_refused_and_unknown() -> None:
    """As a small one; it was bought."""
    on = stage(FakeUpstreamAnswer([b"<html>" + b"a" * LARGE_BYTES]), FakeUpstreamAnswer([WHOLE]))
    with pytest.raises(UpstreamError, match="no JSON"):
        await on.answer(body())
    await soon(lambda: on.journal.events, "the event")
    assert (on.event.usage_source, len(on.transport.sent)) == (UsageSource.UNKNOWN, 1)


async def test_an_answer_of_too_many_choices_keeps_its_stated_usage() -> None:
    """It is passed on unchanged, and its stated usage counts."""
    many = (
        b'{"choices":['
        + b",".join([b"{}"] * 6000)
        + b'],"usage":{"prompt_tokens":10,"completion_tokens":5000}}'
    )
    on = stage(FakeUpstreamAnswer([many]))
    assert (await on.answer(body())).body == many
    assert (on.event.usage_source, on.event.usage.output_tokens) == (UsageSource.PROVIDER, 5000)


async def test_large_vectors_of_no_known_form_are_handed_on_and_estimated() -> None:
    """Nothing is looked for in so many bytes."""
    odd = (
        b'{"data":[{"embedding":"'
        + b"\xc3\xa4" * (MAX_ANSWER_BYTES // 2)
        + b'"}],"usage":{"prompt_tokens":1}}'
    )
    on = stage(FakeUpstreamAnswer([odd]))
    answer = await on.answer(INPUT, operation=Operation.EMBEDDINGS)
    assert answer.body == odd
    assert on.event.usage_source is UsageSource.ESTIMATED


async def test_a_large_answer_of_an_engine_is_put_together_in_the_thread() -> None:
    """Plain requests to an engine are sent as streams."""
    made = [2**17, 2**18, 3 * 2**17]
    pieces = [piece(TEXT[: 2**19], count) for count in made]
    tail = TAIL.replace(b'"completion_tokens":2', b'"completion_tokens":%d' % made[-1])
    on = once(FakeUpstreamAnswer([*pieces, tail, DONE]))
    answer = await on.answer(body(), factories.deployment(**VLLM, capabilities=frozenset()))
    answered = json.loads(answer.body)
    assert len(answered["choices"][0]["message"]["content"]) == 3 * 2**19
    assert on.event.usage.output_tokens == made[-1]
