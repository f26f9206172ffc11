"""Runs `tollgate engine …`: the commands in `OWN_COMMANDS` here, for any other one replaces this
process by `python -m engine …` in the same interpreter.

The gateway imports nothing of the engine, and the engine knows no policy and no database. A
replaced process passes on arguments, signals and exit code by itself.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand

OWN_COMMANDS = {  # those that need the policy or Postgres, by module
    "bill": "gateway.cli.selfhosted.engine_bill",
    "status": "gateway.cli.selfhosted.engine_status",
    "calibrate": "gateway.cli.selfhosted.calibrate",
}

HELP = """\
Commands of the gateway, which read the policy or Postgres (each has its own --help):

  tollgate engine status       the engines of the policy at work: ready, queue, memory, latencies
  tollgate engine calibrate    measure a deployment's tokens, and price requests by the result
  tollgate engine bill import  import an invoice of your own GPUs

All others are those of the engine's own package, also called by python -m engine:

"""

CALLED_AS = "TOLLGATE_CALLED_AS"
"""As in engine/arguments/called.py: by it the messages of the engine have this command's name."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class UnparsedCommand(TyperCommand):
    """A command whose arguments are left as they are, `--help` and `--` included."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments, and parse none."""
        rest = super().parse_args(ctx, [])
        ctx.args = list(args)
        return rest


@app.command(
    "engine",
    short_help="Run self-hosted inference: python -m engine.",
    epilog="\b\nExamples:\n  tollgate engine --help\n"
    "  tollgate engine serve --profile cpu --model /models/mine --dry-run\n"
    "  tollgate engine status\n"
    "  tollgate engine calibrate qwen-eu\n"
    "  tollgate engine bill import november.csv",
    cls=UnparsedCommand,
    add_help_option=False,  # its own help lists the commands
)
def engine(ctx: typer.Context) -> None:
    """Run self-hosted inference: `python -m engine …` with the same arguments and exit code.

    `tollgate engine --help` lists its commands. Three are the gateway's own: `status` and
    `calibrate` ask the engines of the current policy, `bill import` writes to Postgres.
    """
    own = OWN_COMMANDS.get(ctx.args[0]) if ctx.args else None
    if own is not None:
        command = typer.main.get_command(import_module(own).app)
        with command.make_context(ctx.args[0], ctx.args[1:], parent=ctx) as context:
            command.invoke(context)
        return
    if ctx.args[:1] in (["--help"], ["-h"]):
        sys.stdout.write(HELP)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.environ[CALLED_AS] = "tollgate engine"
    os.execv(sys.executable, [sys.executable, "-P", "-m", "engine", *ctx.args])  # noqa: S606
