"""States, by lifetime, how much dearer than plain input a write to a provider's prompt cache is.

The hold (`domain.request.unpriced`) and the settlement (`Price.with_stated_writes`) take the rate
of a write that a price does not list from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from gateway.domain.money import EXACT
from gateway.domain.pricing.tokens import TokenKind

SHORTEST_LIFETIME = ""  # a mark that names none: the provider's own shortest time
ANY_LIFETIME = "?"  # one that no schema names
# Lifetimes by name (anthropic 2.14.0, types/beta/beta_cache_control_ephemeral_param.py; openai
# 3.57.0, types/responses/response_create_params.py, 2026-11-28).
KIND_OF_LIFETIME: Mapping[str, TokenKind] = {
    SHORTEST_LIFETIME: TokenKind.CACHE_WRITE,
    "5m": TokenKind.CACHE_WRITE,
    "30m": TokenKind.CACHE_WRITE_30M,
    "1h": TokenKind.CACHE_WRITE_1H,
    "12h": TokenKind.CACHE_WRITE_12H,
}
KNOWN_LIFETIMES = KIND_OF_LIFETIME.keys()
WRITE_KINDS = tuple(dict.fromkeys(KIND_OF_LIFETIME.values()))  # the shortest first
ALL_WRITES = frozenset(WRITE_KINDS)
# "5-minute cache write tokens are 1.25 times the base input tokens price. 1-hour cache write tokens
# are 2 times the base input tokens price" (platform.claude.com/docs/en/build-with-claude/
# prompt-caching, 2026-11-28). OpenAI's list has its 30 minutes, and no figure for twelve hours.
FACTORS: Mapping[TokenKind, Decimal] = {
    TokenKind.CACHE_WRITE: Decimal("1.25"),
    TokenKind.CACHE_WRITE_30M: Decimal("1.25"),
    TokenKind.CACHE_WRITE_1H: Decimal(2),
}
# The longest first. One that no schema names may be the longest that has a stated factor.
_LONGEST = (
    ("12h", TokenKind.CACHE_WRITE_12H),
    ("1h", TokenKind.CACHE_WRITE_1H),
    (ANY_LIFETIME, TokenKind.CACHE_WRITE_1H),
    ("30m", TokenKind.CACHE_WRITE_30M),
)


def written_kinds(lifetimes: Iterable[str]) -> frozenset[TokenKind]:
    """Return the kinds of the writes for the asked lifetimes: all of them for one that no schema
    names.
    """
    asked = {KIND_OF_LIFETIME.get(one) for one in lifetimes}
    return ALL_WRITES if None in asked else frozenset(one for one in asked if one is not None)


def longest_kind(lifetimes: Iterable[str]) -> TokenKind | None:
    """Return the kind of the writes for the longest of the asked lifetimes; None if all of them are
    the provider's own shortest time.
    """
    return next((kind for name, kind in _LONGEST if name in lifetimes), None)


def stated_write_usd_per_mtok(kind: TokenKind, input_usd_per_mtok: Decimal) -> Decimal:
    """Return the rate of a kind of writes by the provider's stated factor (`FACTORS`), for a price
    that lists none; `input_usd_per_mtok` is its rate of plain input.
    """
    return EXACT.multiply(FACTORS[kind], input_usd_per_mtok)
