"""Upstreams whose running figures contradict each other count by count: only the last running one
was compared with the final one, so a dearer count before it was lost, unmarked.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.pricing.settlement import Settlement
from gateway.wire.observed import Observed
from gateway.wire.ollama.answer import ollama_events
from gateway.wire.triton.answer import TritonReader
from tests.attacks.streamed import last, settlement, settlement_of


def gemini(prompt: int, answer: int) -> dict[str, Any]:
    """Return a piece of Gemini's answer with a running usage."""
    usage = {"promptTokenCount": prompt, "candidatesTokenCount": answer}
    candidate = {"index": 0, "content": {"parts": [{"text": "a"}]}}
    return {"candidates": [candidate], "usageMetadata": usage}


def ollama(prompt: int, answer: int) -> dict[str, Any]:
    """Return a line of Ollama's answer with counts before the end."""
    counts = {"prompt_eval_count": prompt, "eval_count": answer}
    return {"model": "m", "message": {"content": "a"}, "done": False, **counts}


def triton(*counts: tuple[int | None, int]) -> Settlement:
    """Return the settlement of a stream of pieces with these counts."""
    reader = TritonReader("i")
    for prompt, answer in counts:
        piece = {"text_output": "a", "num_input_tokens": prompt, "num_output_tokens": answer}
        reader.feed(f"data: {json.dumps(piece)}\n\n".encode())
    reader.end()
    return settlement_of(reader.observed)


PIECE = {"gemini": gemini, "ollama": ollama}


@pytest.mark.parametrize("dialect", PIECE)
@pytest.mark.parametrize(
    ("running", "final", "expected", "is_suspect"),
    [
        ([(2000, 1), (5, 500)], (5, 50), (2000, 500), True),
        ([(5, 500), (5, 7)], (5, 50), (5, 500), True),
        ([(2000, 1), (5, 2), (5, 3)], (5, 50), (2000, 50), True),
        ([(5, 1), (5, 20)], (5, 50), (5, 50), False),
        ([(5, 1)], (5, 1), (5, 1), False),
    ],
)
def test_the_dearest_running_figure_of_each_count_is_charged(
    dialect: str,
    running: list[tuple[int, int]],
    final: tuple[int, int],
    expected: tuple[int, int],
    is_suspect: bool,
) -> None:
    made = settlement(dialect, [*(PIECE[dialect](*one) for one in running), *last(dialect, *final)])
    assert (made.usage.input_tokens, made.usage.output_tokens) == expected
    assert made.is_suspect is is_suspect


@pytest.mark.parametrize(
    ("counts", "prompt", "is_suspect"),
    [
        ([(2000, 1), (5, 1)], 2000, True),
        ([(5, 1), (2000, 1)], 2000, False),
        ([(5, 1), (None, 1), (5, 1)], 5, False),
    ],
)
def test_the_dearer_prompt_of_two_pieces_of_triton_is_charged(
    counts: list[tuple[int | None, int]], prompt: int, is_suspect: bool
) -> None:
    made = triton(*counts)
    assert (made.usage.input_tokens, made.usage.output_tokens) == (prompt, len(counts))
    assert made.is_suspect is is_suspect


def test_counts_beside_and_within_an_error_of_ollama_are_both_read() -> None:
    seen = Observed(is_whole=True)
    within = {"message": "x", "prompt_eval_count": 5, "eval_count": 500}
    body = {
        "message": {"content": "a"},
        "prompt_eval_count": 2000,
        "eval_count": 7,
        "error": within,
    }
    ollama_events(json.dumps(body).encode(), seen)
    made = settlement_of(seen)
    assert (made.usage.input_tokens, made.usage.output_tokens) == (2000, 500)
    assert made.is_suspect
