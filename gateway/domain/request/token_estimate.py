"""Estimates an attempt's tokens from byte sizes if no tokenizer counted them; the result is marked
as an estimate everywhere.
"""

from __future__ import annotations

from msgspec.structs import replace

from gateway.domain.pricing.settlement import Counted
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import RequestFacts

# Measured with o200k_base: English 4.0, source code 4.1, JSON 3.2, Chinese 4.6, German 5.1, Russian
# 6.3.
BYTES_PER_TOKEN = 4


def tokens_in(size_bytes: int) -> int:
    """Return the approximate tokens of that many bytes of text, at least one for any text."""
    return -(-size_bytes // BYTES_PER_TOKEN)


def is_countable(facts: RequestFacts) -> bool:
    """Return False if the input is not text alone: the cost of an image or a recording cannot be
    read from its bytes.
    """
    return "vision" not in facts.capabilities and "audio" not in facts.features


def with_own_counts(
    usage: TokenUsage, facts: RequestFacts, *, text_bytes: int | None
) -> TokenUsage:
    """Return a usage for the caller, with the estimate of a side that the upstream did not state;
    the same object if there is none. `text_bytes` is the size of the shown answer, None if its
    tokens cannot be read from it.
    """
    prompt, answer = usage.input_tokens, usage.output_tokens
    if prompt is None and is_countable(facts):
        prompt = tokens_in(facts.body_bytes)
    if answer is None and text_bytes is not None:
        answer = tokens_in(text_bytes)
    if (prompt, answer) == (usage.input_tokens, usage.output_tokens):
        return usage
    return replace(usage, input_tokens=prompt, output_tokens=answer)


def estimate(facts: RequestFacts, *, output_bytes: int, is_empty: bool = False) -> Counted:
    """Estimate the tokens of prompt and answer at once, from sizes alone, for endings that cannot
    wait for a tokenizer.

    If no text of an answer was kept, its output stays unknown: the upstream may have written all of
    it. A complete answer without content (`is_empty`) has an output of 0.
    """
    usage = TokenUsage(
        input_tokens=tokens_in(facts.body_bytes) if is_countable(facts) else None,
        output_tokens=tokens_in(output_bytes) or (0 if is_empty else None),
    )
    return Counted(usage=usage, is_exact=False)
