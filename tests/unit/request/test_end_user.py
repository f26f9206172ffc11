"""End users are distinguished, never named, and not recognisable without the pepper or across
teams.
"""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.policy.api_keys import Pepper
from gateway.domain.policy.policy import EndUserRule
from gateway.domain.request.end_user import end_user_key, recorded_end_user
from tests import factories

KEY = end_user_key(factories.PEPPER)
HASHING, KEEPING = factories.team(), factories.team(end_user=EndUserRule.KEEP)


def test_names_are_hashed_unless_the_policy_keeps_them() -> None:
    """The default must be the safe one: without a setting the ledger has no end user's name."""
    assert (
        recorded_end_user("ada@example.org", HASHING, key=KEY)
        == "eu_d78acc9cbe95dc90e00f24bd2612478a"
    )
    assert recorded_end_user("ada@example.org", KEEPING, key=KEY) == "ada@example.org"
    assert recorded_end_user(None, HASHING, key=KEY) is None


@given(st.text(st.characters(exclude_categories=())), st.text(st.characters(exclude_categories=())))
def test_a_hash_distinguishes_end_users_and_reveals_nothing(one: str, other: str) -> None:
    """Any string a JSON body can carry, half surrogate pairs included."""
    first, second = (recorded_end_user(name, HASHING, key=KEY) for name in (one, other))
    assert first is not None
    assert re.fullmatch(r"eu_[0-9a-f]{32}", first)
    assert (first == second) == (one == other)


def test_the_same_person_is_another_one_elsewhere() -> None:
    """Neither another team nor another installation can follow someone by their hash."""
    name = "ada@example.org"
    found = {
        recorded_end_user(name, HASHING, key=KEY),
        recorded_end_user(name, factories.team("research"), key=KEY),
        recorded_end_user(name, HASHING, key=end_user_key(Pepper(b"another pepper for tests"))),
        recorded_end_user("s" + name, factories.team("payment"), key=KEY),
    }
    assert len(found) == 4


def test_the_key_serves_this_purpose_alone() -> None:
    """A key that also checked API keys would turn each hash into material for attacking the
    other.
    """
    assert factories.PEPPER.secret != KEY
    assert factories.PEPPER.digest("tollgate end user") != KEY
    assert len(KEY) == 32
