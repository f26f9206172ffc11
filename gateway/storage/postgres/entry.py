"""Closes a database to the logins of another Tollgate database on the same server.

Tollgate's roles belong to the server: a login of another database is a member of the same roles, so
it has their rights in each database that it may enter. By default every login may enter each.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, text

from gateway.domain.database_server import quoted
from gateway.domain.logins import LoginPurpose, login_name

# Logins that may enter, with the databases that they own. A superuser may enter anyway.
_LOGINS = """
SELECT rolname::text AS name,
       EXISTS (SELECT FROM pg_roles AS granted WHERE granted.rolname ~ '^tollgate_'
               AND NOT granted.rolcanlogin AND pg_has_role(login.oid, granted.oid, 'MEMBER'))
         AS is_member,
       oid IN (SELECT datdba FROM pg_database WHERE datname = current_database()) OR
         oid IN (SELECT nspowner FROM pg_namespace WHERE nspname = 'tollgate') AS is_owner,
       oid IN (SELECT datdba FROM pg_database WHERE NOT datistemplate) AS owns_a_database
FROM pg_roles AS login
WHERE rolcanlogin AND NOT rolsuper AND has_database_privilege(oid, current_database(), 'CONNECT')
ORDER BY 1
"""
_DATABASES = "SELECT datname::text FROM pg_database WHERE datname <> current_database()"
_PLACE = """
SELECT current_database()::text AS name, has_database_privilege('public', current_database(),
         'CONNECT') AS is_open,
       pg_has_role(datdba, 'USAGE') AS may_close
FROM pg_database WHERE datname = current_database()
"""


class Members(NamedTuple):
    """The logins that may enter a database by their names: its `own` members of Tollgate's roles,
    the `foreign` members of another Tollgate database, and `others`.
    """

    own: tuple[str, ...]
    foreign: tuple[str, ...]
    others: tuple[str, ...]


def read_members(connection: Connection) -> Members:
    """Return the logins that may enter this database. The owner of another database on the server
    counts as an other one, even as a member: its `db upgrade` made it one.
    """
    databases = connection.execute(text(_DATABASES)).scalars()
    theirs = {login_name(name, purpose) for name in databases for purpose in LoginPurpose}
    own, foreign, others = [], [], []
    for row in connection.execute(text(_LOGINS)):
        if row.is_owner or (row.is_member and row.name not in theirs and not row.owns_a_database):
            own.append(row.name)
        elif row.is_member and row.name in theirs:
            foreign.append(row.name)
        else:
            others.append(row.name)
    return Members(tuple(own), tuple(foreign), tuple(others))


def close_to_others(connection: Connection) -> None:
    """Let only this database's own logins enter it, if another Tollgate database is on the server
    and this login may decide that. The caller commits.

    It stays open while a login that is no member of Tollgate's roles may enter, for example one
    that measures the server: `doctor` then gives the SQL.
    """
    place = connection.execute(text(_PLACE)).one()
    members = read_members(connection)
    if not (place.is_open and place.may_close and members.foreign) or members.others:
        return
    name = quoted(place.name)
    kept = ", ".join(map(quoted, members.own))
    statements = [f"GRANT CONNECT ON DATABASE {name} TO {kept}"] if kept else []
    statements.append(f"REVOKE CONNECT ON DATABASE {name} FROM PUBLIC")
    for statement in statements:
        connection.execute(text(statement.replace(":", r"\:")))
