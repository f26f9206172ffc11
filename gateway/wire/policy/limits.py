"""Rate and concurrency limits, as a block of a policy document."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from gateway.domain.budgets.limits import Limits
from gateway.wire.policy.blocks import Block, optional
from gateway.wire.policy.scalars import Mode, integer

PerMinute = Annotated[int, integer(1, 1_000_000_000)]


class LimitsBlock(Block):
    """The limits of a team, project, key or deployment."""

    title: ClassVar[str] = "limits block"
    requests_per_minute: PerMinute | None = optional(
        "Requests in any 60 seconds.", "600", shown="no limit"
    )
    tokens_per_minute: PerMinute | None = optional(
        "Tokens of prompts and answers in any 60 seconds.", "200000", shown="no limit"
    )
    concurrent: Annotated[int, integer(1, 1_000_000)] | None = optional(
        "Requests at the same time.", "50", shown="no limit"
    )
    mode: Mode = optional(
        "`shadow` refuses nothing: its refusals are only counted and shown.", "shadow", "enforced"
    )

    @staticmethod
    def limits_of(block: LimitsBlock | None) -> Limits:
        """Return the limits of a block, or empty limits."""
        if block is None:
            return Limits()
        return Limits(
            requests_per_minute=block.requests_per_minute,
            tokens_per_minute=block.tokens_per_minute,
            concurrent=block.concurrent,
            is_shadow=block.mode == "shadow",
        )

    @classmethod
    def of_limits(cls, limits: Limits) -> Self:
        """Return the block of some limits."""
        return cls.of_value(limits, mode="shadow" if limits.is_shadow else None)
