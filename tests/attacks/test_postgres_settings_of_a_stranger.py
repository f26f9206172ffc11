"""A database or a login that was set up for another program: `DateStyle` of German dates was taken
for a Postgres that does not answer, and hard budgets refused; an idle timeout cost every tenth
request; functions in `public` ran as the gateway.
"""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from gateway.domain.checks import Status
from gateway.domain.database_server import server_checks
from gateway.errors import DatabaseUnavailable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import SESSION, Database, Session
from gateway.storage.postgres.server_facts import read_facts
from tests.storage.factories import event

# Settings by which a server, database or login changes how a session reads, writes or ends; other
# categories are about speed, logs and the server's own work.
ABOUT_CLIENTS = "^(Client Connection Defaults|Version and Platform Compatibility|Error Handling)"
# Those that no session sets, and why.
LEFT = {
    "client_min_messages": "notices, which nobody reads",
    "createrole_self_grant": "what a new role's maker may do, which migrations grant by name",
    "default_table_access_method": "how bytes lie",
    "default_tablespace": "where bytes lie",
    "default_toast_compression": "how bytes lie",
    "default_transaction_read_only": "a read-only database is refused by name",
    "escape_string_warning": "a notice",
    "event_triggers": "a superuser's alone",
    "gin_pending_list_limit": "speed",
    "icu_validation_level": "a notice",
    "lc_messages": "a superuser's alone: the words of errors, which are told apart by number",
    "lo_compat_privileges": "a superuser's alone: no large objects here",
    "local_preload_libraries": "before the session",
    "restrict_nonsystem_relation_kind": "a refusal, by name",
    "session_replication_role": "a superuser's alone",
    "synchronize_seqscans": "the order of rows that have none",
    "temp_tablespaces": "where bytes lie",
    "transaction_deferrable": "of one transaction",
    "transaction_isolation": "of one transaction",
    "transaction_read_only": "of one transaction",
}
ODD = {
    "array_nulls": "off",
    "backslash_quote": "on",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "datestyle": "German",
    "default_transaction_isolation": "serializable",
    "exit_on_error": "on",
    "extra_float_digits": "-15",
    "idle_session_timeout": "9s",
    "intervalstyle": "sql_standard",
    "quote_all_identifiers": "on",
    "search_path": "public, pg_catalog",
    "statement_timeout": "1ms",
    "standard_conforming_strings": "off",
    "timezone": "America/Havana",
    "transaction_timeout": "9s",
    "transform_null_equals": "on",
    "xmlbinary": "hex",
    "xmloption": "document",
}


def test_each_setting_about_clients_is_set_or_left_for_a_reason(database_url: str) -> None:
    """A list of the settings that somebody thought of would miss the next one."""
    with psycopg.connect(database_url) as session:
        found = session.execute(
            "SELECT lower(name) FROM pg_settings WHERE context IN ('user', 'superuser') "
            "AND category ~ %s",
            (ABOUT_CLIENTS,),
        ).fetchall()
    assert {name for (name,) in found} - SESSION.keys() == LEFT.keys()


@pytest.mark.parametrize("name", ODD)
def test_a_session_reads_and_writes_as_ever(database_url: str, name: str) -> None:
    dbname = conninfo_to_dict(database_url)["dbname"]
    with psycopg.connect(database_url, autocommit=True) as owner:
        for whose in (f'DATABASE "{dbname}"', f'ROLE CURRENT_USER IN DATABASE "{dbname}"'):
            odd = ODD[name] if name == "search_path" else f"'{ODD[name]}'"
            owner.execute(f"ALTER {whose} SET {name} = {odd}".encode())
    with closing(Database(database_url, role="tollgate_gateway")) as database:
        with database.connect() as session:
            (shown,) = session.execute(f"SHOW {name}".encode()).fetchone() or ("",)
            assert shown == SESSION[name]
        ledger = Ledger(database)
        ledger.write([event(1)])
        with database.connect() as session:
            assert session.execute("SELECT count(*) FROM tollgate.usage_events").fetchone() == (1,)


def test_doctor_names_each_place_of_a_setting_that_tollgate_cannot_work_with(
    database_url: str,
) -> None:
    """The gateway's log pointed at `doctor`, and `doctor` at the gateway's log: the limit of 1 ms
    was of the gateway's own login, and the message named another limit of 30 s.
    """
    dbname = conninfo_to_dict(database_url)["dbname"]
    with psycopg.connect(database_url, autocommit=True) as owner:
        user = owner.execute("SELECT quote_ident(current_user)").fetchone()
        assert user is not None
        for place, setting in (
            (f"ROLE {user[0]} IN DATABASE {dbname}", "statement_timeout = '200ms'"),
            (f"DATABASE {dbname}", "statement_timeout = '1min'"),
            (f"DATABASE {dbname}", "default_transaction_read_only = on"),
        ):
            owner.execute(f"ALTER {place} SET {setting}".encode())
    with closing(Database(database_url)) as database:
        found = {
            (check.name, check.status): check.remedy
            for check in server_checks(read_facts(database))
            if check.name in ("statement_timeout", "default_transaction_read_only")
        }
    assert found == {
        ("statement_timeout", Status.WARN): f"as an administrator: ALTER ROLE {user[0]} IN "
        f"DATABASE {dbname} RESET statement_timeout;",
        ("default_transaction_read_only", Status.FAIL): "as an administrator: ALTER DATABASE "
        f"{dbname} RESET default_transaction_read_only;",
    }


class Cut(Session):
    """A session whose every statement runs into its login's limit."""

    def execute(self, *_args: object, **_options: object) -> psycopg.Cursor[object]:
        raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")


def test_a_login_whose_every_statement_is_cut_is_named(database_url: str) -> None:
    """The message named Tollgate's own limit, which no session had reached yet."""

    class OfCutSessions(Database):
        """A database that opens such sessions."""

        def _opened(self) -> Session:
            opened = super()._opened()
            opened.__class__ = Cut
            return opened

    with (
        closing(OfCutSessions(database_url)) as database,
        pytest.raises(DatabaseUnavailable, match=r"ALTER ROLE .* RESET statement_timeout"),
        database.begin(),
    ):
        pass


def test_a_function_of_a_stranger_does_not_run_as_the_gateway(database_url: str) -> None:
    """Postgres's own `convert_to` takes a name; one of two texts fits better."""
    with psycopg.connect(database_url, autocommit=True) as stranger:
        stranger.execute(
            "CREATE TABLE public.seen (who text); GRANT ALL ON public.seen TO PUBLIC; "
            "CREATE FUNCTION public.unnest(text[]) RETURNS SETOF text LANGUAGE sql VOLATILE AS "
            "$$ INSERT INTO public.seen VALUES (current_user); SELECT pg_catalog.unnest($1) $$; "
            "CREATE FUNCTION public.convert_to(text, text) RETURNS bytea LANGUAGE sql VOLATILE AS "
            "$$ INSERT INTO public.seen VALUES (current_user) RETURNING '\\x00'::bytea $$; "
            "CREATE FUNCTION public.jsonb_build_object(text, text) RETURNS jsonb LANGUAGE sql "
            "VOLATILE AS $$ INSERT INTO public.seen VALUES (current_user) RETURNING '1'::jsonb $$"
        )
        with closing(Database(database_url, role="tollgate_gateway")) as database:
            Ledger(database).write([event(1)])
        assert stranger.execute("SELECT count(*) FROM public.seen").fetchone() == (0,)
