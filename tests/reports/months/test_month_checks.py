"""Each check of a month counts only items that can touch that month."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import text

from gateway.domain.checks import Check
from gateway.domain.ledger.month_close import BilledSpan, month_moments
from gateway.domain.policy.stored_policy import StoredPolicy
from gateway.reports.reports import Reports
from gateway.services.ledger.billed_hours import billed_spans
from gateway.storage.ledger.adjustments import expire_holds
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.postgres.database import Database
from tests.policy.documents import EXAMPLE
from tests.reports.conftest import Write
from tests.storage.factories import UNKNOWN, event, request_id

MONTHS = [date(2026, month, 1) for month in (7, 8, 9, 10)]
ADD_JOURNAL = """
INSERT INTO tollgate.journals (id, replica, started_at, heartbeat, state)
VALUES ('00000000-0000-0000-0000-000000000001', 'a', '2026-08-02', '2026-08-20', 'live')
"""
ADD_BILL = (
    "INSERT INTO tollgate.provider_bill_imports (import_id, provider, kind, file_name, sha256, "
    "first_day, last_day, rows, amount_nusd) VALUES (:id, 'openai', 'csv', 'a', repeat('0', 64), "
    ":day, :day, 1, :nusd)",
    "UPDATE tollgate.provider_bill_days SET replaced_by = :id WHERE day = :day "
    "AND replaced_by IS NULL",
    "INSERT INTO tollgate.provider_bill_days (import_id, account, day, provider, kind, rows, "
    "digest) VALUES (:id, 'a', :day, 'openai', 'csv', 1, '')",
    "INSERT INTO tollgate.provider_bill_lines (import_id, number, account, day, model, "
    "token_kind, amount_nusd, slack_nusd, text) VALUES (:id, 1, 'a', :day, 'm', 'input', :nusd, "
    "0, '')",
)
ADD_TRUE_UP = """
INSERT INTO tollgate.adjustments (adjustment_id, posted_period, occurred_at, amount_nusd, kind,
  reason, author)
VALUES ('00000000-0000-0000-0000-000000000001', '2026-08-01', '2026-08-05', 200, 'true_up', 'x',
  'x');
INSERT INTO tollgate.true_ups VALUES ('00000000-0000-0000-0000-000000000001', 'openai', 'a',
  '2026-08-05', 'm', 'input', 'fee', 'x')
"""


def open_in(finance: Reports, check: str) -> list[int]:
    """Return the months in which a check is open."""
    return [
        month.month
        for month in MONTHS
        if check in {one.name for one in finance.month_status(month).open_checks}
    ]


def run(database: Database, sql: str) -> None:
    with database.begin() as connection:
        connection.execute(text(sql))


def test_a_silent_journal_touches_the_months_since_its_last_heartbeat(
    finance: Reports, database: Database
) -> None:
    """Its earlier events are in the ledger; later ones may not be."""
    run(database, ADD_JOURNAL)
    assert open_in(finance, "silent-journals") == [8, 9, 10]


def test_a_lost_journal_touches_the_months_from_its_last_heartbeat_to_its_loss(
    finance: Reports, database: Database
) -> None:
    """Each later month would otherwise be asked about it for ever."""
    run(database, ADD_JOURNAL)
    (journal,) = JournalTable(database).all()
    JournalTable(database).declare_lost(journal.id, reason="the disk died")
    assert open_in(finance, "lost-journals") == [8, 9, 10]
    run(database, "UPDATE tollgate.journals SET lost_at = '2026-09-03'")
    assert open_in(finance, "lost-journals") == [8, 9]


def test_an_attempt_at_an_expected_cost_is_named(
    database: Database, finance: Reports, write: Write
) -> None:
    """The command asked for a request's id, and no report had it: to `report unsettled` the
    attempt is settled.
    """
    at = datetime(2026, 8, 5, tzinfo=UTC)
    write(event(1, at=at, **UNKNOWN), event(2, at=at, **UNKNOWN))
    expire_holds(database, ttl=timedelta(days=1))
    (check,) = [
        one for one in finance.month_status(MONTHS[1]).checks if one.name == "expected-costs"
    ]
    assert check.finding.startswith("2 attempt(s)")
    assert check.remedy == (
        f"tollgate reconcile resolve {request_id(1, at)} --as AMOUNT --reason …; "
        "tollgate export adjustments --month 2026-08 --out FILE.xlsx"
    )


@pytest.mark.parametrize(("journal", "months"), [("NULL", [7, 8, 9]), ("id", [8, 9])])
def test_a_dead_letter_touches_the_months_of_its_journal_until_it_was_refused(
    finance: Reports, database: Database, journal: str, months: list[int]
) -> None:
    """Its own moment cannot be read."""
    run(database, ADD_JOURNAL)
    run(
        database,
        "INSERT INTO tollgate.dead_letters (journal_id, document, error, digest, recorded_at) "
        f"SELECT {journal}, 'x', 'x', 'x', '2026-09-05' FROM tollgate.journals",
    )
    assert open_in(finance, "dead-letters") == months


def test_each_hour_that_the_policy_declares_needs_a_bill(
    finance: Reports, database: Database
) -> None:
    """A reserved machine costs money in idle hours too."""
    begin, end = month_moments(MONTHS[2])
    billed = [BilledSpan(deployment="a", begin=begin, end=end)]
    run(
        database,
        "INSERT INTO tollgate.gpu_hours (deployment, hour, policy_version, gpu_type, gpu_count, "
        "usd_per_gpu_hour, basis, watched_ms, up_ms, billed_ms, bill_nusd) VALUES ('a', "
        "'2026-09-05 12:00+00', 1, 'H200', 1, 3, 'always', 1, 1, 1, 5)",
    )
    (check,) = [
        one
        for one in finance.month_status(MONTHS[2], billed=billed).open_checks
        if one.name == "missing-gpu-bills"
    ]
    assert check.finding == "719 of 720 hour(s) of self-hosted GPUs have no known bill: a"
    assert open_in(finance, "missing-gpu-bills") == []


def billed(database: Database, amount_nusd: int, *, day: str = "2026-08-05") -> None:
    """Import one line of a bill of a day; a later one replaces it."""
    with database.begin() as connection:
        values = {"id": uuid4(), "nusd": amount_nusd, "day": day}
        for sql in ADD_BILL:
            connection.execute(text(sql), values)


def test_a_provider_is_reconciled_if_its_bill_is_metered_or_approved(
    finance: Reports, write: Write, database: Database
) -> None:
    """A gap to the invoice that nobody looked at would be signed with the month."""
    write(
        event(1, at=datetime(2026, 8, 5, 12, tzinfo=UTC), cost_nusd=1000),
        event(2, at=datetime(2026, 9, 5, 12, tzinfo=UTC), cost_nusd=0),
        event(3, at=datetime(2026, 10, 5, 12, tzinfo=UTC), is_self_hosted=True),
    )

    def check() -> Check:
        assert open_in(finance, "unreconciled-providers") in ([], [8])
        checks = finance.month_status(MONTHS[1]).checks
        (one,) = [one for one in checks if one.name == "unreconciled-providers"]
        return one

    def found() -> str:
        return check().finding

    approve = "tollgate reconcile approve --provider openai --month 2026-08 --reason …"
    imported = "tollgate reconcile import FILE --provider openai --kind KIND"
    assert check().remedy == f"{imported}; {approve}"
    assert found() == "1 provider(s) whose bill is not reconciled: openai (no bill)"
    billed(database, 900)
    assert "openai (-$0.000000100 left)" in found()
    shown = "tollgate reconcile show --provider openai --month 2026-08"
    assert check().remedy == f"{shown}; {approve}"
    billed(database, 1000)
    assert found() == "each provider's bill is reconciled"
    billed(database, 1200)
    run(database, ADD_TRUE_UP)
    assert found() == "each provider's bill is reconciled"


class History:
    """The versions of a policy, oldest first."""

    def __init__(self, *versions: tuple[datetime, str]) -> None:
        self._versions = versions

    def history(self) -> list[StoredPolicy]:
        """Return the versions, newest first."""
        return [
            StoredPolicy(
                version=number,
                sha256="",
                document=document,
                author="",
                message="",
                is_demo=False,
                applied_at=at,
            )
            for number, (at, document) in enumerate(self._versions, start=1)
        ][::-1]


def test_the_declared_hours_are_those_of_the_policies_in_force() -> None:
    """A machine that was given back in the middle of the month is paid for until then."""
    begin, end = month_moments(MONTHS[2])
    always = EXAMPLE.replace("target_utilisation: 0.5}", "target_utilisation: 0.5, hours: always}")
    assert always != EXAMPLE
    applied, given_back = datetime(2026, 9, 3, 8, 30, tzinfo=UTC), datetime(2026, 9, 20, tzinfo=UTC)
    history = History((applied, always), (given_back, EXAMPLE), (given_back, "not a policy"))
    found = billed_spans(history.history(), begin=begin, end=end, now=end)  # type: ignore[arg-type]
    assert {(one.begin, one.end) for one in found} == {
        (datetime(2026, 9, 3, 8, tzinfo=UTC), given_back)
    }


def test_the_views_of_closed_months_have_the_columns_of_the_running_ones(
    database: Database,
) -> None:
    """A column that only the running view has would fail a report as closed."""
    with database.begin() as connection:
        rows = connection.execute(
            text(
                "SELECT table_schema, table_name, column_name, data_type FROM "
                "information_schema.columns WHERE table_schema IN ('finance', 'closed')"
            )
        ).all()
    views = {name for schema, name, *_ in rows if schema == "closed"}
    of = {
        schema: {tuple(row[1:]) for row in rows if row[0] == schema and row[1] in views}
        for schema in ("finance", "closed")
    }
    assert views == {
        *("usage_events", "adjustments", "gpu_cost", "prices", "cost_centre_shares"),
        "currency_rates",
    }
    assert of["closed"] == of["finance"]
