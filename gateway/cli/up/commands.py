"""Runs `tollgate up`: starts database, gateway, dashboard and engine on this machine, applies the
demo policy, shows the tour, and ends everything on Ctrl-C.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, TextIO

import httpx2
import typer

from gateway.cli.checks import machine
from gateway.cli.key import record_of
from gateway.cli.terminal.fetch import fetch
from gateway.cli.terminal.progress import ProgressStep
from gateway.cli.up import demo_policy
from gateway.cli.up.children import Children
from gateway.cli.up.demo_policy import Demo
from gateway.cli.up.readiness import wait_for
from gateway.cli.up.tour import Tour
from gateway.domain.policy.api_keys import RANDOM_BYTES, key_id_of, mint
from gateway.domain.words import host_and_port
from gateway.errors import BadUsage
from gateway.services.policy.apply import apply_policy
from gateway.storage.administration import ensure_logins
from gateway.storage.policy import pepper
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from gateway.storage.postgres.home_checks import require_own_secret
from gateway.wire.parsed_policy import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.cli.toolbox import Options, Toolbox

TINY = "The tiny model's answers mean nothing. "
ENGINE_WITHIN_S = 300
CONTEXT_WINDOW = 4096
DEMO_DAYS = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """The options of `tollgate up`."""

    model: str | None
    engine_url: str | None
    engine_key: str | None
    allow_external: bool
    with_demo_data: bool


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    "up",
    short_help="Start everything on this machine.",
    epilog="\b\nExamples:\n  tollgate up\n  tollgate up --engine-url http://127.0.0.1:8000\n"
    "  TOLLGATE_PORT=9090 tollgate up --no-demo-data",
)
def up(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(help="Serve this model (folder or hub name) instead of the tiny one."),
    ] = None,
    engine_url: Annotated[
        str | None,
        typer.Option(help="Use a running OpenAI-compatible engine, e.g. http://127.0.0.1:8000"),
    ] = None,
    engine_key: Annotated[
        str | None, typer.Option(help="Its API key, as env:NAME or file:PATH.")
    ] = None,
    allow_external: Annotated[
        bool,
        typer.Option(
            "--allow-external", help="Let the demo route fall back to OpenAI (costs money)."
        ),
    ] = False,
    no_demo_data: Annotated[
        bool, typer.Option("--no-demo-data", help="Leave the demo figures out.")
    ] = False,
) -> None:
    """Start everything on this machine: engine, database, gateway, dashboard; ends with a tour.

    It checks this machine first, and downloads or makes nothing if there is an obstacle. The
    first start installs vLLM (0.6 GB to download, 2.3 GB of disk, about 2 minutes on two
    cores); later ones take under a minute. Ctrl-C ends everything it started.
    """
    options = UpOptions(
        model=model,
        engine_url=engine_url,
        engine_key=engine_key,
        allow_external=allow_external,
        with_demo_data=not no_demo_data,
    )
    run(ctx.obj, options)


def run(toolbox: Toolbox, chosen: UpOptions) -> None:
    """Start everything that `tollgate up` promises, show it, and stay until stopped."""
    # A shell may have started us ignoring SIGINT.
    for stop in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ):
        signal.signal(stop, _raise_interrupt)
    options = toolbox.options
    try:
        # First: a wrong address must not cost a home and half a minute.
        brought = _external_engine(chosen)
        machine.require(options, has_engine_elsewhere=brought is not None)
        _make_home(options.home)
        held = hold_home(options.home, options.engine_home)
        print(
            f"Tollgate keeps everything in {options.home} "
            f"(TOLLGATE_HOME){_database_outside_home(toolbox)}.\n",
            flush=True,
        )
        up_file = options.home / "up.json"
        with held, ExitStack() as opened:
            with ProgressStep("Database: start, migrations, pepper, demo team and key", usual_s=10):
                owner = opened.enter_context(toolbox.open_owner())
                _prepare_database(toolbox, owner)
                # The next steps need less; the embedded server stays up until `opened` ends.
                owner.close()
                database = opened.enter_context(toolbox.open_admin())
                key = _demo_key(toolbox, KeyStore(database))
            children = Children(options.home / "logs")
            try:
                _bring_up(
                    toolbox,
                    database,
                    children,
                    chosen,
                    brought=brought,
                    key=key,
                    up_file=up_file,
                    url=owner.url,
                )
                _watch_until_interrupted(children)
            finally:
                up_file.unlink(missing_ok=True)
                print(flush=True)
                with ProgressStep("Stopping all processes", usual_s=5):
                    children.stop()
                    opened.close()
    except KeyboardInterrupt:
        print("Stopped. Nothing was lost; `tollgate up` goes on from here.", flush=True)


def _make_home(home: Path) -> None:
    """Make Tollgate's home folder, private to its owner. Raises `BadUsage` if that fails."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise BadUsage(
            f"The home {home} cannot be made: {error.strerror}. Fix that, or set TOLLGATE_HOME."
        ) from error


def hold_home(home: Path, engine_home: Path) -> TextIO:
    """Lock the home for this `up`, and return the file whose closing unlocks it. Raises `BadUsage`
    if another `up` has the home: its gateway would be led to this one's engine.
    """
    file = (home / "up.lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise BadUsage(
            f"A `tollgate up` of the home {home} runs already. Stop it, or name another home that "
            f"shares the engine: TOLLGATE_HOME={home}-2 TOLLGATE_ENGINE_HOME={engine_home}"
        ) from None
    return file


def _database_outside_home(toolbox: Toolbox) -> str:
    """Return the remark that the database is not in the home, so a copy of the home is no backup;
    empty if the database is in it or elsewhere on purpose.
    """

    options = toolbox.options
    place = EmbeddedPostgres(options.home).place()
    if options.database_url is not None or place.is_relative_to(options.home.resolve()):
        return ""
    return (
        f", and the database in {place}: Postgres does not run as root, and its user cannot "
        "enter the home"
    )


def _bring_up(
    toolbox: Toolbox,
    database: Database,
    children: Children,
    chosen: UpOptions,
    *,
    brought: tuple[str, str] | None,
    key: str,
    up_file: Path,
    url: str,
) -> None:
    """Start the gateway, the dashboard and an engine, apply the demo policy, and show the tour and
    addresses.
    """
    options = toolbox.options
    if chosen.engine_url is not None:
        _warn_of_own_policy(PolicyStore(database), chosen.engine_url)
    if brought is None:  # beside gateway and dashboard, because it takes the longest by far
        setup = [sys.executable, "-P", "-m", "engine", "setup", "--progress", "json"]
        children.begin("engine-setup", setup, _engine_variables(options))
    variables = _variables(options, url)
    with ProgressStep("Gateway and dashboard", usual_s=10):
        children.start(
            "gateway",
            [sys.executable, "-P", "-m", "gateway.main", "serve", "--allow-demo-keys"],
            variables,
        )
        children.start(
            "dashboard", [sys.executable, "-P", "-m", "gateway.main", "dashboard"], variables
        )
        wait_for(f"{gateway_url(options)}/healthz", children)
        wait_for(f"{dashboard_url(options)}/_stcore/health", children)
    if chosen.with_demo_data:  # beside the engine's start, which takes longer
        demo_data = [sys.executable, "-P", "-m", "gateway.main", "demo-data", "--small"]
        children.start("demo-data", demo_data, variables, may_end=True)
    print(
        f"  open now: gateway {gateway_url(options)}   dashboard {dashboard_url(options)}",
        flush=True,
    )
    engine_url, engine_model = brought or _start_engine(options, children, chosen)
    version = _apply_demo_policy(
        toolbox, database, chosen, engine_url=engine_url, engine_model=engine_model
    )
    if chosen.with_demo_data:
        with ProgressStep(f"Demo data: 3 teams, {DEMO_DAYS} days, marked as demo", usual_s=30):
            children.finish("demo-data")
    # Not before this policy is in force: an older one may lead to an engine that is gone.
    with ProgressStep("Gateway: taking up the policy", usual_s=3):
        wait_for(
            f"{gateway_url(options)}/readyz",
            children,
            is_right=lambda answer: version is None or answer.json()["policy_version"] >= version,
        )
    _write_private(up_file, json.dumps(_addresses(options, url, engine_url, key), indent=2) + "\n")
    if version is None:
        _show_addresses(options, chosen)
        return
    with closing(Tour(gateway_url(options), key)) as tour:
        _show_tour(tour, chosen)
    _show_addresses(options, chosen)
    _show_key(options, key)


def _prepare_database(toolbox: Toolbox, database: Database) -> None:
    """Bring the tables to this version, and create the embedded database's logins and the
    pepper.
    """
    options = toolbox.options
    migrations.upgrade(database)
    if options.database_url is None:  # `tollgate db upgrade` makes another server's logins
        for note in ensure_logins(database, options.home, given={}).notes:
            print(f"\n  {note}", flush=True)
    pepper.create(options.pepper_path)
    pepper.register(database, pepper.load(options.pepper_path))


def _demo_key(toolbox: Toolbox, keys: KeyStore) -> str:
    """Return the demo team's key: the same at every start, a new one if it was revoked or lost."""
    options = toolbox.options
    file = options.home / "demo-key"
    require_own_secret(file, home=options.home, pepper=options.pepper_path)
    key = file.read_text().strip() if file.exists() else ""
    if any(record.key_id == key_id_of(key) for record in keys.live()):
        return key
    key = mint(toolbox.random_bytes(RANDOM_BYTES))
    current = pepper.load(options.pepper_path)[0]
    record = record_of(key, team=demo_policy.TEAM, project=None, expires_at=None, pepper=current)
    keys.create(replace(record, is_demo=True), created_by="tollgate up")
    _write_private(file, key + "\n")
    return key


def _start_engine(options: Options, children: Children, chosen: UpOptions) -> tuple[str, str]:
    """Start vLLM on this machine after its setup, and wait until it answers; return its address and
    model.
    """
    url = f"http://127.0.0.1:{options.engine_port}"
    # Without a usual duration: the setup itself announces one if it has anything to install.
    with ProgressStep("Engine: vLLM in its own environment") as step:
        children.follow("engine-setup", step)
    name = Path(chosen.model).name if chosen.model else "tiny"
    key_file = str(_engine_key_file(options))
    serve = ["serve", "--port", str(options.engine_port), "--served-model-name", name]
    serve += ["--api-key-file", key_file, "--must-start"]
    serve += ["--model", chosen.model] if chosen.model else []
    # The engine's own probe: an engine that answers /health may be unable to write a token.
    wait = ["wait", "--url", url, "--model", name, "--api-key-file", key_file]
    wait += ["--timeout", str(ENGINE_WITHIN_S), "--progress", "json"]
    program, variables = [sys.executable, "-P", "-m", "engine"], _engine_variables(options)
    with ProgressStep("Engine: starting vLLM", usual_s=60) as step:
        children.start("engine", [*program, *serve], variables)
        children.begin("engine-wait", [*program, *wait], variables)
        children.follow("engine-wait", step)
    return url, name


def _engine_variables(options: Options) -> dict[str, str]:
    """Return the environment variable that keeps engine processes in the engine's folder of these
    settings.
    """
    return {"TOLLGATE_ENGINE_HOME": str(options.engine_home)}


def _engine_key_file(options: Options) -> Path:
    """Return the file of the engine's own key, which keeps other programs from using the engine
    unmetered.
    """
    file = options.home / "engine-key"
    if not file.exists():
        _write_private(file, secrets.token_urlsafe(32) + "\n")
    return file


def _external_engine(chosen: UpOptions) -> tuple[str, str] | None:
    """Return address and model of the running engine that `--engine-url` names; None if `up` must
    start one.
    """
    if chosen.engine_url is None:
        return None
    url = chosen.engine_url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise BadUsage(f"--engine-url {chosen.engine_url} must begin with http:// or https://.")
    return url, _model_of(url, chosen.engine_key)


def _model_of(url: str, key_reference: str | None) -> str:
    """Return the first model that a running engine lists. Raises `BadUsage` with the option that is
    wrong.
    """
    kind, _, name = (key_reference or "").partition(":")
    try:
        secret = (
            os.environ.get(name, "")
            if kind == "env"
            else Path(name).expanduser().read_text()
            if name
            else ""
        )
    except OSError as broken:
        raise BadUsage(f"--engine-key {key_reference}: {broken.strerror}.") from None
    headers = {"authorization": f"Bearer {secret.strip()}"} if secret else {}
    try:
        answer = fetch(f"{url}/v1/models", headers=headers, timeout_s=10)
    except (httpx2.HTTPError, httpx2.InvalidURL) as broken:
        raise BadUsage(
            f"No engine answers at {url}: {broken}. Start it, or fix --engine-url."
        ) from None
    if answer.status_code in (401, 403):
        raise BadUsage(
            f"The engine at {url} wants another key ({answer.status_code}). Name it with "
            "--engine-key."
        )
    try:
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx2.HTTPError, KeyError, IndexError, TypeError, ValueError) as broken:
        raise BadUsage(
            f"--engine-url {url}: GET /v1/models did not name a model ({broken})."
        ) from None


def _warn_of_own_policy(policies: PolicyStore, engine_url: str) -> None:
    """Warn that the option has no effect while an operator's own policy is in force."""
    current = policies.current()
    if current is not None and not current.is_demo:
        print(
            f"  --engine-url has no effect: policy version {current.version} is your own and stays "
            f"in force. To use the engine, add a deployment with base_url {engine_url} to it and "
            "run: tollgate policy apply FILE",
            flush=True,
        )


def _apply_demo_policy(
    toolbox: Toolbox, database: Database, chosen: UpOptions, *, engine_url: str, engine_model: str
) -> int | None:
    """Apply the demo policy and return its version; None if an operator's own policy is in force
    and stays.
    """
    policies = PolicyStore(database)
    current = policies.current()
    if current is not None and not current.is_demo:
        print(
            f"  Policy version {current.version} is your own and stays in force: no demo team, "
            "no tour. Your keys: tollgate key list; a new one: tollgate key create TEAM.\n"
            f"  curl {gateway_url(toolbox.options)}/v1/models -H 'Authorization: Bearer KEY'",
            flush=True,
        )
        return None
    own_key = (
        f"file:{_engine_key_file(toolbox.options)}"
        if chosen.engine_url is None
        else chosen.engine_key
    )
    text = demo_policy.document(
        Demo(
            engine_url=engine_url,
            engine_model=engine_model,
            engine_key=own_key,
            context_window=CONTEXT_WINDOW,
            has_external=bool(os.environ.get("OPENAI_API_KEY")),
            may_fall_back=chosen.allow_external,
        )
    )
    applied = apply_policy(
        parse(text),
        policies=policies,
        prices=PriceStore(database),
        builtin=builtin_price,
        author="tollgate up",
        message="demo policy",
        now=toolbox.now(),
        is_demo=True,
    )
    return applied.version


def _show_tour(tour: Tour, chosen: UpOptions) -> None:
    """Send the tour's three requests and print each result."""
    with ProgressStep("Tour: three requests", usual_s=5):
        stops = [visit() for visit in (tour.answer, tour.refusal, tour.unknown_model)]
    print("\nThe tour: three real requests.\n")
    for stop in stops:
        print("\n      ".join((f"  {stop.title}", *stop.lines)))
    is_tiny = chosen.model is None and chosen.engine_url is None
    print(f"\n  {TINY if is_tiny else ''}The rate is a demo rate; the arithmetic is real.")
    if os.environ.get("OPENAI_API_KEY"):
        joined = (
            "may fall back to it"
            if chosen.allow_external
            else "never falls back to it (--allow-external)"
        )
        print(
            f"\n  OPENAI_API_KEY is set: route '{demo_policy.EXTERNAL_ROUTE}' goes to OpenAI "
            "and costs real money."
        )
        print(f"  Route '{demo_policy.ROUTE}' {joined}.")


def _show_addresses(options: Options, chosen: UpOptions) -> None:
    """Print the addresses of dashboard and gateway."""
    dashboard = dashboard_url(options)
    demo = f"   demo figures: {dashboard}/?data=demo" if chosen.with_demo_data else ""
    print(f"\n  Dashboard   {dashboard}{demo}\n  Gateway     {gateway_url(options)}/v1")


def _show_key(options: Options, key: str) -> None:
    """Print the demo API key, and how to point a client at the gateway."""
    print(f"""\
  API key     {key}   (team {demo_policy.TEAM}; a demo key)

  Point an existing client here with two lines:
    - client = OpenAI(api_key="sk-...")
    + client = OpenAI(api_key="{key}",
    +                 base_url="{gateway_url(options)}/v1")

  curl {gateway_url(options)}/v1/chat/completions -H "Authorization: Bearer {key}" \\
    -H "Content-Type: application/json" \\
    -d '{{"model": "{demo_policy.ROUTE}", "messages": [{{"role": "user", "content": "Count down from 7"}}]}}'""")  # noqa: E501


def export_line(bin_folder: Path, variables: Mapping[str, str]) -> str | None:
    """Return the shell line after which another terminal finds the command and this home; None if
    the PATH of `variables` has the command already.
    """
    command = bin_folder / "tollgate"
    found = shutil.which("tollgate", path=variables.get("PATH", ""))
    if not command.exists() or (found is not None and Path(found) == command):
        return None
    home = variables.get("TOLLGATE_HOME")
    return f'export PATH={shlex.quote(str(bin_folder))}:"$PATH"' + (
        f" TOLLGATE_HOME={shlex.quote(str(Path(home).expanduser().absolute()))}" if home else ""
    )


def _watch_until_interrupted(children: Children) -> None:
    """Wait until Ctrl-C; raise `ChildFailed` if one of the processes ends."""
    if line := export_line(Path(sys.executable).parent, os.environ):
        print(f"\n  For `tollgate` in another terminal:\n    {line}")
    print("\n  Ctrl-C stops everything.", flush=True)
    while True:
        children.require_alive()
        time.sleep(0.5)


def _variables(options: Options, url: str) -> dict[str, str]:
    """Return the environment variables of gateway, dashboard and demo data, with the address of the
    Postgres that this process keeps open.
    """
    return {
        "TOLLGATE_HOME": str(options.home),
        "TOLLGATE_DATABASE_URL": url,
        "PYTHONUNBUFFERED": "1",
    }


def _addresses(options: Options, url: str, engine_url: str, key: str) -> dict[str, str]:
    """Return the addresses and the demo key, for the file that other programs read."""
    return {
        "gateway_url": gateway_url(options),
        "dashboard_url": dashboard_url(options),
        "engine_url": engine_url,
        "database_url": url,
        "api_key": key,
    }


def gateway_url(options: Options) -> str:
    """Return the gateway's address on this machine."""
    return f"http://{host_and_port(_dialable(options.host), options.port)}"


def dashboard_url(options: Options) -> str:
    """Return the dashboard's address on this machine."""
    return f"http://{host_and_port(_dialable(options.dashboard_host), options.dashboard_port)}"


def _dialable(host: str) -> str:
    """Return the host by which this machine reaches a listener at `host`: a wildcard becomes the
    loopback.
    """
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104  # compared, not bound


def _write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, completely or not at all."""
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text)
    new.replace(file)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt` at any stop signal, so that all of them end `up` alike."""
    raise KeyboardInterrupt
