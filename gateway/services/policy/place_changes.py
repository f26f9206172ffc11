"""Finds the deployments whose list price changes with the factor of their place, so that a plan and
`doctor` can name them before their next request is charged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.domain.policy.price_book import same_rates
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import TokenKind

_SHOWN = (TokenKind.INPUT, TokenKind.OUTPUT)
FACTOR_WORDS = "tokens × "  # in a price's source


def place_changes(
    charged: Mapping[str, Price], prices: Mapping[str, Price]
) -> Iterator[tuple[str, str]]:
    """Yield each deployment whose next requests cost another factor of the list than its last ones,
    with both rates and the source. `charged` has the prices of the last requests.
    """
    for name, price in prices.items():
        before = charged.get(name)
        if before is None or not price.place or same_rates(before, price):
            continue
        if price.factor != 1 or FACTOR_WORDS in before.source:
            yield name, f"{_rates(before, price)}: {price.source}"


def _rates(before: Price, after: Price) -> str:
    """Return the input and output rates of two prices in words."""
    pairs = [
        (kind, before.rate(kind, input_tokens=0), after.rate(kind, input_tokens=0))
        for kind in _SHOWN
    ]
    changed = [
        f"{kind} {was.normalize():f} → {becomes.normalize():f}"
        for kind, was, becomes in pairs
        if was is not None and becomes is not None
    ]
    return f"{', '.join(changed)} USD per million tokens"
