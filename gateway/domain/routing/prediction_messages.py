"""Builds the words for a candidate's recorded prediction: its arithmetic, the bounds that it would
miss, and the reason of a degradation.

It reads the events' records (`Expected.record`), so an explanation is equal before and after a
request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.domain.money import plain_usd
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.routing.predictions import COST, KEPT_AGAIN_AT, TTFT

Record = Mapping[str, Any]


def arithmetic(one: Record, price: Price | None = None) -> str:
    """Return a prediction's arithmetic: tokens × price = cost, and the time to the first token +
    the time for each after it.
    """
    samples = one.get("samples") or 0
    stands_on = f"{samples:,} samples" if samples else "declared, no samples"
    waiting = one.get("waiting")
    if waiting is not None:
        stands_on = f"by the engine's report, {waiting:,} waiting"
    return f"{_cost(one, price)}; {_time(one)} ({stands_on})"


def missed(one: Record, bounds: Record) -> Iterator[str]:
    """Yield each bound that a candidate's prediction misses, with the predicted and the allowed
    value.
    """
    for miss in one.get("misses", ()):
        if miss == TTFT:
            yield _late(one.get("ttft_p95_s"), bounds.get("ttft_p95_s"))
        elif miss == COST:
            cost, most = one.get("cost_nusd"), bounds.get("max_cost_nusd")
            yield f"would cost {_usd(cost)}, {_usd(most)} are allowed"
        else:
            yield "does not fit into its context window"


def degraded(decision: Record) -> str | None:
    """Return the reason why a request left its route objective's choice; None if it did not."""
    found = decision.get("degraded")
    if not found:
        return None
    preferred = found.get("from")
    ranked, expected = decision.get("ranked", ()), decision.get("expected", ())
    why = [
        reason
        for name, one in zip(ranked, expected, strict=False)
        if name == preferred
        for reason in missed(one, decision.get("bounds", {}))
    ]
    kind, _, route = str(found.get("kind")).partition(":")
    what = f"degraded to route {route}" if kind == "route" else kind
    return f"{what}: {preferred} {' and '.join(why) or 'would miss a bound'}"


def _cost(one: Record, price: Price | None) -> str:
    """Return in words the arithmetic of a predicted cost: tokens × rates = dollars."""
    read, written, total = (
        one.get("input_tokens"),
        one.get("output_tokens"),
        _usd(one.get("cost_nusd")),
    )
    if price is None:
        return f"{_count(read)} + {_count(written)} tokens = {total}"
    reached = read or 0
    rates = {
        kind: price.rate(kind, input_tokens=reached)
        for kind in (TokenKind.INPUT, TokenKind.CACHED_INPUT, TokenKind.OUTPUT)
    }
    share, cached = one.get("cached_share") or 0.0, rates[TokenKind.CACHED_INPUT]
    of_them = "" if not share or cached is None else f" ({share:.0%} of them cached, at {cached})"
    output = rates[TokenKind.OUTPUT]
    written_words = "" if output is None else f" + {_count(written)} × {output}"
    return (
        f"{_count(read)} × {rates[TokenKind.INPUT]}{of_them}{written_words} USD per million "
        f"tokens = {total}"
    )


def _time(one: Record) -> str:
    """Return in words the arithmetic of a predicted duration: TTFT + later tokens × TPOT."""
    ttft_s, tpot_s, written = one.get("ttft_s"), one.get("tpot_s"), one.get("output_tokens")
    if ttft_s is None or tpot_s is None or written is None:
        return "its duration is unknown"
    later = max(0, written - 1)
    return f"{_s(ttft_s)} + {later:,} × {_s(tpot_s)} = {_s(ttft_s + later * tpot_s)}"


def _late(expected_s: float | None, allowed_s: float | None) -> str:
    """Return in words how a predicted TTFT misses its bound, or missed it before and counts again
    later.
    """
    if expected_s is None or allowed_s is None:
        return "would take too long to its first token"
    if expected_s <= allowed_s:
        return (
            f"took too long to its first token before: {_s(expected_s)} now, and it counts again "
            f"from {_s(KEPT_AGAIN_AT * allowed_s)} on"
        )
    return f"would take {_s(expected_s)} to its first token, {_s(allowed_s)} are allowed"


def _s(seconds: float) -> str:
    """Return seconds in words: `0.42 s`."""
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def _usd(nusd: int | None) -> str:
    """Return a cost in USD in words, or that it is unknown."""
    return "its cost is unknown" if nusd is None else f"{plain_usd(nusd)} USD"


def _count(tokens: int | None) -> str:
    """Return a token count in words, `?` if it is unknown."""
    return "?" if tokens is None else f"{tokens:,}"
