"""Computes unknown attempts' costs at a self-hosted engine from the tokens that its counters have
beyond the metered ones; books nothing.

The remainder is exact for a *window* between two moments at which the engine was idle and
everything is written. It cannot detect another user of the engine. So if the remainder exceeds the
possible cost of the unknown attempts, nothing is resolved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from uuid import UUID

from gateway.domain.pricing.pricing import Price, cost_nusd, lines
from gateway.domain.pricing.tokens import TokenUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Prompt and generated tokens, cached and reasoning ones included."""

    prompt: int
    generation: int

    def __sub__(self, other: Tokens) -> Tokens:
        """Return the tokens by which these exceed others; a part may be negative."""
        return Tokens(
            prompt=self.prompt - other.prompt, generation=self.generation - other.generation
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The counters at a moment.

    They begin at 0 with each process of the engine, which began at `started_at`.
    """

    at: datetime
    started_at: datetime | None
    tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownAttempt:
    """An attempt with an unknown cost of at most `held_nusd`.

    `writes_output` is False for embeddings.
    """

    request_id: UUID
    attempt: int
    held_nusd: int
    price: Price
    writes_output: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleWindow:
    """One deployment's time between two idle moments.

    `readings` are all looks at its counters from the first moment to the last, in order. `metered`
    is the use of the known attempts and the gateway's own probes; None if one of them is unknown.
    """

    deployment: str
    readings: tuple[Reading, ...]
    metered: Tokens | None
    unknown: tuple[UnknownAttempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """One unknown attempt's charge, and the tokens behind it.

    Cut to the hold if it was more.
    """

    attempt: UnknownAttempt
    tokens: Tokens
    cost_nusd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The result for a window: its attempts, or the reason why none could be resolved."""

    resolved: tuple[Resolved, ...] = ()
    problem: str | None = None


def made(readings: Sequence[Reading]) -> Tokens | None:
    """Return the tokens that an engine processed between its first and last reading; None if it
    restarted in between or there is one reading only.

    A process's tokens after its last reading are lost with it, so a sum over a restart would be too
    small.
    """
    for earlier, later in pairwise(readings):
        grown = later.tokens - earlier.tokens
        if grown.prompt < 0 or grown.generation < 0 or later.started_at != earlier.started_at:
            return None
    return readings[-1].tokens - readings[0].tokens if len(readings) > 1 else None


def resolve(window: IdleWindow) -> Resolution:
    """Divide the unmetered part of the counters among a window's unknown attempts, in proportion
    to their holds.
    """
    whole = made(window.readings)
    if whole is None:
        return Resolution(problem="the engine restarted, and its earlier tokens are unknown")
    if window.metered is None:
        return Resolution(problem="a known attempt or a probe lacks its token counts")
    residual = whole - window.metered
    if residual.prompt < 0 or residual.generation < 0:
        return Resolution(
            problem=f"the engine counts less than was metered ({_in_words(residual)})"
        )
    if residual.generation and not any(attempt.writes_output for attempt in window.unknown):
        return Resolution(
            problem="the engine wrote more than the known attempts, and no unknown one writes"
        )
    try:
        found = [_charged(attempt, tokens) for attempt, tokens in _shared(residual, window.unknown)]
    except ValueError as unpriced:
        return Resolution(problem=str(unpriced))
    if sum(one.cost_nusd for one in found) > sum(attempt.held_nusd for attempt in window.unknown):
        return Resolution(
            problem=f"more is left ({_in_words(residual)}) than the holds allow: others use this "
            "engine"
        )
    return Resolution(resolved=tuple(_capped(one) for one in found))


def apportioned(amount: int, weights: Sequence[int]) -> list[int]:
    """Split a whole amount in proportion to weights by largest remainder; the parts add up to it
    exactly.

    Equal shares if all weights are 0. Of equal remainders the first wins.
    """
    base = list(weights) if any(weights) else [1] * len(weights)
    total = sum(base)
    parts = [amount * weight // total for weight in base]
    by_remainder = sorted(
        range(len(base)), key=lambda place: (-(amount * base[place] % total), place)
    )
    for place in by_remainder[: amount - sum(parts)]:
        parts[place] += 1
    return parts


def _shared(
    residual: Tokens, unknown: Sequence[UnknownAttempt]
) -> list[tuple[UnknownAttempt, Tokens]]:
    """Divide an engine's unmetered tokens among the unknown attempts, in proportion to their holds;
    output only among those that write it.
    """
    holds = [attempt.held_nusd for attempt in unknown]
    prompts = apportioned(residual.prompt, holds)
    writers = [place for place, attempt in enumerate(unknown) if attempt.writes_output]
    answers = dict(
        zip(writers, apportioned(residual.generation, [holds[n] for n in writers]), strict=True)
    )
    return [
        (attempt, Tokens(prompt=prompts[place], generation=answers.get(place, 0)))
        for place, attempt in enumerate(unknown)
    ]


def _charged(attempt: UnknownAttempt, tokens: Tokens) -> Resolved:
    """Return an unknown attempt's charge for its share of tokens. The counters do not separate
    cached tokens, so the prompt costs plain input.
    """
    usage = TokenUsage(input_tokens=tokens.prompt, output_tokens=tokens.generation)
    return Resolved(
        attempt=attempt, tokens=tokens, cost_nusd=cost_nusd(lines(usage, attempt.price))
    )


def _capped(one: Resolved) -> Resolved:
    """Return a resolved attempt whose charge is at most its hold."""
    return Resolved(
        attempt=one.attempt, tokens=one.tokens, cost_nusd=min(one.cost_nusd, one.attempt.held_nusd)
    )


def _in_words(tokens: Tokens) -> str:
    """Return token counts in words, for a problem's text."""
    return f"{tokens.prompt:,} prompt and {tokens.generation:,} generated tokens"
