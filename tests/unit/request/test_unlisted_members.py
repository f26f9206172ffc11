"""Members that a provider's schema does not list: found at a deployment, recorded, multiplied, left
out of the request, and counted in past use.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.budgets.budgets import BudgetKind, BudgetPeriod, BudgetRule, BudgetScope
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import CostCentre
from gateway.domain.policy.unlisted import DROP_UNLISTED, REFUSE_UNLISTED, Unlisted
from gateway.domain.policy.unlisted_use import (
    MOST_NAMED,
    RefusedUse,
    UnlistedUse,
    refused_use,
    teams_with_hard_budgets,
)
from gateway.domain.request.bound import Bound
from gateway.domain.request.unlisted import (
    MOST_RECORDED,
    multiplied,
    recorded,
    still_unlisted,
    unlisted_at,
    unlisted_of,
)
from gateway.wire.translation.left_out import without
from tests import factories

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
NATIVE = frozenset({Operation.CHAT})
HALF_AGAIN = Unlisted(factor=Decimal("1.5"))
NAMES = st.sampled_from(["a", "b", "c", "d", "e"])


def chat(**members: Any) -> Any:
    """Return a chat with further members."""
    return factories.read(json.dumps(CHAT | members).encode())


def hard(**changes: Any) -> BudgetRule:
    """Return a hard budget of a month."""
    values: dict[str, Any] = {
        "rule_id": "payments/month",
        "scope": BudgetScope.TEAM,
        "team": "payments",
        "owner": "payments",
        "period": BudgetPeriod.MONTH,
        "limit_nusd": 1,
    }
    return BudgetRule(**values | changes)


def test_a_name_is_unlisted_where_no_schema_and_no_operator_lists_it() -> None:
    """A translated request has none: its members are the translation's."""
    plain = factories.deployment("plain", native=NATIVE)
    listing = factories.deployment("listing", native=NATIVE, listed=frozenset({"best_guess"}))
    translated = factories.deployment("translated", native=frozenset())
    asked = chat(best_guess=1, temperature=0, reasoning={"mode": "pro"})
    assert unlisted_at(plain, chat(temperature=0)) == ()
    assert unlisted_at(translated, asked) == ()
    found = unlisted_at(plain, asked)
    assert "best_guess" in found
    assert "temperature" not in found
    assert list(found) == sorted(found)
    assert "best_guess" not in unlisted_at(listing, asked)
    assert unlisted_of([], asked) == unlisted_of([translated], asked) == frozenset()
    assert unlisted_of([listing, translated, plain], asked) == {*found}


@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.MESSAGES])
def test_names_are_judged_again_at_another_deployment(operation: Operation) -> None:
    """A failover's deployment may list a name that the first one does not."""
    one = factories.deployment(native=NATIVE, listed=frozenset({"x", "y.z=pro"}))
    kept = ("w",) if operation is Operation.CHAT else ()
    assert still_unlisted(one, operation, ("x", "w", "y.z=pro", "temperature")) == kept
    assert still_unlisted(one, operation, ()) == ()


@given(nusd=st.integers(0, 10**15), names=st.lists(NAMES, max_size=2))
def test_a_factor_never_lowers_a_hold(nusd: int, names: list[str]) -> None:
    """A part of a nano-dollar is a whole one; without a name or a factor the hold stays."""
    bound = Bound(
        input_tokens=1, output_tokens=1, nusd=nusd, output_cap_tokens=None, is_certain=True
    )
    for unlisted in (REFUSE_UNLISTED, DROP_UNLISTED, HALF_AGAIN):
        held = multiplied(bound, factories.deployment(unlisted=unlisted), names).nusd
        grows = unlisted is HALF_AGAIN and bool(names)
        assert held == (-(-nusd * 3 // 2) if grows else nusd)
    assert [one.refuses for one in (REFUSE_UNLISTED, DROP_UNLISTED, HALF_AGAIN)] == [
        True,
        False,
        False,
    ]


@given(st.lists(st.one_of(NAMES, st.text()), max_size=2 * MOST_RECORDED))
def test_an_event_keeps_few_names_and_no_text_of_a_caller(names: list[str]) -> None:
    """An attempt without a name that may be kept has a mark in its place."""
    kept = recorded(names)
    assert 1 <= len(kept) <= MOST_RECORDED
    assert kept == ["?"] or set(kept) <= set(names)
    assert all(one == "?" or (one.isascii() and " " not in one) for one in kept)
    beta = "anthropic-beta: context-1m-2025-08-07"
    assert recorded([beta]) == [beta]


VALUES = st.sampled_from([1, "x", None, [{}], {"type": "t", "p": 1}, {"p": 1, "q": {"p": 2}}])


@given(
    st.dictionaries(NAMES, VALUES), st.lists(st.tuples(NAMES, st.sampled_from("pqr"))), st.data()
)
def test_members_and_parts_leave_and_all_else_stays(
    members: dict[str, Any], parts: list[tuple[str, str]], data: st.DataObject
) -> None:
    """By the bytes of the body; a name that it does not have changes nothing."""
    tops = data.draw(st.lists(NAMES))
    parts = [(top, part) for top, part in parts if isinstance(members.get(top, {}), dict)]
    names = [*tops, *(f"{top}.{part}" for top, part in parts)]
    body = json.dumps(CHAT | members).encode()
    asked = factories.request(factories.read(body))
    sent = without(asked, names).body
    expected = CHAT | {
        name: {key: one for key, one in value.items() if (name, key) not in parts}
        if isinstance(value, dict)
        else value
        for name, value in members.items()
        if name not in tops
    }
    assert json.loads(sent.body) == expected
    assert sent.members.keys() == expected.keys()
    assert all(
        json.loads(sent.body[at.start : at.end]) == expected[name]
        for name, at in sent.members.items()
    )
    if expected == CHAT | members:
        assert sent is asked.body


def test_a_value_leaves_with_its_part_and_a_type_with_its_object() -> None:
    """An object without its type says nothing; a name with a dot may be a member's own."""
    asked = factories.request(
        chat(**{"a": {"mode": "pro", "b": 1}, "c": {"type": "t", "d": 1}, "e.f": 1})
    )
    sent = without(asked, ["a.mode=pro", "c.type=t", "c.d", "e.f", "missing.x"]).body
    assert json.loads(sent.body) == CHAT | {"a": {"b": 1}}


def test_betas_leave_one_by_one_and_the_header_with_the_last() -> None:
    """Other headers are not the provider's members."""
    headers = (("anthropic-beta", "one, two"), ("anthropic-beta", " two ,"), ("other", "two"))
    asked = factories.request(chat(), dialect_headers=headers)
    kept = without(asked, ["anthropic-beta: two"]).dialect_headers
    assert kept == (("anthropic-beta", "one"), ("other", "two"))
    assert without(asked, ["temperature"]).dialect_headers == headers


def used(names: tuple[str, ...] | None, **changes: Any) -> UnlistedUse:
    """Return three attempts at the deployment `one`."""
    values: dict[str, Any] = {
        "team": "payments",
        "deployment": "one",
        "operation": Operation.CHAT,
        "names": names,
        "attempts": 3,
    }
    return UnlistedUse(**values | changes)


def test_past_use_is_refused_where_a_hard_budget_would() -> None:
    """Not in a team without one, and not at a deployment that drops, multiplies or translates."""
    teams = {
        "payments": factories.team(budgets=(hard(),)),
        "search": factories.team("search", budgets=(hard(kind=BudgetKind.SOFT),)),
    }
    changed = {"native": NATIVE, "listed": frozenset({"known"})}
    document = factories.policy(
        factories.deployment("one", **changed),
        factories.deployment("drops", **changed, unlisted=DROP_UNLISTED),
        factories.deployment("multiplies", **changed, unlisted=HALF_AGAIN),
        factories.deployment("translates", native=frozenset()),
        teams=teams,
    )
    many = tuple(f"x{number}" for number in range(9))
    uses = [
        used(("known", "temperature")),
        used(("b", "known", "a")),
        used(None),
        *(used(("a",), deployment=name) for name in ("drops", "multiplies", "translates", "gone")),
        used(("a",), team="search"),
        used(("a",), team="gone"),
    ]
    assert teams_with_hard_budgets(document) == ("payments",)
    assert refused_use(document, uses[:1]) == ()
    assert refused_use(document, uses) == (
        RefusedUse(team="payments", attempts=3, names=("a", "b"), unrecorded=3),
    )
    assert refused_use(document, [used(many)])[0].names == many[:MOST_NAMED]


@pytest.mark.parametrize("kind", BudgetKind)
def test_a_budget_of_a_cost_centre_is_its_teams(kind: BudgetKind) -> None:
    """A team may name a cost centre that has no entry."""
    rule = hard(scope=BudgetScope.COST_CENTRE, team=None, owner="CC-1", kind=kind)
    teams = {"payments": factories.team(), "search": factories.team("search", cost_centre="CC-2")}
    document = factories.policy(
        teams=teams, cost_centres={"CC-1": CostCentre(name="CC-1", budgets=(rule,))}
    )
    found = ("payments",) if kind is BudgetKind.HARD else ()
    assert teams_with_hard_budgets(document) == found
