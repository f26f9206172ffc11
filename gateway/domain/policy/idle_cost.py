"""Declares the rule by which teams bear a deployment's idle GPU cost, and the weights that it gives
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum


class IdleRule(StrEnum):
    """The way in which idle cost is spread. `show` spreads none: it stays without a team.

    `proportional` goes by each team's own charges of the day, `reserved` by stated shares, and
    `even` by the number of teams that may use the deployment.
    """

    SHOW = "show"
    PROPORTIONAL = "proportional"
    RESERVED = "reserved"
    EVEN = "even"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCost:
    """A deployment's rule, and each team's share of its idle cost under `reserved`: they add up to
    at most 1, and the rest stays without a team.
    """

    rule: IdleRule = IdleRule.SHOW
    shares: Mapping[str, Decimal] = field(default_factory=dict, hash=False)

    def weights(self, teams: Iterable[str]) -> dict[str, Decimal]:
        """Return the stated weight of each team; `teams` are those that may use the deployment."""
        if self.rule is IdleRule.RESERVED:
            return dict(self.shares)
        return dict.fromkeys(teams, Decimal(1)) if self.rule is IdleRule.EVEN else {}
