"""Choices of a streamed chunk that have no member for content: Azure's filter results."""

from __future__ import annotations

import pytest

from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import chat_stream
from gateway.wire.openai.answer.legal_words import with_deltas
from tests.answers import PricedStream

RESULT = b'{"content_filter_results":{"a":1},"finish_reason":null,"index":0}'


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        (RESULT, b'{"delta":{},' + RESULT[1:]),
        (b"{}", b'{"delta":{}}'),
        (b"{ }", b'{"delta":{}}'),
        (
            b'{"delta":{"content":"x"},"index":0}, {"index":1}',
            b'{"delta":{"content":"x"},"index":0},{"delta":{},"index":1}',
        ),
        (b'{"text":"x","index":0}', b'{"text":"x","index":0}'),
        (b'{"message":{},"index":0}', b'{"message":{},"index":0}'),
        (b'{"delta":null}', b'{"delta":null}'),
    ],
)
def test_only_a_choice_without_content_gets_a_delta(choices: bytes, expected: bytes) -> None:
    """The bytes around it stay."""
    payload = b'{"id":"c","choices":[%b],"created":0}'
    assert with_deltas(payload % choices) == payload % expected


@pytest.mark.parametrize(
    "payload",
    [
        b'{"choices":[{"index":0}],"choices":[{"index":1}]}',
        b'{"choices":[1]}',
        b'{"choices":{"index":0}}',
    ],
)
def test_an_odd_chunk_stays_as_it_is(payload: bytes) -> None:
    """Two parsers may disagree about it, so the caller gets the upstream's bytes."""
    assert with_deltas(payload) == payload


def test_a_filter_result_is_no_content_and_ends_nothing() -> None:
    """After the end of the answer it changed neither the usage nor the finish reason."""
    stream = PricedStream(
        chat_stream(
            model="m",
            wants_usage=True,
            wants_running_usage=False,
            asked_running_usage=False,
            cuts_timings=False,
            choices=1,
            collects_text=True,
        ),
        lambda usage: "0",
    )
    usage = b'"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}'
    parts = (
        b'{"model":"x","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}',
        b'{"model":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],%b}' % usage,
        b'{"model":"","object":"","choices":[%b]}' % RESULT,
        b"[DONE]",
    )
    answer = b"".join(stream.feed(b"data: %b\n\n" % part) for part in parts) + stream.end()
    seen: Observed = stream.observed
    assert (seen.is_done, seen.finish_reason) == (True, "stop")
    assert seen.usage is not None
    assert (seen.usage.input_tokens, seen.usage.output_tokens) == (2, 1)
    assert seen.is_final
    assert answer.count(b'"delta":{},"content_filter_results"') == 1
