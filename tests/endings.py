"""Every way an attempt can end: one table for the tests and for docs/reference/outcomes.md, which
shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.pricing.settlement import Counted
from gateway.domain.pricing.tokens import TokenUsage, UsageSource

WHOLE = TokenUsage(input_tokens=10, output_tokens=5)
PART = TokenUsage(input_tokens=10, output_tokens=3)
BROKEN = TokenUsage(input_tokens=10, output_tokens=10**12)
CONTRADICTING = TokenUsage(input_tokens=10, output_tokens=5, unexplained_tokens=405)
ZERO = TokenUsage(input_tokens=0, output_tokens=0)
COUNTED = Counted(usage=TokenUsage(input_tokens=12, output_tokens=3), is_exact=False)
HELD_NUSD = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """One row. `known` are the inputs of the settlement; `booked` is the result in words."""

    name: str
    outcome: Outcome
    caller: str
    booked: str
    source: UsageSource
    known: Mapping[str, Any] = field(default_factory=dict)
    keeps_reported: bool = False
    is_suspect: bool = False

    def as_row(self) -> str:
        """The row as the page shows it."""
        marks = [
            name
            for name, is_set in (("reported", self.keeps_reported), ("suspect", self.is_suspect))
            if is_set
        ]
        cells = (
            self.name,
            f"`{self.outcome}`",
            self.caller,
            self.booked,
            f"`{self.source}`",
            ", ".join(marks) or "–",
        )
        return "| " + " | ".join(cells) + " |"


BROKE = "The beginning, then an error event; no `[DONE]`."
CALLER_LEFT = "Nothing: the caller left."
ERROR = "An error answer, or another deployment's answer."
AS_REPORTED = "The upstream's figure."
LAST_SEEN = "The upstream's last running figure."
OUR_COUNT = "Our count of the sent and received text."
ITS_HOLD = "Its hold, until it is resolved."
NOTHING = "Zero."

ENDINGS = (
    Ending(
        name="complete",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked=AS_REPORTED,
        source=UsageSource.PROVIDER,
        known={"final": WHOLE, "running": PART},
    ),
    Ending(
        name="complete, 0 tokens reported for an empty answer",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked="Zero, as reported.",
        source=UsageSource.PROVIDER,
        known={"final": ZERO},
    ),
    Ending(
        name="complete, final usage missing, self-hosted",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked=LAST_SEEN,
        source=UsageSource.DERIVED,
        known={"running": WHOLE},
    ),
    Ending(
        name="complete, final usage missing, external",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked=OUR_COUNT,
        source=UsageSource.ESTIMATED,
        known={"counted": COUNTED},
    ),
    Ending(
        name="complete, final usage below the running figure",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked="The dearer of both figures, count by count.",
        source=UsageSource.DERIVED,
        known={"final": PART, "running": WHOLE},
        keeps_reported=True,
        is_suspect=True,
    ),
    Ending(
        name="complete, final usage cannot be true, self-hosted",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked=LAST_SEEN,
        source=UsageSource.DERIVED,
        known={"final": BROKEN, "running": PART},
        keeps_reported=True,
        is_suspect=True,
    ),
    Ending(
        name="complete, final usage cannot be true, external",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked=ITS_HOLD,
        source=UsageSource.UNKNOWN,
        known={"final": BROKEN},
        keeps_reported=True,
        is_suspect=True,
    ),
    Ending(
        name="complete, the reported total is not the sum of its parts, external",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked=ITS_HOLD,
        source=UsageSource.UNKNOWN,
        known={"final": CONTRADICTING},
        keeps_reported=True,
        is_suspect=True,
    ),
    Ending(
        name="complete, the last figure comes before some of the answer",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked="The upstream's input and our count of the output, at least its figure.",
        source=UsageSource.ESTIMATED,
        known={"running": PART, "is_behind": True, "counted": COUNTED},
        keeps_reported=True,
    ),
    Ending(
        name="complete, 0 tokens reported for an answer with content",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked=ITS_HOLD,
        source=UsageSource.UNKNOWN,
        known={"final": ZERO, "least_output_tokens": 1},
        keeps_reported=True,
        is_suspect=True,
    ),
    Ending(
        name="complete, costs more than its hold",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked="The upstream's figure; `held_usd` keeps the hold.",
        source=UsageSource.PROVIDER,
        known={"final": WHOLE, "held_nusd": 1},
        is_suspect=True,
    ),
    Ending(
        name="complete, the usage has a part of an unknown name (tokens in the details of a side, "
        "a lifetime in the cache)",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked="Those tokens as the dearest kind that request and price allow.",
        source=UsageSource.ESTIMATED,
        known={"final": replace(WHOLE, unknown_output_tokens=2)},
        keeps_reported=True,
    ),
    Ending(
        name="complete, the usage or the answer counts a unit of an unknown name (tokens beside "
        "the whole, calls, searches, seconds, an item of a hosted tool)",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked=ITS_HOLD,
        source=UsageSource.UNKNOWN,
        known={"final": replace(WHOLE, unknown_units=2)},
        keeps_reported=True,
        is_suspect=True,
    ),
    Ending(
        name="complete, from a service tier without a price",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked=ITS_HOLD,
        source=UsageSource.UNKNOWN,
        known={"final": WHOLE, "service_tier": "priority"},
        is_suspect=True,
    ),
    Ending(
        name="upstream cut, self-hosted",
        outcome=Outcome.UPSTREAM_CUT,
        caller=BROKE,
        booked=LAST_SEEN,
        source=UsageSource.DERIVED,
        known={"running": PART, "least_output_tokens": 1},
    ),
    Ending(
        name="upstream cut, external",
        outcome=Outcome.UPSTREAM_CUT,
        caller=BROKE,
        booked=OUR_COUNT,
        source=UsageSource.ESTIMATED,
        known={"counted": COUNTED, "least_output_tokens": 1},
    ),
    Ending(
        name="upstream cut before anything was seen",
        outcome=Outcome.UPSTREAM_CUT,
        caller=ERROR,
        booked=ITS_HOLD,
        source=UsageSource.UNKNOWN,
    ),
    Ending(
        name="error event in the stream, self-hosted",
        outcome=Outcome.UPSTREAM_ERROR,
        caller=BROKE,
        booked=LAST_SEEN,
        source=UsageSource.DERIVED,
        known={"running": PART},
    ),
    Ending(
        name="stall in the stream, self-hosted",
        outcome=Outcome.UPSTREAM_TIMEOUT,
        caller=BROKE,
        booked=LAST_SEEN,
        source=UsageSource.DERIVED,
        known={"running": PART},
    ),
    Ending(
        name="stall in the stream, external",
        outcome=Outcome.UPSTREAM_TIMEOUT,
        caller=BROKE,
        booked=OUR_COUNT,
        source=UsageSource.ESTIMATED,
        known={"counted": COUNTED},
    ),
    Ending(
        name="timeout before headers or the first token",
        outcome=Outcome.UPSTREAM_TIMEOUT,
        caller=ERROR,
        booked="Its hold: the upstream may have worked, and may bill.",
        source=UsageSource.UNKNOWN,
    ),
    Ending(
        name="error status",
        outcome=Outcome.UPSTREAM_ERROR,
        caller=ERROR,
        booked=NOTHING,
        source=UsageSource.NONE,
        known={"was_served": False},
    ),
    Ending(
        name="error status, usage in its body",
        outcome=Outcome.UPSTREAM_ERROR,
        caller=ERROR,
        booked=AS_REPORTED,
        source=UsageSource.PROVIDER,
        known={"final": WHOLE, "was_served": False},
    ),
    Ending(
        name="connection refused, name not found, TLS failure",
        outcome=Outcome.UPSTREAM_UNREACHABLE,
        caller=ERROR,
        booked=NOTHING,
        source=UsageSource.NONE,
        known={"was_served": False},
    ),
    Ending(
        name="retry or fallback, the attempt before",
        outcome=Outcome.UPSTREAM_ERROR,
        caller="The next attempt's answer.",
        booked="Its own row: zero for an error status.",
        source=UsageSource.NONE,
        known={"was_served": False},
    ),
    Ending(
        name="retry or fallback, the attempt that answered",
        outcome=Outcome.OK,
        caller="The whole answer.",
        booked="Its own row: the upstream's figure.",
        source=UsageSource.PROVIDER,
        known={"final": WHOLE},
    ),
    Ending(
        name="client gone before the first token, self-hosted",
        outcome=Outcome.CLIENT_GONE,
        caller=CALLER_LEFT,
        booked="Its hold: the upstream was closed at once.",
        source=UsageSource.UNKNOWN,
    ),
    Ending(
        name="client gone after the first token, self-hosted",
        outcome=Outcome.CLIENT_GONE,
        caller=CALLER_LEFT,
        booked=LAST_SEEN,
        source=UsageSource.DERIVED,
        known={"running": PART, "least_output_tokens": 1},
    ),
    Ending(
        name="client gone, plain request sent as a stream, self-hosted",
        outcome=Outcome.CLIENT_GONE,
        caller=CALLER_LEFT,
        booked=LAST_SEEN,
        source=UsageSource.DERIVED,
        known={"running": PART},
    ),
    Ending(
        name="client gone, plain request not sent as a stream, self-hosted",
        outcome=Outcome.CLIENT_GONE,
        caller=CALLER_LEFT,
        booked="The upstream's figure: it was read to its end.",
        source=UsageSource.PROVIDER,
        known={"final": WHOLE},
    ),
    Ending(
        name="client gone, external, drained",
        outcome=Outcome.CLIENT_GONE,
        caller=CALLER_LEFT,
        booked="The upstream's figure: it was read to its end.",
        source=UsageSource.PROVIDER,
        known={"final": WHOLE, "least_output_tokens": 1},
    ),
    Ending(
        name="client gone, external stream, drain given up",
        outcome=Outcome.CLIENT_GONE,
        caller=CALLER_LEFT,
        booked=OUR_COUNT,
        source=UsageSource.ESTIMATED,
        known={"counted": COUNTED, "least_output_tokens": 1},
    ),
    Ending(
        name="client gone, external stream, drain given up, input reported, output counted exactly",
        outcome=Outcome.CLIENT_GONE,
        caller=CALLER_LEFT,
        booked="The upstream's input and our count of its output.",
        source=UsageSource.DERIVED,
        keeps_reported=True,
        known={
            "running": TokenUsage(input_tokens=10),
            "counted": Counted(usage=TokenUsage(input_tokens=12, output_tokens=3), is_exact=True),
        },
    ),
    Ending(
        name="client gone, external plain request, drain given up",
        outcome=Outcome.CLIENT_GONE,
        caller=CALLER_LEFT,
        booked=ITS_HOLD,
        source=UsageSource.UNKNOWN,
    ),
    Ending(
        name="gateway stopped, self-hosted",
        outcome=Outcome.GATEWAY_STOPPED,
        caller=BROKE,
        booked=LAST_SEEN,
        source=UsageSource.DERIVED,
        known={"running": PART},
    ),
    Ending(
        name="gateway stopped, external",
        outcome=Outcome.GATEWAY_STOPPED,
        caller=BROKE,
        booked=OUR_COUNT,
        source=UsageSource.ESTIMATED,
        known={"counted": COUNTED},
    ),
    Ending(
        name="gateway killed, progress seen",
        outcome=Outcome.INTERRUPTED,
        caller="The beginning: the connection broke.",
        booked="The last running figure that was written down; never above the hold.",
        source=UsageSource.DERIVED,
        known={"running": PART},
    ),
    Ending(
        name="gateway killed, nothing seen",
        outcome=Outcome.INTERRUPTED,
        caller="Nothing: the connection broke.",
        booked=ITS_HOLD,
        source=UsageSource.UNKNOWN,
    ),
    Ending(
        name="gateway failed or refused before anything was sent",
        outcome=Outcome.GATEWAY_ERROR,
        caller="An error answer.",
        booked=NOTHING,
        source=UsageSource.NONE,
        known={"was_served": False},
    ),
    Ending(
        name="gateway failed after it had sent",
        outcome=Outcome.GATEWAY_ERROR,
        caller="An error answer.",
        booked=ITS_HOLD,
        source=UsageSource.UNKNOWN,
    ),
)
