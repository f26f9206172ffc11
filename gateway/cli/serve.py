"""Declares `tollgate serve`, which runs the gateway alone, without dashboard or engine; the
toolbox's `serve` does the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.toolbox import ServeOptions

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    "serve",
    short_help="Run the gateway.",
    epilog="\b\nExamples:\n  tollgate serve\n  tollgate serve --host 0.0.0.0 --port 80",
)
def serve(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; wins over TOLLGATE_HOST.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port; wins over TOLLGATE_PORT.")
    ] = None,
    allow_demo_keys: Annotated[
        bool,
        typer.Option(
            "--allow-demo-keys", help="Accept the key that `tollgate up` made; never in production."
        ),
    ] = False,
) -> None:
    """Run the gateway until it is asked to stop (SIGTERM or Ctrl-C); live requests are finished
    first.

    It needs tables (`tollgate db upgrade`) and a policy (`tollgate policy apply FILE`). Later
    changes of policy or keys apply within seconds, without a restart.
    """
    toolbox: Toolbox = ctx.obj
    toolbox.serve(ServeOptions(host=host, port=port, allow_demo_keys=allow_demo_keys))
