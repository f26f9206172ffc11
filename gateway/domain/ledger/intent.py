"""The record written before an attempt is sent. If the process dies, recovery books this event."""

from __future__ import annotations

from msgspec import Struct

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.pricing.pricing import Price


class Intent(Struct, frozen=True, kw_only=True, gc=False):
    """`event` has outcome `interrupted`, unknown usage and its hold. With `price`, recovery can
    charge for recorded running usage; `writes_output` is False for embeddings.
    """

    event: UsageEvent
    price: Price
    writes_output: bool
