"""Adds notes on blocks of a valid document that change nothing; `domain.policy_notes` finds all
other notes.

A `Policy` does not hold such blocks, so they are found in the document.
"""

from __future__ import annotations

from gateway.domain.budgets.budgets import EACH
from gateway.domain.policy.policy import Policy
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.policy.teams import TeamBlock


def note_ineffective_blocks(document: PolicyDocument, policy: Policy) -> None:
    """Add a note for every block of a valid document that changes nothing."""
    blocks = [*document.blocks_of("deployments")]
    for team in document.blocks_of("teams"):
        _note_owners(team, policy.teams[team.name].declares_projects)
        blocks += [team, *team.blocks_of("projects"), *team.blocks_of("keys")]
    for block in blocks:
        if block.limits is not None and block.limits.is_empty:
            block.spot_of("limits").note(
                "limits nothing; write for example {requests_per_minute: 600}, or remove it"
            )


def _note_owners(team: TeamBlock, declares_projects: bool) -> None:
    """Add a note for each project or key of a team that has neither budgets nor limits."""
    for listed in ("projects", "keys"):
        for owner in team.blocks_of(listed):
            if listed == "projects" and declares_projects and owner.name != EACH:
                continue  # a request may name it
            if not owner.budgets and owner.limits is None:
                owner.spot.note("has neither budgets nor limits, so it changes nothing")
