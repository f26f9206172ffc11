"""Ledger 1.9: a dead letter's lease stayed at its worker, and was counted twice when the letter
was booked later.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from gateway.domain.budgets.budgets import (
    BudgetKind,
    BudgetPeriod,
    BudgetRule,
    BudgetScope,
    Hold,
    SliceAsk,
)
from gateway.services.ledger.dead_letters import retry
from gateway.storage.budgets.budgets import BudgetLeaseTable, budget_mistakes, write_rules
from gateway.storage.ledger.dead_letters import DeadLetters
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.storage.factories import event

USD = 1_000_000_000
NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC)
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC)
OLDER = "ALTER TABLE tollgate.usage_events ADD CONSTRAINT older CHECK (outcome <> 'ok') NOT VALID"
NEWER = "ALTER TABLE tollgate.usage_events DROP CONSTRAINT older"


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    """Yield the ledger of this test's database."""
    ledger = Ledger(database)
    yield ledger
    ledger.close()


def execute(database: Database, statement: str) -> None:
    with database.begin() as connection:
        connection.execute(text(statement))


def books(database: Database) -> tuple[int, int, list[tuple[UUID, int]]]:
    """Return the spent sum, the leased sum and the leases."""
    with database.begin() as connection:
        spent, leased = connection.execute(
            text("SELECT spent_nusd, leased_nusd FROM tollgate.budget_periods")
        ).one()
        leases = connection.execute(
            text(
                "SELECT journal_id, outstanding_nusd FROM tollgate.leases WHERE "
                "outstanding_nusd > 0"
            )
        )
        return spent, leased, [(row.journal_id, row.outstanding_nusd) for row in leases]


def refused_attempt(database: Database, ledger: Ledger) -> tuple[UUID, UUID]:
    """Write an attempt that is refused; return its journal and its dead letter.

    Five dollars are leased, of which the attempt holds three; it costs two.
    """
    rule = BudgetRule(
        rule_id="payments/month",
        scope=BudgetScope.TEAM,
        team="payments",
        owner="payments",
        period=BudgetPeriod.MONTH,
        limit_nusd=100 * USD,
        kind=BudgetKind.HARD,
    )
    with database.begin() as connection:
        write_rules(connection, [rule], policy_version=1)
    journal, leases = uuid4(), BudgetLeaseTable(database)
    ask = SliceAsk(
        account_id="payments/month",
        rule_id="payments/month",
        starts_at=NOVEMBER,
        ends_at=DECEMBER,
        turn=1,
        returned_nusd=0,
        least_nusd=5 * USD,
        needed_nusd=5 * USD,
        most_nusd=5 * USD,
        held_nusd=0,
    )
    assert leases.exchange(journal, [ask])[0].granted_nusd == 5 * USD
    leases.close()
    execute(database, OLDER)
    hold = Hold("payments/month", int(NOVEMBER.timestamp()), 3 * USD)
    document = encode_event(event(1, cost_nusd=2 * USD, holds=(hold,)))
    assert ledger.write_documents([document], journal_id=journal).dead == 1
    assert ledger.write_documents([document], journal_id=journal).dead == 1, (
        "written again: nothing moves again"
    )
    (letter,) = DeadLetters(database).waiting()
    return journal, letter.letter_id


def test_the_hold_of_a_dead_letter_is_set_aside(database: Database, ledger: Ledger) -> None:
    """The worker has settled the attempt and returns nothing. Its share would remain leased for
    a hold that no longer exists.
    """
    journal, letter = refused_attempt(database, ledger)
    spent, leased, leases = books(database)
    assert (spent, leased, sorted(leases)) == (
        0,
        5 * USD,
        sorted([(journal, 2 * USD), (letter, 3 * USD)]),
    )
    with database.begin() as connection:
        assert (
            connection.execute(text("SELECT set_aside_usd FROM finance.dead_letters")).scalar_one()
            == 3
        )
    assert budget_mistakes(database) == ()
    JournalTable(database).drained(journal)
    assert books(database) == (0, 3 * USD, [(letter, 3 * USD)]), (
        "its money is not for others while it waits"
    )


@pytest.mark.parametrize("is_drained", [False, True])
def test_booked_later_it_counts_once(database: Database, ledger: Ledger, is_drained: bool) -> None:
    """The money was spent and leased at once, and `doctor` found nothing. A drained journal must
    not come back.
    """
    journal, _ = refused_attempt(database, ledger)
    if is_drained:
        JournalTable(database).drained(journal)
    execute(database, NEWER)
    (tried,) = retry(DeadLetters(database), ledger)
    assert tried.resolution is not None
    assert books(database) == (
        2 * USD,
        *((0, []) if is_drained else (2 * USD, [(journal, 2 * USD)])),
    )
    assert budget_mistakes(database) == ()
    assert JournalTable(database).all()[0].state == ("drained" if is_drained else "live")


def test_a_letter_that_is_dismissed_gives_back(database: Database, ledger: Ledger) -> None:
    """An operator who dismisses a letter declares that it cost nothing."""
    _, letter = refused_attempt(database, ledger)
    assert DeadLetters(database).close(letter, resolution="nothing was served")
    assert books(database)[:2] == (0, 2 * USD)
