"""Ledger 1.13: holds of unknown attempts filled a soft budget's `spent` up to the end of BIGINT.

From then on Postgres refused each event of that budget, which became a dead letter.
"""

from __future__ import annotations

from decimal import Decimal
from uuid import uuid4

from gateway.domain.budgets.budgets import BudgetKind
from gateway.domain.ledger.records import Written
from gateway.domain.ledger.resolution import StatedCost
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.pricing.pricing import MOST_NUSD
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.domain.request.bound import bound_of
from gateway.storage.budgets.alerts import BudgetAlertStore
from gateway.storage.budgets.budgets import BudgetLeaseTable, budget_mistakes
from gateway.storage.ledger.adjustments import resolve
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests import factories
from tests.storage.budget_books import ask, balance, declare, hold, rows, team_rule
from tests.storage.factories import NOON, event, request_id

ABSURD_NUSD = 77 * 10**15  # 128 answers of 10^9 tokens at USD 600 per million
WORKER = uuid4()


def unknown(number: int, held_nusd: int = ABSURD_NUSD) -> UsageEvent:
    """Return an attempt of a soft budget whose hold is its only known amount."""
    return event(
        number,
        usage=TokenUsage(),
        usage_source=UsageSource.UNKNOWN,
        cost_nusd=None,
        held_nusd=held_nusd,
        lines=(),
        holds=(hold(0),),
    )


def test_a_soft_budget_takes_any_number_of_absurd_holds(database: Database) -> None:
    """The sum exceeds BIGINT, but the next event must be written like the first."""
    declare(database, team_rule(kind=BudgetKind.SOFT, alert_at=(Decimal("0.50"),)))
    ledger = Ledger(database)
    batch = [encode_event(unknown(number)) for number in range(130)]
    assert ledger.write_documents(batch, journal_id=WORKER) == Written(inserted=130)
    assert balance(database)[0] == 130 * ABSURD_NUSD > MOST_NUSD
    assert ledger.write_documents([encode_event(unknown(130, 5))]) == Written(inserted=1)
    assert budget_mistakes(database) == ()
    resolve(
        database, request_id(3), attempt=None, cost=StatedCost.ZERO, reason="the provider's bill"
    )
    assert balance(database)[0] == 129 * ABSURD_NUSD + 5
    assert budget_mistakes(database) == ()
    (shown,) = rows(database, "SELECT spent_usd FROM finance.budgets WHERE starts_at IS NOT NULL")
    assert shown[0] * 10**9 == 129 * ABSURD_NUSD + 5


def test_alerts_and_workers_get_the_largest_figure_of_their_type(database: Database) -> None:
    """Both get the largest figure that their type can hold, which is far above any limit."""
    declare(database, team_rule(kind=BudgetKind.SOFT, alert_at=(Decimal("0.50"),)))
    Ledger(database).write_documents([encode_event(unknown(number)) for number in range(130)])
    alerts = BudgetAlertStore(database)
    alerts.raise_crossed(now=NOON)
    assert [alert.spent_nusd for alert in alerts.unannounced()] == [MOST_NUSD]
    declare(database, team_rule(kind=BudgetKind.HARD))
    leases = BudgetLeaseTable(database)
    (granted,) = leases.exchange(WORKER, [ask(1, 100)])
    leases.close()
    assert (granted.granted_nusd, granted.spent_nusd) == (0, MOST_NUSD)


def test_a_request_without_a_bound_of_its_own_holds_no_more_than_a_column_takes() -> None:
    """Two million prompts may each fill a window; only a hard budget or a token limit refuses
    them.
    """
    asked = factories.facts(
        Operation.COMPLETIONS, output_bound_tokens=None, prompts=2_000_000, choices=128
    )
    found = bound_of(
        asked,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(context_window=1_000_000),
        price=factories.price("600", "600"),
    )
    assert (found.nusd, found.is_certain) == (MOST_NUSD, True)
