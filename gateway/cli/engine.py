"""Runs `tollgate engine …`: replaces this process by `python -m engine …` in the same interpreter.

The gateway imports nothing of the engine. A replaced process passes on arguments, signals and exit
code by itself.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperCommand

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
    "  tollgate engine serve --profile cpu --model /models/mine --dry-run",
    cls=UnparsedCommand,
    add_help_option=False,  # its own help lists the commands
)
def engine(ctx: typer.Context) -> None:
    """Run self-hosted inference: `python -m engine …` with the same arguments and exit code.

    `tollgate engine --help` lists its commands.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(sys.executable, [sys.executable, "-m", "engine", *ctx.args])  # noqa: S606
