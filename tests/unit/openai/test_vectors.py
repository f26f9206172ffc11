"""A large answer of embeddings is read without its vectors, and comes out as if it had been read
whole.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import UpstreamError
from gateway.services.request.abandoned import DrainLimits
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.complete_answer import LARGE_BYTES
from gateway.wire.openai.answer.vectors import (
    MAX_VECTOR_BYTES,
    MOST_OPENINGS,
    TooManyVectors,
    without_vectors,
)
from tests import factories
from tests.answers import rewrite_chat
from tests.fakes import FakeTransport, FakeUpstreamAnswer
from tests.unit.request.test_request_service import Stage, stage
from tests.waiting import soon

USAGE = {"prompt_tokens": 12, "total_tokens": 12}
REQUEST = b'{"model":"assistant","input":["a","b"]}'
NUMBERS = [0.25, -1e-07, 3] * 40_000


def answer(*vectors: object, **more: object) -> bytes:
    data = [
        {"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)
    ]
    return json.dumps(
        {"object": "list", "data": data, "model": "m-1", "usage": USAGE, **more}
    ).encode()


def rewritten(body: bytes) -> tuple[bytes, Observed]:
    observed = Observed()
    return rewrite_chat(body, observed, model="assistant", cost=lambda _: "0.1"), observed


@pytest.mark.parametrize(
    "body",
    [
        answer(NUMBERS, NUMBERS),
        answer("AAAA/+w=", "", []),
        answer([1.5], [[1.5], [2.5]], None, "Ω", 'a"b', ["no number"], [2.5]),
        answer([1.5], error={"message": "some failed"}),
        answer([1.5], model="assistant", embedding=[1, 2]),
        b'{"model":"m-1","a\\"embedding":[1],"data":[{"embedding" : [1 , '
        b'2]}],"usage":{"prompt_tokens":1}}',
    ],
    ids=lambda body: body[:60].decode(),
)
def test_an_answer_read_without_its_vectors_is_the_same(body: bytes) -> None:
    """The same bytes go to the caller, and the same usage is charged."""
    short = without_vectors(body)
    assert short is not None
    whole, observed = rewritten(body)
    text, seen_short = rewritten(short.text)
    assert (
        short.restored(text),
        seen_short.final,
        seen_short.is_error,
        seen_short.has_content,
    ) == (
        whole,
        observed.final,
        observed.is_error,
        observed.has_content,
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        answer(),
        answer("o", [[1]]).replace(b'"o"', '"Ω"'.encode()),
        answer([1], note="vector taken out by the gateway"),
        answer([1.5] * (MAX_VECTOR_BYTES // 4)),
        b'{"data":[{"embedding":[1,',
    ],
)
def test_an_answer_of_another_shape_is_read_whole(body: bytes) -> None:
    """A value that is not certainly a vector stays in its place, and the reader of answers
    judges it.
    """
    assert without_vectors(body) is None


def test_a_broken_answer_stays_broken() -> None:
    """Numbers that no strict reader takes are not hidden from the one that decides."""
    body = answer([1.5]).replace(b'"usage"', b'"embedding": [1,,2], "usage"')
    short = without_vectors(body)
    assert short is not None
    text, observed = rewritten(short.text)
    assert (text, short.restored(text), observed.final) == (short.text, body, None)


async def leave_while_it_is_read(on: Stage) -> None:
    """Cancel the request when the whole answer has come and a thread reads it."""
    upstream = on.transport.answers[0]
    assert isinstance(upstream, FakeUpstreamAnswer)
    has_come = asyncio.Event()

    async def note() -> None:
        has_come.set()  # without a pause: the thread has begun when the test goes on

    upstream.waits_for = {len(upstream.pieces): note}
    request = asyncio.create_task(
        on.answer(
            REQUEST,
            factories.deployment(operations=frozenset(Operation)),
            operation=Operation.EMBEDDINGS,
        )
    )
    await has_come.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await soon(lambda: on.journal.events, "the event")


async def test_a_large_answer_reaches_its_caller() -> None:
    """Through the service: the caller's own model name, and every vector."""
    on = stage(FakeUpstreamAnswer([answer(NUMBERS, NUMBERS)]))
    assert len(answer(NUMBERS, NUMBERS)) > LARGE_BYTES
    deployment = factories.deployment(operations=frozenset(Operation))
    sent = json.loads((await on.answer(REQUEST, deployment, operation=Operation.EMBEDDINGS)).body)
    assert [one["embedding"] for one in sent["data"]] == [NUMBERS, NUMBERS]
    assert (sent["model"], on.event.usage.input_tokens) == ("assistant", 12)


@pytest.mark.parametrize("answers", [2, 0], ids=["room to read on", "no room"])
async def test_a_disconnect_during_a_threaded_read_settles_once_by_usage(
    answers: int,
) -> None:
    """The whole answer is here and says its usage: that the caller left then changes no figure."""
    on = Stage(
        FakeTransport([FakeUpstreamAnswer([answer(NUMBERS, NUMBERS)])]),
        limits=DrainLimits(answers=answers, seconds=60, events=100),
    )
    await leave_while_it_is_read(on)
    assert (on.event.outcome, on.event.usage.input_tokens) == (Outcome.CLIENT_GONE, 12)


@pytest.mark.parametrize("gap", [b"", b"1," * 200, b"[" * 50], ids=["none", "numbers", "["])
def test_openings_without_a_vector_are_looked_at_once(gap: bytes) -> None:
    """An upstream sent 5 MB of openings alone: each was searched for its closing over a megabyte,
    11 s in all.

    Eight times the size may cost eight times as much, and not sixty-four times: counted, since no
    test is timed.
    """
    piece = b'"embedding":[' + gap

    def looked_at(size: int) -> int:
        body = CountedBytes(b'{"data":[' + piece * (size // len(piece)) + b"]}")
        without_vectors(body)
        return body.looked_at

    small, large = looked_at(2**17), looked_at(2**20)
    assert 0 < small <= large <= 9 * small
    assert large < 3 * 2**20


async def test_an_answer_with_more_vectors_than_anybody_asked_for_is_bought_once() -> None:
    """Taking them out would keep the only thread for large answers for half a minute."""
    body = b'{"data":[' + b'"embedding":[' * (MOST_OPENINGS + 1) + b"]}"
    with pytest.raises(TooManyVectors):
        without_vectors(body)
    on = stage(FakeUpstreamAnswer([body]))
    deployment = factories.deployment(operations=frozenset(Operation))
    with pytest.raises(UpstreamError, match="not asked again"):
        await on.answer(REQUEST, deployment, operation=Operation.EMBEDDINGS)
    await soon(lambda: on.journal.events, "the event")
    assert (on.event.outcome, on.event.usage_source) == (
        Outcome.UPSTREAM_ERROR,
        UsageSource.ESTIMATED,
    )


class CountedBytes(bytes):
    """Counts the bytes that are searched for a closing."""

    looked_at = 0

    def find(self, sought: Any, start: Any = 0, stop: Any = None) -> int:
        found = super().find(sought, start, stop)
        self.looked_at += max((min(stop, len(self)) if found < 0 else found) - start, 0)
        return found
