"""Reports errors between a team's block and the rest of the document, and between budgets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal

from gateway.domain.budgets.budgets import BudgetKind
from gateway.domain.words import shown, suggestion
from gateway.wire.policy.cost_shares import CostShareBlock
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.policy.teams import TeamBlock, declared_budgets
from gateway.wire.policy_rules.references import check_references, check_unique, known_names
from gateway.wire.yaml_blocks.blocks import INVALID
from gateway.wire.yaml_blocks.findings import Spot


def check_teams(document: PolicyDocument) -> None:
    """Report errors in the routes, class and tags that each team names, and in its projects and
    keys.
    """
    routes = known_names(document, "routes")
    for team in document.blocks_of("teams"):
        check_references(team, "routes", "route", routes)
        _check_cost_centres(team)
        _check_class(team, document)
        _check_tags(team, document)
        check_unique(team, "projects", "project")
        check_unique(team, "keys", "key", field="key")


def _check_cost_centres(team: TeamBlock) -> None:
    """Report an error if the shares of a team's cost centres from one day on do not add up to 1, or
    name one twice.
    """
    listed = team.of("cost_centre")
    if not isinstance(listed, list):
        return
    if not listed:
        team.error("cost_centre", "must list at least one cost centre")
    of_start: dict[date | None, list[CostShareBlock]] = {}
    for block in team.blocks_of("cost_centre"):
        if block.is_readable("from"):
            of_start.setdefault(block.of("from"), []).append(block)
    for start, blocks in of_start.items():
        _check_same_centre(blocks, start)
        total = sum((block.of("share") or 0 for block in blocks), Decimal())
        is_readable = INVALID not in listed and all(one.is_readable("share") for one in blocks)
        if is_readable and total != 1:
            blocks[-1].error(
                "share", f"the shares {_since(start)} add up to {total:f}; they must add up to 1"
            )


def _check_same_centre(blocks: Sequence[CostShareBlock], start: date | None) -> None:
    """Report an error for each cost centre that has two shares from one day on."""
    first: dict[str, Spot] = {}
    for block in blocks:
        name = block.of("name")
        if name in first:
            block.error(
                "name",
                f"cost centre '{shown(name)}' has two shares {_since(start)} (first in "
                f"{first[name].place}); write their sum once",
            )
        elif name is not None:
            first[name] = block.spot_of("name")


def _since(start: date | None) -> str:
    """Return the first day of some shares for a message."""
    return "without a date" if start is None else f"from {start}"


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
