"""Declares the `tollgate key` commands, which create, rotate, pause, resume, revoke and list API
keys; a new key is printed once, and only its digest is stored.

Every change is audited. `duration` also parses the spans of other commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.operator import ReasonOption, TakesYesOption, operator_name
from gateway.cli.terminal.output import Format, FormatOption, Table, note, show, show_record
from gateway.domain.names import PROJECT, PROJECT_RULE
from gateway.domain.policy.api_keys import RANDOM_BYTES, KeyRecord, Pepper, key_id_of, mint
from gateway.domain.words import shown
from gateway.errors import BadUsage
from gateway.services.policy.apply import require_current, require_team
from gateway.storage.policy import pepper
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.domain.policy.api_keys import StoredKey
    from gateway.storage.policy.keys import KeyStore
    from gateway.storage.postgres.database import Database

_DURATION = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}

_SHOWN_ONCE = (
    "This is the only time the key is shown. Store it now; if it is lost, make "
    "another and revoke this one."
)
OVERLAP = "24h"
SHOWN_STATES = ("live", "paused")

KeyIdArgument = Annotated[
    str, typer.Argument(metavar="KEY_ID", help="The id that `tollgate key list` shows.")
]
app = typer.Typer(
    name="key",
    help="Create, rotate, pause, revoke and list API keys.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


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
    project: Annotated[
        str | None, typer.Option("--project", help="Books this key's spend on a project.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="90d", help="Life: 12h, 90d, 8w.")
    ] = None,
    reason: ReasonOption = "",
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Make a key for a team.

    It is shown once, here, and never stored; gateways accept it within seconds.
    """

    toolbox: Toolbox = ctx.obj
    expires_at = None if expires is None else toolbox.now() + duration(expires)
    if project is not None and not re.fullmatch(PROJECT, project):
        raise BadUsage(f"'{shown(project)}' is no name of a project: {PROJECT_RULE}.")
    with toolbox.open_admin() as database:
        require_team(require_current(PolicyStore(database)), team)
        peppers = _registered_peppers(toolbox, database)
        key = mint(toolbox.random_bytes(RANDOM_BYTES))
        record = record_of(
            key, team=team, project=project, expires_at=expires_at, pepper=peppers[0]
        )
        KeyStore(database).create(record, created_by=operator_name(), reason=reason)
    show_record(
        {
            "key": key,
            "key_id": record.key_id,
            "team": team,
            "project": project,
            "expires_at": expires_at,
        },
        format,
    )
    note(_SHOWN_ONCE)


@app.command(
    "rotate",
    short_help="Make a key in the place of another; both work for a while.",
    epilog="\b\nExamples:\n  tollgate key rotate 7Gh2kQ9xTz --reason 'quarterly rotation'\n"
    "  tollgate key rotate 7Gh2kQ9xTz --overlap 2w --format json | jq -r .key",
)
def rotate(
    ctx: typer.Context,
    key_id: KeyIdArgument,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="24h", help="How long the old one still works.")
    ] = OVERLAP,
    reason: ReasonOption = "",
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Make a key with the team, project and life of another, which ends after the overlap.

    Until then both work, so nothing fails while apps are changed over. The new key is shown once,
    here. Budgets, limits and past spending under the old id stay with it.
    """

    toolbox: Toolbox = ctx.obj
    now, wanted = toolbox.now(), _id_in(key_id)
    ends_at = now + duration(overlap)
    key = mint(toolbox.random_bytes(RANDOM_BYTES))

    def successor(old: StoredKey) -> KeyRecord:
        life = None if old.record.expires_at is None else old.record.expires_at - old.created_at
        made = record_of(
            key,
            team=old.record.team,
            project=old.record.project,
            expires_at=None if life is None else now + life,
            pepper=peppers[0],
        )
        return replace(made, is_demo=old.record.is_demo)

    with toolbox.open_admin() as database:
        peppers = _registered_peppers(toolbox, database)
        old, new = KeyStore(database).rotate(
            wanted, make=successor, ends_at=ends_at, by=operator_name(), now=now, reason=reason
        )
    record = {
        "key": key,
        "key_id": new.key_id,
        "team": new.team,
        "project": new.project,
        "expires_at": new.expires_at,
        "replaces": wanted,
        "replaced_until": old.record.expires_at,
    }
    show_record(record, format)
    note(_SHOWN_ONCE)
    note(f"The old key works until then; to end it now: tollgate key revoke {wanted}")


@app.command(
    "pause",
    short_help="Turn a key away until it is resumed.",
    epilog="\b\nExample:\n  tollgate key pause 7Gh2kQ9xTz --reason 'loops since midnight'",
)
def pause(
    ctx: typer.Context,
    key_id: KeyIdArgument,
    reason: ReasonOption = "",
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Refuse a key until `key resume`; gateways apply it within seconds.

    Requests in flight continue.
    """
    toolbox: Toolbox = ctx.obj
    wanted = _id_in(key_id)
    with _open_keys(toolbox) as keys:
        is_done = keys.pause(wanted, paused_by=operator_name(), reason=reason)
        stored = keys.require(wanted)
    if not is_done and stored.revoked_at is not None:
        raise BadUsage(f"Key {wanted} is revoked, for good. Nothing was changed.")
    show_record(
        {"key_id": wanted, "team": stored.record.team, "paused_at": stored.paused_at}, format
    )
    note(
        f"Back again with: tollgate key resume {wanted}"
        if is_done
        else "It was paused before; nothing changed."
    )


@app.command(
    "resume",
    short_help="Accept a paused key again.",
    epilog="\b\nExample:\n  tollgate key resume 7Gh2kQ9xTz --reason 'the loop is fixed'",
)
def resume(
    ctx: typer.Context,
    key_id: KeyIdArgument,
    reason: ReasonOption = "",
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Accept a paused key again; gateways apply it within seconds."""
    toolbox: Toolbox = ctx.obj
    wanted = _id_in(key_id)
    with _open_keys(toolbox) as keys:
        is_done = keys.resume(wanted, reason=reason)
        stored = keys.require(wanted)
    if not is_done and stored.revoked_at is not None:
        raise BadUsage(
            f"Key {wanted} is revoked, for good. Make another: tollgate key create "
            f"{stored.record.team}"
        )
    show_record(
        {"key_id": wanted, "team": stored.record.team, "state": stored.state(toolbox.now())}, format
    )
    if not is_done:
        note("It was not paused; nothing changed.")


@app.command(
    "revoke",
    short_help="Turn a key away from now on.",
    epilog="\b\nExample:\n  tollgate key revoke 7Gh2kQ9xTz --reason 'found in a log'",
)
def revoke(
    ctx: typer.Context,
    key_id: KeyIdArgument,
    reason: ReasonOption = "",
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Refuse a key from now on; gateways apply it within seconds.

    Its past spending stays recorded.
    """
    toolbox: Toolbox = ctx.obj
    wanted = _id_in(key_id)
    with _open_keys(toolbox) as keys:
        was_live = keys.revoke(wanted, revoked_by=operator_name(), reason=reason)
        stored = keys.require(wanted)
    show_record(
        {"key_id": wanted, "team": stored.record.team, "revoked_at": stored.revoked_at}, format
    )
    if not was_live:
        note("It was revoked before; nothing changed.")


@app.command(
    "list", epilog="\b\nExamples:\n  tollgate key list\n  tollgate key list --team payments --all"
)
def list_keys(
    ctx: typer.Context,
    team: Annotated[str | None, typer.Option("--team", help="Only this team's.")] = None,
    all_keys: Annotated[bool, typer.Option("--all", help="Revoked and expired ones too.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """List keys by id; the keys themselves are not stored.

    Lists live and paused keys, unless --all.
    """
    toolbox: Toolbox = ctx.obj
    now = toolbox.now()
    with _open_keys(toolbox) as store:
        keys = store.list_all()
    rows = [
        (
            key.record.key_id,
            key.record.team,
            key.record.project,
            key.state(now),
            key.created_at,
            key.created_by,
            key.record.expires_at,
            key.revoked_at,
            key.paused_at,
            key.replaces,
            key.record.is_demo,
        )
        for key in keys
        if (team is None or key.record.team == team)
        and (all_keys or key.state(now) in SHOWN_STATES)
    ]
    columns = (
        "key_id",
        "team",
        "project",
        "state",
        "created_at",
        "created_by",
        "expires_at",
        "revoked_at",
        "paused_at",
        "replaces",
        "is_demo",
    )
    show(
        Table(columns, rows),
        format,
        empty="There is no such key. Make one with: tollgate key create TEAM",
    )


def record_of(
    key: str, *, team: str, project: str | None, expires_at: datetime | None, pepper: Pepper
) -> KeyRecord:
    """Return the record of a new API key as it is stored: its digest, never the key."""
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
    """Parse a duration such as `12h`, `90d` or `8w`. Raises `BadUsage`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadUsage(
            f"'{text}' is not a length of time. Write hours, days or weeks: 12h, 90d, 8w."
        )
    return int(match[1]) * _UNITS[match[2]]


def _id_in(text: str) -> str:
    """Return the key id in the pasted text: in an incident people paste the key itself."""
    return key_id_of(text) or text.removeprefix("tg_")


@contextmanager
def _open_keys(toolbox: Toolbox) -> Iterator[KeyStore]:
    """Open the API keys, to be changed or listed."""

    with toolbox.open_admin() as database:
        yield KeyStore(database)


def _registered_peppers(toolbox: Toolbox, database: Database) -> tuple[Pepper, ...]:
    """Return this machine's peppers, the current one first, after the database has recorded them.
    Raises `BadUsage` if its keys were made with others.
    """

    peppers = pepper.load(toolbox.options.pepper_path)
    pepper.register(database, peppers)
    return peppers
