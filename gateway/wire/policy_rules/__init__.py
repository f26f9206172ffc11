"""Reports errors between the fields of a policy document, on the fields that could be read, so that
an author sees all errors at once.
"""

from __future__ import annotations

from gateway.wire.policy.document import PolicyDocument
from gateway.wire.policy_rules.alerts import check_alerts
from gateway.wire.policy_rules.dashboard import check_dashboard
from gateway.wire.policy_rules.deployments import check_deployment, check_groups, check_idle_cost
from gateway.wire.policy_rules.ineffective import note_ineffective_blocks
from gateway.wire.policy_rules.references import check_unique, known_names
from gateway.wire.policy_rules.regions import check_deployment_places, check_regions, check_rules
from gateway.wire.policy_rules.routes import check_aliases, check_routes
from gateway.wire.policy_rules.teams import check_budgets, check_teams

__all__ = ["check", "note_ineffective_blocks"]


def check(document: PolicyDocument) -> None:
    """Report every error between the readable fields of a policy document."""
    # If the regions are unreadable, the wrong names cannot be determined.
    regions = check_regions(document) if document.is_readable("regions") else None
    if regions is not None:
        check_rules(document, regions)
    teams = known_names(document, "teams")
    for deployment in document.blocks_of("deployments"):
        check_deployment(deployment)
        check_idle_cost(deployment, teams)
        if regions is not None:
            check_deployment_places(deployment, regions)
    check_groups(document)
    for kind in ("deployment", "route", "team", "cost centre"):
        check_unique(document, f"{kind}s".replace(" ", "_"), kind)
    check_aliases(document)
    check_routes(document)
    check_teams(document)
    check_budgets(document)
    check_alerts(document)
    check_dashboard(document)
