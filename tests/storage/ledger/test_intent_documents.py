"""An intent's document contains its full price, although each price is encoded once for all its
intents.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from decimal import Decimal

import msgspec

from gateway.domain.ledger.records import Intent
from gateway.domain.pricing.pricing import Price
from gateway.storage.ledger.documents import MOST_PRICES, decode_intent, encode_intent
from tests.factories import price
from tests.storage.factories import event


def read_again(of: Price, **changes: object) -> Intent:
    return decode_intent(
        encode_intent(Intent(event=event(0, **changes), price=of, writes_output=True))
    )


def test_all_of_an_intent_is_in_its_document() -> None:
    """The price is encoded separately; a new field of an intent must still reach the document."""
    document = encode_intent(Intent(event=event(0), price=price(), writes_output=True))
    assert tuple(msgspec.json.decode(document)) == Intent.__struct_fields__


def test_each_intent_has_its_own_price() -> None:
    """Recovery charges by this price; another deployment's rates would make another bill."""
    prices = [
        price("1"),
        price("2"),
        replace(price("1"), is_stand_in=True),
        price("1", cached="0.5"),
    ]
    for one in [*prices, *reversed(prices)]:
        assert read_again(one).price == one


def test_each_member_of_a_price_is_read_again() -> None:
    """Members with default values are left out of the document, and no other ones."""
    plain = price("1")
    rate = replace(plain.rates[0], from_input_tokens=200_000, service_tier="flex")
    for changes in (
        {"part_of": "price_1"},
        {"place": "eu", "factor": Decimal("1.1")},
        {"is_estimated": True},
        {"rates": (*plain.rates, rate)},
        {"rates": ()},
        {"elsewhere": (("eu", replace(plain, factor=Decimal("1.10"), place="eu")),)},
    ):
        changed = replace(plain, **changes)
        assert asdict(read_again(changed).price) == asdict(changed)


def test_a_price_that_is_new_at_an_old_ones_place_is_not_taken_for_it() -> None:
    """Prices are cached by identity, and Python gives a dropped object's identity to a new
    object.
    """
    for cents in range(2 * MOST_PRICES):
        rate = f"0.{cents:04d}"
        assert read_again(price(rate)).price == price(rate)


def test_text_invalid_in_postgres_is_replaced_and_the_price_kept() -> None:
    """A caller may write a NUL or half a surrogate pair into a tag; the document is then encoded
    in another way.
    """
    of = replace(price("1"), source="list\0of \ud800")
    for odd in ("a\0b", "a\ud800b"):
        found = read_again(of, tags={"odd": odd})
        assert found.event.tags == {"odd": "a\ufffdb"}
        assert found.price == replace(of, source="list\ufffdof \ufffd")
