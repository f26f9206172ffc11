"""The `tollgate` command: its tour, its commands, and the reporting of errors.

Exit codes: 0 success, 1 a finding, 2 bad usage, 3 could not find out (database, network, internal
error).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

from gateway import __version__
from gateway.cli import (
    budget,
    dashboard,
    database,
    journal,
    key,
    month,
    reconcile,
    report,
    serve,
    team,
)
from gateway.cli.audit import commands as audit
from gateway.cli.checks import doctor
from gateway.cli.policy import commands as policy
from gateway.cli.price import commands as price
from gateway.cli.terminal.heartbeat import heartbeat
from gateway.cli.up import demo
from gateway.errors import (
    BadUsage,
    DatabaseUnavailable,
    OperatorError,
    PolicyRejected,
    RequestError,
    TollgateError,
)

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox

SUCCESS, FINDING, BAD_USAGE, UNKNOWN = 0, 1, 2, 3
INTERRUPTED = 130
EXIT_CODES: dict[type[TollgateError], int] = {
    BadUsage: BAD_USAGE,
    DatabaseUnavailable: UNKNOWN,
    OperatorError: FINDING,
    RequestError: FINDING,
}

TOUR = """Tollgate: an OpenAI-compatible inference gateway whose meter finance can close the books on.

\b
Start on one machine:
  tollgate up                                everything: database, policy, gateway, dashboard
\b
Start with your own Postgres:
  export TOLLGATE_DATABASE_URL=postgresql://user:password@host/tollgate
  tollgate db upgrade                        create or update the tables and the key secret
  tollgate policy apply policy.yaml          who may use what, where, at which price
  tollgate key create TEAM                   an API key; apps send it as their OpenAI key
  tollgate serve                             the gateway
\b
Ask:
  tollgate report spend --by team,model      what did it cost?
  tollgate budget list                       what is left, and until when?
  tollgate policy explain --team T --route R where would a request go, and why?
  tollgate audit list                        who changed what, and why?
  tollgate doctor                            what is wrong here, and how to fix it
"""  # noqa: E501


class ErrorBoundary(TyperGroup):
    """Turns errors into a message with the next step, and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; report its error."""
        try:
            return super().invoke(ctx)
        except (typer.TyperException, typer.Exit, typer.Abort, EOFError):
            raise  # Typer's own: usage errors, exits, a declined prompt
        except BrokenPipeError:
            # The reader (head, less) has closed the pipe. The interpreter's last flush must not
            # fail either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(SUCCESS) from None
        except Exception as error:
            raise typer.Exit(_report(error)) from None


class LazyToolbox:
    """Makes the toolbox at its first use, so that help and version are fast and work with broken
    settings.
    """

    def __init__(self, factory: Callable[[], Toolbox]) -> None:
        self._factory = factory
        self._made: Toolbox | None = None

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            self._made = self._factory()
        return getattr(self._made, name)


def run_cli(factory: Callable[[], Toolbox], arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    app = build_app(cast("Toolbox", LazyToolbox(factory)))
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with heartbeat(given):
            app(args=given, prog_name="tollgate")
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else SUCCESS
    return SUCCESS


def build_app(toolbox: Toolbox) -> typer.Typer:
    """Build the command line over the composition root's parts."""
    app = typer.Typer(
        name="tollgate",
        cls=ErrorBoundary,
        help=TOUR,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # plain help reads the same in a terminal, a file and a pager
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def root(
        ctx: typer.Context,
        version: Annotated[
            bool,
            typer.Option(
                "--version", help="Print the version.", is_eager=True, callback=_print_version
            ),
        ] = False,
    ) -> None:
        ctx.obj = toolbox

    if find_spec("gateway.cli.up.commands"):
        from gateway.cli.up import commands as up

        up.register(app, toolbox)
    for commands in (serve, dashboard):
        commands.register(app)
    for group in (
        database,
        policy,
        team,
        key,
        budget,
        price,
        report,
        month,
        reconcile,
        journal,
        audit,
    ):
        app.add_typer(group.app)
    for commands in (doctor, demo):
        commands.register(app)
    return app


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"tollgate {__version__}")
        raise typer.Exit


def _report(error: Exception) -> int:
    """Print an error for the person at the terminal; return the exit code."""
    if os.environ.get("TOLLGATE_DEBUG") == "1":
        traceback.print_exception(error)
    if isinstance(error, PolicyRejected):
        for finding in error.findings:
            typer.echo(str(finding), err=True)
    if isinstance(error, TollgateError):
        typer.echo(error.message, err=True)
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    typer.echo(
        f"Tollgate failed in a way it should not ({type(error).__name__}: {error}). "
        f"TOLLGATE_DEBUG=1 shows the traceback; please report it.",
        err=True,
    )
    return UNKNOWN
