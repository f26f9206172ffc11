"""Runs `tollgate policy readmit`: ends the ejection of a deployment, with a reason for the audit
log, so that gateways use it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.operator import TakesYesOption, operator_name
from gateway.cli.terminal.output import note
from gateway.errors import NothingFound
from gateway.storage.deployments.ejections import EjectionStore

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox


def readmit(
    ctx: typer.Context,
    deployment: Annotated[str, typer.Argument(metavar="DEPLOYMENT")],
    reason: Annotated[
        str,
        typer.Option("--reason", "-m", help="The result of the investigation, for the audit log."),
    ],
    yes: TakesYesOption = False,
) -> None:
    """Use an ejected deployment again, whose upstream reported another place than the policy
    promises.

    Find out first where it runs: correct its region or its residency in the policy, or have its
    provider fix it.
    """

    toolbox: Toolbox = ctx.obj
    with toolbox.open_admin() as database:
        ejections = EjectionStore(database)
        if not ejections.readmit(deployment, by=operator_name(), reason=reason):
            others = (
                ", ".join(
                    f"{one.deployment} (reported {one.stated})" for one in ejections.current()
                )
                or "none"
            )
            raise NothingFound(
                f"Deployment '{deployment}' is not out of use. Out of use: {others}."
            )
    note(f"{deployment} takes requests again within seconds.")
