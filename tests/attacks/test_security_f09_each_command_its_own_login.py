"""Security F9: gateway, commands and dashboard logged in as the owner, so no role confined an
attacker who runs code.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from gateway.cli.dashboard import environment
from gateway.domain.logins import LoginPurpose
from gateway.errors import DatabaseUnavailable
from gateway.main import build_toolbox
from gateway.settings import Settings
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.logins import renewed
from tests.cli.conftest import Cli
from tests.gateway_process import FakeUpstreamProcess, StartGateway
from tests.integration.money.test_gateway_budgets import ask, policy
from tests.policy.documents import EXAMPLE
from tests.postgres import separate_server
from tests.storage.factories import event

ESCAPES = [
    ("SET ROLE NONE", "ALTER TABLE tollgate.audit_log DISABLE TRIGGER USER"),
    ("RESET ROLE", "DROP SCHEMA tollgate CASCADE"),
]


@pytest.fixture
def cli_at(tmp_path: Path) -> Callable[..., Cli]:
    """Return a function that makes a command line for any database, with more settings."""
    return lambda url, **more: Cli(
        build_toolbox(Settings(home=tmp_path / "home", database_url=url, **more))
    )


@pytest.fixture
def cli(cli_at: Callable[..., Cli], database_url: str) -> Cli:
    """Return a command line whose home has the logins."""
    made = cli_at(database_url)
    made.ok("db", "upgrade")
    return made


@pytest.fixture
def writers(cli: Cli, database_url: str) -> Callable[[], set[str]]:
    """Return a function that lists the logins that have written events since, as Postgres
    recorded them.
    """
    with psycopg.connect(database_url) as connection:
        connection.execute(
            """
            CREATE TABLE public.writers (login text);
            CREATE FUNCTION public.note_writer() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
                AS $$ BEGIN INSERT INTO public.writers VALUES (session_user); RETURN NULL; END $$;
            CREATE TRIGGER note_writer AFTER INSERT ON tollgate.usage_events
                FOR EACH STATEMENT EXECUTE FUNCTION public.note_writer();
            """
        )

    def seen() -> set[str]:
        with psycopg.connect(database_url) as connection:
            return {str(row[0]) for row in connection.execute("SELECT login FROM public.writers")}

    return seen


@pytest.fixture
def own_server() -> Iterator[str]:
    """Yield the URL of a server whose owner this test may restrict."""
    with separate_server() as url:
        yield url


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    """Return the path of the example policy."""
    path = tmp_path / "policy.yaml"
    path.write_text(EXAMPLE)
    return path


def user_of(url: str) -> str:
    return str(urlsplit(url).username)


def url_as(cli: Cli, purpose: str) -> str:
    return cli.ok("db", "url", "--as", purpose).strip()


@pytest.mark.parametrize("purpose", list(LoginPurpose))
@pytest.mark.parametrize("escape", ESCAPES)
def test_no_login_leaves_its_role(cli: Cli, purpose: str, escape: tuple[str, str]) -> None:
    """With the owner's URL, one statement could switch off the audit log's triggers."""
    leaves, attacks = escape
    with psycopg.connect(url_as(cli, purpose)) as connection:
        connection.execute(leaves.encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(attacks.encode())


def test_each_login_is_in_its_own_role_alone(cli: Cli, database_url: str) -> None:
    """Reports must not write, the gateway must not make keys, and no login may be an owner or a
    superuser.
    """
    users = {purpose: user_of(url_as(cli, purpose)) for purpose in LoginPurpose}
    roles = {
        "tollgate_gateway": LoginPurpose.GATEWAY,
        "tollgate_reader": LoginPurpose.REPORTS,
        "tollgate_admin": LoginPurpose.ADMIN,
        "tollgate_finance": LoginPurpose.FINANCE,
    }
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT member::regrole::text, roleid::regrole::text FROM pg_auth_members WHERE "
            "member::regrole::text = ANY(%s)",
            ([f'"{name}"' if not name.isidentifier() else name for name in users.values()],),
        ).fetchall()
        flags = connection.execute(
            "SELECT bool_or(rolsuper OR rolcreaterole OR rolcreatedb) FROM pg_roles WHERE "
            "rolname = ANY(%s)",
            (list(users.values()),),
        ).fetchone()
    assert {(member.strip('"'), role) for member, role in rows} == {
        (users[kind], role) for role, kind in roles.items()
    }
    assert flags == (False,)


def test_the_passwords_are_in_the_home_for_its_owner_alone(cli: Cli) -> None:
    """The passwords are protected like the pepper."""
    path = cli.toolbox.options.home / "logins"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    cli.ok("db", "upgrade")
    before = path.read_bytes()
    cli.ok("db", "upgrade")
    assert path.read_bytes() == before


def test_the_owners_address_is_still_printed_and_names_the_narrower_ones(
    cli: Cli, database_url: str
) -> None:
    """Scripts continue to work; the screen names the URL that suffices for reading."""
    ran = cli("db", "url")
    assert ran.out.strip() == database_url
    assert "--as reports" in ran.err


def test_administration_uses_its_own_login(cli: Cli, database_url: str, policy_file: Path) -> None:
    """The audit log records the login, so it shows which one was used."""
    cli.ok("policy", "apply", str(policy_file), "--yes", "--message", "first")
    with psycopg.connect(database_url) as connection:
        logins = connection.execute(
            "SELECT DISTINCT db_user FROM tollgate.audit_log WHERE action LIKE 'policy%'"
        ).fetchall()
    assert logins == [(user_of(url_as(cli, "admin")),)]


def test_serving_uses_its_own_login(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """The environment has the owner's URL as before, but the home has the narrower login."""
    gateway = start_gateway(
        policy(fake_upstream.url, team=", budgets: [{period: month, limit_usd: 1}]")
    )
    gateway.tollgate("db", "upgrade")
    gateway.stop()
    gateway.start()
    answer = ask(gateway)
    assert answer.status_code == 200, answer.text
    gateway.events(answer.headers["x-request-id"])
    rows = gateway.query(
        "SELECT DISTINCT usename, application_name FROM pg_stat_activity WHERE datname = "
        "current_database() AND application_name LIKE 'tollgate%%' AND pid <> pg_backend_pid()"
    )
    assert {row["usename"] for row in rows} <= {
        user_of(gateway.tollgate("db", "url", "--as", purpose))
        for purpose in ("gateway", "reports")
    }
    assert rows


def test_a_home_without_logins_goes_on_as_the_owner(
    cli_at: Callable[..., Cli], cli: Cli, database_url: str
) -> None:
    """After an upgrade of Tollgate, some commands run before `db upgrade`."""
    (cli.toolbox.options.home / "logins").unlink()
    ran = cli("db", "url", "--as", "reports")
    assert (ran.code, ran.out.strip()) == (0, database_url)
    assert "tollgate db upgrade" in ran.err
    assert cli("key", "list").code == 0
    again = cli("db", "upgrade")
    assert "--new-passwords" in again.err
    cli.ok("db", "upgrade", "--new-passwords")
    assert user_of(url_as(cli, "reports")) != user_of(database_url)


@pytest.mark.parametrize("purpose", LoginPurpose)
def test_no_address_is_printed_in_place_of_a_login_that_is_refused(
    cli: Cli, purpose: LoginPurpose
) -> None:
    """After a login had changed its own password, a script that asked for it got the owner's
    rights.
    """
    with psycopg.connect(url_as(cli, purpose), autocommit=True) as login:
        login.execute("ALTER ROLE CURRENT_USER PASSWORD 'mine'")
    for _ in range(2):
        ran = cli("db", "url", "--as", purpose)
        assert (ran.code, ran.out) == (2, "")
        assert "tollgate db upgrade --new-passwords" in ran.err
    cli.ok("db", "upgrade", "--new-passwords")
    psycopg.connect(url_as(cli, purpose)).close()


def test_addresses_in_the_settings_are_made_and_not_kept(
    cli_at: Callable[..., Cli], database_url: str
) -> None:
    """Compose gives each service its own login; the migration makes the logins with the
    passwords from its settings.
    """
    parts = urlsplit(database_url)
    name = f"{parts.path.strip('/')}_own"
    place = parts.netloc.rpartition("@")[2]
    own = urlunsplit(parts._replace(netloc=f"{name}:secret@{place}"))
    cli = cli_at(database_url, reports_database_url=own)
    assert name in json.loads(cli.ok("db", "upgrade", "--format", "json"))["logins"]
    assert url_as(cli, "reports") == own
    assert "secret" not in (cli.toolbox.options.home / "logins").read_text()
    with psycopg.connect(own) as connection:
        assert connection.execute("SELECT count(*) FROM finance.usage_events").fetchone() == (0,)


def test_an_owner_without_createrole_gets_the_sql(
    cli_at: Callable[..., Cli], own_server: str
) -> None:
    """If the owner lacks CREATEROLE, an administrator runs the printed SQL, and the next upgrade
    uses the logins.
    """
    poor = cli_at(own_server)
    superuser = {**conninfo_to_dict(own_server), "user": "postgres", "password": None}
    with psycopg.connect(**superuser, autocommit=True) as connection:
        connection.execute("ALTER ROLE tollgate NOCREATEROLE")
        ran = poor("db", "upgrade")
        assert ran.code == 0, ran
        statements = [line.strip() for line in ran.err.splitlines() if line.startswith("  ")]
        assert [line.split()[0] for line in statements] == ["CREATE", "GRANT"] * len(LoginPurpose)
        assert user_of(url_as(poor, "admin")) == "tollgate"
        for statement in statements:
            connection.execute(statement.encode())
    poor.ok("db", "upgrade")
    assert user_of(url_as(poor, "admin")) == "tollgate_admin_login"
    assert poor("key", "list").code == 0


def test_doctor_warns_of_the_owners_login(cli: Cli) -> None:
    """A home without the logins works, so only a check can report its risk."""
    fine = {row["check"]: row for row in json.loads(cli("doctor", "--format", "json").out)}
    assert fine["logins"]["status"] == "ok"
    (cli.toolbox.options.home / "logins").unlink()
    rows = [
        row for row in json.loads(cli("doctor", "--format", "json").out) if row["check"] == "logins"
    ]
    assert [row["status"] for row in rows] == ["warn"]
    assert "db upgrade" in rows[0]["what to do"]


def test_the_dashboard_learns_the_reports_address_and_no_secret() -> None:
    """It received every variable that did not end in _API_KEY, _SECRET or _TOKEN, including the
    administrator's database URL.
    """
    kept = {
        "PATH",
        "HOME",
        "LANG",
        "TZ",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "STREAMLIT_SERVER_COOKIE_SECRET",
    }
    secret = {
        "TOLLGATE_ADMIN_DATABASE_URL",
        "TOLLGATE_FINANCE_DATABASE_URL",
        "TOLLGATE_DATABASE_URL",
        "AWS_SESSION",
        "PGPASSWORD",
        "MY_CREDENTIAL",
    }
    before = dict(os.environ)
    try:
        os.environ.update(dict.fromkeys(kept | secret, "x"))
        given = environment("postgresql://reports@db/tollgate")
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert set(given) - set(before) <= kept | {"TOLLGATE_REPORTS_URL"}
    assert kept <= set(given)
    assert not secret & set(given)


def test_commands_that_write_events_use_the_gateways_login(
    cli: Cli, writers: Callable[[], set[str]]
) -> None:
    """Demo data writes events, prices and months as serving does, and a retried record is an
    event too.
    """
    cli.ok("demo-data", "--small")
    assert writers() == {user_of(url_as(cli, "gateway"))}


def test_the_audit_log_names_the_administrators_login(
    cli: Cli, writers: Callable[[], set[str]], database: Database, database_url: str
) -> None:
    """The retry is booked in the gateway's role, and the audit log names the person who
    requested it.
    """
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "ALTER TABLE tollgate.usage_events ADD CONSTRAINT older CHECK (false) NOT VALID"
        )
        Ledger(database).write_documents([encode_event(event(1))])
        connection.execute("ALTER TABLE tollgate.usage_events DROP CONSTRAINT older")
        cli.ok("reconcile", "retry")
        named = connection.execute(
            "SELECT DISTINCT db_user FROM tollgate.audit_log WHERE action LIKE 'dead_letter%'"
        ).fetchall()
    assert writers() == {user_of(url_as(cli, "gateway"))}
    assert named == [(user_of(url_as(cli, "admin")),)]


def test_new_passwords_reach_running_gateways(cli: Cli) -> None:
    """A gateway kept the old password and lost Postgres when its connections ended (found by an
    attack on 2026-11-23).
    """
    url, home = url_as(cli, "gateway"), cli.toolbox.options.home
    serving = Database(
        url, role="tollgate_gateway", renew=lambda: renewed(url, LoginPurpose.GATEWAY, home)
    )
    stale = Database(url, role="tollgate_gateway")
    for database in (serving, stale):
        with database.begin():
            pass
        database.close()  # ends the connections, as a restart of Postgres does
    ran = cli("db", "upgrade", "--new-passwords")
    assert "at their next connection" in ran.err
    with serving.begin():
        pass
    serving.close()
    with pytest.raises(DatabaseUnavailable, match="password"), stale.begin():
        pass
