"""Declares prices and rates, and computes an attempt's priced lines, cost and hold from token
counts; only it and `selfhost` compute money.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from functools import cached_property
from hashlib import sha256
from math import lcm
from typing import NamedTuple

from msgspec import Struct

from gateway.domain.money import EXACT
from gateway.domain.places.regions import OTHER_PLACE
from gateway.domain.pricing.cache_writes import ALL_WRITES, FACTORS, stated_write_usd_per_mtok
from gateway.domain.pricing.tokens import (
    CALL_KINDS,
    INPUT_KINDS,
    OUTPUT_KINDS,
    UNCACHED_KINDS,
    TokenKind,
    TokenUsage,
)

MTOK = 1_000_000
MOST_NUSD = 2**63 - 1  # BIGINT's maximum: nine billion dollars, more than any attempt can cost

# The providers' names of the standard service: OpenAI `default`, Anthropic `standard`, Groq
# `on_demand`. Callers may request `auto`; an engine may echo it.
STANDARD_TIERS = frozenset({"auto", "default", "standard", "on_demand"})
# Looking a member up in its class takes as long as charging for it.
_INPUT, _OUTPUT, _CACHED_INPUT = TokenKind.INPUT, TokenKind.OUTPUT, TokenKind.CACHED_INPUT
_CACHE_WRITE, _REASONING = TokenKind.CACHE_WRITE, TokenKind.REASONING


class UnknownTier(ValueError):
    """An answer came from a service tier that its price does not cover.

    One rule for all callers: such an attempt is never charged as standard (twice too much for flex,
    half of priority) nor by a guess. Its cost is unknown, its hold stands, and it is flagged.
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


class ChargedRate(NamedTuple):
    """One rate, ready to be charged: exactly `nusd` nano-dollars for `per` tokens."""

    usd_per_mtok: Decimal
    nusd: int
    per: int

    def cost_nusd(self, count: int) -> int:
        """Return the cost of `count` tokens or calls in nano-dollars, rounded once, half-even."""
        if self.per == 1:
            return count * self.nusd
        whole, rest = divmod(count * self.nusd, self.per)
        is_above = 2 * rest > self.per or (2 * rest == self.per and whole % 2)
        return whole + 1 if is_above else whole


Steps = Mapping[TokenKind, ChargedRate]


class DearestRate(NamedTuple):
    """For holds: nano-dollars for `per` tokens or calls at the dearest rates, and the most that
    rounding may add.
    """

    input_nusd: int
    output_nusd: int
    call_nusd: int
    per: int
    rounding_nusd: int


@dataclass(frozen=True, kw_only=True)
class Price:
    """A deployment's price. Never edited: other rates or another source make another price.

    `source` names the origin of the rates, for example `policy`, `gpu rate (uncalibrated)` or
    `genai-prices 0.2.3`. Each service tier has all of its rates: none is taken from another tier.
    `part_of` is the id of the whole price, in a price that `for_tier` made. Its rates are those of
    `place`, which are `factor` times the list's; `is_estimated` if the place or its factor is not
    known. `elsewhere` has the prices of the geographies that an answer may state instead.
    """

    provider: str
    model: str
    source: str
    rates: tuple[Rate, ...]
    is_stand_in: bool = False
    part_of: str | None = field(default=None, compare=False)
    place: str = field(default="", compare=False)
    factor: Decimal = field(default=Decimal(1), compare=False)
    is_estimated: bool = False
    elsewhere: tuple[tuple[str, Price], ...] = ()

    @cached_property
    def price_id(self) -> str:
        """Return a content hash: equal rates from the same source have the same id on every
        replica.
        """
        if self.part_of is not None:
            return self.part_of
        text = "\n".join(
            (
                self.provider,
                self.model,
                self.source,
                *sorted(_rate_text(rate) for rate in self.rates),
            )
        )
        return "price_" + sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def service_tiers(self) -> tuple[str, ...]:
        """Return the service tiers with rates of their own, beside the standard one."""
        return tuple(
            sorted({rate.service_tier for rate in self.rates if rate.service_tier is not None})
        )

    def covers_tier(self, service_tier: str) -> bool:
        """Return True if an answer from this tier can be charged."""
        return tier_name(service_tier) in self._by_tier

    def for_tier(self, service_tier: str | None) -> Price:
        """Return the price of answers from one service tier, under the id of the whole; None is the
        standard tier.

        Raises `UnknownTier`: a tier without rates is never charged as standard.
        """
        found = self._by_tier.get(None if service_tier is None else tier_name(service_tier))
        if found is None:
            known = ", ".join(("standard", *self.service_tiers))
            raise UnknownTier(
                f"{self.provider}/{self.model} has no price for tier {service_tier} (there is: "
                f"{known})"
            )
        return found

    def at(self, geo: str | None) -> Price:
        """Return the price of answers that state this geography; None: they state none."""
        if geo is None or not self.elsewhere:
            return self
        prices = dict(self.elsewhere)
        return prices.get(geo.lower()) or prices.get(OTHER_PLACE, self)

    @property
    def is_flagged(self) -> bool:
        """Return True if events at this price are flagged: it is not known for sure."""
        return self.is_stand_in or self.is_estimated

    def rate(self, kind: TokenKind, *, input_tokens: int) -> Decimal | None:
        """Return USD per million of `kind` in the standard tier, by the highest context tier that
        `input_tokens` reaches.

        None if unpriced.
        """
        step = self.steps(input_tokens).get(kind)
        return None if step is None else step.usd_per_mtok

    def steps(self, input_tokens: int) -> Steps:
        """Return the standard tier's rates by kind, each by the highest context tier that
        `input_tokens` reaches.
        """
        for from_input_tokens, steps in self._standard:
            if from_input_tokens <= input_tokens:
                return steps
        return {}

    def dearest(self, *kinds: TokenKind) -> Decimal:
        """Return the highest rate of any of `kinds` in any tier and at any place, 0 if none is
        priced.
        """
        return max(
            (
                rate.usd_per_mtok
                for price in (self, *(price for _, price in self.elsewhere))
                for rate in price.rates
                if rate.kind in kinds
            ),
            default=Decimal(0),
        )

    @cached_property
    def bound(self) -> DearestRate:
        """Return the price's dearest rates, from which the holds of attempts are computed."""
        sides = [
            _whole_nusd(self.dearest(*kinds)) for kinds in (INPUT_KINDS, OUTPUT_KINDS, CALL_KINDS)
        ]
        per = lcm(*(own_per for _, own_per in sides))
        input_nusd, output_nusd, call_nusd = (nusd * (per // own_per) for nusd, own_per in sides)
        return DearestRate(
            input_nusd, output_nusd, call_nusd, per, len({rate.kind for rate in self.rates}) // 2
        )

    def billable(
        self, input_tokens: int, *, writes: frozenset[TokenKind], has_tiers: bool
    ) -> Price:
        """Return the price with the rates that a request of at most `input_tokens` may be billed,
        for its hold. `writes` are the kinds of its writes to a cache, and `has_tiers` is False if
        the standard tier serves it.
        """
        reached = max(start for start in self._contexts if start <= input_tokens)
        key = (reached, writes, has_tiers)
        found = self._billable.get(key)
        if found is None:
            places = tuple((geo, price._only(*key)) for geo, price in self.elsewhere)
            found = self._billable[key] = replace(self._only(*key), elsewhere=places)
        return found

    def _only(self, input_tokens: int, writes: frozenset[TokenKind], has_tiers: bool) -> Price:
        """Return the price without the rates that cannot be billed, under the id of the whole."""
        rates = tuple(
            rate
            for rate in self.rates
            if rate.from_input_tokens <= input_tokens
            and (rate.kind in writes or rate.kind not in ALL_WRITES)
            and (has_tiers or rate.service_tier is None)
        )
        return replace(self, rates=rates, part_of=self.price_id)

    @cached_property
    def _contexts(self) -> frozenset[int]:
        """Return the input tokens from which some rates begin."""
        prices = (self, *(price for _, price in self.elsewhere))
        return frozenset(rate.from_input_tokens for one in prices for rate in one.rates) | {0}

    @cached_property
    def _billable(self) -> dict[tuple[int, frozenset[TokenKind], bool], Price]:
        """Return the prices that `billable` made: few, as contexts are."""
        return {}

    @cached_property
    def with_stated_writes(self) -> Price:
        """Return the price of one service tier with the provider's stated rates of those writes to
        its cache that the price does not list, under the id of the whole; a listed rate stays.
        """
        missing = FACTORS.keys() - {rate.kind for rate in self.rates}
        stated = tuple(
            replace(
                rate, kind=kind, usd_per_mtok=stated_write_usd_per_mtok(kind, rate.usd_per_mtok)
            )
            for rate in self.rates
            if rate.kind is _INPUT
            for kind in sorted(missing)
        )
        return replace(self, rates=(*self.rates, *stated), part_of=self.price_id)

    @cached_property
    def _standard(self) -> Sequence[tuple[int, Steps]]:
        """Return the standard tier's rates by context tier, highest first; a kind keeps its rate
        until its next one.
        """
        standard = [rate for rate in reversed(self.rates) if rate.service_tier is None]
        standard.sort(key=lambda rate: rate.from_input_tokens)
        by_context: dict[int, Steps] = {}
        steps: Steps = {}
        for rate in standard:
            steps = {
                **steps,
                rate.kind: ChargedRate(rate.usd_per_mtok, *_whole_nusd(rate.usd_per_mtok)),
            }
            by_context[rate.from_input_tokens] = steps
        return sorted(by_context.items(), reverse=True)

    @cached_property
    def _by_tier(self) -> Mapping[str | None, Price]:
        """Return the price of each service tier by the tier's name; None is the standard one."""
        if not self.service_tiers and not self.elsewhere:
            return {None: self}
        return {tier: self._of_tier(tier) for tier in (None, *self.service_tiers)}

    def _of_tier(self, tier: str | None) -> Price:
        """Return the price with the rates of one service tier only."""
        own = tuple(
            replace(rate, service_tier=None) for rate in self.rates if rate.service_tier == tier
        )
        return replace(self, rates=own, part_of=self.price_id, elsewhere=())


class Line(Struct, frozen=True, kw_only=True, gc=False):
    """One kind of one event, rounded once and stored.

    `tokens` counts calls if the kind is one of calls.
    """

    kind: TokenKind
    tokens: int
    usd_per_mtok: Decimal
    cost_nusd: int


def tier_name(service_tier: str | None) -> str | None:
    """Return a service tier's name in prices: lower case, None for the standard one under any of
    its names.
    """
    name = (service_tier or "auto").lower()
    return None if name in STANDARD_TIERS else name


def lines(usage: TokenUsage, price: Price) -> tuple[Line, ...]:
    """Return the priced lines of one attempt in the standard tier of `price`; their sum is its
    cost.

    Cached, cache-write and reasoning tokens cost the rate of plain input or output if the price
    does not list them, because their providers charge so; `settle` passes a price with the stated
    rates of writes that were asked for (`Price.with_stated_writes`). Nothing else falls back: audio
    and images, calls, and writes for a longer time than the listed one. Raises `ValueError` if
    tokens of such a kind exist without a rate, and if the counts contradict each other: a missing
    rate is never billed at zero.
    """
    if not usage.is_plausible:
        raise ValueError("the counts contradict each other")
    return plausible_lines(usage, price)


def plausible_lines(usage: TokenUsage, price: Price) -> tuple[Line, ...]:
    """Return the priced lines of an attempt whose counts are known not to contradict each other.
    Raises `ValueError` for a kind without a price.
    """
    steps = price.steps(usage.input_tokens or 0)
    if usage.is_text_alone:
        counts = _text_tokens(usage, steps)
    elif usage.unknown_units:
        raise ValueError("the usage has counts of an unknown name")
    else:
        counts = _input_tokens(usage, steps) | _output_tokens(usage, steps) | _call_counts(usage)
    receipt = []
    for kind, count in counts.items():
        if count:
            step = steps.get(kind)
            if step is None:
                what = "calls" if kind in CALL_KINDS else "tokens"
                raise ValueError(f"{price.provider}/{price.model} has no price for {kind} {what}")
            receipt.append(
                Line(
                    kind=kind,
                    tokens=count,
                    usd_per_mtok=step.usd_per_mtok,
                    cost_nusd=step.cost_nusd(count),
                )
            )
    return tuple(receipt)


def cost_nusd(receipt: tuple[Line, ...]) -> int:
    """Return the cost of one attempt in nano-dollars: the sum of its rounded lines."""
    return sum([line.cost_nusd for line in receipt])  # a list: for each attempt


def cache_saving_nusd(receipt: Iterable[Line], *, usd_per_mtok: Mapping[TokenKind, Decimal]) -> int:
    """Return how many nano-dollars less an attempt's cached tokens cost than uncached ones, rounded
    once; negative if the surcharge of cache writes is larger.

    `usd_per_mtok` has the rate of each uncached kind (`UNCACHED_KINDS`).
    """
    cached = [line for line in receipt if line.kind in UNCACHED_KINDS]
    with localcontext(EXACT):
        uncached_usd_mtok = sum(
            (line.tokens * usd_per_mtok[UNCACHED_KINDS[line.kind]] for line in cached), Decimal(0)
        )
    uncached = ChargedRate(uncached_usd_mtok, *_whole_nusd(uncached_usd_mtok))
    return uncached.cost_nusd(1) - sum(line.cost_nusd for line in cached)


def hold_nusd(
    price: Price, *, input_bound_tokens: int, output_bound_tokens: int, tool_calls_bound: int = 0
) -> int:
    """Return an upper bound of one attempt's cost in nano-dollars: each side at its dearest rate in
    any tier.

    Any service tier may answer any request: a project's own setting decides the meaning of `auto`.
    Pass `price.for_tier(...)` if the tier is certain.
    """
    bound = price.bound
    parts = (
        input_bound_tokens * bound.input_nusd
        + output_bound_tokens * bound.output_nusd
        + tool_calls_bound * bound.call_nusd
    )
    return min(-(-parts // bound.per) + bound.rounding_nusd, MOST_NUSD)  # rounded up


def calls_hold_nusd(calls: int, *, usd: Decimal) -> int:
    """Return an upper bound of the fees of calls in nano-dollars, rounded up; one costs `usd`."""
    nusd, per = EXACT.scaleb(usd, 9).as_integer_ratio()
    return -(-calls * nusd // per)


def tokens_hold_nusd(tokens: int, *, usd_per_mtok: Decimal) -> int:
    """Return an upper bound of the cost of tokens at one rate in nano-dollars, rounded up."""
    nusd, per = _whole_nusd(usd_per_mtok)
    return -(-tokens * nusd // per)


def _text_tokens(usage: TokenUsage, rates: Steps) -> dict[TokenKind, int]:
    """Return a text-only attempt's token counts by kind, the usual case, in a third of the time of
    the general split.
    """
    cached = usage.cached_input_tokens or 0 if _CACHED_INPUT in rates else 0
    written = usage.cache_write_tokens or 0 if _CACHE_WRITE in rates else 0
    reasoning = usage.reasoning_tokens or 0 if _REASONING in rates else 0
    return {
        _INPUT: (usage.input_tokens or 0) - cached - written,
        _OUTPUT: (usage.output_tokens or 0) - reasoning,
        _CACHED_INPUT: cached,
        _CACHE_WRITE: written,
        _REASONING: reasoning,
    }


def _input_tokens(usage: TokenUsage, rates: Steps) -> dict[TokenKind, int]:
    """Return an attempt's prompt token counts by kind, disjoint.

    Google says which of the cached tokens were audio; no provider says which were images. The
    others are taken from the text first, and from images and audio only if there is not enough
    text. So no line is negative and no token is charged twice.
    """
    whole = usage.input_tokens or 0
    cached, spoken = _cached_tokens(usage, rates)
    kept = {
        TokenKind.CACHED_INPUT: cached if TokenKind.CACHED_INPUT in rates else 0,
        **_cache_write_tokens(usage, rates),
    }
    audio, image = (usage.audio_input_tokens or 0) - spoken, usage.image_input_tokens or 0
    text = whole - spoken - audio - image
    in_cache = sum(kept.values())
    beyond_text = max(0, in_cache - text)
    beyond_images = max(0, beyond_text - image)
    return {
        TokenKind.INPUT: max(0, text - in_cache),
        TokenKind.OUTPUT: 0,  # keeps its place: the two sides come first, then their parts
        TokenKind.CACHED_AUDIO_INPUT: spoken,
        **kept,
        TokenKind.IMAGE_INPUT: max(0, image - beyond_text),
        TokenKind.AUDIO_INPUT: audio - beyond_images,
    }


def _cached_tokens(usage: TokenUsage, rates: Steps) -> tuple[int, int]:
    """Return an attempt's cached tokens without those with a rate for cached audio, and those.

    Raises `ValueError` if the price has such a rate, and the usage does not say how many they are.
    """
    cached, spoken = usage.cached_input_tokens or 0, usage.cached_audio_input_tokens
    if TokenKind.CACHED_AUDIO_INPUT not in rates:
        return cached, 0
    if spoken is None and cached and usage.audio_input_tokens:
        raise ValueError("the usage does not say how many of the cached tokens were audio")
    return cached - (spoken or 0), spoken or 0


def _cache_write_tokens(usage: TokenUsage, rates: Steps) -> dict[TokenKind, int]:
    """Return the counts of an attempt's tokens written to the provider's prompt cache, by storage
    time; kinds that stay plain input are left out.

    A price that lists no write at all has all of them as input.

    A longer time than the listed one costs more, so it never takes that rate.
    """
    for_a_time = {
        TokenKind.CACHE_WRITE_30M: usage.cache_write_30m_tokens or 0,
        TokenKind.CACHE_WRITE_1H: usage.cache_write_1h_tokens or 0,
        TokenKind.CACHE_WRITE_12H: usage.cache_write_12h_tokens or 0,
    }
    written = {
        TokenKind.CACHE_WRITE: (usage.cache_write_tokens or 0) - sum(for_a_time.values()),
        **for_a_time,
    }
    if TokenKind.CACHE_WRITE in rates:
        return written
    return {kind: n for kind, n in written.items() if kind in rates}


def _output_tokens(usage: TokenUsage, rates: Steps) -> dict[TokenKind, int]:
    """Return an attempt's output token counts by kind, disjoint: text, reasoning, audio, images."""
    parts = {
        TokenKind.REASONING: (usage.reasoning_tokens or 0) if TokenKind.REASONING in rates else 0,
        TokenKind.AUDIO_OUTPUT: usage.audio_output_tokens or 0,
        TokenKind.IMAGE_OUTPUT: usage.image_output_tokens or 0,
    }
    return {TokenKind.OUTPUT: (usage.output_tokens or 0) - sum(parts.values()), **parts}


def _call_counts(usage: TokenUsage) -> dict[TokenKind, int]:
    """Return the counts of an attempt's calls of the provider's own tools, by kind."""
    return {
        TokenKind.WEB_SEARCH: usage.web_search_calls or 0,
        TokenKind.FILE_SEARCH: usage.file_search_calls or 0,
        TokenKind.CODE_INTERPRETER: usage.code_interpreter_calls or 0,
        TokenKind.IMAGE_GENERATION: usage.image_generation_calls or 0,
        TokenKind.X_SEARCH: usage.x_search_calls or 0,
        TokenKind.OTHER_MODEL: usage.other_model_calls or 0,
    }


def _whole_nusd(usd_per_mtok: Decimal) -> tuple[int, int]:
    """Return a rate as (nano-dollars, tokens), both whole: (250, 1) if a million costs 25 cents."""
    return EXACT.scaleb(usd_per_mtok, 3).as_integer_ratio()


def _rate_text(rate: Rate) -> str:
    """Return a rate as text, from which the price's hash is made.

    A standard rate has no trace of its tier, so ids from before the tiers stay valid.
    """
    tier = "" if rate.service_tier is None else f"/{rate.service_tier}"
    return f"{rate.kind}@{rate.from_input_tokens}{tier}={rate.usd_per_mtok.normalize():f}"
