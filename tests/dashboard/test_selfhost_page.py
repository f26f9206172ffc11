"""The page of self-hosted economics: with a bill, without, with a what-if, and its sums."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise

import psycopg
import pytest

from dashboard.views import selfhost
from gateway.domain.deployments.gpu_bills import HOUR_MS, BillLine
from gateway.domain.deployments.imported_bills import BillFile
from gateway.storage.deployments.gpu_bills import GpuBillStore
from gateway.storage.postgres.database import Database
from tests.dashboard.conftest import Open
from tests.dashboard.test_pages import Write, page, texts
from tests.policy.documents import EXAMPLE
from tests.storage.factories import event

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
OWN = {"deployment": "qwen-eu", "provider": "vllm", "is_self_hosted": True}


def selfhost_page() -> None:
    from dashboard.views import selfhost

    selfhost.show()


@pytest.fixture
def bill(database: Database, database_url: str, write: Write) -> None:
    """An hour of 10 USD with two teams, and the policy of the examples."""
    write(
        event(1, at=NOON, **OWN, cost_nusd=10**9, started_at=NOON, duration_s=1800.0),
        event(2, at=NOON, **OWN, team="search", cost_nusd=2 * 10**9, duration_s=1.0),
        event(3, at=NOON, cost_nusd=5 * 10**9),
    )
    line = BillLine(
        number=2,
        deployment="qwen-eu",
        begin=NOON,
        end=NOON.replace(hour=13),
        gpu_ms=HOUR_MS,
        amount_nusd=10**10,
        invoice_id="INV-1",
    )
    GpuBillStore(database).add(BillFile(name="b.csv", sha256="0" * 64), [line])
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO tollgate.policies (sha256, document, author, message, is_demo) "
            "VALUES ('', %s, '', '', false)",
            (EXAMPLE,),
        )


def test_the_bill_its_lines_and_the_comparison(look: Open, bill: None) -> None:
    """The headlines add up to the bill, and own GPUs stand beside the API."""
    app = page(look, selfhost_page)
    assert not app.exception
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures == {
        "GPU bill": "\\$10\\.00",
        "Applied": "\\$3\\.00",
        "Empty": "\\$3\\.50",
        "Underfilled": "\\$3\\.50",
        "Variance": "\\$0\\.00",
    }
    lines, idle, compared, days = (table.value for table in app.dataframe)
    assert dict(zip(idle["Team"], idle["Idle, USD"], strict=True)) == {"unallocated": Decimal(7)}
    assert list(lines["Amount, USD"]) == [2, 1, Decimal("3.5"), Decimal("3.5"), 0]
    assert list(compared["Route"]) == ["assistant", "assistant"]
    assert list(days["Bill, USD"]) == [10]
    assert "× the API costs less" in texts(app)


def test_a_what_if_changes_the_comparison(look: Open, bill: None) -> None:
    """The fields are the options of the report."""
    app = page(look, selfhost_page)
    app.number_input[0].set_value(100.0).run()
    assert not app.exception
    assert next(iter(app.dataframe[2].value["Own GPUs, USD"])) == 100
    app.text_input[0].set_value("no-such-model").run()
    assert "neither a deployment with a price" in texts(app)
    assert not app.exception


def test_a_page_without_a_bill_says_how_to_get_one(look: Open) -> None:
    """An empty page teaches the next step; the demo has no bills at all."""
    app = page(look, selfhost_page)
    assert "tollgate engine bill import" in texts(app)
    app.session_state["data"] = "demo"
    assert "have no bill" in texts(app.run())
    assert not app.exception


def test_many_teams_are_a_few_steps(look: Open) -> None:
    """Sixty colours tell nothing: the largest four and the rest, which still add up."""
    rows: list[dict[str, object]] = [
        {"deployment": "a", "line": "applied", "team": f"t{n}", "amount_usd": Decimal(100 - n)}
        for n in range(60)
    ]
    rows += [
        {"deployment": "a", "line": line, "team": None, "amount_usd": Decimal(amount)}
        for line, amount in (("empty", 5), ("underfilled", 7), ("variance", -2))
    ]
    steps = selfhost._steps(rows)  # type: ignore[arg-type]  # plain cells
    names = [step.name for step in steps]
    assert names[:5] == ["t0", "t1", "t2", "t3", "Other teams"]
    assert names[5:] == ["Empty", "Underfilled", "Variance", "Bill"]
    assert steps[-1].end == sum(Decimal(str(row["amount_usd"])) for row in rows)
    assert all(one.end == two.begin for one, two in pairwise(steps[:-1]))
