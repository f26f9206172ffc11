"""Builds a receipt's words for the source of each figure and for the verdict on each deployment;
`receipt` adds the notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.domain.pricing.tokens import UsageSource
from gateway.domain.routing.prediction_messages import arithmetic, missed

# By usage source; the reference (docs/reference/outcomes.md) explains each at more length.
USAGE_WORDS = {
    UsageSource.PROVIDER: "the upstream's final figure",
    UsageSource.DERIVED: "the upstream's last running figure, or the gateway's own count",
    UsageSource.ESTIMATED: "the gateway's own estimate; the upstream reported no usage",
    UsageSource.NONE: "certainly nothing was served",
    UsageSource.UNKNOWN: "no usage was reported, or the reported usage is impossible",
}
KNOWN_COST = "the sum of the lines: tokens × rate, each rounded once, half-even, to the nano-dollar"
NOTHING_CHARGED = "zero: nothing was served"
UNKNOWN_COST = "unknown: the amount held is the most it can be"
HIDDEN_COST = "not shown: teams share the cached prompts of this deployment"
RESOLVED_COST = "unknown when it ended; settled since by an adjustment"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptVerdict:
    """The decision's verdict on one deployment.

    `rank` is its place in the order, None if it was left out.
    """

    deployment: str
    region: str
    rank: int | None
    reason: str


def usage_words(usage_source: str, *, has_reported: bool) -> str:
    """Return in words the source of an attempt's token counts."""
    words = USAGE_WORDS[UsageSource(usage_source)]
    return (
        f"{words}; the upstream's figure differs and is shown beside it" if has_reported else words
    )


def price_words(source: str, recorded_at: datetime | None, *, is_stand_in: bool) -> str:
    """Return in words the source of an attempt's rates, and their date in the price book."""
    since = (
        ""
        if recorded_at is None
        else f", in the price book since {recorded_at.astimezone(UTC):%Y-%m-%d}"
    )
    stand_in = "; a stand-in or an estimate: its own price is not known" if is_stand_in else ""
    return f"{source}{since}{stand_in}"


def cost_words(*, is_known: bool, has_lines: bool, is_settled: bool) -> str:
    """Return in words how an attempt's cost was computed."""
    if not is_known:
        return RESOLVED_COST if is_settled else UNKNOWN_COST
    return KNOWN_COST if has_lines else NOTHING_CHARGED


def verdicts(decision: Mapping[str, Any]) -> tuple[ReceiptVerdict, ...]:
    """Return the stored decision in words, in the order tried; excluded deployments come last."""
    ranks = {name: place for place, name in enumerate(decision.get("ranked", ()), start=1)}
    expected = dict(zip(decision.get("ranked", ()), decision.get("expected", ()), strict=False))
    found = []
    for candidate in decision.get("candidates", ()):
        rank = ranks.get(candidate["deployment"])
        obstacles = "; ".join(detail for _, detail in candidate.get("obstacles", ()))
        chosen = "; ".join(
            (
                f"eligible, number {rank} by {decision.get('objective', 'priority')}",
                *([f"of route {candidate['route']}"] if "route" in candidate else []),
                *_expectation(expected.get(candidate["deployment"]), decision.get("bounds", {})),
            )
        )
        found.append(
            ReceiptVerdict(
                deployment=candidate["deployment"],
                region=candidate.get("region", "unknown"),
                rank=rank,
                reason=chosen if rank else f"left out: {obstacles or 'no reason was recorded'}",
            )
        )
    return tuple(sorted(found, key=lambda verdict: verdict.rank or len(found) + 1))


def _expectation(one: Mapping[str, Any] | None, bounds: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the predictions for a deployment, and the bounds that it would have missed."""
    return () if one is None else (*missed(one, bounds), arithmetic(one))
