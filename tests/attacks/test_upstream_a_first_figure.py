"""A stream of messages whose end reports 0 output tokens, or none, was booked at the one token of
its start: about 250 tokens for the price of one, hard budgets included.

The rule for every dialect: a figure that content follows is no figure of the whole answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.pricing.settlement import Counted, Settlement
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.domain.request.token_estimate import tokens_in
from gateway.wire.anthropic.answer.messages import message_stream
from gateway.wire.anthropic.translation.upstream_reader import MessagesReader
from gateway.wire.gemini.answer import GeminiReader
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.assemble import Assembler
from gateway.wire.openai.answer.chat import chat_stream
from gateway.wire.openai.answer.responses import response_stream
from gateway.wire.triton.answer import TritonReader
from tests.attacks.odd_answers import encoded
from tests.factories import settled

PROMPT = {
    "input_tokens": 20,
    "cache_read_input_tokens": 900,
    "cache_creation_input_tokens": 300,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 300},
}
LONG_TEXT = "some of the words of an answer " * 32
TOKENS = tokens_in(len(LONG_TEXT))
STOP = {"type": "message_stop"}
Reads = Callable[[], Any]
READERS: dict[str, Reads] = {
    "passed on": lambda: message_stream(model="m"),
    "translated": MessagesReader,
}


def started(output: int = 1) -> dict[str, Any]:
    """Return the first event of a stream of messages."""
    return {
        "type": "message_start",
        "message": {"id": "m", "usage": PROMPT | {"output_tokens": output}},
    }


def word(text: str = LONG_TEXT) -> dict[str, Any]:
    """Return a piece of a message."""
    delta = {"type": "text_delta", "text": text}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


def ended(**usage: Any) -> dict[str, Any]:
    """Return the event with the last figures."""
    return {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}


def fed(stream: Any, *events: dict[str, Any], ends_with: bytes = b"") -> Observed:
    """Return the observations of a stream of these events."""
    for event in events:
        stream.feed(b"data: " + encoded(event) + b"\n\n")
    stream.feed(ends_with)
    stream.end()
    seen: Observed = stream.observed
    return seen


def made_of(seen: Observed, *, held_nusd: int = 10**12) -> Settlement:
    """Settle a stream as an attempt does: with a count where no usage covers the answer."""
    counted = Counted(
        usage=TokenUsage(input_tokens=4000, output_tokens=tokens_in(seen.output_bytes)),
        is_exact=False,
    )
    has_answered = seen.has_content or seen.is_done or seen.is_whole
    is_counted = has_answered and (seen.is_behind or seen.usage is None)
    return settled(
        seen.final,
        running=seen.running,
        is_behind=seen.is_behind,
        counted=counted if is_counted and seen.is_countable else None,
        least_output_tokens=seen.least_output_tokens,
        held_nusd=held_nusd,
    )


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "last",
    [{"output_tokens": 0}, {"input_tokens": 20}, {"input_tokens": 0, "output_tokens": 0}],
    ids=["0", "none", "0 on both sides"],
)
def test_the_output_of_the_start_is_no_part_of_the_last_usage(
    last: dict[str, int], reader: str
) -> None:
    """Its hold, unknown, suspect."""
    seen = fed(READERS[reader](), started(), word(), ended(**last), STOP)
    made = made_of(seen)
    assert (made.source, made.is_suspect) == (UsageSource.UNKNOWN, True)
    assert made.reported is not None
    assert made.reported.output_tokens in (0, None)


@pytest.mark.parametrize("reader", READERS)
def test_without_a_last_usage_the_text_is_counted_and_the_prompt_known(reader: str) -> None:
    seen = fed(READERS[reader](), started(), word(), STOP)
    made = made_of(seen)
    assert made.source is UsageSource.ESTIMATED
    assert (made.usage.input_tokens, made.usage.output_tokens) == (1220, TOKENS)
    assert made.usage.cached_input_tokens == 900


@pytest.mark.parametrize(
    ("is_asked", "source"), [(True, UsageSource.DERIVED), (False, UsageSource.UNKNOWN)]
)
def test_no_output_yet_is_a_figure_where_each_piece_has_one(
    is_asked: bool, source: UsageSource
) -> None:
    """vLLM's first chunk, before a cut: the scenario `cuts` found it held. Of another server it may
    stand for any answer.
    """
    stream = chat_stream(
        model="m", wants_usage=True, wants_running_usage=False, asked_running_usage=is_asked
    )
    first = {
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
        "usage": {"prompt_tokens": 437, "completion_tokens": 0, "total_tokens": 437},
    }
    seen = fed(stream, first)
    made = made_of(seen)
    assert (made.source, made.usage.input_tokens) == (source, 437)
    assert made.usage.output_tokens == (0 if is_asked else None)


@pytest.mark.parametrize("reader", READERS)
def test_a_prompt_of_0_at_the_end_yields_to_the_first_figures(reader: str) -> None:
    """The lifetimes of its writes too, which have rates of their own."""
    zeros = {
        "input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    }
    seen = fed(READERS[reader](), started(), word(), ended(**zeros, output_tokens=250), STOP)
    assert seen.final == TokenUsage(
        input_tokens=1220,
        cached_input_tokens=900,
        cache_write_tokens=300,
        cache_write_1h_tokens=300,
        output_tokens=250,
    )


@pytest.mark.parametrize("reader", READERS)
def test_a_message_cut_at_its_start_is_held(reader: str) -> None:
    """The first figure of an output is none of the answer, seen or not: its prompt is reported."""
    made = made_of(fed(READERS[reader](), started()))
    assert (made.source, made.cost_nusd, made.is_suspect) == (UsageSource.UNKNOWN, None, False)
    assert made.reported is not None
    assert made.reported.cached_input_tokens == 900


@pytest.mark.parametrize("reader", READERS)
def test_content_after_a_last_figure_is_counted_too(reader: str) -> None:
    """The figure before it is the least of the count."""
    seen = fed(READERS[reader](), started(), word("a"), ended(output_tokens=5), word(), STOP)
    made = made_of(seen)
    assert made.usage.output_tokens == tokens_in(len("a" + LONG_TEXT))
    seen = fed(READERS[reader](), started(), word("a"), ended(output_tokens=5000), word(), STOP)
    assert made_of(seen).usage.output_tokens == 5000


@pytest.mark.parametrize("reader", READERS)
def test_an_end_without_output_keeps_the_one_before(reader: str) -> None:
    """Some servers send two `message_delta`, and the later one has the prompt alone."""
    events = (started(), word(), ended(output_tokens=250), ended(input_tokens=20), STOP)
    seen = fed(READERS[reader](), *events)
    assert seen.final is not None
    assert (seen.final.input_tokens, seen.final.output_tokens) == (1220, 250)


def chunk(text: str, **usage: int) -> dict[str, Any]:
    """Return a chunk of a chat."""
    held = {"usage": usage} if usage else {}
    return {"choices": [{"index": 0, "delta": {"content": text}}]} | held


def chat(**settings: Any) -> Any:
    """Return a chat's stream whose text is kept."""
    asked: dict[str, Any] = {"wants_usage": True, "wants_running_usage": False}
    asked |= {"asked_running_usage": False} | settings
    return chat_stream(model="m", collects_text=True, **asked)


@pytest.mark.parametrize("asked", [False, True], ids=["unasked", "asked"])
def test_the_usage_of_a_first_chunk_is_not_that_of_the_chat(asked: bool) -> None:
    """It became the final one at `[DONE]`, though nothing but content followed it."""
    stream = chat(asked_running_usage=asked)
    first = chunk("a", prompt_tokens=20, completion_tokens=1)
    seen = fed(stream, first, *[chunk("b" * 32)] * 31, ends_with=b"data: [DONE]\n\n")
    assert seen.is_done
    made = made_of(seen)
    assert made.source is UsageSource.ESTIMATED
    assert (made.usage.input_tokens, made.usage.output_tokens) == (20, tokens_in(1 + 31 * 32))


def test_the_usage_of_each_chunk_is_that_of_the_chat() -> None:
    """Unasked, and never a chunk of its own: the last one counts."""
    chunks = [chunk("a", prompt_tokens=20, completion_tokens=made) for made in (1, 2, 3)]
    seen = fed(chat(), *chunks, ends_with=b"data: [DONE]\n\n")
    assert seen.final == TokenUsage(input_tokens=20, output_tokens=3)


def test_one_choice_without_usage_leaves_the_answer_behind() -> None:
    """The other one's figures go on."""
    first, second = chunk("a", prompt_tokens=20, completion_tokens=1), chunk("b")
    other = chunk("c", prompt_tokens=20, completion_tokens=9)
    other["choices"][0]["index"] = 1
    seen = fed(chat(asked_running_usage=True, choices=2), first, other, second, other)
    assert seen.is_behind
    assert seen.usage == TokenUsage(input_tokens=20)


def test_an_assembled_answer_goes_on_after_its_last_figure() -> None:
    """A plain request to an engine is sent as a stream."""
    assembler = Assembler(operation=Operation.CHAT, choices=1, limit_bytes=2**20)
    seen = assembler.observed
    for event in (chunk("a", prompt_tokens=20, completion_tokens=1), chunk("b"), chunk("")):
        assembler.feed(b"data: " + encoded(event) + b"\n\n")
    assert seen.is_behind
    assembler.feed(b"data: " + encoded(chunk("c", prompt_tokens=20, completion_tokens=3)) + b"\n\n")
    assert not seen.is_behind


def test_the_usage_of_a_created_response_is_not_that_of_the_whole() -> None:
    usage = {"input_tokens": 20, "output_tokens": 1}
    seen = fed(
        response_stream(model="m", collects_text=True),
        {"type": "response.created", "response": {"id": "r", "usage": usage}},
        {"type": "response.output_text.delta", "delta": LONG_TEXT},
        {"type": "response.completed", "response": {"id": "r", "status": "completed"}},
    )
    made = made_of(seen)
    assert (made.usage.input_tokens, made.usage.output_tokens) == (20, TOKENS)
    assert made.source is UsageSource.ESTIMATED


def test_the_usage_of_gemini_s_first_piece_is_not_that_of_the_whole() -> None:
    first: dict[str, Any] = {"candidates": [{"content": {"parts": [{"text": "a"}]}}]}
    usage = {"promptTokenCount": 20, "candidatesTokenCount": 1}
    last = {"candidates": [{"content": {"parts": [{"text": LONG_TEXT}]}, "finishReason": "STOP"}]}
    made = made_of(fed(GeminiReader(), first | {"usageMetadata": usage}, last))
    assert made.source is UsageSource.ESTIMATED
    assert made.usage.output_tokens == tokens_in(1 + len(LONG_TEXT))


def test_a_piece_without_a_count_leaves_triton_s_sum_behind() -> None:
    first = {"text_output": "a", "num_input_tokens": 20, "num_output_tokens": 1}
    made = made_of(fed(TritonReader("id"), first, {"text_output": LONG_TEXT}))
    assert made.source is UsageSource.ESTIMATED
    assert made.usage.output_tokens == tokens_in(1 + len(LONG_TEXT))


def test_a_prompt_alone_is_no_count_of_triton_s_answer() -> None:
    """A model may declare one of the two outputs."""
    seen = fed(TritonReader("id"), {"text_output": LONG_TEXT, "num_input_tokens": 20})
    made = made_of(seen)
    assert made.source is UsageSource.ESTIMATED
    assert (made.usage.input_tokens, made.usage.output_tokens) == (20, TOKENS)
