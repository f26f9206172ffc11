"""Declares the block of the rule by which teams bear a deployment's idle cost."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from gateway.domain.policy.idle_cost import IdleCost, IdleRule
from gateway.wire.policy.scalars import check_name
from gateway.wire.yaml_blocks.blocks import Block, Entries, optional
from gateway.wire.yaml_blocks.scalars import decimal, member_of

_SHARE = decimal("a share of the idle cost", above="0", most="1")


class IdleCostBlock(Block):
    """The rule by which teams bear a deployment's idle cost."""

    title = "idle_cost block"
    makes = IdleCost
    rule: Annotated[IdleRule, member_of(IdleRule)] = optional(
        "`show` leaves it without a team; `proportional` spreads each day's over the teams by "
        "their charges on it, `reserved` by `shares`, `even` equally over the teams whose routes "
        "have the deployment.",
        "proportional",
        IdleRule.SHOW,
        shown="`show`",
    )
    shares: Annotated[dict[str, Annotated[Decimal, _SHARE]], Entries(check_name)] | None = optional(
        "Each team's share; only with `rule: reserved`. They add up to at most 1, and the rest "
        "stays without a team.",
        "{payments: 0.6, search: 0.4}",
        shown="none; required for `reserved`",
    )
