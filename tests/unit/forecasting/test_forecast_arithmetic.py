"""Forecasts, their intervals, spikes and the outlook, against cases done by hand."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.forecasting.daily import History, expected
from gateway.domain.forecasting.interval import back_test, interval_of, missed
from gateway.domain.forecasting.outlook import growth_of, outlook
from gateway.domain.forecasting.spikes import (
    Spike,
    largest_driver,
    sentence,
    spikes,
    weekdays_before,
)

MONDAY = date(2026, 6, 1)


def history(*amounts: object) -> History:
    return History(first_day=MONDAY, amounts=tuple(Decimal(str(one)) for one in amounts))


def weeks(count: int, *, workday: int = 100, weekend: int = 10) -> list[int]:
    return ([workday] * 5 + [weekend] * 2) * count


def test_each_coming_day_is_its_weekday() -> None:
    """Four equal weeks go on: Monday to Sunday, and Monday again."""
    known = history(*weeks(4))
    assert expected(known, 7) == 520
    assert expected(known, 8) == 620
    assert expected(history(*weeks(4), 100), 6) == 420  # Tuesday to Sunday


def test_a_spike_in_the_past_is_not_expected_again() -> None:
    """One day of 100 times the usual amount moves the trend within its bounds, not the weekday."""
    amounts = weeks(4)
    amounts[2] = 10_000  # in the first half: the trend is the slowest that counts
    found = expected(history(*amounts), 7)
    assert found is not None
    assert Decimal(520) * Decimal("0.5") < found < 520


def test_the_trend_goes_on_from_the_middle_of_the_weeks() -> None:
    """Two weeks of 100 and two of 120 a day: 1.2 in two weeks, damped; 110 in the middle."""
    found = expected(history(*[100] * 14, *[120] * 14), 1)
    assert found is not None
    assert round(found, 6) == round(110 * Decimal("1.2") ** (Decimal("0.4") * 15 / 14), 6)


def test_a_new_team_is_its_mean_day_and_a_week_is_the_least() -> None:
    """Days before its first event do not count as its days."""
    assert expected(history(*[0] * 30, *[10] * 8), 3) == 30
    assert expected(history(*[0] * 30, *[10] * 6), 3) is None
    assert expected(history(*[0] * 40), 3) is None


def test_an_interval_needs_ten_misses_and_holds_four_fifths() -> None:
    """The ranks of split conformal prediction: of 19 misses the second and the 18th."""
    ratios = [Decimal(number) / 10 for number in range(1, 20)]
    assert interval_of(ratios[:9]) is None
    found = interval_of(ratios)
    assert found is not None
    assert (found.low, found.high) == (Decimal("0.2"), Decimal("1.8"))


def test_an_earlier_window_is_forecast_without_its_own_days() -> None:
    """What came later must not help: the last week doubles, and the forecast missed by 2."""
    doubled = history(*weeks(4), *[2 * one for one in weeks(1)])
    assert missed(doubled, 7, origin=1) == 2
    assert missed(doubled, 7, origin=2) is None  # less than four weeks before it


@given(st.integers(0, 50))
def test_the_interval_of_noise_holds_what_it_promises(seed: int) -> None:
    """On series of weekdays and noise the tested coverage is near 80 %, whatever the seed."""
    random = Random(seed)
    series = [
        history(*(one * random.uniform(0.7, 1.3) for one in weeks(20, workday=100 + 10 * number)))
        for number in range(12)
    ]
    found = back_test(series, 14)
    assert found.windows == 12 * 6
    assert found.coverage is not None
    assert Decimal("0.6") < found.coverage <= 1
    assert found.interval is not None
    assert found.interval.low < 1 < found.interval.high


def test_a_day_stands_out_of_its_own_weekday() -> None:
    """A Sunday of a workday's amount is a spike; a Monday of the same amount is none."""
    random = Random(1)
    amounts = [one * random.uniform(0.95, 1.05) for one in weeks(10)]
    amounts[-1] = 100.0
    (found,) = spikes(history(*amounts))
    assert found.day == MONDAY + timedelta(days=69)
    assert found.day.strftime("%A") == "Sunday"
    assert 8 < found.usual < 12
    assert found.change == found.amount - found.usual


def test_a_drop_is_a_spike_too_and_cents_are_none() -> None:
    """A team that falls silent for a day; and one whose whole spending is below the floor."""
    amounts = weeks(9)
    amounts[-6] = 0  # a Tuesday
    (found,) = spikes(history(*amounts))
    assert (found.amount, found.usual, found.change) == (0, 100, -100)
    cents = [Decimal(one) / 1000 for one in amounts]
    assert not list(spikes(history(*cents)))


def test_the_driver_is_the_part_that_changed_most_in_its_direction() -> None:
    """The largest part may be as large as ever; a part that is gone drives a drop."""
    large, small, gone = ("m", "k1"), ("m", "k2"), ("m", "k3")
    before = [{large: Decimal(100), gone: Decimal(8)}, {large: Decimal(100), gone: Decimal(4)}]
    now = {large: Decimal(101), small: Decimal(40)}
    rise = Spike(day=MONDAY, amount=Decimal(141), usual=Decimal(106))
    assert largest_driver(rise, now=now, before=before) == (small, 40)
    drop = Spike(day=MONDAY, amount=Decimal(101), usual=Decimal(106))
    assert largest_driver(drop, now={large: Decimal(101)}, before=before) == (gone, -6)
    assert weekdays_before(MONDAY) == tuple(MONDAY - timedelta(days=7 * n) for n in (1, 2, 3, 4))


def test_a_sentence_says_the_direction_or_that_nothing_was_usual() -> None:
    """A share of nothing is no figure."""
    words = {"part": "team a", "model": "m", "key": "k"}
    found = [
        sentence(Spike(day=MONDAY, amount=Decimal(amount), usual=Decimal(usual)), **words)
        for amount, usual in ((15, 10), (4, 10), (3, 0))
    ]
    assert found == [
        "2026-06-01: team a, model m, key k: 50 % above its usual Monday, $5.00.",
        "2026-06-01: team a, model m, key k: 60 % below its usual Monday, $6.00.",
        "2026-06-01: team a, model m, key k: where Mondays usually cost nothing, $3.00.",
    ]


def test_a_window_that_cannot_be_forecast_is_no_miss() -> None:
    """A window of no days, one without four weeks before it, and one of a silent team."""
    assert missed(history(*weeks(9)), 0, origin=1) is None
    assert missed(history(*weeks(4)), 7, origin=1) is None
    assert missed(history(*weeks(9)), 7, origin=1, forecast=lambda known, days: Decimal(0)) is None
    none = back_test([history(*weeks(3))], 7)
    assert (none.windows, none.interval, none.coverage, none.median_error) == (0, None, None, None)


def test_two_silent_weeks_are_no_base_of_growth() -> None:
    """Of each weekday two days of nothing and two of 10: 5, without a trend."""
    assert expected(history(1, *[0] * 20, *[10] * 14), 1) == 5


def test_the_outlook_carries_growth_on() -> None:
    """1 % more each week: the median slope finds it, and each month has its own days."""
    amounts = [100 * 1.01**week for week in range(26) for _ in range(7)]
    known = history(*amounts)
    growth = growth_of(known)
    assert growth is not None
    assert round(growth.middle, 4) == 0.01  # ln 1.01, rounded
    months = outlook(known, 18)
    assert [one.month for one in months[:2]] == [date(2026, 12, 1), date(2027, 1, 1)]
    assert len(months) == 18
    pace = [later.expected / earlier.expected for earlier, later in pairwise(months)]
    assert all(Decimal("0.9") < one < Decimal("1.2") for one in pace)
    assert months[-1].low <= months[-1].expected <= months[-1].high


def test_a_short_history_has_no_outlook() -> None:
    """Two months of extrapolation from six weeks would be a guess."""
    assert outlook(history(*weeks(6)), 18) == []


def test_one_day_of_forecasts_cannot_test_itself() -> None:
    """An interval is tested by the forecasts of other days; here all are of the same one."""
    series = [history(*[100] * 28, *[100 + number] * 7) for number in range(11)]
    found = back_test(series, 7)
    assert found.windows == 11
    assert found.interval is not None
    assert found.coverage is None
    assert found.median_error == Decimal("0.05")
