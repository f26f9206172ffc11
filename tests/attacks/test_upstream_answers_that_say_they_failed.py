"""Answers whose upstream says in the finish reason that they failed or were stopped (`error`,
`abort`, `insufficient_system_resource`, `network_error`) reached the caller as complete ones, with
`stop`, and had the outcome `ok`.

The rule: such an answer ends for its caller as one that is not complete, and is no success.
"""

from __future__ import annotations

import json

import pytest

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UsageSource
from gateway.wire.observed import Observed
from tests import factories
from tests.answers import rewrite_chat
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import DONE, TAIL, body, piece, rest_of, stage

WORDS = ["error", "abort", "ABORT", "insufficient_system_resource", "network_error"]
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}


def end(word: str) -> bytes:
    choice = {"index": 0, "delta": {}, "finish_reason": word}
    return b"data: " + json.dumps({"model": "m-1", "choices": [choice]}).encode() + b"\n\n"


def whole(word: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": word}
    return json.dumps({"id": "c", "model": "m-1", "choices": [choice], "usage": USAGE}).encode()


@pytest.mark.parametrize("word", WORDS)
async def test_a_plain_answer_is_not_complete(word: str) -> None:
    """Its usage is booked as that of any answer."""
    on = stage(FakeUpstreamAnswer([whole(word)]))
    answer = await on.answer(body())
    assert json.loads(answer.body)["choices"][0]["finish_reason"] == "length"
    assert (on.event.outcome, on.event.usage_source) == (
        Outcome.UPSTREAM_ERROR,
        UsageSource.PROVIDER,
    )
    assert (on.event.cost_nusd, on.event.finish_reason) == (18_000, word)


@pytest.mark.parametrize("word", WORDS)
async def test_a_stream_with_its_mark_is_not_complete(word: str) -> None:
    """SGLang sends its usage and `[DONE]` behind `abort`."""
    on = stage(FakeUpstreamAnswer([piece("a"), end(word), TAIL, DONE]))
    sent = await rest_of(await on.answer(body(stream=True)))
    assert b'"finish_reason": "length"' in sent
    assert sent.endswith(DONE)
    assert (on.event.outcome, on.event.usage_source) == (
        Outcome.UPSTREAM_ERROR,
        UsageSource.PROVIDER,
    )


async def test_a_stream_without_its_mark_ends_in_an_error() -> None:
    """A mark is added to whole streams alone."""
    on = stage(FakeUpstreamAnswer([piece("a"), end("error")]))
    sent = await rest_of(await on.answer(body(stream=True)))
    assert b'"error"' in sent
    assert DONE not in sent
    assert on.event.outcome is Outcome.UPSTREAM_CUT


async def test_a_caller_that_leaves_at_the_mark_changes_nothing() -> None:
    """The upstream's failure stays the outcome."""
    on = stage(FakeUpstreamAnswer([piece("a"), end("error") + TAIL + DONE, b": more\n\n"]))
    answer = await on.answer(body(stream=True))
    assert answer.rest is not None
    assert DONE in await anext(answer.rest)
    await answer.rest.aclose()
    assert on.event.outcome is Outcome.UPSTREAM_ERROR


async def test_a_translated_response_is_incomplete() -> None:
    """Its status said `completed`."""
    on = stage(FakeUpstreamAnswer([whole("abort")]))
    request = json.dumps({"model": "assistant", "input": "x"}).encode()
    native = frozenset({Operation.CHAT})
    answer = await on.answer(
        request,
        factories.deployment(native=native),
        operation=Operation.RESPONSES,
    )
    assert json.loads(answer.body)["status"] == "incomplete"
    assert on.event.outcome is Outcome.UPSTREAM_ERROR


@pytest.mark.parametrize(
    ("word", "expected"),
    [("eos", "stop"), ("model_length", "length"), ("sensitive", "content_filter")],
)
def test_other_words_keep_their_meaning(word: str, expected: str) -> None:
    """An unknown word is an ordinary end."""
    seen = Observed()
    sent = rewrite_chat(whole(word), seen, model="m-1", cost=lambda _: None)
    assert json.loads(sent)["choices"][0]["finish_reason"] == expected
    assert not seen.has_failed
