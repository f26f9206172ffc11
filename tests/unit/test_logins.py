"""The names of a database's logins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.logins import MOST_NAME_BYTES, LoginPurpose, login_name

DATABASES = st.text(min_size=1, max_size=MOST_NAME_BYTES)


@given(DATABASES, DATABASES)
def test_each_database_and_purpose_has_a_login_that_postgres_takes(one: str, other: str) -> None:
    """Postgres cuts a longer name, and then two databases would share a login and its password."""
    names = {
        (database, purpose): login_name(database, purpose)
        for database in (one, other)
        for purpose in LoginPurpose
    }
    assert len(set(names.values())) == len(names)
    assert all(len(name.encode()) <= MOST_NAME_BYTES for name in names.values())


def test_a_short_database_is_in_its_logins_name() -> None:
    """An administrator sees which database a login is for."""
    assert login_name("tollgate", LoginPurpose.REPORTS) == "tollgate_reports_login"
    assert login_name("d" * 63, LoginPurpose.REPORTS).startswith("tollgate_")
