"""One rule says which days are compared with which: every door gives the same figures by it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.reports.comparison import Compared, ComparedPeriod, Comparison, comparison
from gateway.errors import BadUsage

DAY = timedelta(days=1)
NOW = datetime(2026, 11, 28, 9, 30, tzinfo=UTC)
NOVEMBER = ComparedPeriod(month=date(2026, 11, 1))


def midnight(*parts: int) -> datetime:
    """Return the first moment of a day."""
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type]


def days(first: str, last: str) -> ComparedPeriod:
    """Return a range of days."""
    return ComparedPeriod(days=(date.fromisoformat(first), date.fromisoformat(last)))


def test_a_running_month_is_compared_by_its_complete_days() -> None:
    """Today beside a whole day, and November so far beside all of October, look like savings."""
    for kind in (Compared.PREVIOUS, Compared.MONTH):
        assert comparison(NOVEMBER, kind, NOW) == Comparison(
            now=ComparedPeriod(
                month=date(2026, 11, 1), within=(midnight(2026, 11, 1), midnight(2026, 11, 28))
            ),
            before=ComparedPeriod(
                month=date(2026, 10, 1), within=(midnight(2026, 10, 1), midnight(2026, 10, 28))
            ),
            earlier=ComparedPeriod(month=date(2026, 10, 1)),
            is_part=True,
            sentence="27 complete days, 2026-11-01 to 2026-11-27, against 2026-10-01 to "
            "2026-10-27; today, 2026-11-28, is in neither.",
        )
    year = comparison(NOVEMBER, Compared.YEAR, NOW)
    assert year.before.within == (midnight(2025, 11, 1), midnight(2025, 11, 28))


def test_the_first_day_is_compared_by_its_complete_hours() -> None:
    """At 05:40 five hours are complete; at half past midnight there is nothing to compare."""
    found = comparison(NOVEMBER, Compared.PREVIOUS, datetime(2026, 11, 1, 5, 40, tzinfo=UTC))
    assert found.now.within == (midnight(2026, 11, 1), midnight(2026, 11, 1, 5))
    assert found.before.within == (midnight(2026, 10, 1), midnight(2026, 10, 1, 5))
    assert found.sentence == (
        "2026-11-01 00:00 to 05:00 UTC against 2026-10-01 00:00 to 05:00 UTC; the running hour is "
        "in neither."
    )
    early = comparison(NOVEMBER, Compared.PREVIOUS, datetime(2026, 11, 1, 0, 30, tzinfo=UTC))
    assert early.now.within == (midnight(2026, 11, 1), midnight(2026, 11, 1))
    assert early.sentence.startswith("Nothing is compared yet: no hour since 2026-11-01 00:00 UTC")


def test_a_shorter_month_is_taken_whole() -> None:
    """29 days of March have no counterpart in February but all of it."""
    march = ComparedPeriod(month=date(2027, 3, 1))
    found = comparison(march, Compared.PREVIOUS, midnight(2027, 3, 30))
    assert found.before == ComparedPeriod(month=date(2027, 2, 1))
    assert found.sentence == (
        "29 complete days, 2027-03-01 to 2027-03-29, against the whole month 2027-02, because "
        "that month is shorter; today, 2027-03-30, is in neither."
    )
    exact = comparison(march, Compared.PREVIOUS, midnight(2027, 3, 29))
    assert exact.before.within == (midnight(2027, 2, 1), midnight(2027, 3, 1))


def test_periods_that_are_over_are_compared_whole() -> None:
    """And so is a running one, if the reader asks for the whole earlier one."""
    over = comparison(ComparedPeriod(month=date(2026, 10, 1)), Compared.PREVIOUS, NOW)
    assert (over.now, over.before, over.is_part) == (
        ComparedPeriod(month=date(2026, 10, 1)),
        ComparedPeriod(month=date(2026, 9, 1)),
        False,
    )
    assert over.sentence == "2026-10 against the whole month 2026-09."
    whole = comparison(NOVEMBER, Compared.WHOLE, NOW)
    assert (whole.now, whole.before) == (NOVEMBER, ComparedPeriod(month=date(2026, 10, 1)))
    assert whole.sentence == "2026-11, which still runs, against the whole month 2026-10."


@pytest.mark.parametrize(
    ("asked", "kind", "now", "before"),
    [
        # The first 6 of the 7 days before.
        (
            ("2026-11-22", "2026-11-28"),
            "previous",
            ("2026-11-22", "2026-11-27"),
            ("2026-11-15", "2026-11-20"),
        ),
        (
            ("2026-11-01", "2026-11-30"),
            "previous",
            ("2026-11-01", "2026-11-27"),
            ("2026-10-02", "2026-10-28"),
        ),
        (
            ("2026-11-01", "2026-11-30"),
            "month",
            ("2026-11-01", "2026-11-27"),
            ("2026-10-01", "2026-10-27"),
        ),
        (
            ("2026-11-01", "2026-11-30"),
            "year",
            ("2026-11-01", "2026-11-27"),
            ("2025-11-01", "2025-11-27"),
        ),
        (
            ("2026-11-22", "2026-11-28"),
            "whole",
            ("2026-11-22", "2026-11-28"),
            ("2026-11-15", "2026-11-21"),
        ),
        (
            ("2026-11-08", "2026-11-14"),
            "previous",
            ("2026-11-08", "2026-11-14"),
            ("2026-11-01", "2026-11-07"),
        ),
        (
            ("2024-02-29", "2024-03-01"),
            "year",
            ("2024-02-29", "2024-03-01"),
            ("2023-02-28", "2023-03-01"),
        ),
        (
            ("2026-03-29", "2026-03-31"),
            "month",
            ("2026-03-29", "2026-03-31"),
            ("2026-02-28", "2026-02-28"),
        ),
    ],
)
def test_days_are_compared_with_days(
    asked: tuple[str, str], kind: str, now: tuple[str, str], before: tuple[str, str]
) -> None:
    """A running range by its complete days, with the first as many of the days before, or with
    the same dates.
    """
    found = comparison(days(*asked), Compared(kind), NOW)
    assert (found.now, found.before) == (days(*now), days(*before))


def test_no_time_is_before_the_first_year() -> None:
    """An error names the day; a traceback helps no one."""
    for kind in Compared:
        with pytest.raises(BadUsage, match="no time before 0001-01-01"):
            comparison(ComparedPeriod(month=date(1, 1, 1)), kind, NOW)
        with pytest.raises(BadUsage, match="no time before"):
            comparison(days("0001-01-01", "0001-01-03"), kind, NOW)


MOMENTS = st.datetimes(datetime(1999, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))


@given(
    now=MOMENTS, back=st.integers(0, 40), length=st.integers(1, 60), kind=st.sampled_from(Compared)
)
@example(now=datetime(2028, 2, 29, 12, tzinfo=UTC), back=0, length=1, kind=Compared.YEAR)
def test_both_sides_are_complete_and_alike(
    now: datetime, back: int, length: int, kind: Compared
) -> None:
    """Neither side has today of a running period; both have as many days or hours, or the same
    dates; the earlier one is earlier.
    """
    first = now.date() - back * DAY
    month, given_days = (
        ComparedPeriod(month=first.replace(day=1)),
        ComparedPeriod(days=(first, first + (length - 1) * DAY)),
    )
    for asked in (month, given_days):
        found = comparison(asked, kind, now)
        begin, end = moments(found.now)
        begin_before, end_before = moments(found.before)
        assert begin == midnight(*asked.span[0].timetuple()[:3])
        assert (
            end_before <= begin
            if kind in (Compared.PREVIOUS, Compared.WHOLE)
            else end_before <= end
        )
        assert found.sentence.endswith(".")
        if not found.is_part:
            assert asked.span[1] < now.date() or kind is Compared.WHOLE
            assert (found.now, found.before) == (asked, found.earlier)
            continue
        assert asked.span[0] <= now.date() <= asked.span[1]
        assert end <= now
        assert now - end < (timedelta(hours=1) if begin.date() == now.date() else DAY)
        if "shorter" not in found.sentence and (asked.month or kind is Compared.PREVIOUS):
            assert end - begin == end_before - begin_before
        if kind is Compared.YEAR:
            assert begin_before.year == begin.year - 1


@given(now=MOMENTS, ahead=st.integers(1, 400))
def test_what_has_not_begun_is_not_compared(now: datetime, ahead: int) -> None:
    """0 USD of a month that is to come would be a saving of the whole month before."""
    first = now.date() + ahead * DAY
    found = comparison(ComparedPeriod(days=(first, first + 9 * DAY)), Compared.PREVIOUS, now)
    for one in (found.now, found.before):
        assert one.within is not None
        assert one.within[0] == one.within[1]


def moments(period: ComparedPeriod) -> tuple[datetime, datetime]:
    """Return the first moment of a period and the first one after it."""
    if period.within is not None:
        return period.within
    first, last = period.span
    return midnight(*first.timetuple()[:3]), midnight(*last.timetuple()[:3]) + DAY
