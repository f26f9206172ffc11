"""Tokens → price → cost. The only place, with `selfhost`, where money is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_EVEN, Decimal
from functools import cached_property
from hashlib import sha256

from gateway.domain.money import EXACT, nusd_bound
from gateway.domain.tokens import CALL_KINDS, INPUT_KINDS, OUTPUT_KINDS, TokenKind, TokenUsage

MTOK = 1_000_000
MOST_NUSD = 2**63 - 1  # what BIGINT holds: nine billion dollars, more than any attempt can cost

# What providers call the service everyone gets: OpenAI `default`, Anthropic `standard`, Groq `on_demand`. `auto` is
# what a caller asks for; an engine may echo it.
STANDARD_TIERS = frozenset({"auto", "default", "standard", "on_demand"})


class UnknownTier(ValueError):
    """An answer came from a service tier that its price does not cover.

    Decided here, for everyone: such an attempt is never charged as standard (twice too much for flex, half of
    priority) nor at a guess. Its cost is unknown, its hold stands, and it is flagged.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """USD per million of one kind, for requests whose whole input is at least `from_input_tokens`.

    Kinds that are calls have USD per million calls. `service_tier` None is the standard tier.
    """

    kind: TokenKind
    usd_per_mtok: Decimal
    from_input_tokens: int = 0
    service_tier: str | None = None


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a deployment costs. Never edited: other rates or another source make another price.

    `source` says where the rates come from, for example `policy`, `gpu rate (uncalibrated)` or
    `genai-prices 0.2.3`. Each service tier has all of its rates: none is taken from another tier. `part_of` is the
    id of the whole price, in a price that `for_tier` made.
    """

    provider: str
    model: str
    source: str
    rates: tuple[Rate, ...]
    is_stand_in: bool = False
    part_of: str | None = field(default=None, compare=False)

    @cached_property
    def price_id(self) -> str:
        """Content hash, so that the same rates from the same source have the same id on every replica."""
        if self.part_of is not None:
            return self.part_of
        text = "\n".join((self.provider, self.model, self.source, *sorted(_rate_text(rate) for rate in self.rates)))
        return "price_" + sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def service_tiers(self) -> tuple[str, ...]:
        """The service tiers with rates of their own, beside the standard one."""
        return tuple(sorted({rate.service_tier for rate in self.rates if rate.service_tier is not None}))

    def covers_tier(self, service_tier: str) -> bool:
        """True where an answer from this tier can be charged."""
        return tier_name(service_tier) in self._by_tier

    def for_tier(self, service_tier: str | None) -> Price:
        """The price of answers from one service tier, under the id of the whole; None is the standard tier.

        Raises `UnknownTier`: a tier without rates is never charged as standard.
        """
        found = self._by_tier.get(tier_name(service_tier))
        if found is None:
            known = ", ".join(("standard", *self.service_tiers))
            raise UnknownTier(f"{self.provider}/{self.model} has no price for tier {service_tier} (there is: {known})")
        return found

    def rate(self, kind: TokenKind, *, input_tokens: int) -> Decimal | None:
        """USD per million of `kind` in the standard tier, by the highest context tier that `input_tokens` reaches.

        None if unpriced.
        """
        for from_input_tokens, usd_per_mtok in self._standard.get(kind, ()):
            if from_input_tokens <= input_tokens:
                return usd_per_mtok
        return None

    def dearest(self, *kinds: TokenKind) -> Decimal:
        """The highest rate of any of `kinds` in any tier, 0 where none is priced."""
        return max((rate.usd_per_mtok for rate in self.rates if rate.kind in kinds), default=Decimal(0))

    @cached_property
    def bound(self) -> tuple[Decimal, Decimal, Decimal, int]:
        """For holds: the dearest rate of each side and of a call, and the nano-dollars that rounding may add."""
        sides = (self.dearest(*INPUT_KINDS), self.dearest(*OUTPUT_KINDS), self.dearest(*CALL_KINDS))
        return *sides, len({rate.kind for rate in self.rates}) // 2

    @cached_property
    def _standard(self) -> Mapping[TokenKind, list[tuple[int, Decimal]]]:
        """The standard tier's rates by kind, the highest context tier first."""
        standard = [rate for rate in self.rates if rate.service_tier is None]
        standard.sort(key=lambda rate: rate.from_input_tokens, reverse=True)
        return {
            kind: [(r.from_input_tokens, r.usd_per_mtok) for r in standard if r.kind is kind]
            for kind in {rate.kind for rate in standard}
        }

    @cached_property
    def _by_tier(self) -> Mapping[str | None, Price]:
        if not self.service_tiers:
            return {None: self}
        return {tier: self._of_tier(tier) for tier in (None, *self.service_tiers)}

    def _of_tier(self, tier: str | None) -> Price:
        own = tuple(replace(rate, service_tier=None) for rate in self.rates if rate.service_tier == tier)
        return replace(self, rates=own, part_of=self.price_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One kind of one event, rounded once and stored. `tokens` counts calls where the kind is one of calls."""

    kind: TokenKind
    tokens: int
    usd_per_mtok: Decimal
    cost_nusd: int


def tier_name(service_tier: str | None) -> str | None:
    """A service tier as prices name it: lower case, None for the standard one under any of its names."""
    name = (service_tier or "auto").lower()
    return None if name in STANDARD_TIERS else name


def lines(usage: TokenUsage, price: Price) -> tuple[Line, ...]:
    """Return the priced lines of one attempt in the standard tier of `price`; their sum is its cost.

    Cached, cache-write and reasoning tokens cost what plain input or output costs where the price does not list them:
    so their providers charge. Nothing else falls back: audio and images, calls, and writes for a longer time than the
    listed one. Raises `ValueError` where tokens of such a kind exist that the price does not cover, and where the
    counts contradict each other: a missing rate is never billed at zero.
    """
    if not usage.is_plausible:
        raise ValueError("the counts contradict each other")
    whole_input = usage.input_tokens or 0
    if usage.is_text_alone:
        counts = _text_lines(usage, price)
    else:
        counts = _input_lines(usage, price) | _output_lines(usage, price) | _call_lines(usage)
    return tuple(_line(price, kind, n, input_tokens=whole_input) for kind, n in counts.items() if n)


def cost_nusd(receipt: tuple[Line, ...]) -> int:
    """The cost of one attempt in nano-dollars: the sum of its rounded lines."""
    return sum(line.cost_nusd for line in receipt)


def hold_nusd(price: Price, *, input_bound_tokens: int, output_bound_tokens: int, tool_calls_bound: int = 0) -> int:
    """An upper bound of one attempt's cost in nano-dollars: each side at its dearest rate in any tier.

    Any service tier may answer, whatever was asked for: a project's own setting decides what `auto` means. Pass
    `price.for_tier(...)` where the tier is certain.
    """
    input_rate, output_rate, call_rate, rounding_nusd = price.bound
    tokens_usd = EXACT.add(usd_of(input_bound_tokens, input_rate), usd_of(output_bound_tokens, output_rate))
    bound_usd = EXACT.add(tokens_usd, usd_of(tool_calls_bound, call_rate))
    return min(nusd_bound(bound_usd) + rounding_nusd, MOST_NUSD)


def usd_of(count: int, usd_per_mtok: Decimal) -> Decimal:
    """What a count costs at a rate, exactly: not rounded yet."""
    return EXACT.scaleb(EXACT.multiply(Decimal(count), usd_per_mtok), -6)


def nusd_of(count: int, usd_per_mtok: Decimal) -> int:
    """What a count costs at a rate in nano-dollars, rounded once, half-even."""
    return int(EXACT.scaleb(EXACT.multiply(Decimal(count), usd_per_mtok), 3).to_integral_value(ROUND_HALF_EVEN))


def _text_lines(usage: TokenUsage, price: Price) -> dict[TokenKind, int]:
    """What the three functions below come to for a text: nearly every answer, at a third of the time."""
    whole = usage.input_tokens or 0
    cached, written, reasoning = usage.cached_input_tokens, usage.cache_write_tokens, usage.reasoning_tokens
    own = {
        kind: count
        for kind, count in (
            (TokenKind.CACHED_INPUT, cached), (TokenKind.CACHE_WRITE, written), (TokenKind.REASONING, reasoning),
        )
        if count and price.rate(kind, input_tokens=whole) is not None
    }  # fmt: skip
    reasoned = own.get(TokenKind.REASONING, 0)
    in_cache = own.get(TokenKind.CACHED_INPUT, 0) + own.get(TokenKind.CACHE_WRITE, 0)
    return {TokenKind.INPUT: whole - in_cache, TokenKind.OUTPUT: (usage.output_tokens or 0) - reasoned, **own}


def _input_lines(usage: TokenUsage, price: Price) -> dict[TokenKind, int]:
    """Split the prompt into disjoint lines.

    No provider says which of the cached tokens were images. They are taken from the text first and from images and
    audio only where there is not that much text: so no line is negative and no token is charged twice.
    """
    whole = usage.input_tokens or 0
    is_cache_priced = price.rate(TokenKind.CACHED_INPUT, input_tokens=whole) is not None
    kept = {TokenKind.CACHED_INPUT: (usage.cached_input_tokens or 0) if is_cache_priced else 0}
    kept |= _write_lines(usage, price)
    audio, image = usage.audio_input_tokens or 0, usage.image_input_tokens or 0
    text = whole - audio - image
    in_cache = sum(kept.values())
    beyond_text = max(0, in_cache - text)
    beyond_images = max(0, beyond_text - image)
    return {
        TokenKind.INPUT: max(0, text - in_cache),
        TokenKind.OUTPUT: 0,  # keeps its place: the two sides come first, then their parts
        **kept,
        TokenKind.IMAGE_INPUT: max(0, image - beyond_text),
        TokenKind.AUDIO_INPUT: audio - beyond_images,
    }


def _write_lines(usage: TokenUsage, price: Price) -> dict[TokenKind, int]:
    """Tokens written to the cache, by how long they are kept. A price that lists no write at all has them as input.

    A longer time than the listed one costs more, so it never takes that rate.
    """
    whole = usage.input_tokens or 0
    for_a_time = {
        TokenKind.CACHE_WRITE_30M: usage.cache_write_30m_tokens or 0,
        TokenKind.CACHE_WRITE_1H: usage.cache_write_1h_tokens or 0,
        TokenKind.CACHE_WRITE_12H: usage.cache_write_12h_tokens or 0,
    }
    written = {TokenKind.CACHE_WRITE: (usage.cache_write_tokens or 0) - sum(for_a_time.values()), **for_a_time}
    if price.rate(TokenKind.CACHE_WRITE, input_tokens=whole) is not None:
        return written
    return {kind: n for kind, n in written.items() if price.rate(kind, input_tokens=whole) is not None}


def _output_lines(usage: TokenUsage, price: Price) -> dict[TokenKind, int]:
    is_reasoning_priced = price.rate(TokenKind.REASONING, input_tokens=usage.input_tokens or 0) is not None
    parts = {
        TokenKind.REASONING: (usage.reasoning_tokens or 0) if is_reasoning_priced else 0,
        TokenKind.AUDIO_OUTPUT: usage.audio_output_tokens or 0,
        TokenKind.IMAGE_OUTPUT: usage.image_output_tokens or 0,
    }
    return {TokenKind.OUTPUT: (usage.output_tokens or 0) - sum(parts.values()), **parts}


def _call_lines(usage: TokenUsage) -> dict[TokenKind, int]:
    return {
        TokenKind.WEB_SEARCH: usage.web_search_calls or 0,
        TokenKind.FILE_SEARCH: usage.file_search_calls or 0,
        TokenKind.CODE_INTERPRETER: usage.code_interpreter_calls or 0,
        TokenKind.IMAGE_GENERATION: usage.image_generation_calls or 0,
    }


def _line(price: Price, kind: TokenKind, tokens: int, *, input_tokens: int) -> Line:
    rate = price.rate(kind, input_tokens=input_tokens)
    if rate is None:
        what = "calls" if kind in CALL_KINDS else "tokens"
        raise ValueError(f"{price.provider}/{price.model} has no price for {kind} {what}")
    return Line(kind=kind, tokens=tokens, usd_per_mtok=rate, cost_nusd=nusd_of(tokens, rate))


def _rate_text(rate: Rate) -> str:
    """A rate for the hash. A standard rate has no trace of its tier: ids from before there were tiers stay."""
    tier = "" if rate.service_tier is None else f"/{rate.service_tier}"
    return f"{rate.kind}@{rate.from_input_tokens}{tier}={rate.usd_per_mtok.normalize():f}"
