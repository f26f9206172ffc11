"""`tollgate serve`: the gateway alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "serve",
        short_help="Run the gateway.",
        epilog="\b\nExamples:\n  tollgate serve\n  TOLLGATE_HOST=0.0.0.0 TOLLGATE_PORT=80 tollgate serve",
    )(serve)


def serve(
    ctx: typer.Context,
    allow_demo_keys: Annotated[
        bool, typer.Option("--allow-demo-keys", help="Accept the key that `tollgate up` made; never in production.")
    ] = False,
) -> None:
    """Run the gateway until it is told to stop (SIGTERM or Ctrl-C); live requests are finished first.

    It needs tables (`tollgate db upgrade`) and a policy (`tollgate policy apply FILE`). A policy or key that
    changes later is picked up within seconds, without a restart.
    """
    toolbox: Toolbox = ctx.obj
    toolbox.serve(allow_demo_keys)
