"""Compares the rights of Tollgate's roles with those of a freshly migrated database, and gives back
the missing ones.

`migrations/rights.tsv` has a line for each of them. A restored dump (`--no-acl`) or a REVOKE loses
rights, and no migration runs again. The rights of logins are in `logins`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

import migrations
from gateway.domain.database_server import quoted

ROLES = (
    "tollgate_reader",
    "tollgate_gateway",
    "tollgate_admin",
    "tollgate_finance",
    "tollgate_team_reader",
)
SCHEMAS = ("tollgate", "finance", "closed", "team", "team_closed")
MONTH = re.compile(r"(usage_events)_\d{4}_\d{2}$")  # the partitions differ between databases

_READ = """
WITH schemas AS (SELECT oid, nspname, nspacl FROM pg_namespace WHERE nspname = ANY(:schemas)),
roles AS (SELECT oid, rolname FROM pg_roles WHERE rolname = ANY(:roles)),
relations AS (
    SELECT found.oid, nspname || '.' || relname AS name, relowner, relacl
    FROM pg_class AS found JOIN schemas ON schemas.oid = relnamespace
    WHERE relkind IN ('r', 'p', 'v')
),
functions AS (
    SELECT nspname || '.' || proname || '(' || oidvectortypes(proargtypes) || ')' AS name,
           coalesce(proacl, acldefault('f', proowner)) AS acl
    FROM pg_proc JOIN schemas ON schemas.oid = pronamespace
)
SELECT 'schema' AS kind, nspname::text AS target, rolname::text AS grantee, privilege_type AS right
FROM schemas, aclexplode(nspacl) AS acl JOIN roles ON roles.oid = acl.grantee
UNION ALL SELECT 'table', name, rolname, privilege_type
FROM relations, aclexplode(relacl) AS acl JOIN roles ON roles.oid = acl.grantee
UNION ALL SELECT 'column', name || '.' || attname, rolname, privilege_type
FROM relations JOIN pg_attribute ON attrelid = relations.oid, aclexplode(attacl) AS acl
    JOIN roles ON roles.oid = acl.grantee
UNION ALL SELECT 'function', name, rolname, privilege_type
FROM functions, aclexplode(acl) AS acl JOIN roles ON roles.oid = acl.grantee
UNION ALL SELECT 'function', name, 'PUBLIC', '-EXECUTE'
FROM functions WHERE NOT EXISTS (SELECT FROM aclexplode(acl) AS given WHERE given.grantee = 0)
UNION ALL SELECT 'default', nspname, rolname, privilege_type
FROM pg_default_acl JOIN schemas ON schemas.oid = defaclnamespace, aclexplode(defaclacl) AS acl
    JOIN roles ON roles.oid = acl.grantee
WHERE defaclobjtype = 'r'
  AND defaclrole = (SELECT nspowner FROM pg_namespace WHERE nspname = 'tollgate')
UNION ALL SELECT 'member', had.rolname, member.rolname, 'MEMBER'
FROM pg_auth_members JOIN roles AS had ON had.oid = roleid
    JOIN roles AS member ON member.oid = pg_auth_members.member
UNION ALL SELECT 'database', '', rolname, 'TEMPORARY'
FROM roles WHERE has_database_privilege(oid, current_database(), 'TEMPORARY')
"""
_MONTHS = """
SELECT 'tollgate.' || relname FROM pg_class
WHERE relnamespace = 'tollgate'::regnamespace AND relispartition
"""
# The functions of one owner write the tables of the same owner.
_OWNERS = """
WITH owner AS (SELECT nspowner AS oid FROM pg_namespace WHERE nspname = 'tollgate'),
schemas AS (SELECT oid, nspname, nspowner FROM pg_namespace WHERE nspname = ANY(:schemas))
SELECT what || ' OWNER TO ' || quote_ident(pg_get_userbyid(owner.oid)) || ';' FROM owner, (
    SELECT 1, 'ALTER SCHEMA ' || nspname, nspowner FROM schemas
    UNION ALL SELECT 2, CASE relkind WHEN 'v' THEN 'ALTER VIEW ' ELSE 'ALTER TABLE ' END
        || nspname || '.' || quote_ident(relname), relowner
    FROM pg_class JOIN schemas ON schemas.oid = relnamespace WHERE relkind IN ('r', 'p', 'v')
    UNION ALL SELECT 3, 'ALTER ROUTINE ' || nspname || '.' || quote_ident(proname) || '('
        || oidvectortypes(proargtypes) || ')', proowner
    FROM pg_proc JOIN schemas ON schemas.oid = pronamespace
) AS found (step, what, has) WHERE has <> owner.oid ORDER BY step, what
"""
_OWNER = "SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'tollgate'"
_MAKE_ROLES = """
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY[{roles}] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
            IF NOT pg_has_role(current_user, wanted, 'USAGE') THEN
                EXECUTE format('GRANT %I TO %I', wanted, current_user);
            END IF;
        END IF;
    END LOOP;
END
$$
""".format(roles=", ".join(f"'{role}'" for role in ROLES))


class Right(NamedTuple):
    """A right of a role on an object. One that begins with `-` is kept from PUBLIC."""

    kind: str
    target: str
    grantee: str
    privilege: str

    @property
    def is_needed(self) -> bool:
        """Return True if a program of Tollgate fails without it."""
        return self.kind not in ("default", "member") and not self.privilege.startswith("-")


class RightsState(NamedTuple):
    """The differences of a database's rights from those of a fresh one: `missing` rights, and
    statements for the objects of another `owner`.
    """

    owner: str
    missing: tuple[Right, ...]
    other_owners: tuple[str, ...]

    @property
    def lost(self) -> tuple[str, ...]:
        """Return the rights without which a program fails, for messages."""
        return tuple(words(right for right in self.missing if right.is_needed))

    @property
    def loose(self) -> tuple[str, ...]:
        """Return the other differences, for messages."""
        return (
            *words(right for right in self.missing if not right.is_needed),
            *(f"another owner: {statement}" for statement in self.other_owners),
        )


def read(connection: Connection) -> frozenset[Right]:
    """Return the rights of the roles in a database, which any login may read."""
    rows = connection.execute(text(_READ), {"schemas": list(SCHEMAS), "roles": list(ROLES)})
    return frozenset(Right(*row) for row in rows)


@cache
def declared() -> frozenset[Right]:
    """Return the rights of a freshly migrated database; a month's partition has `*` as its name."""
    assert migrations.__file__ is not None, (
        "the package migrations must have been installed with its files"
    )
    lines = (Path(migrations.__file__).parent / "rights.tsv").read_text().splitlines()
    return frozenset(Right(*line.split("\t")) for line in lines)


def without_months(rights: Iterable[Right]) -> frozenset[Right]:
    """Return rights with one name for the partitions of all months."""
    return frozenset(right._replace(target=MONTH.sub(r"\1_*", right.target)) for right in rights)


def state(connection: Connection) -> RightsState:
    """Return the differences of a current database's rights from those of a fresh one."""
    months = [str(name) for name in connection.execute(text(_MONTHS)).scalars()]
    months = [name for name in months if MONTH.search(name)]
    wanted = {
        right._replace(target=target)
        for right in declared()
        for target in (months if right.target.endswith("_*") else (right.target,))
    }
    strays = connection.execute(text(_OWNERS), {"schemas": list(SCHEMAS)}).scalars()
    return RightsState(
        owner=str(connection.execute(text(_OWNER)).scalar_one()),
        missing=tuple(sorted(wanted - read(connection))),
        other_owners=tuple(map(str, strays)),
    )


def give_back(connection: Connection) -> None:
    """Make the missing roles, and give the missing rights as far as this login may. The caller
    commits.
    """
    name = str(connection.execute(text("SELECT current_database()")).scalar_one())
    _tried(connection, _MAKE_ROLES)
    for statement in state(connection).other_owners:
        _tried(connection, statement)
    found = state(connection)
    for statement in statements(found.missing, owner=found.owner, database=name):
        _tried(connection, statement)


def statements(rights: Iterable[Right], *, owner: str, database: str) -> Iterator[str]:
    """Yield the SQL that gives rights, one statement for each object and role."""
    for (kind, target, grantee), group in groupby(sorted(rights), key=lambda right: right[:3]):
        names = [right.privilege for right in group]
        taken = ", ".join(name[1:] for name in names if name.startswith("-"))
        given = ", ".join(name for name in names if not name.startswith("-"))
        if kind == "member":
            yield f"GRANT {target} TO {grantee};"
        elif kind == "default":
            yield (
                f"ALTER DEFAULT PRIVILEGES FOR ROLE {quoted(owner)} IN SCHEMA {target} GRANT "
                f"{given} ON TABLES TO {grantee};"
            )
        elif kind == "column":
            table, _, column = target.rpartition(".")
            columns = ", ".join(f"{name} ({column})" for name in names)
            yield f"GRANT {columns} ON TABLE {table} TO {grantee};"
        elif taken:
            yield f"REVOKE {taken} ON {kind.upper()} {target} FROM {grantee};"
        else:
            place = quoted(database) if kind == "database" else target
            yield f"GRANT {given} ON {kind.upper()} {place} TO {grantee};"


def words(rights: Iterable[Right]) -> Iterator[str]:
    """Yield the missing rights for messages, one text for each object and role."""
    for (kind, target, grantee), group in groupby(sorted(rights), key=lambda right: right[:3]):
        names = ", ".join(right.privilege.lstrip("-") for right in group)
        place = f"{kind} {target}".strip()
        if kind == "member":
            yield f"{grantee} is not in {target}"
        elif kind == "default":
            yield f"{grantee} gets no {names} on new tables of {target}"
        elif grantee == "PUBLIC":
            yield f"every login has {names} on {place}"
        else:
            yield f"{grantee} lacks {names} on {place}"


def _tried(connection: Connection, statement: str) -> None:
    """Run a statement that the login may be refused; its effect is looked for later."""
    try:
        with connection.begin_nested():
            connection.execute(text(statement.replace(":", r"\:")))
    except DBAPIError as refused:
        if refused.connection_invalidated:
            raise
