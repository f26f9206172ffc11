"""Runs the `tollgate` command line: imports only the requested command, and turns its error into a
message on standard error and an exit code.

Exit codes: 0 success, 1 a finding, 2 bad usage, 3 could not find out (database, network, internal
error), 130 Ctrl-C, 128 and its number after another signal.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
import typer.main
from typer.core import TyperGroup

from gateway import __version__
from gateway.cli.terminal.heartbeat import heartbeat
from gateway.cli.terminal.stop_signals import SIGNALLED, stop_signals
from gateway.errors import (
    BadUsage,
    DatabaseUnavailable,
    OperatorError,
    PolicyRejected,
    RequestError,
    TollgateError,
    UnsuitableDatabase,
)

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox

SUCCESS, FINDING, BAD_USAGE, UNKNOWN = 0, 1, 2, 3
INTERRUPTED = 130
# A write fails with one of these if its disk is full or broken, or a quota or a limit is used up.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
# A file or folder of the home fails with one of these: another user's, or mounted read-only.
NO_RIGHT = {
    errno.EROFS: "Mount its file system for writing, or set TOLLGATE_HOME to another folder.",
    errno.EACCES: "Run it as the user who owns it, or give this user the right.",
    errno.EPERM: "Run it as the user who owns it, or give this user the right.",
}
EXIT_CODES: dict[type[TollgateError], int] = {
    BadUsage: BAD_USAGE,
    UnsuitableDatabase: BAD_USAGE,
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
  tollgate policy init                       a first policy.yaml, to be edited
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


@dataclass(frozen=True, slots=True)
class Command:
    """A lazily imported command or group of commands: `module` has its `app`."""

    module: str
    summary: str
    is_group: bool = True

    def load(self) -> Any:
        """Import the module of this command and return the command."""
        make = typer.main.get_group if self.is_group else typer.main.get_command
        return make(import_module(self.module).app)


# In the order of the help.
COMMANDS = {
    "up": Command("gateway.cli.up.commands", "Start everything on this machine.", is_group=False),
    "serve": Command("gateway.cli.serve", "Run the gateway.", is_group=False),
    "dashboard": Command(
        "gateway.cli.dashboard", "Show finance's reports in the browser.", is_group=False
    ),
    "engine": Command(
        "gateway.cli.engine", "Run self-hosted inference: python -m engine.", is_group=False
    ),
    "doctor": Command(
        "gateway.cli.checks.doctor",
        "Find problems on this machine and their remedies.",
        is_group=False,
    ),
    "demo-data": Command(
        "gateway.cli.up.demo", "Write generated usage to look at.", is_group=False
    ),
    "db": Command("gateway.cli.database", "Create, update and check the database."),
    "policy": Command(
        "gateway.cli.policy.commands",
        "The policy: teams, routes, deployments, rules and prices.",
    ),
    "team": Command("gateway.cli.team", "Teams of the current policy."),
    "key": Command("gateway.cli.key", "Create, rotate, pause, revoke and list API keys."),
    "budget": Command("gateway.cli.budget", "See budgets, and grant more."),
    "price": Command("gateway.cli.price.commands", "Prices: past, present and future."),
    "report": Command("gateway.cli.report", "Answer one finance question: tollgate report NAME."),
    "export": Command(
        "gateway.cli.exports.commands", "Write the ledger as files for other programs."
    ),
    "month": Command("gateway.cli.month", "Look at a month's books, close and reopen them."),
    "reconcile": Command("gateway.cli.reconcile", "Bring the ledger and the invoices together."),
    "currency": Command(
        "gateway.cli.allocation.currency", "Rates at which reports show money in another currency."
    ),
    "reallocation": Command(
        "gateway.cli.allocation.reallocation", "Move cost between cost centres."
    ),
    "journal": Command("gateway.cli.journal", "The gateways' journals."),
    "audit": Command("gateway.cli.audit.commands", "The audit log: read it, and check it."),
}


class LazyCommands(Mapping[str, Any]):
    """The commands by name; each is imported when it is looked up."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        """Keep the commands by name, without importing any."""
        self._commands = commands

    def __getitem__(self, name: str) -> Any:
        """Return a command by name, after importing its module."""
        return self._commands[name].load()

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all commands, without importing them."""
        return iter(self._commands)

    def __len__(self) -> int:
        """Return the number of commands."""
        return len(self._commands)

    def __contains__(self, name: object) -> bool:
        """Return True if there is a command of this name, without importing it."""
        return name in self._commands

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command by name. An error of its import is raised: it is no unknown name."""
        command = self._commands.get(name)
        return default if command is None else command.load()


class Root(TyperGroup):
    """The `tollgate` command. It imports only the command that runs, and reports its errors.

    Errors become a message with the next step, and an exit code.
    """

    def __init__(self, **attributes: Any) -> None:
        """Make Typer's group of commands, with commands that are imported when they run."""
        super().__init__(**attributes)
        self.commands = cast("MutableMapping[str, Any]", LazyCommands(COMMANDS))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands for the help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; report its error as a message and an exit code."""
        try:
            return super().invoke(ctx)
        except typer.Abort as ended:
            if isinstance(ended.__context__, KeyboardInterrupt):  # Ctrl-C at a question
                typer.echo(err=True)
                raise typer.Exit(INTERRUPTED) from None
            raise
        except typer.TyperException as wrong:
            wrong.message = wrong.message.removeprefix("Value error, ")  # pydantic's word
            _show_filter(wrong)
            raise
        except (typer.Exit, EOFError):
            raise  # Typer's own
        except BrokenPipeError:
            _drop_output()  # the reader (head, less) has closed the pipe
            raise typer.Exit(SUCCESS) from None
        except Exception as error:
            raise typer.Exit(_print_error(error)) from None


class LazyToolbox:
    """Makes the toolbox at its first use, so that help and version are fast and work with broken
    settings.
    """

    def __init__(self, factory: Callable[[], Toolbox]) -> None:
        """Keep the factory; the settings are read at the first use of an attribute."""
        self._factory = factory
        self._made: Toolbox | None = None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the toolbox, which is made at the first call."""
        if self._made is None:
            self._made = self._factory()
        return getattr(self._made, name)


def run_cli(factory: Callable[[], Toolbox], arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    app = build_app(cast("Toolbox", LazyToolbox(factory)))
    given = sys.argv[1:] if arguments is None else list(arguments)
    _make_streams_usable()
    with stop_signals(given) as taken:
        code = _run_app(app, given)
    return SIGNALLED + taken[0] if taken else code


def _run_app(app: typer.Typer, given: list[str]) -> int:
    """Run the command line over its arguments; return its exit code."""
    try:
        with heartbeat(given):
            app(args=given, prog_name="tollgate")
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # the help could not be printed; it is not the command's
        return _print_error(error)
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else SUCCESS
    return SUCCESS


def build_app(toolbox: Toolbox) -> typer.Typer:
    """Build the command line over the toolbox of the composition root."""
    app = typer.Typer(
        name="tollgate",
        cls=Root,
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

    return app


def _make_streams_usable() -> None:
    """Open a closed output as /dev/null, and write letters that an output cannot hold as escapes.

    A terminal of Latin-1 cannot hold the dash of an unknown figure.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until the process ends
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _show_filter(wrong: Any) -> None:
    """Put the filter into an error about an option that is a dimension of a report: --team X."""
    name = str(getattr(wrong, "option_name", None) or "").removeprefix("--").replace("-", "_")
    options = (
        [option for param in wrong.ctx.command.params for option in param.opts] if name else []
    )
    if "--where" not in options or f"--{name}" in options:
        return
    from gateway.reports.dimensions import Dimension

    if name in set(Dimension):
        wrong.possibilities = [f"--where {name}=VALUE"]


def _drop_output() -> None:
    """Lead standard output to /dev/null after a failed write, so that the interpreter's last flush
    does not fail too.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(is_wanted: bool) -> None:
    """Print the version and end the command, if `--version` was given."""
    if is_wanted:
        typer.echo(f"tollgate {__version__}")
        raise typer.Exit


def _print_error(error: Exception) -> int:
    """Print a command's error on standard error for the person at the terminal; return the exit
    code.
    """
    from gateway.cli.terminal.output import note

    if os.environ.get("TOLLGATE_DEBUG") == "1":
        traceback.print_exception(error)
    if isinstance(error, PolicyRejected):
        for finding in error.findings:
            note(str(finding))
    if isinstance(error, TollgateError):
        note(error.message)
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        typer.echo(
            f"The output cannot be written: {error.strerror}. Make room, and run it again.",
            err=True,
        )
        _drop_output()
        return UNKNOWN
    if isinstance(error, OSError) and error.errno in NO_RIGHT and error.filename is not None:
        note(f"{error.filename}: {error.strerror}. {NO_RIGHT[error.errno]}")
        return UNKNOWN
    typer.echo(
        f"Tollgate failed in a way it should not ({type(error).__name__}: {error}). "
        f"TOLLGATE_DEBUG=1 shows the traceback; please report it.",
        err=True,
    )
    return UNKNOWN
