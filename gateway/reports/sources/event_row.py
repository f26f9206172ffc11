"""An event as its row of `finance.usage_events`: a receipt must read alike before and after the
commit.

`recorded_at`, which only Postgres knows, is left out: nothing in a receipt may depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.money import usd_from_nusd
from gateway.domain.pricing.pricing import Line
from gateway.storage.ledger.documents import decode_event, encode_event

# Members whose column has another shape than the member of the event.
_RESHAPED = ("usage", "lines", "reported", "cost_nusd", "held_nusd", "is_demo")


def row_of(event: UsageEvent) -> dict[str, Any]:
    """Return the event's future row in the ledger.

    It goes through the event's document, so that text equals Postgres's text.
    """
    written = decode_event(encode_event(event))
    plain = {
        name: getattr(written, name)
        for name in UsageEvent.__struct_fields__
        if name not in _RESHAPED
    }
    return plain | {
        **asdict(written.usage),
        "occurred_at": written.occurred_at,
        "posted_period": written.occurred_at.date().replace(day=1),
        "outcome": written.outcome.value,
        "usage_source": written.usage_source.value,
        "lines": _lines(written.lines),
        "usage_detail": asdict(written.usage),
        "reported_usage": None if written.reported is None else asdict(written.reported),
        "cost_usd": None if written.cost_nusd is None else usd_from_nusd(written.cost_nusd),
        "held_usd": None if written.held_nusd is None else usd_from_nusd(written.held_nusd),
    }


def _lines(lines: Sequence[Line]) -> list[dict[str, Any]]:
    return [
        {
            "kind": line.kind.value,
            "tokens": line.tokens,
            "usd_per_mtok": f"{line.usd_per_mtok:f}",
            "cost_nusd": line.cost_nusd,
        }
        for line in lines
    ]
