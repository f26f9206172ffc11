"""Reports errors between a team's block and the rest of the document, and between budgets."""

from __future__ import annotations

from gateway.domain.budgets.budgets import BudgetKind
from gateway.domain.words import shown, suggestion
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.policy.teams import TeamBlock, declared_budgets
from gateway.wire.policy_rules.references import check_references, check_unique, known_names
from gateway.wire.yaml_blocks.findings import Spot


def check_teams(document: PolicyDocument) -> None:
    """Report errors in the routes, class and tags that each team names, and in its projects and
    keys.
    """
    routes = known_names(document, "routes")
    for team in document.blocks_of("teams"):
        check_references(team, "routes", "route", routes)
        _check_class(team, document)
        _check_tags(team, document)
        check_unique(team, "projects", "project")
        check_unique(team, "keys", "key", field="key")


def _check_class(team: TeamBlock, document: PolicyDocument) -> None:
    """Report an error if a team's data class is not declared."""
    data_class, classes = team.of("data_class"), document.of("classes")
    if classes is not None and data_class is not None and data_class.label not in classes:
        team.error(
            "data_class",
            f"class '{data_class.label}' is not declared; add it under classes, with its regions",
        )


def _check_tags(team: TeamBlock, document: PolicyDocument) -> None:
    """Report an error for each data tag of a team that is not declared."""
    known = document.of("data_tags") or ()
    for spot, tag in team.items_of("data_tags") if document.is_readable("data_tags") else ():
        if tag not in known:
            spot.error(f"data tag '{tag}' is not declared under data_tags{suggestion(tag, known)}")


def check_budgets(document: PolicyDocument) -> None:
    """Report an error for two budgets with one identity: they would share one account, and one
    limit would have no effect.
    """
    first: dict[str, Spot] = {}
    for declared in declared_budgets(document):
        budget, identity = declared.block, declared.identity
        overdraft = budget.of("overdraft_usd")
        if budget.of("kind") is BudgetKind.SOFT and overdraft:
            budget.error(
                "overdraft_usd",
                "a soft budget refuses nothing, so there is nothing to overdraw; remove this "
                "field or write kind: hard",
            )
        if identity is None:
            continue
        field = "name" if budget.has("name") else "period"
        if identity in first:
            remedy = (
                "choose another name"
                if field == "name"
                else "remove one, or give one of them a 'name'"
            )
            budget.error(
                field,
                f"budget '{shown(identity)}' is there twice (first in "
                f"{first[identity].place}); {remedy}",
            )
        else:
            first[identity] = budget.spot_of(field)
