"""Finds the prices of the demo organisation's deployments, by date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time
from typing import NamedTuple

from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.selfhost import standard_price
from gateway.errors import OperatorError
from gateway.services.demo.catalogue import DESTINATIONS, PARTNER_PRICES
from gateway.services.demo.organisation import Calendar
from gateway.services.ports import BuiltinPrices


class PriceSince(NamedTuple):
    """A price and the moment from which it counts."""

    since: datetime
    price: Price


def prices_of(calendar: Calendar, builtin: BuiltinPrices) -> Mapping[str, Sequence[PriceSince]]:
    """Return the prices of each deployment: of its GPUs, of the partner's contracts, or of the
    built-in list on the last day.

    Raises `OperatorError` if the list does not know a model.
    """
    begin = datetime.combine(calendar.first, time(), UTC)
    at = datetime.combine(calendar.last, time(), UTC)
    found: dict[str, Sequence[PriceSince]] = {}
    for name, place in DESTINATIONS.items():
        if place.gpu is not None:
            found[name] = [PriceSince(begin, standard_price(place.gpu, model=place.model))]
        elif name == "partner":
            change = datetime.combine(calendar.new_price, time(), UTC)
            found[name] = list(map(PriceSince, (begin, change), PARTNER_PRICES))
        else:
            price = builtin(provider=place.provider, model=place.model, base_url="", at=at)
            if price is None:
                raise OperatorError(
                    f"The built-in price list has no price of {place.provider} {place.model}, "
                    "which the demo organisation uses. Nothing was written. Install the "
                    "genai-prices release that this Tollgate was built with."
                )
            found[name] = [PriceSince(begin, price)]
    return found
