"""Declares `tollgate team list` and `show`, which print the teams of the current policy with
routes, budgets, limits and live keys; it changes nothing.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.terminal.output import Format, FormatOption, Table, note, show, show_record
from gateway.domain.money import plain_usd
from gateway.domain.policy.policy import Policy, Team
from gateway.domain.residency.rules import denials, rules_for
from gateway.services.policy.apply import require_current, require_team
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.domain.policy.api_keys import KeyRecord
    from gateway.domain.policy.policy import PolicyVersion

ROUTE_COLUMNS = ("route", "aliases", "allowed", "denied")
BUDGET_COLUMNS = (
    "budget",
    "scope",
    "owner",
    "period",
    "limit_usd",
    "kind",
    "alert_at",
    "overdraft_usd",
    "time_zone",
)
LIMIT_COLUMNS = ("scope", "owner", "requests_per_minute", "tokens_per_minute", "concurrent", "mode")

app = typer.Typer(
    name="team", help="Teams of the current policy.", no_args_is_help=True, rich_markup_mode=None
)


@app.command(
    "list", short_help="List the teams.", epilog="\b\nExample:\n  tollgate team list --format csv"
)
def list_teams(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """List the teams with their cost centre, data class, routes and number of live keys."""
    toolbox: Toolbox = ctx.obj
    version, usable = _policy_and_usable_keys(toolbox)
    policy, keys = version.policy, [record.team for record in usable]
    today = toolbox.now().date()
    rows = [
        (
            team.name,
            team.cost_centre_on(today),
            team.data_class.label,
            list(team.routes),
            keys.count(team.name),
        )
        for team in policy.teams.values()
    ]
    show(
        Table(("team", "cost_centre", "data_class", "routes", "live_keys"), rows),
        format,
        empty="The policy has no team. Add one under 'teams' and run: tollgate policy apply FILE",
    )


@app.command(
    "show",
    short_help="Show one team and its permissions.",
    epilog="\b\nExample:\n  tollgate team show payments",
)
def show_team(
    ctx: typer.Context,
    team: Annotated[str, typer.Argument(metavar="TEAM")],
    format: FormatOption = Format.TABLE,
) -> None:
    """Show one team: its budgets and limits, its routes and, for each, the deployments its
    residency rules allow.

    CSV has only the routes.
    """
    toolbox: Toolbox = ctx.obj
    version, usable = _policy_and_usable_keys(toolbox)
    found = require_team(version, team)
    keys = [record.key_id for record in usable if record.team == team]
    today = toolbox.now().date()
    record: dict[str, Any] = {
        "team": found.name,
        "cost_centre": found.cost_centre_on(today),
        **_dated_shares(found),
        "data_class": found.data_class.label,
        "data_tags": sorted(found.data_tags),
        "time_zone": found.time_zone,
        "policy_version": version.version,
        "live_keys": keys,
    }
    routes = _routes(version.policy, found, toolbox)
    budgets, limits = _budgets(version.policy, found, today), _limits(found)
    if format is Format.JSON:
        show_record(record | {"routes": routes, "budgets": budgets, "limits": limits}, format)
    elif format is Format.CSV:
        show(_table(ROUTE_COLUMNS, routes), format, empty="")
    else:
        show_record(record, format)
        note("")
        show(_table(ROUTE_COLUMNS, routes), format, empty="It may call no route.")
        note("")
        show(_table(BUDGET_COLUMNS, budgets), format, empty="It has no budget.")
        note("")
        show(_table(LIMIT_COLUMNS, limits), format, empty="It has no limit.")


def _routes(policy: Policy, team: Team, toolbox: Toolbox) -> list[dict[str, Any]]:
    """Return the team's routes, each with the deployments that residency rules allow and deny."""
    rules = rules_for(policy, team, data_class=team.data_class)

    def is_allowed(name: str) -> bool:
        found = denials(
            rules,
            policy.deployments[name],
            regions=policy.region_tree,
            gateway_region=toolbox.options.region,
            day=toolbox.now().date(),
            valid_days=policy.facts_valid_days,
        )
        return all(denial.is_shadow for denial in found)

    return [
        {
            "route": route.name,
            "aliases": list(route.aliases),
            "allowed": [name for name in route.deployments if is_allowed(name)],
            "denied": [name for name in route.deployments if not is_allowed(name)],
        }
        for route in (policy.routes[name] for name in team.routes)
    ]


def _dated_shares(team: Team) -> dict[str, list[str]]:
    """Return the shares and dates of a team's cost centres; empty if it has one for all days."""
    if isinstance(team.cost_centre, str):
        return {}
    texts = [
        f"{one.name} {one.share:f}" + (f" from {one.start}" if one.start else "")
        for one in team.cost_centre
    ]
    return {"cost_centre_shares": texts}


def _budgets(policy: Policy, team: Team, today: date) -> list[dict[str, Any]]:
    """Return the team's budgets, its projects' and keys' budgets, and those shared within today's
    cost centre.
    """
    centre = policy.cost_centres.get(team.cost_centre_on(today))
    return [
        {
            "budget": rule.rule_id,
            "scope": rule.scope.value,
            "owner": rule.owner,
            "period": rule.period.value,
            "limit_usd": Decimal(plain_usd(rule.limit_nusd)),
            "kind": rule.kind.value,
            "alert_at": list(rule.alert_at),
            "overdraft_usd": Decimal(plain_usd(rule.overdraft_nusd)),
            "time_zone": rule.time_zone,
        }
        for rule in (*team.budgets, *(centre.budgets if centre is not None else ()))
    ]


def _limits(team: Team) -> list[dict[str, Any]]:
    """Return a team's limits, and those of its projects and keys, as records."""
    owned = [
        ("team", team.name, team.limits),
        *(("project", name, limits) for name, limits in team.project_limits.items()),
        *(("key", key_id, limits) for key_id, limits in team.key_limits.items()),
    ]
    return [
        {
            "scope": scope,
            "owner": owner,
            "requests_per_minute": limits.requests_per_minute,
            "tokens_per_minute": limits.tokens_per_minute,
            "concurrent": limits.concurrent,
            "mode": "shadow" if limits.is_shadow else "enforced",
        }
        for scope, owner, limits in owned
        if limits.is_limited or scope != "team"
    ]


def _table(columns: tuple[str, ...], records: list[dict[str, Any]]) -> Table:
    """Return records as a table with these columns."""
    return Table(columns, [tuple(record[column] for column in columns) for record in records])


def _policy_and_usable_keys(toolbox: Toolbox) -> tuple[PolicyVersion, list[KeyRecord]]:
    """Return the policy in force, and the keys that are neither paused nor expired."""

    with toolbox.open_admin() as database:
        version = require_current(PolicyStore(database))
        live = KeyStore(database).live()
    now = toolbox.now()
    usable = [
        key
        for key in live
        if not key.is_paused and (key.expires_at is None or key.expires_at > now)
    ]
    return version, usable
