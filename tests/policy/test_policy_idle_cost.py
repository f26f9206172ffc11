"""A deployment's rule for its idle cost, and the shares that go with it."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gateway.domain.policy.allocation import allocation_of
from gateway.domain.policy.idle_cost import IdleRule
from gateway.wire.parsed_policy import parse
from tests.policy.documents import EXAMPLE, changed, findings

WINDOW = "    context_window: 32768\n"


def with_idle_cost(block: str) -> str:
    """Return the example with a rule for the idle cost of its own deployment."""
    return changed(WINDOW, f"{WINDOW}    idle_cost: {block}\n", text=EXAMPLE)


@pytest.mark.parametrize(
    ("block", "rule", "weights"),
    [
        ("{rule: proportional}", IdleRule.PROPORTIONAL, {}),
        ("{rule: even}", IdleRule.EVEN, {"payments": Decimal(1), "search": Decimal(1)}),
        (
            "{rule: reserved, shares: {search: 0.25}}",
            IdleRule.RESERVED,
            {"search": Decimal("0.25")},
        ),
    ],
)
def test_a_rule_gives_each_team_its_weight(
    block: str, rule: IdleRule, weights: dict[str, Decimal]
) -> None:
    """`even` counts the teams that may use the deployment; `proportional` knows none before."""
    found = allocation_of(parse(with_idle_cost(block)).policy)
    assert found.idle == {"qwen-eu": (rule, weights)}


def test_idle_cost_that_is_shown_is_no_teams() -> None:
    """It stands in a line of its own unless a policy says otherwise."""
    assert allocation_of(parse(with_idle_cost("{rule: show}")).policy).idle == {}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("{rule: reserved}", "'reserved' asks for 'shares'"),
        ("{rule: even, shares: {search: 1}}", "count only with 'rule: reserved'"),
        ("{rule: reserved, shares: {search: 0.7, payments: 0.4}}", "add up to 1.1"),
        ("{rule: reserved, shares: {serch: 1}}", "no team 'serch'; did you mean 'search'?"),
        ("{rule: reserved, shares: [search]}", "shares"),
    ],
)
def test_shares_that_do_not_fit_are_refused(block: str, message: str) -> None:
    """A part of the bill would be nobody's, or several teams'."""
    assert any(message in str(one) for one in findings(with_idle_cost(block)) or ())


def test_gpus_that_are_always_paid_for_are_listed() -> None:
    """Each hour of theirs needs a bill before the month can close."""
    assert parse(EXAMPLE).policy.always_billed == ()
    text = changed("type: H200, count: 1,", "type: H200, count: 1, hours: always,", text=EXAMPLE)
    assert parse(text).policy.always_billed == ("qwen-eu",)
