"""An upstream states a usage, or goes on, behind the end of its answer: Bedrock's second
`metadata`, Ollama's second last line and Anthropic's figures behind `message_stop` were not read.
"""

from __future__ import annotations

import pytest

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UsageSource
from gateway.wire.openai.answer.assemble import Assembler
from tests.attacks.streamed import DIALECTS, last, read, settlement, settlement_of, text

ENDS = {
    "chat": [b"data: [DONE]\n\n"],
    "responses": [b"data: [DONE]\n\n"],
}


def whole(dialect: str, prompt: int, answer: int) -> list[object]:
    """Return the end of an answer with its usage, up to the dialect's own end."""
    return [*last(dialect, prompt, answer), *ENDS.get(dialect, [])]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("figures", [((1000, 500), (10, 5)), ((10, 5), (1000, 500))])
def test_a_second_end_counts_by_the_dearer_figure(
    dialect: str, figures: tuple[tuple[int, int], ...]
) -> None:
    first, second = (whole(dialect, *one) for one in figures)
    made = settlement(dialect, [text(dialect), *first, *second])
    assert (made.usage.input_tokens, made.usage.output_tokens) == (1000, 500)
    assert made.is_suspect is (figures[0] > figures[1])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_same_end_twice_is_no_contradiction(dialect: str) -> None:
    """A proxy that repeats its last event changes no bill."""
    end = whole(dialect, 1000, 500)
    made = settlement(dialect, [text(dialect), *end, *end])
    assert (made.usage.output_tokens, made.is_suspect) == (500, False)
    assert made.source is UsageSource.PROVIDER


@pytest.mark.parametrize("dialect", [one for one in DIALECTS if one != "gemini"])
def test_content_behind_the_end_is_no_part_of_the_answer(dialect: str) -> None:
    """The figure before the provider's own end stands, unless another one follows. A response's
    caller gets the content, so its figure is the least.
    """
    events = [text(dialect), *whole(dialect, 1000, 5), *[text(dialect)] * 3]
    seen = read(dialect, events)
    assert seen.is_done
    made = settlement_of(seen)
    if dialect == "responses":
        assert made.source is not UsageSource.PROVIDER
    else:
        assert (made.source, made.usage.output_tokens) == (UsageSource.PROVIDER, 5)
    again = read(dialect, [*events, *whole(dialect, 1000, 400)])
    assert settlement_of(again).usage.output_tokens == 400


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nothing_behind_the_end_changes_it(dialect: str) -> None:
    """The answer came whole; an error behind it is no failure of it."""
    error = {"type": "error", "error": {"message": "no"}}
    if dialect in ("bedrock", "gemini", "responses"):  # their errors are events of an open answer
        return
    seen = read(dialect, [text(dialect), *whole(dialect, 10, 5), error])
    assert (seen.is_done, seen.is_error) == (True, False)


def test_an_event_of_no_known_type_with_a_usage_is_read() -> None:
    """A response's usage stood in the last event alone."""
    usage = {"input_tokens": 1000, "output_tokens": 500}
    seen = read(
        "responses", [*last("responses", 10, 5), {"type": "response.usage", "usage": usage}]
    )
    assert settlement_of(seen).usage.output_tokens == 500


def test_an_assembled_answer_counts_its_later_figures() -> None:
    """vLLM's plain answers are read from a stream."""
    made = Assembler(operation=Operation.CHAT, choices=1, limit_bytes=10**6)
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n'
    made.feed(usage % (10, 5) + b"data: [DONE]\n\n" + usage % (1000, 500))
    assert settlement_of(made.observed).usage.output_tokens == 500
    made.feed(usage % (1, 1))
    found = settlement_of(made.observed)
    assert (found.usage.output_tokens, found.is_suspect) == (500, True)
