"""Converts the price list bundled with genai-prices into prices, and finds a deployment's model in
it; never uses the network.

The list is best effort, and this module handles its defects: variants that silently count as
standard before their start, units that the meter does not know, fees beside the tokens, entries at
zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from gateway.domain.places.regions import UNKNOWN
from gateway.domain.policy.policy import Deployment
from gateway.domain.policy.price_book import EVER, DailyWindow, Dated, ModelKey
from gateway.domain.pricing.pricing import STANDARD_TIERS, Price, Rate
from gateway.domain.pricing.tokens import CALL_KINDS, TokenKind
from gateway.domain.providers.facts import provider_facts_of
from gateway.domain.providers.place_prices import PlacePremium, premium_at, stated_premiums
from gateway.domain.providers.table import OPENAI_COMPATIBLE

# Imported where it is used: it takes a quarter of a second, and few commands ask for a list price.
if TYPE_CHECKING:
    from genai_prices import types as genai
    from genai_prices.data_snapshot import DataSnapshot

_TOKENS = {
    "input_mtok": TokenKind.INPUT,
    "cache_read_mtok": TokenKind.CACHED_INPUT,
    "cache_write_mtok": TokenKind.CACHE_WRITE,
    "cache_write_1h_mtok": TokenKind.CACHE_WRITE_1H,
    "output_mtok": TokenKind.OUTPUT,
    "output_reasoning_mtok": TokenKind.REASONING,
    "input_audio_mtok": TokenKind.AUDIO_INPUT,
    "input_image_mtok": TokenKind.IMAGE_INPUT,
    "output_audio_mtok": TokenKind.AUDIO_OUTPUT,
}
_CALLS = {
    "web_searches_kcount": TokenKind.WEB_SEARCH,
    "storage_searches_kcount": TokenKind.FILE_SEARCH,
    "code_executions_kcount": TokenKind.CODE_INTERPRETER,
}
# No upstream reports how many cached tokens were images. If their cached rate differs from that of
# text, the image rate is left out. Such tokens are then held as unknown instead of charged too
# little. Cached audio has a rate of its own: Google reports its tokens.
_CACHED = {"input_image_mtok": "cache_image_read_mtok"}
# A model with any other unit (a fee per request, citations, video, images drawn, seconds, pages)
# would be charged too little by its tokens alone. It has no price here until an admin declares one.
_KNOWN = {*_TOKENS, *_CALLS, *_CACHED.values(), "cache_audio_read_mtok"}
# Every answer costs a search, which its usage counts differently.
_SEARCHES_UNASKED = frozenset({"perplexity"})
_TIER_OF = {("processing", "batch"): "batch", ("speed", "fast"): "fast"}
# By provider, a service tier at the price of the standard one, and the source.
_STANDARD_PRICED = {
    "groq": ("flex", "flex: https://console.groq.com/docs/flex-processing.md, 2026-11-28")
}
_CALLS_PER_RATE = 1000
# By provider, USD per thousand calls that the list omits, and the source. xAI's page also has $5
# for searches in X. Newer answers count the fetched posts as well, so their price is not known.
_UNLISTED_CALLS = {
    "x-ai": (
        {
            TokenKind.WEB_SEARCH: Decimal(5),
            TokenKind.CODE_INTERPRETER: Decimal(5),
            TokenKind.FILE_SEARCH: Decimal("2.5"),
        },
        "calls of tools: docs.x.ai/developers/pricing, 2026-11-25",
    )
}
# By provider, the names of retired models, the model that serves them from a moment on, and the
# source. Another copy of that page says that the names no longer work, so the dearer price counts,
# as an estimate.
_SERVED_BY = {
    "x-ai": (
        re.compile(r"grok-(?:3|4|4-fast|4-1-fast|code-fast)(?:-(?!mini)[a-z0-9-]+)?"),
        "grok-4.3",
        datetime(2026, 5, 15, 19, tzinfo=UTC),
        "retired names: docs.x.ai/developers/migration/may-15-retirement, 2026-11-29",
    )
}
_LATEST = "-latest"  # the end of names whose model changes with time
# The makers of models, in order of preference; the other providers of the list resell them. The
# order matters because some makers also resell others' models.
_MAKERS = (
    "openai",
    "anthropic",
    "google",
    "mistral",
    "deepseek",
    "x-ai",
    "meta",
    "cohere",
    "moonshotai",
    "zai",
)


def builtin_price(
    *, provider: str, model: str, base_url: str, region: str = UNKNOWN, at: datetime
) -> Price | None:
    """Return the bundled list price of a model at a moment as a deployment pays it at its place, or
    None if the list does not know its full cost.

    None also if requests cost extra or all prices are zero: an admin then declares the price. Some
    prices depend on the hour or start at a date: a later call may return another price.
    """
    found = _find_listed(provider, model, base_url)
    price = None if found is None else _price_of(*found, model=model, at=at)
    if price is None:
        return None
    return as_served(price, provider=provider, base_url=base_url, region=region, model=model, at=at)


def as_served(
    price: Price, *, provider: str, base_url: str, region: str, model: str, at: datetime
) -> Price:
    """Return the list's price as a deployment pays it at its place, with those of the
    places that its answers may state. A name that several models may serve costs as the dearest.
    """
    if provider_facts_of(provider, base_url).listed_as in (None, price.provider):
        price = _dearest_served(price, model, at)  # a reseller keeps the names of its own
    here = premium_at(provider, base_url, region, model=model)
    stated = stated_premiums(provider, base_url, model=model)
    elsewhere = tuple((geo, _times(price, premium)) for geo, premium in stated)
    return replace(_times(price, here), elsewhere=elsewhere)


def _dearest_served(price: Price, model: str, at: datetime) -> Price:
    """Return the dearest price of the models that may serve a name now, as an estimate if another
    one has another price; the same object for any other name.
    """
    seller = next((one for one in _bundled().providers if one.id == price.provider), None)
    if seller is None:
        return price
    name, words = model.lower(), ""
    pattern, successor, since, source = _SERVED_BY.get(seller.id, (None, "", at, ""))
    if pattern is not None and at >= since and pattern.fullmatch(name):
        others, words = [one for one in seller.models if one.id == successor], source
    elif name.endswith(_LATEST) and all(one.id != name for one in seller.models):
        version = re.compile(re.escape(name.removesuffix(_LATEST)) + r"-[0-9][0-9.-]*")
        others = [one for one in seller.models if version.fullmatch(one.id)]
        words = f"{model}: the dearest of its versions"
    else:
        return price
    found = [_price_of(seller, one, model=model, at=at) for one in others]
    known = [one for one in found if one is not None and _base_usd(one) != _base_usd(price)]
    if not known:
        return price
    dearest = max((price, *known), key=_base_usd)
    return replace(dearest, source=f"{dearest.source}; {words}", is_estimated=True)


def _base_usd(price: Price) -> Decimal:
    """Return USD for a million tokens of a short prompt and as many of its answer."""
    rates = (price.rate(kind, input_tokens=0) for kind in (TokenKind.INPUT, TokenKind.OUTPUT))
    return sum((rate for rate in rates if rate is not None), Decimal(0))


def _times(price: Price, premium: PlacePremium) -> Price:
    """Return a list price with the factor of a place on its tokens; calls cost the same."""
    if premium.factor == 1:
        return replace(price, place=premium.place)
    rates = tuple(
        rate
        if rate.kind in CALL_KINDS
        else replace(rate, usd_per_mtok=rate.usd_per_mtok * premium.factor)
        for rate in price.rates
    )
    return replace(
        price,
        rates=rates,
        source=f"{price.source}; {premium.words}",
        place=premium.place,
        factor=premium.factor,
        is_estimated=price.is_estimated or premium.is_estimated,
    )


def key_of(deployment: Deployment) -> ModelKey | None:
    """Return the list's key of a deployment's model; None if the list does not know it."""
    found = _find_listed(deployment.provider, deployment.model, deployment.base_url)
    return None if found is None else ModelKey(found[0].id, found[1].id)


def listed_price(key: ModelKey, at: datetime) -> Price | None:
    """Return the bundled list price at a moment, for a model of the list; None if the list does not
    know its full cost.
    """
    provider, model = _listed_model(key)
    return _price_of(provider, model, model=model.id, at=at)


def all_keys() -> list[ModelKey]:
    """Return every model of the list."""
    return [
        ModelKey(provider.id, model.id)
        for provider in _bundled().providers
        for model in provider.models
    ]


def models_named(model: str) -> list[ModelKey]:
    """Return the list's models with exactly this name, at any provider: its maker's first."""
    found = [key for key in all_keys() if key.model == model]
    return sorted(
        found,
        key=lambda key: _MAKERS.index(key.provider) if key.provider in _MAKERS else len(_MAKERS),
    )


def schedule(key: ModelKey) -> tuple[Dated, ...]:
    """Return every price that the list has for a model, in the order of their starts.

    A price that changes with the hour becomes one price for the day and one for each daily window.
    A price from before a service tier's start does not have that tier: the list would charge it as
    standard. Empty if the list never prices the model.
    """
    provider, model = _listed_model(key)
    dates = sorted({EVER.date(), *_start_dates(model)})
    boundaries = sorted(_window_edges(model))
    found: list[Dated] = []
    unit: list[tuple[DailyWindow | None, Price | None]] = [(None, None)]
    for day in dates:
        before, unit = unit, _prices_from(provider, model, day, boundaries)
        if unit != before:
            start = datetime.combine(day, time(), UTC)
            found += [Dated(valid_from=start, price=price, daily=daily) for daily, price in unit]
    return tuple(found)


def _bundled() -> DataSnapshot:
    """Return the list that is bundled with genai-prices."""
    from genai_prices.data_snapshot import get_snapshot

    return get_snapshot()


def _find_listed(
    provider: str, model: str, base_url: str
) -> tuple[genai.Provider, genai.ModelInfo] | None:
    """Return the bundled list's provider and model for a deployment, None if it lacks them. The
    provider is the one that has the model there: the list prices another's models at Azure and
    Vertex as their maker does.
    """
    facts = provider_facts_of(provider, base_url)
    by_url = base_url if facts.name == OPENAI_COMPATIBLE else None
    if by_url is None and facts.listed_as is None:
        return None
    try:
        seller, found = _bundled().find_provider_model(model, None, facts.listed_as, by_url)
    except LookupError:
        return None
    if any(one is found for one in seller.models):
        return seller, found
    return next(
        (maker, found)
        for maker in _bundled().providers
        if any(one is found for one in maker.models)
    )


def _listed_model(key: ModelKey) -> tuple[genai.Provider, genai.ModelInfo]:
    """Return the provider and the model with this key in the bundled list."""
    provider = next(provider for provider in _bundled().providers if provider.id == key.provider)
    return provider, next(model for model in provider.models if model.id == key.model)


def _price_of(
    provider: genai.Provider, listed: genai.ModelInfo, *, model: str, at: datetime
) -> Price | None:
    """Return a listed model's price at a moment, None if the list's rates are incomplete or all
    zero.
    """
    standard = listed.get_prices(at)
    rates = _rates_of_tier(provider, standard, None)
    if not _is_whole(provider, standard) or not any(rate.usd_per_mtok for rate in rates):
        return None
    for tier, context in _tiers(listed, at):
        rates += _rates_of_tier(provider, listed.get_prices(at, context), tier)
    _, calls = _UNLISTED_CALLS.get(provider.id, ({}, ""))
    alike, tiers = _STANDARD_PRICED.get(provider.id, ("", ""))
    if alike and not any(rate.service_tier == alike for rate in rates):
        rates += _rates_of_tier(provider, standard, alike)
    source = "; ".join(part for part in (_source(), calls, tiers) if part)
    return Price(provider=provider.id, model=model, source=source, rates=tuple(rates))


def _is_whole(provider: genai.Provider, listed: genai.ModelPrice) -> bool:
    """Return True if a listed price is complete: a request costs nothing beyond its tokens and
    calls.
    """
    units = {name for name, value in vars(listed).items() if value is not None}
    if "input_mtok" not in units or not units <= _KNOWN:
        return False
    return provider.id not in _SEARCHES_UNASKED or not units & _CALLS.keys()


def _tiers(listed: genai.ModelInfo, at: datetime) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the service tiers that have a price at this moment, with the list's query for each."""
    seen: set[str] = set()
    for variant in listed.price_variants or ():
        has_begun = variant.constraint is None or variant.constraint.active(at)
        ((name, value), *others) = variant.when.items()
        tier = value if name == "service_tier" else _TIER_OF.get((name, value))
        if has_begun and not others and tier is not None and tier not in STANDARD_TIERS | seen:
            seen.add(tier)
            yield tier, {name: value}


def _rates_of_tier(
    provider: genai.Provider, listed: genai.ModelPrice, tier: str | None
) -> list[Rate]:
    """Return the rates of one service tier, None for the standard tier."""
    rates: list[Rate] = []
    for name, kind in _TOKENS.items():
        cached = _CACHED.get(name)
        if cached is None or getattr(listed, cached) in (None, listed.cache_read_mtok):
            rates += _rates_of_one_kind(getattr(listed, name), kind, tier)
    for name, kind in _CALLS.items():
        rates += [
            Rate(kind=kind, usd_per_mtok=rate.usd_per_mtok * _CALLS_PER_RATE, service_tier=tier)
            for rate in _rates_of_one_kind(getattr(listed, name), kind, tier)
        ]
    return rates + list(_unlisted(provider, listed, tier))


def _unlisted(
    provider: genai.Provider, listed: genai.ModelPrice, tier: str | None
) -> Iterator[Rate]:
    """Yield rates that the list omits because providers charge these tokens at a rate that it
    has.
    """
    if listed.input_image_mtok is None and listed.output_mtok is not None:
        # Images that a model reads cost plain input.
        yield from _rates_of_one_kind(listed.input_mtok, TokenKind.IMAGE_INPUT, tier)
    if provider.id == "openai":
        # OpenAI's shortest cache time for a prompt; its list price means this time. There is no
        # price for twelve hours.
        yield from _rates_of_one_kind(listed.cache_write_mtok, TokenKind.CACHE_WRITE_30M, tier)
    if listed.cache_audio_read_mtok not in (None, listed.cache_read_mtok):
        yield from _rates_of_one_kind(
            listed.cache_audio_read_mtok, TokenKind.CACHED_AUDIO_INPUT, tier
        )
    calls, _ = _UNLISTED_CALLS.get(provider.id, ({}, ""))
    for kind, usd_per_kcall in calls.items():
        yield Rate(kind=kind, usd_per_mtok=usd_per_kcall * _CALLS_PER_RATE, service_tier=tier)


def _rates_of_one_kind(
    listed: Decimal | genai.TieredPrices | None, kind: TokenKind, tier: str | None
) -> Iterable[Rate]:
    """Yield the rates of one token kind: the base rate, and one for each step of a tiered price."""
    from genai_prices import types as genai

    if isinstance(listed, genai.TieredPrices):
        yield Rate(kind=kind, usd_per_mtok=listed.base, service_tier=tier)
        for step in listed.tiers:  # the list's applies above `start`, ours from a number on
            yield Rate(
                kind=kind,
                usd_per_mtok=step.price,
                from_input_tokens=step.start + 1,
                service_tier=tier,
            )
    elif listed is not None:
        yield Rate(kind=kind, usd_per_mtok=listed, service_tier=tier)


@lru_cache(maxsize=1)
def _source() -> str:
    """Return the name and version of the bundled list, which prices state as their source."""
    return f"genai-prices {version('genai-prices')}"


def _start_dates(model: genai.ModelInfo) -> Iterator[date]:
    """Yield the days on which listed prices of a model begin; a day may repeat."""
    from genai_prices import types as genai

    for constraint in _constraints(model):
        if isinstance(constraint, genai.StartDateConstraint):
            yield constraint.start_date


def _window_edges(model: genai.ModelInfo) -> set[time]:
    """Return the times of day at which a model's listed price changes."""
    from genai_prices import types as genai

    windows = [c for c in _constraints(model) if isinstance(c, genai.TimeOfDateConstraint)]
    return {_utc_time(edge) for window in windows for edge in (window.start_time, window.end_time)}


def _constraints(model: genai.ModelInfo) -> Iterator[object]:
    """Yield the times to which a model's listed prices and variants are limited; None for one
    without a limit.
    """
    from genai_prices import types as genai

    if not isinstance(model.prices, genai.ModelPrice):
        yield from (price.constraint for price in model.prices)
    yield from (variant.constraint for variant in model.price_variants or ())


def _utc_time(edge: time) -> time:
    """Return a time of day in UTC."""
    return datetime.combine(EVER, edge, edge.tzinfo or UTC).astimezone(UTC).time()


def _prices_from(
    provider: genai.Provider, model: genai.ModelInfo, day: date, boundaries: list[time]
) -> list[tuple[DailyWindow | None, Price | None]]:
    """Return a model's prices from a day on: that of most of the day first, then each window with
    another price.
    """
    starts = boundaries or [time()]
    prices = [
        _price_of(provider, model, model=model.id, at=datetime.combine(day, start, UTC))
        for start in starts
    ]
    windows = [
        DailyWindow(start, end) for start, end in zip(starts, [*starts[1:], starts[0]], strict=True)
    ]
    base = prices[max(range(len(windows)), key=lambda n: _window_length(windows[n]))]
    return [
        (None, base),
        *((w, price) for w, price in zip(windows, prices, strict=True) if price != base),
    ]


def _window_length(window: DailyWindow) -> timedelta:
    """Return the duration of a daily window, which may cross midnight."""
    since, until = (datetime.combine(EVER, edge, UTC) for edge in (window.since, window.until))
    return until - since if until > since else until + timedelta(days=1) - since
