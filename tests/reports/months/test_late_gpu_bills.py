"""A bill of a closed month's hours: the month stays, the difference stands in the next one, and no
team pays for it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import text

from gateway.domain.deployments.gpu_bills import HOUR_MS, BillLine
from gateway.domain.deployments.imported_bills import BillFile
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.storage.deployments.gpu_bills import GpuBillStore
from gateway.storage.ledger.months import MonthStore
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.storage.factories import event

AUGUST, SEPTEMBER = date(2026, 8, 1), date(2026, 9, 1)
BEGIN = datetime(2026, 8, 5, 12, tzinfo=UTC)
FILE = BillFile(name="bill.csv", sha256="0" * 64)
ACCEPTED = dict.fromkeys(
    ("unpartitioned-events", "unreconciled-providers", "missing-gpu-bills"), "a test"
)

LATE_CORRECTION = """
INSERT INTO tollgate.adjustments (adjustment_id, request_id, attempt, team, cost_centre,
  posted_period, occurred_at, amount_nusd, kind, reason, author)
VALUES (gen_random_uuid(), :request, 1, 'payments', 'CC-1207', '2026-09-01', :at, 700000000,
  'reprice', 'a test', 'test')
"""


def bill(database: Database, *, usd: int, hours: int = 2, invoice: str = "INV-1") -> Decimal:
    """Import a bill of some hours of August; return the amount booked late."""
    line = BillLine(
        number=2,
        deployment="qwen-eu",
        begin=BEGIN,
        end=BEGIN + timedelta(hours=hours),
        gpu_ms=hours * HOUR_MS,
        amount_nusd=usd * 10**9,
        invoice_id=invoice,
    )
    return GpuBillStore(database).add(FILE, [line]).late_usd


def shown(finance: Reports, month: str) -> dict[str, Any]:
    total = finance.run("gpu", ask(month=month)).total
    return {name: total[name] or 0 for name in ("bill_usd", "idle_usd", "variance_usd")}


def test_a_late_bill_is_the_invoice_less_what_the_closed_hours_showed(
    finance: Reports, write: Write, database: Database
) -> None:
    """The closed month must not change, and the invoice must be whole over both months."""
    write(
        event(1, at=BEGIN, is_self_hosted=True, deployment="qwen-eu", provider="vllm"),
        event(2, at=BEGIN + timedelta(days=31)),
    )
    assert bill(database, usd=6) == 0
    MonthStore(database).close(AUGUST, billed=(), accepted=ACCEPTED)
    closed, spend = shown(finance, "2026-08"), finance.run("spend", ask(month="2026-09")).total
    assert closed["bill_usd"] == 6
    assert bill(database, usd=10) == 4  # the same invoice, corrected
    assert bill(database, usd=10) == 0  # twice changes nothing
    assert bill(database, usd=3, hours=4, invoice="INV-2") == -7
    assert shown(finance, "2026-08") == closed
    assert shown(finance, "2026-09") == {"bill_usd": -3, "idle_usd": 0, "variance_usd": -3}
    assert finance.run("spend", ask(month="2026-09")).total == spend
    with database.begin() as connection:
        booked = connection.execute(
            text(
                "SELECT deployment, team, cost_centre, posted_period, amount_nusd "
                "FROM tollgate.adjustments WHERE kind = 'late_bill' ORDER BY created_at"
            )
        ).all()
    assert [tuple(row) for row in booked] == [
        ("qwen-eu", None, None, SEPTEMBER, 4 * 10**9),
        ("qwen-eu", None, None, SEPTEMBER, -7 * 10**9),
    ]


def test_a_late_charge_changes_no_line_of_a_closed_bill(
    finance: Reports, write: Write, database: Database
) -> None:
    """Teams + empty + underfilled + variance = bill, also after a late event and a correction of an
    hour of the closed month, and once the month was closed again.
    """
    own: dict[str, Any] = {"is_self_hosted": True, "deployment": "qwen-eu", "provider": "vllm"}
    first = event(1, at=BEGIN, **own)
    write(first)
    bill(database, usd=6)
    months = MonthStore(database)
    months.close(AUGUST, billed=(), accepted=ACCEPTED)
    closed = finance.run("gpu-bill", ask(month="2026-08"))
    assert closed.total["amount_usd"] == 6
    write(event(2, at=BEGIN, team="search", cost_nusd=10**9, lines=(), **own))
    with database.begin() as connection:
        connection.execute(text(LATE_CORRECTION), {"request": first.request_id, "at": BEGIN})
    assert finance.run("spend", ask(month="2026-09")).total["total_usd"] == Decimal("1.7")
    assert finance.run("gpu-bill", ask(month="2026-08")).rows == closed.rows
    months.reopen(AUGUST, reason="once more")
    assert finance.run("gpu-bill", ask(month="2026-08")).total["amount_usd"] == 6
    months.close(AUGUST, billed=(), accepted=ACCEPTED)
    assert finance.run("gpu-bill", ask(month="2026-08")).total["amount_usd"] == 6


def test_a_reopened_month_shows_the_bill_in_its_own_hours(
    finance: Reports, write: Write, database: Database
) -> None:
    """Counted in both months it would be paid twice."""
    write(event(1, at=BEGIN, is_self_hosted=True, deployment="qwen-eu", provider="vllm"))
    months = MonthStore(database)
    months.close(AUGUST, billed=(), accepted=ACCEPTED)
    assert bill(database, usd=10) == 10
    months.reopen(AUGUST, reason="the bill came")
    assert shown(finance, "2026-08")["bill_usd"] == 10
    assert shown(finance, "2026-09")["bill_usd"] == 0
    assert months.close(AUGUST, billed=(), accepted=ACCEPTED).version == 2
    assert [one.differing for one in months.verify(AUGUST)] == [[], []]
    assert shown(finance, "2026-08")["bill_usd"] == 10
