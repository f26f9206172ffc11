"""Tokens → price → cost. The only place, with `selfhost`, where money is computed."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from hashlib import sha256

from gateway.domain.money import nusd_bound, nusd_from_usd
from gateway.domain.tokens import TokenKind, TokenUsage

MTOK = 1_000_000
MOST_NUSD = 2**63 - 1  # what BIGINT holds: nine billion dollars, more than any attempt can cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """USD per million tokens of one kind, for requests whose whole input is at least `from_input_tokens`."""

    kind: TokenKind
    usd_per_mtok: Decimal
    from_input_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a deployment costs. Never edited: other rates or another source make another price.

    `source` says where the rates come from, for example `policy`, `gpu rate (uncalibrated)` or
    `genai-prices 0.2.3`.
    """

    provider: str
    model: str
    source: str
    rates: tuple[Rate, ...]

    @cached_property
    def price_id(self) -> str:
        """Content hash, so that the same rates from the same source have the same id on every replica."""
        rates = sorted(f"{r.kind}@{r.from_input_tokens}={r.usd_per_mtok.normalize():f}" for r in self.rates)
        text = "\n".join((self.provider, self.model, self.source, *rates))
        return "price_" + sha256(text.encode()).hexdigest()[:16]

    def rate(self, kind: TokenKind, *, input_tokens: int) -> Decimal | None:
        """USD per million tokens of `kind`, by the highest tier that `input_tokens` reaches; None if unpriced."""
        tiers = [r for r in self.rates if r.kind is kind and r.from_input_tokens <= input_tokens]
        return max(tiers, key=lambda r: r.from_input_tokens).usd_per_mtok if tiers else None

    def dearest(self, *kinds: TokenKind) -> Decimal:
        """The highest rate of any of `kinds` at any tier, 0 where none is priced."""
        return max((r.usd_per_mtok for r in self.rates if r.kind in kinds), default=Decimal(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One token kind of one event, rounded once and stored."""

    kind: TokenKind
    tokens: int
    usd_per_mtok: Decimal
    cost_nusd: int


def lines(usage: TokenUsage, price: Price) -> tuple[Line, ...]:
    """Return the priced lines of one attempt; their sum is its cost.

    Cached, cache-write and reasoning tokens without a rate of their own cost what plain input or output
    costs. Raises `ValueError` where tokens of a kind exist that the price does not cover: a missing rate
    is never billed at zero.
    """
    whole_input = usage.input_tokens or 0
    parts = {
        TokenKind.CACHED_INPUT: usage.cached_input_tokens or 0,
        TokenKind.CACHE_WRITE: usage.cache_write_tokens or 0,
        TokenKind.REASONING: usage.reasoning_tokens or 0,
    }
    own = {kind: n for kind, n in parts.items() if n and price.rate(kind, input_tokens=whole_input) is not None}
    tokens = {
        TokenKind.INPUT: whole_input - own.get(TokenKind.CACHED_INPUT, 0) - own.get(TokenKind.CACHE_WRITE, 0),
        TokenKind.OUTPUT: (usage.output_tokens or 0) - own.get(TokenKind.REASONING, 0),
        **own,
    }
    return tuple(_line(price, kind, n, input_tokens=whole_input) for kind, n in tokens.items() if n)


def cost_nusd(receipt: tuple[Line, ...]) -> int:
    """The cost of one attempt in nano-dollars: the sum of its rounded lines."""
    return sum(line.cost_nusd for line in receipt)


def hold_nusd(price: Price, *, input_bound_tokens: int, output_bound_tokens: int) -> int:
    """An upper bound of one attempt's cost in nano-dollars, at the dearest rate of each side."""
    input_rate = price.dearest(TokenKind.INPUT, TokenKind.CACHED_INPUT, TokenKind.CACHE_WRITE)
    output_rate = price.dearest(TokenKind.OUTPUT, TokenKind.REASONING)
    bound = nusd_bound((input_bound_tokens * input_rate + output_bound_tokens * output_rate) / MTOK)
    return min(bound, MOST_NUSD)


def _line(price: Price, kind: TokenKind, tokens: int, *, input_tokens: int) -> Line:
    rate = price.rate(kind, input_tokens=input_tokens)
    if rate is None:
        raise ValueError(f"{price.provider}/{price.model} has no price for {kind} tokens")
    return Line(kind=kind, tokens=tokens, usd_per_mtok=rate, cost_nusd=nusd_from_usd(tokens * rate / MTOK))
