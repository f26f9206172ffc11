"""Declares `UsageEvent`, the immutable record of one attempt: its request, decision, usage and
charge, never its content; writes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from msgspec import Struct

from gateway.domain.budgets.budgets import Hold
from gateway.domain.ids import occurred_at
from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.tokens import TokenUsage, UsageSource

Key = tuple[UUID, int]  # request id and attempt: identifies one attempt everywhere


class Outcome(StrEnum):
    """An attempt's ending, from the caller's side."""

    OK = "ok"
    UPSTREAM_ERROR = "upstream_error"  # an error status or an error event
    UPSTREAM_CUT = "upstream_cut"  # the answer stopped before its end
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    CLIENT_GONE = "client_gone"
    GATEWAY_ERROR = "gateway_error"
    GATEWAY_STOPPED = "gateway_stopped"  # the drain's deadline ended a live answer
    # The gateway's process ended before the attempt did; found by recovery.
    INTERRUPTED = "interrupted"


class UsageEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One attempt.

    Keyed by (`request_id`, `attempt`); `occurred_at` is the millisecond inside the id.

    `cost_nusd` is the sum of `lines`, None if the usage is unknown; `held_nusd` then bounds it.
    `reported` is the upstream's usage, if another usage was charged. `ttft_s`, `tpot_s` and
    `max_gap_s`, the longest silence between two pieces of content, are None if they could not be
    measured (a plain answer). `queue_s` is its wait here for capacity, budget or a pause;
    `engine_queue_s` is its wait in the engine, by the engine's report. `degraded` is `spill` or
    `route:NAME` if its route's bounds sent it to another deployment than the objective's choice.
    `usage_detail` has the upstream's own figures beside tokens by name, numbers and short words.
    `holds` name the budgets that it is charged to, with the reserved amounts. `features` and
    `decision` have the inputs of a replay (max tokens, input bound, class, candidates, rules).
    """

    request_id: UUID
    attempt: int
    started_at: datetime
    team: str
    project: str | None
    cost_centre: str
    key_id: str
    end_user: str | None
    tags: Mapping[str, str]
    route: str
    deployment: str
    provider: str
    model: str
    region: str
    is_self_hosted: bool
    data_class: str
    policy_version: int
    operation: str
    outcome: Outcome
    http_status: int | None
    streamed: bool
    usage: TokenUsage
    usage_source: UsageSource
    price_id: str | None
    lines: tuple[Line, ...]
    cost_nusd: int | None
    held_nusd: int | None
    ttft_s: float | None
    tpot_s: float | None
    duration_s: float
    overhead_s: float | None
    finish_reason: str | None = None
    client_request_id: str | None = None
    upstream_request_id: str | None = None
    service_tier: str | None = None
    reported: TokenUsage | None = None
    is_stand_in_price: bool = False
    is_suspect: bool = False
    is_demo: bool = False
    holds: tuple[Hold, ...] = ()
    features: Mapping[str, Any] = {}
    decision: Mapping[str, Any] = {}
    queue_s: float | None = None
    max_gap_s: float | None = None
    engine_queue_s: float | None = None
    degraded: str | None = None
    usage_detail: Mapping[str, Any] = {}

    @property
    def key(self) -> Key:
        """Return the attempt's identity: its request id and its number."""
        return (self.request_id, self.attempt)

    @property
    def used_tokens(self) -> int | None:
        """Return input and output tokens; None if the usage is unknown."""
        if self.cost_nusd is None:
            return None
        return (self.usage.input_tokens or 0) + (self.usage.output_tokens or 0)

    @property
    def occurred_at(self) -> datetime:
        """Return when the request was received: equal for all its attempts."""
        return occurred_at(self.request_id)
