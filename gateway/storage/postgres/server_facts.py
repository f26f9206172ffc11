"""Reads the settings and rights of a server that decide its losses and the reach of any login,
with the rights of any login; judges nothing.
"""

from __future__ import annotations

from sqlalchemy import text

from gateway.domain.database_server import SERVER, UNSUITABLE, HeldLock, ServerFacts
from gateway.storage.postgres import rights
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.entry import read_members
from gateway.storage.postgres.locks import HELD

# With them a login makes large objects, which have no owner's limit. Others only change such ones.
_MAKERS = "lo_creat", "lo_create", "lo_from_bytea"
READ_SHARE = 0.4  # of all connections; the gateway keeps the larger part

_SETTINGS = """
SELECT current_database() AS database, current_setting('fsync')::boolean AS fsync,
       current_setting('full_page_writes')::boolean AS full_page_writes,
       current_setting('synchronous_standby_names') AS synchronous_standbys,
       (SELECT count(*) FROM pg_stat_replication WHERE application_name !~ 'pg_basebackup') AS
         standbys,
       current_setting('temp_file_limit') <> '-1' AS limits_temporary_files,
       current_setting('max_connections')::int AS connections,
       has_schema_privilege('public', 'public', 'CREATE') AS public_may_make_tables,
       has_database_privilege('public', current_database(), 'TEMPORARY') AS
         public_may_make_temporary,
       pg_notification_queue_usage() AS queue_share,
       coalesce((SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'tollgate'),
                'tollgate') AS owner
"""
# Each place (login, database or all of them) that sets one of the named settings for sessions here.
_PLACES = """
SELECT concat_ws(' IN ',
         CASE WHEN setrole <> 0 THEN 'ROLE ' || quote_ident(pg_get_userbyid(setrole))
              WHEN setdatabase = 0 THEN 'ROLE ALL' END,
         CASE WHEN setdatabase <> 0 THEN 'DATABASE ' || quote_ident(current_database()) END)
         AS place, split_part(setting, '=', 1) AS name, split_part(setting, '=', 2) AS value,
       pg_get_userbyid(nullif(setrole, 0))::text AS login
FROM pg_db_role_setting, unnest(setconfig) AS setting
WHERE setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
  AND split_part(setting, '=', 1) = ANY(:names)
ORDER BY 1, 2
"""
_OWN = "SELECT name, reset_val FROM pg_settings WHERE name = ANY(:names) ORDER BY 1"
_PUBLIC_WRITES = """
SELECT proname || '(' || oidvectortypes(proargtypes) || ')' FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = ANY(:names)
  AND has_function_privilege('public', oid, 'EXECUTE')
ORDER BY 1
"""
# All locks of a server share one table, which a login fills with them.
_PUBLIC_LOCKS = """
SELECT proname || '(' || oidvectortypes(proargtypes) || ')' FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace AND proname ~ '^pg_(try_)?advisory_(xact_)?lock'
  AND has_function_privilege('public', oid, 'EXECUTE')
ORDER BY 1
"""
_BESIDE_THE_GATEWAY = """
SELECT rolname::text FROM pg_roles
WHERE rolcanlogin AND NOT rolsuper
  AND (pg_has_role(oid, 'tollgate_reader', 'MEMBER')
       OR pg_has_role(oid, 'tollgate_finance', 'MEMBER'))
  AND NOT pg_has_role(oid, 'tollgate_gateway', 'MEMBER')
  AND has_database_privilege(oid, current_database(), 'CONNECT')
"""
_UNLIMITED = f"{_BESIDE_THE_GATEWAY} AND rolconnlimit < 0 ORDER BY 1"
# Of the settings that apply to a login here, Postgres takes that of the login in the database, then
# the login's, then the database's.
_TALKATIVE = f"""
{_BESIDE_THE_GATEWAY} AND coalesce((
    SELECT split_part(setting, '=', 2) FROM pg_db_role_setting, unnest(setconfig) AS setting
    WHERE setrole IN (0, oid) AND split_part(setting, '=', 1) = 'log_min_messages'
      AND setdatabase IN (0, (SELECT d.oid FROM pg_database d WHERE datname = current_database()))
    ORDER BY setrole = 0, setdatabase = 0 LIMIT 1
), (SELECT boot FROM (SELECT reset_val AS boot FROM pg_settings WHERE name = 'log_min_messages'
    AND source IN ('configuration file', 'command line', 'default')) AS server), 'warning')
  NOT IN ('fatal', 'panic')
ORDER BY 1
"""  # noqa: S608 - a constant


def read_facts(database: Database) -> ServerFacts:
    """Return the facts of the server. Raises `DatabaseUnavailable`."""
    with database.begin() as connection:
        roles, members = rights.state(connection), read_members(connection)
        row = dict(connection.execute(text(_SETTINGS)).mappings().one())
        connections = row.pop("connections")
        names = {"names": list(UNSUITABLE)}
        places = connection.execute(text(_PLACES), names).all()
        settings = [
            (str(place), str(name), str(value))
            for place, name, value, login in places
            if name == "synchronous_commit" or login in (None, row["owner"], *members.own)
        ]
        settings += [
            (SERVER, str(name), str(value)) for name, value in connection.execute(text(_OWN), names)
        ]
        writes = connection.execute(text(_PUBLIC_WRITES), {"names": list(_MAKERS)}).scalars()
        return ServerFacts(
            **row,
            settings=tuple(settings),
            public_writes=tuple(map(str, writes)),
            public_locks=tuple(map(str, connection.execute(text(_PUBLIC_LOCKS)).scalars())),
            talkative=tuple(map(str, connection.execute(text(_TALKATIVE)).scalars())),
            unlimited=tuple(map(str, connection.execute(text(_UNLIMITED)).scalars())),
            read_limit=read_limit(connections),
            locks=tuple(HeldLock(**held) for held in connection.execute(text(HELD)).mappings()),
            lost_rights=roles.lost,
            loose_rights=roles.loose,
            foreign_logins=members.foreign,
            own_logins=members.own,
        )


def read_limit(connections: int) -> int:
    """Return the limit of connections of a reader's login at a server with so many."""
    return max(5, round(connections * READ_SHARE))
