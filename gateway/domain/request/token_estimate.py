"""Tokens guessed from bytes, where nobody counted: an estimate, marked as one wherever it is
shown.
"""

from __future__ import annotations

from gateway.domain.pricing.settlement import Counted
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import RequestFacts

# Measured with o200k_base: English 4.0, source code 4.1, JSON 3.2, Chinese 4.6, German 5.1, Russian
# 6.3.
BYTES_PER_TOKEN = 4


def tokens_in(size_bytes: int) -> int:
    """The tokens that so many bytes of text are, roughly; something is at least one."""
    return -(-size_bytes // BYTES_PER_TOKEN)


def is_countable(facts: RequestFacts) -> bool:
    """False where the input is not text alone: what an image or a recording costs cannot be read
    from its bytes.
    """
    return "vision" not in facts.capabilities and "audio" not in facts.features


def estimate(facts: RequestFacts, *, output_bytes: int, is_whole: bool = False) -> Counted:
    """Guess both sides at once, from sizes alone: for endings that cannot wait for a tokenizer.

    Where nothing of an answer was seen, its output stays unknown: the upstream may have written all
    of it. An answer that `is_whole` and empty has an output of 0.
    """
    usage = TokenUsage(
        input_tokens=tokens_in(facts.body_bytes) if is_countable(facts) else None,
        output_tokens=tokens_in(output_bytes) or (0 if is_whole else None),
    )
    return Counted(usage=usage, is_exact=False)
