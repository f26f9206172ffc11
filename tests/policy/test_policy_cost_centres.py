"""A team's cost centre: one, a split by shares, and a move on a day; exact on every day."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.policy.cost_centres import CostCentreShare, largest_on, shares_on
from gateway.domain.policy.policy import CostCentre
from gateway.services.policy.policy_diff import changes
from gateway.wire.parsed_policy import parse
from gateway.wire.policy import effective, to_yaml
from tests.policy.documents import ALLOWED, changed, findings

ONE = "    cost_centre: CC-1207\n"
SPLIT = """\
    cost_centre:
      - {name: CC-1207}
      - {name: CC-2, share: 0.3, from: 2026-12-01}
      - {name: CC-1207, share: 0.70, from: 2026-12-01}
      - {name: CC-3, from: 2027-01-01}
"""
MOVES = changed(ONE, SPLIT, text=ALLOWED)
BEFORE, FIRST, LAST, AFTER = (
    date(2026, 11, 30),
    date(2026, 12, 1),
    date(2026, 12, 31),
    date(2027, 1, 1),
)


def test_a_team_moves_on_its_day() -> None:
    """Finance moves a team with a date; the days before it keep their cost centre."""
    team = parse(MOVES).policy.teams["payments"]
    assert team.has_dated_cost_centre
    assert [team.cost_centre_on(day) for day in (BEFORE, FIRST, LAST, AFTER)] == [
        "CC-1207",
        "CC-1207",
        "CC-1207",
        "CC-3",
    ]
    assert team.shares_on(BEFORE) == {"CC-1207": 1}
    assert team.shares_on(LAST) == {"CC-2": Fraction(3, 10), "CC-1207": Fraction(7, 10)}
    assert team.shares_on(AFTER) == {"CC-3": 1}


def test_a_team_with_one_cost_centre_has_it_on_every_day() -> None:
    """The common case needs no date, and its request path no day."""
    team = parse(ALLOWED).policy.teams["payments"]
    assert (team.cost_centre, team.cost_centre_on(None)) == ("CC-1207", "CC-1207")
    assert team.shares_on(FIRST) == {"CC-1207": Fraction(1)}
    assert not team.has_dated_cost_centre


def test_of_equal_shares_the_first_name_counts() -> None:
    """An event has one cost centre, the same on every replica."""
    halves = [CostCentreShare(name=name, share=Decimal("0.5")) for name in ("CC-9", "CC-10")]
    assert largest_on(halves, FIRST) == "CC-10"
    assert largest_on(halves[::-1], FIRST) == "CC-10"


def test_days_before_the_first_date_have_its_shares() -> None:
    """Each event needs a cost centre, also an older one that comes late."""
    shares = [CostCentreShare(name="CC-1", start=FIRST), CostCentreShare(name="CC-2", start=AFTER)]
    assert shares_on(shares, BEFORE) == {"CC-1": 1}


@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 30), st.lists(st.integers(1, 9), min_size=1)),
        min_size=1,
        unique_by=lambda entry: entry[0],
    ),
    st.integers(-5, 40),
)
def test_the_shares_of_every_day_add_up_to_one(
    entries: list[tuple[int | None, list[int]]], day: int
) -> None:
    """What a cost centre does not pay, another one must."""
    shares = []
    for start, parts in entries:
        decimals = [Decimal(part) / 100 for part in parts[:9]]
        decimals[0] += 1 - sum(decimals)
        shares += [
            CostCentreShare(
                name=f"CC-{number}",
                share=share,
                start=None if start is None else FIRST + timedelta(start),
            )
            for number, share in enumerate(decimals)
        ]
    on = FIRST + timedelta(day)
    found = shares_on(shares, on)
    assert sum(found.values()) == 1
    assert found[largest_on(shares, on)] == max(found.values())


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("[]", "line 39: error: teams[0].cost_centre: must list at least one cost centre"),
        ("{name: CC-1}", "must be a list such as [a, b], not a mapping"),
        ("1207", "must be text; YAML reads this as a number, so put it in quotes"),
        ("[CC-1]", "teams[0].cost_centre[0]: must be a mapping of names to values, not text"),
        (
            "[{name: A, share: 0.5}, {name: B, share: 0.4}]",
            "cost_centre[1].share: the shares without a date add up to 0.9; they must add up to 1",
        ),
        (
            "[{name: A}, {name: B, share: 0.5, from: 2026-12-01}]",
            "cost_centre[1].share: the shares from 2026-12-01 add up to 0.5; they must add up to 1",
        ),
        (
            "[{name: A, share: 0.5}, {name: A, share: 0.5}]",
            "cost centre 'A' has two shares without a date (first in line 39); write their sum",
        ),
        ("[{name: A, share: 0}]", "must be a share of the cost, above 0 to 1"),
        ("[{name: A, share: 1.5}]", "must be a share of the cost, above 0 to 1"),
        ("[{name: A, from: soon}]", "must be a day, written as in 2026-11-20"),
        ("[{name: A, form: 2026-12-01}]", "has no such field; did you mean 'from'?"),
    ],
)
def test_a_split_that_cannot_be_is_refused(split: str, expected: str) -> None:
    """Money that no cost centre pays would be found at the close."""
    found = findings(changed("cost_centre: CC-1207", f"cost_centre: {split}", text=ALLOWED))
    assert found is not None
    (error,) = map(str, found)
    assert expected in error


def test_titles_and_owners_are_in_the_effective_document() -> None:
    """Statements name the cost centre for people."""
    text = changed(
        "{name: CC-0042,", "{name: CC-0042, title: Search, owner: ana@example.com,", text=MOVES
    )
    policy = parse(text).policy
    centre = policy.cost_centres["CC-0042"]
    assert (centre.full_name, centre.owner) == ("Search", "ana@example.com")
    document = effective(policy)
    assert document["cost_centres"][0]["title"] == "Search"
    assert document["teams"][0]["cost_centre"][:2] == [
        {"name": "CC-1207", "share": 1},
        {"name": "CC-2", "share": Decimal("0.3"), "from": "2026-12-01"},
    ]
    assert document["teams"][1]["cost_centre"] == "CC-0042"
    assert parse(to_yaml(policy)).policy == policy
    assert isinstance(yaml.safe_load(to_yaml(policy)), dict)


def test_a_plan_shows_moves_and_titles() -> None:
    """The reviewer of a move sees the centre, the share and the day."""
    after = changed("{name: CC-0042,", "{name: CC-0042, title: Search,", text=MOVES)
    shown = {(one.kind, one.name): one.details for one in _changes(ALLOWED, after)}
    assert shown == {
        ("team", "payments"): (
            "cost_centre: CC-1207 → [{name: CC-1207, share: 1}, "
            "{name: CC-2, share: 0.3, from: 2026-12-01}, "
            "{name: CC-1207, share: 0.70, from: 2026-12-01}, "
            "{name: CC-3, share: 1, from: 2027-01-01}]",
        ),
        ("cost centre", "CC-0042"): ("title: — → Search",),
    }


def _changes(before: str, after: str) -> tuple[object, ...]:
    return changes(parse(before).policy, parse(after).policy)


def test_a_cost_centre_that_a_team_has_later_is_used() -> None:
    """The note is for typing errors; a move that is planned is none."""
    text = changed(
        "cost_centres:\n", "cost_centres:\n  - {name: CC-3}\n  - {name: CC-4}\n", text=MOVES
    )
    assert [str(one) for one in parse(text).notes if "cost_centre" in one.field] == [
        "line 60: note: cost_centres[1].name: no team has cost centre 'CC-4'"
    ]


def test_the_budget_of_a_cost_centre_counts_the_days_that_it_has_the_team() -> None:
    """After the move, the former centre's budget must not refuse the team."""
    budget = "budgets: [{period: month, limit_usd: 10}]"
    text = changed(
        "cost_centres:\n",
        f"cost_centres:\n  - {{name: CC-1207, {budget}}}\n  - {{name: CC-3, {budget}}}\n",
        text=MOVES,
    )
    policy = parse(text).policy
    assert isinstance(policy.cost_centres["CC-3"], CostCentre)
    team = policy.teams["payments"]
    found = {
        day: {
            account.account_id
            for account in policy.accounts(team, project=None, key_id="k", day=day)
            if account.account_id.startswith("cost_centre:")
        }
        for day in (LAST, AFTER)
    }
    assert found == {LAST: {"cost_centre:CC-1207/month"}, AFTER: {"cost_centre:CC-3/month"}}


def test_a_share_without_a_readable_name_is_one_error() -> None:
    """Two such shares are no double cost centre."""
    text = changed(
        ONE, "    cost_centre: [{name: [a], share: 0.5}, {name: [b], share: 0.5}]\n", text=ALLOWED
    )
    found = findings(text) or ()
    assert len(found) == 2
    assert not any("has two shares" in str(one) for one in found)
