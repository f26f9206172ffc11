"""Creates separate logins for serving, reports, administration and finance, keeps their passwords
in a file, and puts them into addresses.

So only migrations need the owner's login. The passwords are in `HOME/logins` (0600), grouped by
database. The file also keeps a login that an administrator still has to create; it is unused until
the server accepts it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import psycopg
from psycopg import sql

from gateway.domain.logins import CreatedLogins, LoginPurpose, login_name
from gateway.errors import BadUsage
from gateway.storage import owned_files
from gateway.storage.postgres.database import NO_SLOT, Database, address_parts, parse_url
from gateway.storage.postgres.server_facts import READ_SHARE

FILE = "logins"
CONNECT_LIMIT_S = 5
_NEW_PASSWORDS = "tollgate db upgrade --new-passwords"


ROLES: Mapping[LoginPurpose, str] = {
    LoginPurpose.GATEWAY: "tollgate_gateway",
    LoginPurpose.REPORTS: "tollgate_reader",
    LoginPurpose.ADMIN: "tollgate_admin",
    LoginPurpose.FINANCE: "tollgate_finance",
}


# Of all connections of the server: the rest is the gateway's and the owner's.
SHARES: Mapping[LoginPurpose, float] = {
    LoginPurpose.REPORTS: READ_SHARE,
    LoginPurpose.ADMIN: 0.1,
    LoginPurpose.FINANCE: 0.1,
}
LEAST_CONNECTIONS = 5
_FOUND = """
SELECT pg_has_role(oid, %s, 'MEMBER') OR NOT rolcanlogin,
       has_database_privilege(oid, current_database(), 'CONNECT')
FROM pg_roles WHERE rolname = %s
"""
_IS_OPEN = "SELECT has_database_privilege('public', current_database(), 'CONNECT')"
_STATE = """
SELECT rolcanlogin, coalesce(rolvaliduntil <= now(), false), rolconnlimit = 0,
       has_database_privilege(oid, current_database(), 'CONNECT'),
       coalesce((SELECT pg_has_role(login.oid, granted.oid, 'MEMBER') FROM pg_roles AS granted
                 WHERE granted.rolname = %s), false)
FROM pg_roles AS login WHERE rolname = %s
"""
_LIMIT = """
SELECT rolconnlimit, current_setting('max_connections')::int FROM pg_roles WHERE rolname = %s
"""


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """A login and its password. `is_ready`: Postgres accepted it; `was_ready`: it once did."""

    user: str
    password: str
    is_ready: bool = False
    was_ready: bool = False


class _StoredLogins(msgspec.Struct, kw_only=True):
    """The logins of one database, by purpose. `owner` created them."""

    owner: str
    logins: dict[LoginPurpose, Login] = {}


def address_as(url: str, purpose: LoginPurpose, home: Path) -> str:
    """Return the owner's address with a narrower login, or unchanged if another login is given
    or none was made yet.

    Raises `BadUsage` for a login that Postgres no longer accepts: a login that may change its own
    password would give its programs the owner's rights.
    """
    given = parse_url(url)
    kept = _read_stored(home).get(_database_key(given))
    login = (
        kept.logins.get(purpose) if kept is not None and kept.owner == given.get("user") else None
    )
    if login is not None and login.was_ready and not login.is_ready:
        raise BadUsage(
            f"Postgres does not let {login.user} in with its password in {home / FILE}, and "
            f"another login is not used in its place. Give it another password: {_NEW_PASSWORDS}"
        )
    return url if login is None or not login.is_ready else _with_login(url, login)


def login_problem(address: str) -> str | None:
    """Return the reason why Postgres refuses the login of an address, with the remedy; None if it
    lets it in, and if no server answers.
    """
    refused = _refusal(address)
    if refused is None or "FATAL" not in refused:
        return None
    user, reason = parse_url(address).get("user"), _last_line(refused)
    if any(words in reason for words in NO_SLOT):
        return (
            f"Postgres does not let {user} in: {reason}. The password is right. Run fewer workers, "
            f"or raise the limit: ALTER ROLE {user} CONNECTION LIMIT -1; for a whole database "
            "ALTER DATABASE … CONNECTION LIMIT -1, for the server max_connections."
        )
    return (
        f"Postgres does not let {user} in: {reason}. If its password was changed, give it another "
        f"one: {_NEW_PASSWORDS}"
    )


def role_problem(database: Database, address: str, purpose: LoginPurpose) -> str | None:
    """Return the reason in Postgres's catalogue why the login of an address cannot work for its
    purpose, with the remedy; None if there is none. Postgres tells a refused login less.
    """
    user = str(parse_url(address).get("user", ""))
    with database.explained(), database.connect() as connection:
        return _role_problem(connection, user, ROLES[purpose])


def _role_problem(connection: psycopg.Connection[Any], user: str, role: str) -> str | None:
    """Return the fault that keeps a login from working in a role, with the SQL that ends it; None
    if nothing does.
    """
    name = sql.Identifier(user).as_string(connection)
    row = connection.execute(_STATE, (role, user)).fetchone()
    if row is None:
        return f"The login {user} does not exist. Run: tollgate db upgrade"
    may_log_in, is_over, has_no_room, may_connect, is_member = row
    if not may_log_in:
        return f"The login {user} is NOLOGIN. As an administrator: ALTER ROLE {name} LOGIN;"
    if is_over:
        return (
            f"The time of the login {user} is over (VALID UNTIL). As an administrator: ALTER ROLE "
            f"{name} VALID UNTIL 'infinity';"
        )
    if has_no_room:
        return (
            f"The login {user} may have no connection. As an administrator: ALTER ROLE {name} "
            "CONNECTION LIMIT -1;"
        )
    if not may_connect:
        place = sql.Identifier(connection.info.dbname).as_string(connection)
        return (
            f"The login {user} may not connect to this database. Run: tollgate db upgrade. Or, as "
            f"its owner: GRANT CONNECT ON DATABASE {place} TO {name};"
        )
    if not is_member:
        return (
            f"The login {user} is not in {role}. Run: tollgate db upgrade. Or, as an "
            f"administrator: GRANT {role} TO {name};"
        )
    return None


def _last_line(refused: str) -> str:
    """Return the last line of a refusal, which has the server's reason, without its period."""
    return refused.strip().splitlines()[-1].rstrip(".")


def renewed(url: str, purpose: LoginPurpose, home: Path) -> str:
    """Return an address with its login's current password: `db upgrade --new-passwords` may have
    changed it.
    """
    given = parse_url(url)
    kept = _read_stored(home).get(_database_key(given))
    login = kept.logins.get(purpose) if kept is not None else None
    return url if login is None or login.user != given.get("user") else _with_login(url, login)


def ensure_logins(
    database: Database,
    url: str,
    home: Path,
    *,
    given: Mapping[LoginPurpose, str],
    renews: bool = False,
) -> CreatedLogins:
    """Create the missing logins, as the owner.

    `given` are the addresses that the settings name for some of them.

    Logins that another home created stay unchanged, unless `renews` asks for new passwords.
    """
    owner = parse_url(url)
    kept = _read_stored(home).get(_database_key(owner)) or _StoredLogins(
        owner=str(owner.get("user", ""))
    )
    ready, statements, notes = [], [], []
    for purpose in LoginPurpose:
        wanted, is_ours = _wanted(purpose, kept, owner, given, renews=renews)
        if wanted is None:
            continue
        # An administrator may have created it since.
        if is_ours and not _refusal(_with_login(url, wanted)):
            wanted = msgspec.structs.replace(wanted, is_ready=True)
        with database.explained(), database.connect() as connection:
            missing = _missing_statements(connection, purpose, wanted, sets_password=is_ours)
            if missing is None:
                notes.append(
                    f"The login {wanted.user} is there already, and its password is not in "
                    f"{home / FILE}. Copy that file from the home that made it, or give it another "
                    f"one: {_NEW_PASSWORDS}"
                )
                continue
            if purpose not in given and purpose not in kept.logins:
                kept.logins[purpose] = wanted
                # Before the next line: a kill after it would lose the password.
                _write(home, _database_key(owner), kept)
            left = _run(connection, missing)
            if not left:
                notes += _limit_connections(connection, purpose, wanted.user)
        address = _with_login(url, wanted)
        is_ready = not left and not _refusal(address)
        statements += left
        if purpose not in given:
            was_ready = is_ready or wanted.is_ready or wanted.was_ready
            kept.logins[purpose] = msgspec.structs.replace(
                wanted, is_ready=is_ready, was_ready=was_ready
            )
        if is_ready:
            ready.append(wanted.user)
        elif not left:
            with database.explained(), database.connect() as connection:
                problem = _role_problem(connection, wanted.user, ROLES[purpose])
            notes.append(
                f"{problem} The login is not used; afterwards, run this command again."
                if problem
                else f"Postgres does not let {wanted.user} in with its password: "
                f"{_last_line(_refusal(address) or 'no details')}. It is not used. If its password "
                f"was changed: {_NEW_PASSWORDS}. Otherwise see pg_hba.conf."
            )
    if kept.logins:
        _write(home, _database_key(owner), kept)
    return CreatedLogins(ready=tuple(ready), sql=tuple(statements), notes=tuple(notes))


def _wanted(
    purpose: LoginPurpose,
    kept: _StoredLogins,
    owner: Mapping[str, Any],
    given: Mapping[LoginPurpose, str],
    *,
    renews: bool,
) -> tuple[Login | None, bool]:
    """Return the login to create or check, and whether we set its password; None if the settings
    name no separate login.
    """
    if purpose in given:
        named = parse_url(given[purpose])
        is_other = named.get("user") not in (None, owner.get("user")) and named.get("password")
        if not is_other or named.get("dbname") != owner.get("dbname"):
            return None, False
        return Login(user=str(named["user"]), password=str(named["password"])), True
    if purpose in kept.logins and not renews:
        return kept.logins[purpose], True
    user = login_name(str(owner.get("dbname", "tollgate")), purpose)
    return Login(user=user, password=secrets.token_urlsafe(32)), renews


def _missing_statements(
    connection: psycopg.Connection[Any], purpose: LoginPurpose, login: Login, *, sets_password: bool
) -> list[sql.Composed] | None:
    """Return the statements that complete a login; None if it exists and we do not set its
    password.
    """
    name, role = sql.Identifier(login.user), ROLES[purpose]
    encoding = connection.info.encoding
    verifier = connection.pgconn.encrypt_password(
        login.password.encode(encoding), login.user.encode(encoding), b"scram-sha-256"
    ).decode()
    found = connection.execute(_FOUND, (role, login.user)).fetchone()
    is_open = connection.execute(_IS_OPEN).fetchone() == (True,)
    password = sql.SQL("{} ROLE {} LOGIN PASSWORD {};")
    statements = []
    if found is None:
        statements.append(password.format(sql.SQL("CREATE"), name, sql.Literal(verifier)))
    elif not sets_password:
        return None
    elif not login.is_ready:
        statements.append(password.format(sql.SQL("ALTER"), name, sql.Literal(verifier)))
    if found is None or not found[0]:
        statements.append(sql.SQL("GRANT {} TO {};").format(sql.Identifier(role), name))
    if not (found[1] if found is not None else is_open):
        place = sql.Identifier(connection.info.dbname)
        statements.append(sql.SQL("GRANT CONNECT ON DATABASE {} TO {};").format(place, name))
    return statements


def _limit_connections(
    connection: psycopg.Connection[Any], purpose: LoginPurpose, user: str
) -> list[str]:
    """Limit the connections of a login beside the gateway's, unless it has a limit already; return
    the note for an administrator if this login may not.
    """
    row = connection.execute(_LIMIT, (user,)).fetchone()
    share = SHARES.get(purpose)
    if share is None or row is None or row[0] >= 0:
        return []
    limit = sql.Literal(max(LEAST_CONNECTIONS, round(row[1] * share)))
    refused = _run(
        connection,
        [sql.SQL("ALTER ROLE {} CONNECTION LIMIT {};").format(sql.Identifier(user), limit)],
    )
    return [
        f"{user} may take every connection of the server. An administrator runs: {statement}"
        for statement in refused
    ]


def _run(connection: psycopg.Connection[Any], statements: list[sql.Composed]) -> list[str]:
    """Run all SQL statements or none; return, as text, those that this login may not run."""
    try:
        with connection.transaction():
            for statement in statements:
                connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        return [statement.as_string(connection) for statement in statements]
    return []


def _refusal(address: str) -> str | None:
    """Return the error of a connection to an address, None if it succeeds."""
    try:
        psycopg.connect(**parse_url(address) | {"connect_timeout": CONNECT_LIMIT_S}).close()
    except psycopg.OperationalError as refused:
        return str(refused) or "no details"
    return None


def _with_login(url: str, login: Login) -> str:
    """Return the same address with another login; everything else in it, for example `sslmode`,
    stays.
    """
    scheme, _, rest = url.partition("://")
    authority, path, query = address_parts(rest)
    place = authority.rpartition("@")[2]
    user, password = quote(login.user, safe=""), quote(login.password, safe="")
    # Those of the query would win over the login.
    others = [part for part in query.split("&") if not part.startswith(("user=", "password="))]
    options = f"?{'&'.join(others)}" if any(others) else ""
    return f"{scheme}://{user}:{password}@{place}{path}{options}"


def _database_key(given: Mapping[str, Any]) -> str:
    """Return a database's address, by which its logins are stored."""
    return f"{given.get('host', '')}:{given.get('port', '')}/{given.get('dbname', '')}"


def _read_stored(home: Path) -> dict[str, _StoredLogins]:
    """Return the stored logins of this home, by database."""
    path = home / FILE
    owned_files.require_secret(path, name="The file of logins")
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _StoredLogins])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise BadUsage(
            f"The logins in {path} cannot be read: {error}. Fix its owner, or remove it and run: "
            f"{_NEW_PASSWORDS}"
        ) from error


def _write(home: Path, database_key: str, kept: _StoredLogins) -> None:
    """Store one database's logins in the file, replaced in one step: a concurrent reader sees the
    old file or the new one.
    """
    path, new = home / FILE, home / f"{FILE}.new"
    content = msgspec.json.format(msgspec.json.encode(_read_stored(home) | {database_key: kept}))
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    new.unlink(missing_ok=True)
    with os.fdopen(
        os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
    ) as file:
        file.write(content + b"\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
