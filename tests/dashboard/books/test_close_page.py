"""The page *Close and export*: it shows the checklist, closes by the command alone, once, in the
name of the signed-in person, and shows the command's own error.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.access import SIGN_IN_VARIABLE
from dashboard.finance import as_finance, child
from dashboard.finance.changes import BooksChange
from dashboard.source import export_file, statement
from dashboard.views.books import exports
from gateway.cli import dashboard as command
from gateway.reports.question import ask
from gateway.reports.statements.files import StatementFormat
from gateway.storage.ledger import rollups
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli, cli, cli_at
from tests.dashboard.conftest import TIMEOUT_S, Open
from tests.dashboard.test_pages import Write, texts
from tests.storage.factories import event

__all__ = ["cli", "cli_at"]  # fixtures of the command line

OCTOBER = datetime(2026, 10, 5, 12, tzinfo=UTC)
PERSON = "ada@example.org"
WHY = "a test has neither a bill nor partitions"
ROLES = """\
version: 1
regions: {eu: [eu-de]}
classes: {internal: {regions: [eu]}}
deployments:
  - {name: gpt-eu, provider: openai, base_url: "https://eu.api.openai.com/v1",
     api_key: "env:OPENAI_API_KEY", model: gpt-5.5, region: eu}
routes: [{name: assistant, deployments: [gpt-eu]}]
teams: [{name: payments, cost_centre: CC-1207, data_class: internal, routes: [assistant]}]
dashboard: {claim: groups, finance: [finops]}
"""


def close_page() -> None:
    from dashboard.views.books import close

    close.show()


@pytest.fixture
def october(write: Write, database: Database, cli: Cli, tmp_path: Path) -> None:
    """Two attempts of October, summed up, under a policy with a role of finance."""
    document = tmp_path / "policy.yaml"
    document.write_text(ROLES)
    cli.ok("policy", "apply", str(document), "--yes")
    write(event(1, at=OCTOBER), event(2, at=OCTOBER, team="search"))
    rollups.refresh(database)


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins without sign-in."""
    monkeypatch.setenv(SIGN_IN_VARIABLE, "")


@pytest.fixture
def finance_url(cli: Cli) -> str:
    """The address of finance's own login."""
    return cli.ok("db", "url", "--as", "finance").strip()


@pytest.fixture
def handed_over(finance_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Finance's address in an unnamed file, as `tollgate dashboard` hands it to the app."""
    with tempfile.TemporaryFile() as file:
        file.write(finance_url.encode())
        file.flush()
        monkeypatch.setenv(as_finance.FILE_VARIABLE, str(file.fileno()))
        yield finance_url


def page(look: Open, *, person: str | None = None, month: str = "2026-10") -> AppTest:
    look()
    app = AppTest.from_function(close_page, default_timeout=TIMEOUT_S)
    if person is not None:
        os.environ[SIGN_IN_VARIABLE] = "required"  # restored after the test
        signed_in = {"is_logged_in": True, "iat": time.time(), "email": person}
        app.user = signed_in | {"groups": ["finops"]}
    app.query_params["month"] = month
    return app.run()


def everything(app: AppTest) -> str:
    return " ".join([texts(app), *(one.value for one in app.success)])


def accept_all(app: AppTest) -> AppTest:
    for field in app.text_input:
        if field.key and field.key.startswith("accept_"):
            field.set_value(WHY)
    return app.run()


def closes(database_url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database_url) as connection:
        return connection.execute(
            "SELECT month::text, version, operator, author, events, accepted "
            "FROM finance.month_closes ORDER BY version"
        ).fetchall()


def test_without_a_sign_in_the_page_shows_the_command(
    look: Open, october: None, handed_over: str, database_url: str
) -> None:
    """A change without an author cannot be explained to an auditor."""
    app = accept_all(page(look))
    assert not app.exception
    assert "Nobody is signed in" in texts(app)
    assert [button.key for button in app.button if button.key == "close_month"] == []
    shown = [code.value for code in app.code]
    assert any(code.startswith("tollgate month close 2026-10 '--accept=") for code in shown)
    assert all(code.count("--yes") == 0 for code in shown), "a person should be asked in the shell"
    assert closes(database_url) == []


def test_the_checks_are_those_of_month_status(look: Open, october: None, cli: Cli) -> None:
    """Two lists would let the page close a month that the command calls open."""
    app = page(look)
    ran = cli("month", "status", "2026-10", "--format", "json")
    for name in ("unreconciled-providers", "unpartitioned-events"):
        assert name in ran.out
        assert any(name.replace("-", "\\-") in text.value for text in app.markdown)
    accepts = [one for one in app.text_input if str(one.key).startswith("accept_")]
    assert len(accepts) == ran.out.count('"warn"') + ran.out.count('"fail"')
    assert [metric.value for metric in app.metric] == [
        *("Provisional", "\\$0\\.001200", "2", str(len(accepts)))
    ]


def test_it_closes_once_in_the_name_of_the_person(
    look: Open, october: None, handed_over: str, database_url: str
) -> None:
    """The author is the person, the login is finance's, and a second click finds it done."""
    app = page(look, person=PERSON)
    assert app.button(key="close_month").disabled, "its checks are open"
    app = accept_all(app)
    app = app.button(key="close_month").click().run()
    assert "Its figures will not change any more" in texts(app)
    assert closes(database_url) == [], "nothing happens before the confirmation"
    yes = app.button(key="books_yes")
    app = yes.click().run()
    assert not app.exception
    assert "October 2026: done" in everything(app)
    (close,) = closes(database_url)
    month, version, operator, author, events, accepted = close
    assert (month, version, operator, events) == ("2026-10-01", 1, PERSON, 2)
    assert author in handed_over
    assert set(accepted.values()) == {WHY}  # type: ignore[attr-defined]  # it is JSON
    assert app.metric[0].value == "Closed"
    assert app.metric[3].value == "2"
    assert "`unreconciled-providers`, `unpartitioned-events`. Accepted at the close" in texts(app)
    assert [one.key for one in app.button if one.key in ("verify_month", "reopen_month")] == [
        *("verify_month", "reopen_month")
    ]
    app = app.button(key="verify_month").click().run()
    assert "October 2026: done" in everything(app)
    assert "is as it was closed" in " ".join(code.value for code in app.code)


def test_a_refusal_is_the_words_of_the_command(
    look: Open, october: None, handed_over: str, cli: Cli
) -> None:
    """The page has no second opinion: someone else closed it before the confirmation."""
    app = accept_all(page(look, person=PERSON))
    app = app.button(key="close_month").click().run()
    accepted = [
        f"--accept={one}={WHY}" for one in ("unreconciled-providers", "unpartitioned-events")
    ]
    cli.ok("month", "close", "2026-10", "--yes", *accepted)
    app = app.button(key="books_yes").click().run()
    assert "October 2026: refused" in texts(app)
    assert any("2026-10" in code.value and "closed" in code.value for code in app.code)


def test_a_login_that_fails_changes_nothing(
    look: Open, october: None, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child alone reads the address, so the child alone finds that nothing answers there."""
    with tempfile.TemporaryFile() as file:
        file.write(b"postgresql://finance:wrong@127.0.0.1:9/tollgate")
        file.flush()
        monkeypatch.setenv(as_finance.FILE_VARIABLE, str(file.fileno()))
        app = accept_all(page(look, person=PERSON))
        app = app.button(key="close_month").click().run()
        app = app.button(key="books_yes").click().run()
    assert "it is not known whether it was done" in texts(app)
    assert any("Postgres" in code.value for code in app.code)
    assert closes(database_url) == []


def test_a_proposed_reallocation_is_approved(
    look: Open, october: None, handed_over: str, cli: Cli, database_url: str
) -> None:
    """Its author is another login; the approval books two adjustments that sum to 0."""
    cli.ok(
        *("reallocation", "add", "--month", "2026-10", "--from", "CC-1207", "--to", "CC-3100"),
        *("--amount-usd", "0.5", "--reason", "shared runs"),
    )
    app = page(look, person=PERSON)
    (reason,) = [one for one in app.text_input if str(one.key).startswith("approve_reason_")]
    app = reason.set_value("agreed").run()
    (approve,) = [one for one in app.button if str(one.key).startswith("approve_")]
    app = approve.click().run()
    app = app.button(key="books_yes").click().run()
    assert ": done" in everything(app)
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT amount_usd, author FROM finance.adjustments WHERE kind = 'reallocation'"
        ).fetchall()
    assert sorted(amount for amount, _ in rows) == [Decimal("-0.5"), Decimal("0.5")]


def test_the_address_of_the_login_stays_out_of_the_app(handed_over: str, look: Open) -> None:
    """The child gets a number of a file; the app's own settings and environment have no secret."""
    look()
    variables = child._environment(PERSON)
    assert handed_over not in " ".join([*os.environ.values(), *variables.values()])
    assert variables[child.PERSON_VARIABLE] == PERSON
    assert set(variables) <= {
        *child.KEPT,
        *(child.PERSON_VARIABLE, child.REPORTS_VARIABLE, as_finance.FILE_VARIABLE),
    }
    assert command.FINANCE_VARIABLE == as_finance.FILE_VARIABLE
    assert "TOLLGATE_FINANCE_DATABASE_URL" not in command.environment("postgresql://reader@x/y")


def test_the_command_hands_over_no_owner(cli: Cli, cli_at: Callable[[str], Cli]) -> None:
    """Without a login of finance the page may only show commands: the owner's would do all."""
    with command.finance_file(cli.toolbox) as number:
        assert number is not None
        assert b"finance" in os.pread(number, 1000, 0)
    (cli.toolbox.options.home / "logins").unlink()
    with command.finance_file(cli.toolbox) as number:
        assert number is None


def test_the_files_are_those_of_the_commands(
    look: Open, october: None, cli: Cli, tmp_path: Path
) -> None:
    """A warehouse must not get another file from the page than from the shell."""
    app = page(look)
    assert not app.exception
    for name, (kind, _) in exports.EXPORTS.items():
        path = tmp_path / f"{name}.csv"
        cli.ok("export", name, "--month", "2026-10", "--out", str(path))
        made = export_file(kind(), ask(month="2026-10"), path.name)
        assert made() == path.read_bytes(), name


def test_a_statement_is_that_of_the_command(
    look: Open, october: None, cli: Cli, tmp_path: Path
) -> None:
    """The page that somebody signs has the figures of the shell."""
    app = page(look)
    (name,) = app.selectbox(key="statement_of").options
    for kind in StatementFormat:
        path = tmp_path / f"statement{kind}"
        cli.ok(
            *("report", "statement", "--cost-centre", name, "--month", "2026-10"),
            *("--out", str(path)),
        )
        assert statement(OCTOBER.date().replace(day=1), name, kind)() == path.read_bytes(), kind


def test_the_time_of_other_pages_is_kept(look: Open, october: None) -> None:
    """A range of days is no month: the page shows the next to close, and leaves the range."""
    look()
    app = AppTest.from_function(close_page, default_timeout=TIMEOUT_S)
    app.query_params.update({"from": "2026-11-03", "to": "2026-11-14"})
    app.run()
    assert not app.exception
    assert app.selectbox(key="close_month_picked").value == OCTOBER.date().replace(day=1)
    assert {*app.query_params} == {"from", "to"}
    app = page(look, month="2026-12")
    app.button(key="close_next").click().run()
    assert app.query_params["month"] == "2026-10"


def test_a_command_is_quoted_for_the_shell() -> None:
    """A reason is words of a person: it must not become another command."""
    change = BooksChange(
        title="Close",
        arguments=("month", "close", "2026-10", "--reason=a'; rm -rf ~ #", "--yes"),
        warning="",
        icon="",
    )
    assert change.command == """tollgate month close 2026-10 '--reason=a'"'"'; rm -rf ~ #'"""
