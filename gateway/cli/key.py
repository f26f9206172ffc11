"""`tollgate key`: API keys. A key is shown once, when it is made; only its digest is kept."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.operator import operator_name
from gateway.cli.output import Format, FormatOption, Table, note, show, show_record
from gateway.domain.api_keys import RANDOM_BYTES, KeyRecord, Pepper, key_id_of, mint
from gateway.errors import BadUsage, NothingFound
from gateway.services.policies import require_current, require_team

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.storage.keys import StoredKey

_DURATION = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

app = typer.Typer(name="key", help="Create, list and revoke API keys.", no_args_is_help=True, rich_markup_mode=None)


@app.command(
    "create",
    short_help="Make a key; it is shown once.",
    epilog="\b\nExamples:\n  tollgate key create payments\n"
    "  tollgate key create payments --project checkout --expires 90d\n"
    "  export OPENAI_API_KEY=$(tollgate key create payments --format json | jq -r .key)",
)
def create(
    ctx: typer.Context,
    team: Annotated[str, typer.Argument(metavar="TEAM", help="A team of the current policy.")],
    project: Annotated[str | None, typer.Option("--project", help="Books this key's spend on a project.")] = None,
    expires: Annotated[str | None, typer.Option("--expires", metavar="90d", help="Life: 12h, 90d, 8w.")] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Make a key for a team. It is shown once, here, and kept nowhere; gateways accept it within seconds."""
    from gateway.storage import pepper

    toolbox: Toolbox = ctx.obj
    expires_at = None if expires is None else toolbox.now() + duration(expires)
    if project is not None and not _PROJECT.fullmatch(project):
        raise BadUsage("--project takes letters, digits, '.', '_' and '-', at most 63.")
    with toolbox.open_stores() as stores:
        require_team(require_current(stores.policies), team)
        peppers = pepper.load(toolbox.options.pepper_path)
        pepper.register(stores.database, peppers)
        key = mint(toolbox.random_bytes(RANDOM_BYTES))
        record = record_of(key, team=team, project=project, expires_at=expires_at, pepper=peppers[0])
        stores.keys.create(record, created_by=operator_name())
    show_record(
        {"key": key, "key_id": record.key_id, "team": team, "project": project, "expires_at": expires_at}, format
    )
    note("This is the only time the key is shown. Store it now; if it is lost, make another and revoke this one.")


@app.command(
    "revoke", short_help="Turn a key away from now on.", epilog="\b\nExample:\n  tollgate key revoke 7Gh2kQ9xTz"
)
def revoke(
    ctx: typer.Context,
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The id that `tollgate key list` shows.")],
    format: FormatOption = Format.TABLE,
) -> None:
    """Turn a key away from now on; gateways hear of it within seconds. Its past spend stays where it is."""
    toolbox: Toolbox = ctx.obj
    wanted = key_id_of(key_id) or key_id.removeprefix("tg_")
    with toolbox.open_stores() as stores:
        was_live = stores.keys.revoke(wanted, revoked_by=operator_name())
        stored = stores.keys.find(wanted)
    if stored is None:
        raise NothingFound(f"There is no key '{wanted[:20]}'. tollgate key list shows the ids.")
    show_record({"key_id": wanted, "team": stored.record.team, "revoked_at": stored.revoked_at}, format)
    if not was_live:
        note("It was revoked before; nothing changed.")


@app.command("list", epilog="\b\nExamples:\n  tollgate key list\n  tollgate key list --team payments --all")
def list_keys(
    ctx: typer.Context,
    team: Annotated[str | None, typer.Option("--team", help="Only this team's.")] = None,
    all_keys: Annotated[bool, typer.Option("--all", help="Revoked and expired ones too.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """List keys by id; the keys themselves are not kept."""
    toolbox: Toolbox = ctx.obj
    now = toolbox.now()
    with toolbox.open_stores() as stores:
        keys = stores.keys.list_all()
    rows = [
        (
            key.record.key_id, key.record.team, key.record.project, state(key, now), key.created_at, key.created_by,
            key.record.expires_at, key.revoked_at, key.record.is_demo,
        )
        for key in keys
        if (team is None or key.record.team == team) and (all_keys or state(key, now) == "live")
    ]  # fmt: skip
    columns = (
        "key_id", "team", "project", "state", "created_at", "created_by", "expires_at", "revoked_at", "is_demo",
    )  # fmt: skip
    show(Table(columns, rows), format, empty="There is no such key. Make one with: tollgate key create TEAM")


def record_of(key: str, *, team: str, project: str | None, expires_at: datetime | None, pepper: Pepper) -> KeyRecord:
    """What is kept of a new key."""
    key_id = key_id_of(key)
    assert key_id is not None, "a minted key is well-formed"
    return KeyRecord(
        key_id=key_id,
        team=team,
        project=project,
        digest=pepper.digest(key),
        pepper_id=pepper.pepper_id,
        expires_at=expires_at,
    )


def duration(text: str) -> timedelta:
    """Read `12h`, `90d` or `8w`. Raises `BadUsage`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadUsage(f"'{text}' is not a length of time. Write hours, days or weeks: 12h, 90d, 8w.")
    return int(match[1]) * _UNITS[match[2]]


def state(key: StoredKey, now: datetime) -> str:
    """live, expired or revoked."""
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.record.expires_at is not None and key.record.expires_at <= now else "live"
