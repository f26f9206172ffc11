"""Makes the settled answers that the demo's requests draw from: usage, priced lines and cost of
each kind of work at each deployment, by the same settlement as real attempts.

An answer is settled once and drawn many times: to settle each of millions of events would take most
of the time.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.pricing.pricing import Price, hold_nusd
from gateway.domain.pricing.settlement import Evidence, Settlement, settle
from gateway.domain.pricing.tokens import TokenUsage
from gateway.services.demo.catalogue import DemoActivity

ANSWERS, CUT_ANSWERS = 480, 80  # of one kind of work at one deployment
MAX_OUTPUT_TOKENS = 8_192
HOUR_WRITES = frozenset({"coding-agents"})  # agents keep their prompts cached for an hour


class AnswerBook(NamedTuple):
    """The settled answers of one kind of work at one deployment and price, by outcome."""

    price_id: str
    whole: tuple[Settlement, ...]
    cut: tuple[Settlement, ...]
    failed: tuple[Settlement, ...]
    timed_out: tuple[Settlement, ...]

    def of(self, outcome: Outcome) -> tuple[Settlement, ...]:
        """Return the settlements to draw from for an outcome."""
        if outcome is Outcome.OK:
            return self.whole
        if outcome is Outcome.UPSTREAM_ERROR:
            return self.failed
        return self.timed_out if outcome is Outcome.UPSTREAM_TIMEOUT else self.cut


def make_answers(work: DemoActivity, deployment: str, price: Price, *, seed: int) -> AnswerBook:
    """Return the answers of one kind of work; equal arguments give equal answers."""
    random = Random(f"{seed}/{work.name}/{deployment}/{price.price_id}")  # noqa: S311 - made-up data, not a secret
    usages = [_usage(work, random) for _ in range(ANSWERS)]
    held = [_hold_nusd(price, usage) for usage in usages]
    pairs = list(zip(usages, held, strict=True))
    return AnswerBook(
        price_id=price.price_id,
        whole=tuple(
            settle(Evidence(final=usage, was_served=True), price=price, held_nusd=hold)
            for usage, hold in pairs
        ),
        cut=tuple(
            settle(
                Evidence(running=_part_of(usage, random), was_served=True),
                price=price,
                held_nusd=hold,
            )
            for usage, hold in pairs[:CUT_ANSWERS]
        ),
        failed=(settle(Evidence(was_served=False), price=price, held_nusd=held[0]),),
        # It may have read the prompt: the cost is unknown, and the hold stands.
        timed_out=tuple(
            settle(Evidence(was_served=True), price=price, held_nusd=hold)
            for hold in held[:CUT_ANSWERS]
        ),
    )


def _usage(work: DemoActivity, random: Random) -> TokenUsage:
    """Return random token figures of a complete answer."""
    (prompt, cached_share), (answer, reasoning_share) = work.prompt, work.answer
    whole = max(40, int(random.lognormvariate(0, 0.55) * prompt))
    output = min(max(8, int(random.lognormvariate(0, 0.6) * answer)), MAX_OUTPUT_TOKENS)
    is_cached = random.random() < 0.8
    cached = int(whole * cached_share * random.uniform(0.6, 1.1)) // 16 * 16 if is_cached else 0
    # A prompt that was not cached is written as a whole; one that was, from its last turn on.
    written = int((whole - cached) * work.route.written * (0.3 if is_cached else 1))
    return TokenUsage(
        input_tokens=whole,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        cache_write_1h_tokens=written if work.name in HOUR_WRITES else None,
        output_tokens=output,
        reasoning_tokens=int(output * reasoning_share * random.uniform(0.5, 1.3)),
    )


def _part_of(usage: TokenUsage, random: Random) -> TokenUsage:
    """Return the visible usage of an interrupted answer; reasoning is reported only at the end."""
    seen = int((usage.output_tokens or 0) * random.uniform(0.05, 0.8))
    return TokenUsage(
        input_tokens=usage.input_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cache_write_1h_tokens=usage.cache_write_1h_tokens,
        output_tokens=max(1, seen),
        reasoning_tokens=None,
    )


def _hold_nusd(price: Price, usage: TokenUsage) -> int:
    """Return the hold of an attempt: four times its prompt, and the longest answer."""
    return hold_nusd(
        price,
        input_bound_tokens=4 * (usage.input_tokens or 0),
        output_bound_tokens=MAX_OUTPUT_TOKENS,
    )
