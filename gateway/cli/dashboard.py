"""Runs `tollgate dashboard`: requires sign-in beyond this machine and once it is set up, starts
the Streamlit app as a child with few variables, and ends it with this command.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.child_process import die_with
from gateway.cli.terminal.output import note
from gateway.cli.up.readiness import require_free
from gateway.domain.allowed_hosts import is_loopback
from gateway.domain.logins import LoginPurpose
from gateway.errors import BadUsage
from gateway.storage.postgres.database import user_of
from gateway.storage.postgres.embedded import owner_of
from gateway.storage.postgres.home_checks import dashboard_secrets, require_own_secret

if TYPE_CHECKING:
    from gateway.cli.toolbox import Options, Toolbox

STOP_LIMIT_S = 10
SIGN_IN_VARIABLE = "TOLLGATE_DASHBOARD_SIGN_IN"  # "required": the app shows nothing before sign-in
# The variables that the app, its server and its HTTP client read. An attacker in the app gets no
# others.
PASSED = frozenset({"PATH", "HOME", "LANG", "TZ"})
PASSED_PREFIXES = ("SSL_CERT_", "STREAMLIT_")
# The number of an open file with the address of finance's login. The app hands it to the commands
# that close books and never reads it itself.
FINANCE_VARIABLE = "TOLLGATE_DASHBOARD_FINANCE"
BOUND_VARIABLE, HOSTS_VARIABLE = "TOLLGATE_DASHBOARD_BOUND", "TOLLGATE_DASHBOARD_NAMES"
SECRETS = Path(".streamlit") / "secrets.toml"
# The app's working folder. Streamlit and Python look into it for settings, secrets and modules, so
# it is never the folder from which somebody happened to start the command.
FOLDER = Path(__file__).parents[1]


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    "dashboard",
    short_help="Show finance's reports in the browser.",
    epilog="\b\nExamples:\n  tollgate dashboard\n  TOLLGATE_DASHBOARD_PORT=8600 tollgate dashboard",
)
def dashboard(
    ctx: typer.Context,
    insecure_local: Annotated[
        bool,
        typer.Option(
            "--insecure-local",
            help="Show everything without sign-in, also beyond this machine: only behind a proxy.",
        ),
    ] = False,
) -> None:
    """Show finance's reports in the browser until stopped. It may only read the finance views.

    Listens only on this machine. Another TOLLGATE_DASHBOARD_HOST is refused unless people must sign
    in. If they do, the policy's field `dashboard` says which teams a person sees.
    """
    toolbox: Toolbox = ctx.obj
    options = toolbox.options
    secrets = dashboard_secrets(options.home)
    for file in secrets:
        require_own_secret(file, home=options.home, pepper=options.pepper_path)
    needs_sign_in = requires_sign_in(options.dashboard_host, secrets, insecure_local=insecure_local)
    note_unread_secrets(options, secrets)
    started = command(options, secrets)
    require_free(options.dashboard_host, options.dashboard_port, setting="TOLLGATE_DASHBOARD_PORT")
    with toolbox.open_address(LoginPurpose.REPORTS) as url, finance_file(toolbox) as finance:
        note(
            f"Dashboard: http://{options.dashboard_host}:{options.dashboard_port}  (Ctrl-C "
            "stops it)"
        )
        variables = (
            environment(url)
            | home_variable(options)
            | host_variables(options)
            | ({SIGN_IN_VARIABLE: "required"} if needs_sign_in else {})
            | ({} if finance is None else {FINANCE_VARIABLE: str(finance)})
        )
        inherited = () if finance is None else (finance,)
        raise typer.Exit(run_until_stopped(started, variables, inherited=inherited))


def requires_sign_in(host: str, secrets: Sequence[Path], *, insecure_local: bool) -> bool:
    """Return True if nothing is shown before sign-in: once it is set up. Raises `BadUsage` if
    it is not, and `host` is reached from elsewhere.
    """
    if insecure_local:
        return False
    is_set_up = has_sign_in(secrets)
    if not is_set_up and not is_loopback(host):
        raise BadUsage(
            "The dashboard would show every team's spending to everyone who can reach "
            f"{host}. Configure sign-in ([auth] in ~/{SECRETS}), or use "
            "--insecure-local if a proxy in front of it signs people in."
        )
    return is_set_up


def note_unread_secrets(options: Options, secrets: Sequence[Path]) -> None:
    """Say that a file of the current folder is not read, because earlier versions read it: its
    writer would then be finance.
    """
    here = Path.cwd() / SECRETS
    if here.exists() and here not in secrets:
        note(f"{here} is not read. Sign-in is set up in ~/{SECRETS} or {options.home / SECRETS}.")


def command(options: Options, secrets: Sequence[Path]) -> list[str]:
    """Return the command line that starts the Streamlit app. Raises `BadUsage` if Streamlit is not
    installed.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise BadUsage("The dashboard is not installed. Run: pip install 'tollgate[dashboard]'")
    return [
        *(sys.executable, "-P", "-m", "dashboard"),
        *(f"--secrets.files={file}" for file in secrets),
        *("--server.address", options.dashboard_host),
        *("--server.port", str(options.dashboard_port)),
        *("--server.headless", "true"),
        *("--browser.gatherUsageStats", "false"),
    ]


def host_variables(options: Options) -> dict[str, str]:
    """Return the environment variables that tell the app which Host headers to accept."""
    return {
        BOUND_VARIABLE: options.dashboard_host,
        HOSTS_VARIABLE: " ".join(options.dashboard_hosts),
    }


def environment(url: str) -> dict[str, str]:
    """Return the Streamlit app's environment: its needs and the reports' address; no other login,
    no provider's key.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED or name.startswith(PASSED_PREFIXES)
    }
    return kept | {"TOLLGATE_REPORTS_URL": url}


def home_variable(options: Options) -> dict[str, str]:
    """Return Tollgate's home as the app's for a user without one, as of a container or a service:
    the charts' library does not start without.
    """
    try:
        Path.home()
    except RuntimeError:
        return {"HOME": str(options.home)}
    return {}


@contextmanager
def finance_file(toolbox: Toolbox) -> Iterator[int | None]:
    """Yield the number of an unnamed file with the address of finance's login; None if there is no
    login but the owner's.

    An environment can be read in a list of processes, and each library in the app could read it.
    """
    options = toolbox.options
    is_elsewhere = options.reports_database_url is not None  # no database of its own is needed
    if options.finance_database_url is None and is_elsewhere:
        yield None
        return
    with toolbox.open_address(LoginPurpose.FINANCE) as url:
        owner = owner_of(options.database_url)
        if options.finance_database_url is None and user_of(url) in (None, owner):
            yield None
            return
        with tempfile.TemporaryFile() as file:
            file.write(url.encode())
            file.flush()
            yield file.fileno()


def run_until_stopped(
    command: list[str], environment: dict[str, str], *, inherited: Sequence[int] = ()
) -> int:
    """Run a child process until it ends or this command is stopped; return its exit code, 0 if this
    command ended it. It inherits the open files with the numbers `inherited`.
    """
    child = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        pass_fds=tuple(inherited),
        cwd=FOLDER,
        # It would go on with the old sign-in and the old address of the database.
        preexec_fn=partial(die_with, os.getpid()),
    )
    before = {
        number: signal.signal(number, _raise_stop) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        return child.wait()
    except _Stop:
        return 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _end(child)


def has_sign_in(files: Sequence[Path]) -> bool:
    """Return True if a file has a complete [auth] section: without its cookie secret no sign-in
    works.
    """
    for place in files:
        try:
            auth = tomllib.loads(place.read_text(encoding="utf-8")).get("auth", {})
        except (OSError, ValueError):
            continue
        if isinstance(auth, dict) and auth.get("cookie_secret") and auth.get("redirect_uri"):
            return True
    return False


class _Stop(Exception):
    """The signal to stop arrived while the child ran."""


def _raise_stop(number: int, frame: FrameType | None) -> None:
    """Raise `_Stop` at a signal, so that the wait for the child ends."""
    raise _Stop


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child process: SIGTERM, then SIGKILL after a limit."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
