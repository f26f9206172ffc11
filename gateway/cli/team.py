"""`tollgate team`: who may call what, read from the current policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.output import Format, FormatOption, Table, note, show, show_record
from gateway.domain.policy import Policy, Team
from gateway.domain.residency import denial
from gateway.services.policies import require_current, require_team

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox

app = typer.Typer(name="team", help="Teams of the current policy.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list", short_help="List the teams.", epilog="\b\nExample:\n  tollgate team list --format csv")
def list_teams(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """List the teams with their cost centre, data class, routes and number of live keys."""
    toolbox: Toolbox = ctx.obj
    with toolbox.open_stores() as stores:
        policy = require_current(stores.policies).policy
        keys = [record.team for record in stores.keys.live() if not _is_over(record.expires_at, toolbox)]
    rows = [
        (team.name, team.cost_centre, team.data_class.label, list(team.routes), keys.count(team.name))
        for team in policy.teams.values()
    ]
    show(
        Table(("team", "cost_centre", "data_class", "routes", "live_keys"), rows),
        format,
        empty="The policy has no team. Add one under 'teams' and run: tollgate policy apply FILE",
    )


@app.command(
    "show", short_help="Show one team and what it may call.", epilog="\b\nExample:\n  tollgate team show payments"
)
def show_team(
    ctx: typer.Context, team: Annotated[str, typer.Argument(metavar="TEAM")], format: FormatOption = Format.TABLE
) -> None:
    """Show one team: its routes and, for each, the deployments its data class allows."""
    toolbox: Toolbox = ctx.obj
    with toolbox.open_stores() as stores:
        version = require_current(stores.policies)
        found = require_team(version, team)
        keys = [r.key_id for r in stores.keys.live() if r.team == team and not _is_over(r.expires_at, toolbox)]
    record: dict[str, Any] = {
        "team": found.name,
        "cost_centre": found.cost_centre,
        "data_class": found.data_class.label,
        "policy_version": version.version,
        "live_keys": keys,
    }
    routes = _routes(version.policy, found)
    if format is Format.JSON:
        show_record(record | {"routes": routes}, format)
    elif format is Format.CSV:
        show(_routes_table(routes), format, empty="")
    else:
        show_record(record, format)
        note("")
        show(_routes_table(routes), format, empty="It may call no route.")


def _routes(policy: Policy, team: Team) -> list[dict[str, Any]]:
    rule = policy.classes[team.data_class]
    return [
        {
            "route": route.name,
            "aliases": list(route.aliases),
            "allowed": [n for n in route.deployments if not denial(rule, policy.deployments[n], policy.regions)],
            "denied": [n for n in route.deployments if denial(rule, policy.deployments[n], policy.regions)],
        }
        for route in (policy.routes[name] for name in team.routes)
    ]


def _routes_table(routes: list[dict[str, Any]]) -> Table:
    columns = ("route", "aliases", "allowed", "denied")
    return Table(columns, [tuple(route[column] for column in columns) for route in routes])


def _is_over(expires_at: Any, toolbox: Toolbox) -> bool:
    return expires_at is not None and expires_at <= toolbox.now()
