"""Declares the block of rate and concurrency limits in a policy document, and converts it to
`Limits` and back.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from gateway.domain.budgets.limits import Limits
from gateway.wire.policy.scalars import IsShadow
from gateway.wire.yaml_blocks.blocks import Block, optional
from gateway.wire.yaml_blocks.scalars import integer

PerMinute = Annotated[int, integer(1, 1_000_000_000)]


class LimitsBlock(Block):
    """The limits of a team, project, key or deployment."""

    title = "limits block"
    makes = Limits
    requests_per_minute: PerMinute | None = optional(
        "Requests in any 60 seconds.", "600", shown="no limit"
    )
    tokens_per_minute: PerMinute | None = optional(
        "Tokens of prompts and answers in any 60 seconds.", "200000", shown="no limit"
    )
    concurrent: Annotated[int, integer(1, 1_000_000)] | None = optional(
        "Requests at the same time.", "50", shown="no limit"
    )
    is_shadow: IsShadow = optional(
        "`shadow` refuses nothing: its refusals are only counted and shown.",
        "shadow",
        False,
        shown="`enforced`",
        alias="mode",
    )

    @classmethod
    def of_value(cls, value: Any, **others: Any) -> Self:
        """Return the block of some limits; the default mode is left out."""
        return super().of_value(value, is_shadow=value.is_shadow or None, **others)

    @classmethod
    def of_limits(cls, limits: Limits) -> Self | None:
        """Return the block of some limits, None if nothing is limited."""
        return cls.of_value(limits) if limits.is_limited else None
