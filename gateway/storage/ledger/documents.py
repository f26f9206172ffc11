"""Encodes events, intents and running usage as JSON documents for the journal and for Postgres, and
decodes them; stores nothing.

A settlement's document is the event itself, member by member, without the members that have default
values. The ledger's SQL reads its columns from it. Text is encoded so that Postgres can always hold
it: one name with a NUL would make its whole batch fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any
from uuid import UUID

import msgspec

from gateway.domain.ledger.records import Intent
from gateway.domain.ledger.usage_event import Key, UsageEvent
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import TokenUsage

MOST_PRICES = 1024  # a policy has one per deployment


def encode_event(event: UsageEvent) -> bytes:
    """Return a usage event as a document: one line of JSON."""
    return _encode(event)


def decode_event(document: bytes) -> UsageEvent:
    """Return the event of a document. Raises `ValueError`."""
    return _decode_event(document)


def encode_intent(intent: Intent) -> bytes:
    """Return an intent as a document: one line of JSON."""
    return _encode(
        _IntentDocument(intent.event, _price_document(intent.price), intent.writes_output)
    )


def decode_intent(document: bytes) -> Intent:
    """Return the intent of a document. Raises `ValueError`."""
    return _decode_intent(document)


def encode_progress(running: Mapping[Key, TokenUsage]) -> bytes:
    """Return the document with the running usage of all live attempts."""
    return _JSON.encode(
        [(request_id, attempt, usage) for (request_id, attempt), usage in running.items()]
    )


def decode_progress(document: bytes) -> dict[Key, TokenUsage]:
    """Return the running usage that was noted last. Raises `ValueError`."""
    return {
        (request_id, attempt): usage for request_id, attempt, usage in _decode_progress(document)
    }


class _IntentDocument(msgspec.Struct, frozen=True, gc=False):
    """An `Intent` whose price is already encoded."""

    event: UsageEvent
    price: msgspec.Raw
    writes_output: bool


def _price_document(price: Price) -> msgspec.Raw:
    """Return a price's document, encoded once for all intents at its deployment.

    The key is the price's identity, and the price is kept for it: comparing two prices takes longer
    than encoding one.
    """
    kept = _PRICES.get(id(price))
    if kept is None:
        if len(_PRICES) >= MOST_PRICES:
            _PRICES.clear()  # it includes the prices of old policies
        kept = _PRICES[id(price)] = (price, msgspec.Raw(_encode(_stated(price))))
    return kept[1]


def _stated(value: Any) -> Any:
    """Return a price as an object without the members that have default values: an intent is
    written, checked and read again for each attempt.
    """
    if is_dataclass(value):
        stated = {field.name: getattr(value, field.name) for field in fields(value)}
        return {
            field.name: _stated(stated[field.name])
            for field in fields(value)
            if stated[field.name] != field.default
        }
    return [_stated(item) for item in value] if isinstance(value, tuple) else value


def _encode(value: UsageEvent | _IntentDocument | Mapping[str, Any]) -> bytes:
    """Return a value as one line of JSON that Postgres can store, with NUL and lone surrogates
    replaced.
    """
    try:
        document = _JSON.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, which a caller can send as a JSON escape
        return _JSON.encode(_storable(value))
    # Searching for one byte takes a tenth of the time of searching for six. `in` would create and
    # drop an exception (Python 3.11).
    has_nul = document.find(b"\\") >= 0 and document.find(b"\\u0000") >= 0
    return _JSON.encode(_storable(value)) if has_nul else document


def _storable(value: Any) -> Any:
    """Return the value with NUL and lone surrogates replaced, which Postgres cannot hold in
    text.
    """
    if isinstance(value, str):
        return (
            str(value)
            .encode("utf-16", "surrogatepass")
            .decode("utf-16", "replace")
            .replace("\0", "\ufffd")
        )
    if isinstance(value, Mapping):
        return {_storable(str(key)): _storable(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_storable(item) for item in value]
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(
            value, **{name: _storable(item) for name, item in msgspec.structs.asdict(value).items()}
        )
    if is_dataclass(value):
        return {field.name: _storable(getattr(value, field.name)) for field in fields(value)}
    return value


def _plain(value: Any) -> Any:
    """Convert a value of a type that the encoder does not know: a mapping becomes an object,
    anything else its text.
    """
    return dict(value) if isinstance(value, Mapping) else str(value)


_JSON = msgspec.json.Encoder(enc_hook=_plain)
_PRICES: dict[int, tuple[Price, msgspec.Raw]] = {}
_decode_event = msgspec.json.Decoder(UsageEvent).decode
_decode_intent = msgspec.json.Decoder(Intent).decode
_decode_progress = msgspec.json.Decoder(list[tuple[UUID, int, TokenUsage]]).decode
