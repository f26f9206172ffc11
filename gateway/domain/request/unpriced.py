"""Finds the kinds that a request may be billed for and its price has no rate of, and the hold of
writes to a provider's cache at its stated rule; prices none itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal

from msgspec import Struct

from gateway.domain.operation import WITHOUT_OUTPUT
from gateway.domain.policy.policy import Deployment
from gateway.domain.policy.request_fields import WITHOUT_BOUND, feature_and_tier
from gateway.domain.pricing.cache_writes import (
    FACTORS,
    KIND_OF_LIFETIME,
    stated_write_usd_per_mtok,
)
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import CALL_KINDS, TokenKind
from gateway.domain.request.request import HostedTool, RequestFacts

_BETA, _EDITS = "anthropic-beta: ", "context_management"
_AUDIO, _TIER, _STORED = "audio", "service_tier", "stored_state"
# The places of a request that asks for a spoken answer; its prompt may be spoken as well.
_SPEAKS = frozenset({"audio", "modalities"})
# These cost less than the standard service, which is held.
_CHEAPER_TIERS = frozenset({"flex"})


class Unpriced(Struct, frozen=True, kw_only=True, gc=False):
    """A kind that a request may be billed for without a rate: the place in the request, and the
    field of the price that has the rate. `can_drop` is True for a tool that can be left out.
    `listed_as` is the name by which the deployment may list it as free, None without one.
    `field` is None for a thing that is stored at the provider: no rate bounds its contents.
    `is_argument` is True for an argument of a tool, whose rate stands for calls without it, and
    `is_unbounded` for a member that lets another model or another maximum count.
    """

    where: str
    field: str | None
    can_drop: bool = False
    listed_as: str | None = None
    is_argument: bool = False
    is_unbounded: bool = False


def has_sound(facts: RequestFacts) -> bool:
    """Return True if a prompt has a sound for sure; a request for a spoken answer may have none."""
    return bool(facts.sound) or any(
        feature == _AUDIO and place not in _SPEAKS for feature, place in facts.named
    )


def unpriced_call(tool: HostedTool, kind: TokenKind) -> Unpriced:
    """Return the missing rate of a tool's calls."""
    return Unpriced(
        where=tool.where,
        field=_field_of(kind),
        can_drop=tool.can_leave_out,
        listed_as=tool.listed_as,
    )


def unpriced_model(kind: TokenKind) -> Unpriced:
    """Return the missing rate of the calls that a model makes by itself."""
    return Unpriced(where=f"model: {kind}", field=_field_of(kind), listed_as=str(kind))


def unpriced_argument(tool: HostedTool, argument: str, kind: TokenKind) -> Unpriced:
    """Return an argument of a tool that the rate of its calls may not cover."""
    place = tool.where.rpartition(": ")[0]
    return Unpriced(
        where=f"{place}: {argument}" if place else argument,
        field=_field_of(kind),
        can_drop=tool.can_leave_out,
        listed_as=argument,
        is_argument=True,
    )


def unbounded_places(
    facts: RequestFacts, features: frozenset[str], deployment: Deployment
) -> tuple[str, ...]:
    """Return the places of the members beside which no maximum or no model is sure to count, and
    which the deployment does not list; empty for nearly every request. A past request, of which
    only the feature is known, has that instead. `features` are those that reach the deployment.
    """
    found = features & WITHOUT_BOUND
    if not found:
        return ()
    places = sorted(facts.unbounded or found)
    return tuple(one for one in places if listed_name(one) not in deployment.listed)


def listed_name(place: str) -> str:
    """Return the name by which a deployment lists a member that it knows to be harmless."""
    if place.startswith(_BETA):
        return place
    top, _, inner = place.rpartition(": ")
    return f"{top}={inner}" if top == _EDITS else inner


def unbounded_member(place: str) -> Unpriced:
    """Return the refusal of a member beside which no maximum or no model is sure to count."""
    return Unpriced(where=place, field=None, listed_as=listed_name(place), is_unbounded=True)


def unpriced_kinds(
    facts: RequestFacts, features: frozenset[str], deployment: Deployment, price: Price
) -> tuple[Unpriced, ...]:
    """Return the kinds of tokens and service tiers that a request may be billed for and the price
    has no rate of. `features` are those that reach the deployment.

    An engine of one's own bills nothing by kinds.
    """
    is_special = deployment.unasked.is_special
    if deployment.is_self_hosted or not (
        features or facts.cache_lifetimes or is_special or facts.sound or facts.maybe_sound
    ):
        return ()  # nearly every request
    return tuple(
        Unpriced(where=where, field=field, listed_as=name)
        for where, field in (
            *_stored(facts, deployment),
            *_missing(facts, features, deployment, price),
        )
        if (name := where.rpartition(": ")[2]) not in deployment.listed
    )


def _stored(facts: RequestFacts, deployment: Deployment) -> Iterator[tuple[str, str | None]]:
    """Yield the place of each thing that is stored at the provider and brings its own tools, model
    or maximum: a member, or the deployment's model.
    """
    for name in sorted(facts.stored):
        yield name, None
    if (word := deployment.unasked.stored) is not None:
        yield f"model: {word}", None


def _missing(
    facts: RequestFacts, features: frozenset[str], deployment: Deployment, price: Price
) -> Iterator[tuple[str, str]]:
    """Yield the place of each kind without a rate, and the field of the price that has the rate."""
    listed = {rate.kind for rate in price.rates}
    if facts.operation not in WITHOUT_OUTPUT:
        for kind in map(TokenKind, deployment.unasked.kinds):
            if kind not in listed:
                yield f"model: {kind}", _field_of(kind)
    named = dict(facts.named)
    for feature in sorted(features):
        name, tier = feature_and_tier(feature)
        if name == _TIER and tier not in _CHEAPER_TIERS:
            if tier is None or not price.covers_tier(tier):
                yield named.get(feature, _TIER), "service_tiers"
        elif feature == _AUDIO:
            where = named.get(feature, _AUDIO)
            kinds = (TokenKind.AUDIO_INPUT, TokenKind.AUDIO_OUTPUT)[: 1 + (where in _SPEAKS)]
            yield from ((where, _field_of(kind)) for kind in kinds if kind not in listed)
    if TokenKind.AUDIO_INPUT not in listed:
        yield from (
            (where, _field_of(TokenKind.AUDIO_INPUT))
            for where in _sounds(facts, features, deployment)
        )
    for lifetime in sorted(facts.cache_lifetimes):
        written = KIND_OF_LIFETIME.get(lifetime)
        if written is not None and written not in listed and written not in FACTORS:
            yield f"ttl={lifetime}", _field_of(written)


def _sounds(facts: RequestFacts, features: frozenset[str], deployment: Deployment) -> Iterator[str]:
    """Yield the places of parts that are billed as a sound: those of its type, and if the model
    hears also those that may be any.
    """
    if facts.sound:
        yield facts.sound
    if deployment.unasked.hears:
        if facts.maybe_sound:
            yield facts.maybe_sound
        if _STORED in features:
            yield dict(facts.named).get(_STORED, _STORED)


def dearest_write_usd_per_mtok(lifetimes: Iterable[str], price: Price) -> Decimal:
    """Return the dearest rate of writes to the provider's cache for some lifetimes: that of the
    provider's stated rule if the price lists none. A lifetime that no schema names may be any of
    them. 0 without a lifetime, and if the price lists all of them.
    """
    listed = {rate.kind for rate in price.rates}
    kinds = {KIND_OF_LIFETIME.get(one) for one in lifetimes}
    missing = (FACTORS.keys() if None in kinds else FACTORS.keys() & kinds) - listed
    plain = price.dearest(TokenKind.INPUT)
    return max((stated_write_usd_per_mtok(kind, plain) for kind in missing), default=Decimal(0))


def _field_of(kind: TokenKind) -> str:
    """Return the field of a price in the policy that has the rate of a kind."""
    return f"{kind}_usd_per_1k_calls" if kind in CALL_KINDS else f"{kind}_usd_per_mtok"
