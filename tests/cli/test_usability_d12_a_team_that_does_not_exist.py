"""Usability D12: a misspelt team got a clean bill: "0 of 0 attempts outside of the rules", and exit
0.
"""

from __future__ import annotations

from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.storage.factories import event


def test_an_audit_of_an_unknown_team_is_refused(applied: Cli) -> None:
    """An auditor files the report: an unknown team must not look compliant."""
    ran = applied("audit", "residency", "--team", "paymnts", "--month", "2026-11")
    assert ran.code == 1
    assert "There is no team 'paymnts'" in ran.err
    assert "payments" in ran.err
    assert applied("audit", "residency", "--team", "payments", "--month", "2026-11").code == 0


def test_a_report_of_an_unknown_name_is_refused(applied: Cli, database: Database) -> None:
    """ "No events." is true of every misspelt name."""
    Ledger(database).write([event(1)])
    ran = applied("report", "spend", "--where", "team=nobody", "--month", "all")
    assert (ran.code, ran.out) == (1, "")
    assert "has the team 'nobody'. There is: payments." in ran.err
    assert applied("report", "events", "--where", "model=none", "--format", "csv").code == 1
    assert applied("report", "spend", "--where", "team=payments", "--month", "2020-01").code == 0
