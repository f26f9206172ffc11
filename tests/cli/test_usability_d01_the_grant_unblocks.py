"""Usability D1: the grant that a 402 asks for was a tenth of the limit, even if that was less
than the shortfall.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.budgets import messages
from gateway.domain.budgets.budgets import Account, BudgetPeriod, BudgetRule, BudgetScope
from gateway.domain.money import nusd_from_usd
from tests.gateway_process import FakeUpstreamProcess, StartGateway
from tests.integration.money.test_gateway_budgets import ask, policy

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MOST_NUSD = 9_000_000 * 10**9


def refusal(limit_nusd: int, *, spent_nusd: int, held_nusd: int = 0, hold_nusd: int) -> str:
    """The message of a 402."""
    rule = BudgetRule(
        rule_id="growth/day",
        scope=BudgetScope.TEAM,
        team="growth",
        owner="growth",
        period=BudgetPeriod.DAY,
        limit_nusd=limit_nusd,
    )
    return messages.exhausted(
        Account(account_id=rule.rule_id, rule=rule),
        rule.period_at(NOW),
        limit_nusd=limit_nusd,
        spent_nusd=spent_nusd,
        held_nusd=held_nusd,
        hold_nusd=hold_nusd,
    )


def grant_in(message: str) -> str:
    found = re.search(r"tollgate budget grant growth/day (\S+) --reason", message)
    assert found is not None, message
    return found.group(1)


def test_the_grant_asked_for_lets_the_request_pass(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Done word by word, the advice must not end in the same 402 with the same advice."""
    team = ", budgets: [{period: month, limit_usd: 0.003}]"
    gateway = start_gateway(policy(fake_upstream.url, team=team))
    refused = next(
        answer
        for answer in (ask(gateway, fake="out=80", max_tokens=80) for _ in range(50))
        if answer.status_code != 200
    )
    assert refused.status_code == 402, refused.text
    message = refused.json()["error"]["message"]
    command = re.search(r"tollgate (budget grant \S+ \S+)", message)
    assert command is not None, message
    gateway.tollgate(*command.group(1).split(), "--reason", "a test")
    again = ask(gateway, fake="out=80", max_tokens=80)
    assert again.status_code == 200, (message, again.text)


@given(
    limit_nusd=st.integers(1, MOST_NUSD),
    spent_nusd=st.integers(0, MOST_NUSD),
    hold_nusd=st.integers(1, MOST_NUSD),
)
def test_a_suggested_grant_covers_the_shortfall_in_few_digits(
    limit_nusd: int, spent_nusd: int, hold_nusd: int
) -> None:
    """No more than two digits besides zeros, and never less than the shortfall."""
    if spent_nusd + hold_nusd <= limit_nusd:
        return
    grant = grant_in(refusal(limit_nusd, spent_nusd=spent_nusd, hold_nusd=hold_nusd))
    assert nusd_from_usd(Decimal(grant)) >= spent_nusd + hold_nusd - limit_nusd
    assert len(grant.replace(".", "").strip("0")) <= 2


def test_the_figures_of_the_audit_give_a_grant_that_can_be_typed() -> None:
    """It suggested 0.0003000 for a shortfall of 0.00047."""
    assert grant_in(refusal(3_000_000, spent_nusd=2_700_000, hold_nusd=770_000)) == "0.0005"


@pytest.mark.parametrize(
    ("spent_nusd", "hold_nusd", "message"),
    [
        (
            89_800_000,
            254_000,
            "$0.09 limit, $0.0898 spent, $0.00 held or being booked; this request may cost up "
            "to $0.000254.",
        ),
        (
            89_999_990,
            254_000,
            "$0.09 limit, $0.08999999 spent, $0.00 held or being booked; this request may cost "
            "up to $0.000254.",
        ),
    ],
)
def test_a_refusal_does_not_round_its_reason_away(
    spent_nusd: int, hold_nusd: int, message: str
) -> None:
    """`$0.09 limit, $0.09 spent` looked like a budget used up to the cent (checks, not defects,
    bullet 2).
    """
    assert message in refusal(90_000_000, spent_nusd=spent_nusd, hold_nusd=hold_nusd)
