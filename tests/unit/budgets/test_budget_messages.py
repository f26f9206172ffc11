"""A caller's messages about a budget: the fact, the reason and the next step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from gateway.domain.budgets import messages
from gateway.domain.budgets.budgets import Account, BudgetPeriod, BudgetRule, BudgetScope

USD = 10**9
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def account(period: BudgetPeriod) -> Account:
    rule = BudgetRule(
        rule_id=f"payments/{period}",
        scope=BudgetScope.TEAM,
        team="payments",
        owner="payments",
        period=period,
        limit_nusd=5000 * USD,
        time_zone="Europe/Berlin",
    )
    return Account(account_id=rule.rule_id, rule=rule)


def test_a_used_up_budget_names_its_figures_its_reset_and_the_way_out() -> None:
    """The message follows DESIGN, so no reader has to ask about its meaning."""
    on = account(BudgetPeriod.MONTH)
    message = messages.exhausted(
        on,
        on.rule.period_at(NOW),
        limit_nusd=5000 * USD,
        spent_nusd=4_999_620_000_000,
        held_nusd=380_000_000,
        hold_nusd=120_000_000,
    )
    assert message == (
        "Budget payments/month is used up: $5,000.00 limit, $4,999.62 spent, $0.38 held or "
        "being booked; this "
        "request may cost up to $0.12. Resets 1 Dec 00:00 Europe/Berlin. Ask an admin for: "
        "tollgate budget grant payments/month 500.00 --reason …"
    )


def test_a_budget_that_has_some_left_says_how_to_need_less() -> None:
    """The hold is an upper bound: a smaller maximum may fit."""
    on = account(BudgetPeriod.ONCE)
    message = messages.exhausted(
        on,
        on.rule.period_at(NOW),
        limit_nusd=10 * USD,
        spent_nusd=9 * USD,
        held_nusd=0,
        hold_nusd=2 * USD,
    )
    assert "has too little left" in message
    assert "A smaller max_tokens needs less. It never resets." in message


def test_unknown_and_unbounded_costs_have_clear_messages() -> None:
    """503 and 400, each with the reader's next step."""
    on = account(BudgetPeriod.DAY)
    assert "Nothing was sent. Try again shortly." in messages.away(on)
    assert "max_output_tokens or context_window" in messages.unbounded(on, "gpt-eu")


@pytest.mark.parametrize(
    "message",
    [messages.away, messages.slow, messages.wrong_clock, messages.ask_refused],
)
def test_a_refusal_without_an_answer_of_the_database_has_a_next_step(
    message: Callable[[Account], str],
) -> None:
    """The caller did nothing wrong, and its budget may have room."""
    text = message(account(BudgetPeriod.MONTH))
    assert "udget payments/month " in text
    assert "Nothing was sent. " in text
    assert text.partition("Nothing was sent. ")[2].startswith(("Try again", "Ask for fewer"))


def test_a_cost_without_a_bound_names_both_ways_to_bound_it() -> None:
    """The caller can set one member, the admin another."""
    text = messages.unbounded(account(BudgetPeriod.DAY), "paid")
    assert "Set max_tokens (in responses: max_output_tokens)" in text
    assert "declare max_output_tokens or context_window for the deployment" in text


@pytest.mark.parametrize(
    ("listed_as", "line"), [("best_of_n", "`listed: [best_of_n]`"), ("no name", ""), (None, "")]
)
def test_a_line_of_a_policy_is_shown_if_a_policy_takes_it(listed_as: str | None, line: str) -> None:
    """An admin copies it; a name that no list takes would break the policy."""
    on = account(BudgetPeriod.DAY)
    member = messages.unbounded_member(on, "paid", where="best_of_n", listed_as=listed_as)
    rounds = messages.unbounded_rounds(
        on, "paid", tool="x", can_drop=False, most_rounds=3, rate="web_search", listed_as=listed_as
    )
    priced = messages.unpriced(
        on, "paid", where="x", rate="web_search", can_drop=bool(line), listed_as=listed_as
    )
    assert ("`hosted_tools: drop`" in priced) is bool(line)
    needs = messages.all_needs(rates=["a", "b"], names=[listed_as])
    assert needs.startswith(" The rates and names of all that it asks for: `a`, `b`")
    for text in (member, rounds, priced, needs):
        assert line in text
        assert ("`listed:" in text) is bool(line)
    assert "`hosted_rounds: 3`" in rounds
    assert "hosted_tools: drop" not in rounds
    bare = messages.unbounded_rounds(on, "paid", tool="x", can_drop=True, most_rounds=None)
    assert "`hosted_tools: drop`" in bare
    assert "needs its fee" not in bare
