"""What one attempt is charged, from what was seen of its usage."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.pricing import Line, Price, cost_nusd, lines
from gateway.domain.tokens import NOTHING_SERVED, TokenUsage, UsageSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The true cost of an attempt, or its hold where the true cost is unknown."""

    usage: TokenUsage
    source: UsageSource
    lines: tuple[Line, ...]
    cost_nusd: int | None
    held_nusd: int | None
    is_suspect: bool


def settle(
    usage: TokenUsage | None,
    *,
    is_final: bool,
    was_served: bool,
    price: Price,
    held_nusd: int,
    writes_output: bool = True,
) -> Settlement:
    """Return the settlement of one attempt.

    `is_final`: the upstream's last word, else a running figure. `was_served` is False only where nothing
    can have been generated. `writes_output` is False for embeddings: their usage has no output side, and where
    another's lacks it, the answer's tokens are unknown and not zero. Usage that contradicts itself is not
    charged but held, and flagged.
    """
    if usage is None and not was_served:
        return Settlement(
            usage=NOTHING_SERVED, source=UsageSource.NONE, lines=(), cost_nusd=0, held_nusd=None, is_suspect=False
        )
    is_partial = usage is not None and (usage.input_tokens is None or (writes_output and usage.output_tokens is None))
    if usage is None or is_partial or not usage.is_plausible:
        return Settlement(
            usage=TokenUsage(), source=UsageSource.UNKNOWN, lines=(), cost_nusd=None, held_nusd=held_nusd,
            is_suspect=usage is not None,
        )  # fmt: skip
    try:
        receipt = lines(usage, price)
    except ValueError:  # tokens of a kind that the price does not cover
        return Settlement(
            usage=usage, source=UsageSource.UNKNOWN, lines=(), cost_nusd=None, held_nusd=held_nusd, is_suspect=True
        )
    source = UsageSource.PROVIDER if is_final else UsageSource.DERIVED
    return Settlement(
        usage=usage, source=source, lines=receipt, cost_nusd=cost_nusd(receipt), held_nusd=None, is_suspect=False
    )
