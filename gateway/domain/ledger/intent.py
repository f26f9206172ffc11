"""What is written down before an attempt is sent: the event that stands if nothing more is ever
heard of it.
"""

from __future__ import annotations

from msgspec import Struct

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.pricing.pricing import Price


class Intent(Struct, frozen=True, kw_only=True, gc=False):
    """`event` has outcome `interrupted`, usage unknown and its hold. With `price` recovery can
    charge for running usage that was noted; `writes_output` is False for embeddings.
    """

    event: UsageEvent
    price: Price
    writes_output: bool
