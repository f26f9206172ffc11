"""Declares the block of the dashboard's roles in a policy document."""

from __future__ import annotations

from typing import Annotated

from gateway.domain.policy.dashboard_roles import DashboardRoles
from gateway.wire.policy.scalars import Claim, ClaimValue, check_name
from gateway.wire.yaml_blocks.blocks import Block, Entries, Items, optional

Groups = Annotated[list[ClaimValue], Items(is_unique=True)]


class DashboardBlock(Block):
    """The roles of the people who sign in to the dashboard."""

    title = "dashboard block"
    makes = DashboardRoles
    claim: Claim = optional(
        "The claim of the identity provider that lists a person's groups: a list, or one text.",
        "roles",
        "groups",
    )
    finance: Groups | None = optional(
        "Values of the claim whose people see every team and close months.",
        "[finops]",
        shown="`[]`",
    )
    auditors: Groups | None = optional(
        "Values of the claim whose people see every team.", "[audit]", shown="`[]`"
    )
    teams: Annotated[dict[str, Groups], Entries(check_name)] | None = optional(
        "By team: values of the claim whose people see this team. A person may belong to several.",
        "{payments: [grp-payments]}",
        shown="`{}`",
    )
