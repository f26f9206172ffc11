"""The rules that say until when the ledger has partitions, and until when it must have them."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from gateway.domain.calendar_months import last_partitioned_month, last_required_month, next_month


@pytest.mark.parametrize(
    ("today", "last"),
    [
        (date(2026, 11, 28), date(2027, 2, 1)),  # 93 days later it is March
        (date(2027, 11, 30), date(2028, 2, 1)),
        (date(2026, 1, 31), date(2026, 4, 1)),
        (date(2028, 2, 29), date(2028, 5, 1)),
        (date(2026, 12, 31), date(2027, 3, 1)),
        (date(2027, 1, 1), date(2027, 4, 1)),
    ],
)
def test_three_months_follow_the_one_that_runs(today: date, last: date) -> None:
    """93 days after 28 November it is March, for which a new database has no partition."""
    assert last_partitioned_month(today) == last


def test_all_days_of_a_month_want_the_same_partitions() -> None:
    """A warning that comes and goes with the day of the month is false on one of the two days."""
    day = date(2024, 1, 1)
    while day.year < 2033:
        assert last_partitioned_month(day) == last_partitioned_month(day.replace(day=1))
        tomorrow = day + timedelta(days=1)
        if tomorrow.day == 1:
            assert last_partitioned_month(tomorrow) == next_month(last_partitioned_month(day))
        day = tomorrow


def test_the_turn_of_a_month_asks_for_nothing_that_was_not_made_the_day_before() -> None:
    """Readiness warned from midnight until a gateway looked, which is each six hours."""
    day = date(2024, 1, 1)
    while day.year < 2033:
        tomorrow = day + timedelta(days=1)
        assert last_required_month(tomorrow) <= last_partitioned_month(day)
        assert next_month(next_month(day)) == last_required_month(day)
        day = tomorrow
