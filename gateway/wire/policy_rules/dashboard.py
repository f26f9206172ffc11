"""Reports errors between the dashboard's roles and the rest of a policy document."""

from __future__ import annotations

from gateway.domain.words import suggestion
from gateway.wire.policy.dashboard import DashboardBlock
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.policy_rules.references import known_names


def check_dashboard(document: PolicyDocument) -> None:
    """Report an error for a block that gives no role, and for each role of an unknown team."""
    block = document.of("dashboard")
    if not isinstance(block, DashboardBlock):
        return
    if not (block.has("finance") or block.has("auditors") or block.has("teams")):
        document.error(
            "dashboard", "gives no role; write for example 'finance: [finops]', or remove it"
        )
    known = known_names(document, "teams")
    for name, (spot, _) in block.entries_of("teams").items():
        if known is not None and name not in known:
            spot.error(f"there is no team '{name}'{suggestion(name, known)}")
