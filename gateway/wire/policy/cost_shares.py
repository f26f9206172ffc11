"""Declares the block of one cost centre's share of a team's cost."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from gateway.domain.policy.cost_centres import CostCentreShare
from gateway.wire.policy.scalars import WORDS, Words
from gateway.wire.yaml_blocks.blocks import Block, Items, OrScalar, optional, required
from gateway.wire.yaml_blocks.scalars import Day, decimal

_SHARE = decimal("a share of the cost", above="0", most="1")


class CostShareBlock(Block):
    """A cost centre's share of a team's cost, from a day on."""

    title = "share of a cost centre"
    makes = CostCentreShare
    name: Words = required("The cost centre.", "CC-1207")
    share: Annotated[Decimal, _SHARE] = optional(
        "Its share of the team's cost; those of one date add up to 1.", "0.7", Decimal(1)
    )
    start: Day | None = optional(
        "The UTC day from which the shares of this date count, in place of the earlier ones.",
        "2026-12-01",
        shown="every day before the first date",
        alias="from",
    )


# One cost centre, or several with shares and dates.
CostCentres = Annotated[list[CostShareBlock], Items(), OrScalar(WORDS)]
