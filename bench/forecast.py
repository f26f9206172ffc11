"""How far forecasts miss, on a demo organisation: `report forecast`'s method beside a plain mean.

    python -m bench.forecast [--events 2000000] [--teams 60] [--write]

Each team's spending by day is the one that `tollgate demo-data` would write, without a database. A
half month is forecast at six days of each team's past. The run fails if the interval holds fewer
than 70 or more than 90 % of the real amounts, or if the method misses more than the mean does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from bench.stand import machine
from bench.stand.page import replace_between
from gateway.domain.forecasting.daily import USED_DAYS, History, expected
from gateway.domain.forecasting.interval import BackTest, Forecast, back_test
from gateway.services.demo.organisation import OrganisationSize, calendar_of
from gateway.services.demo.prices import prices_of
from gateway.services.demo.traffic import Traffic
from gateway.storage.policy.price_list import builtin_price

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "forecast.md"
MARKS = (
    "<!-- forecast:begin, written by `python -m bench.forecast --write` -->",
    "<!-- forecast:end -->",
)
DAYS = 15
NUSD = Decimal(10) ** 9


def mean_day(history: History, days: int) -> Decimal | None:
    """Return the forecast that everyone can do by hand: the mean of the last four weeks."""
    known = history.amounts[-USED_DAYS:]
    return days * sum(known, Decimal(0)) / len(known) if known else None


METHODS: dict[str, Forecast] = {"weekday median and trend": expected, "mean day": mean_day}


def main() -> int:
    """Print the comparison, or write it into the guide; return 1 on a finding."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--months", type=int, default=6)
    parser.add_argument("--teams", type=int, default=60)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    size = OrganisationSize(months=options.months, events=options.events, teams=options.teams)
    series = team_days(size)
    whole = History(
        first_day=series[0].first_day,
        amounts=tuple(
            sum(day, Decimal(0)) for day in zip(*(one.amounts for one in series), strict=True)
        ),
    )
    tested = {name: back_test(series, DAYS, forecast=method) for name, method in METHODS.items()}
    of_whole = {name: back_test([whole], DAYS, forecast=method) for name, method in METHODS.items()}
    lines = report(tested, of_whole, options)
    print("\n".join(lines))
    if options.write:
        replace_between(PAGE, *MARKS, lines=lines)
    return findings(tested)


def team_days(size: OrganisationSize) -> Sequence[History]:
    """Return the spending of each team by day, in USD."""
    calendar = calendar_of(size, last=datetime.now(UTC).date())
    traffic = Traffic(size, calendar, prices_of(calendar, builtin_price), is_demo=True)
    sums: dict[str, list[int]] = {}
    for hour in traffic.hours():
        for event in traffic.events([hour]):
            day = (event.started_at.date() - calendar.first).days
            days = sums.setdefault(event.team, [0] * calendar.days)
            days[min(day, calendar.days - 1)] += event.cost_nusd or 0
    return [
        History(first_day=calendar.first, amounts=tuple(Decimal(one) / NUSD for one in days))
        for _, days in sorted(sums.items())
    ]


def report(
    tested: dict[str, BackTest], of_whole: dict[str, BackTest], options: argparse.Namespace
) -> list[str]:
    """Return the lines of the table."""
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, commit {machine.commit()}: `python -m bench.forecast`, "
        f"{options.events:,} events of {options.teams} teams in {options.months} months. "
        f"{DAYS} days are forecast at up to six days of the past.",
        "",
        "| method | forecasts | median error of a team | of the whole | held by the interval | "
        "interval |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for name, one in tested.items():
        whole = of_whole[name].median_error
        interval = one.interval
        assert one.median_error is not None
        assert one.coverage is not None
        assert interval is not None
        lines.append(
            f"| {name} | {one.windows} | {one.median_error:.1%} | "
            f"{'-' if whole is None else f'{whole:.1%}'} | {one.coverage:.0%} | "
            f"×{interval.low:.2f} to ×{interval.high:.2f} |"
        )
    return lines


def findings(tested: dict[str, BackTest]) -> int:
    """Return 1 if the interval or the method misses its bar."""
    own, mean = tested.values()
    assert own.coverage is not None
    assert own.median_error is not None
    assert mean.median_error is not None
    is_held = Decimal("0.7") <= own.coverage <= Decimal("0.9")
    is_better = own.median_error <= mean.median_error
    if not is_held:
        print(f"The interval held {own.coverage:.0%}, not 70 to 90 %.", file=sys.stderr)
    if not is_better:
        print("The method misses more than a mean day.", file=sys.stderr)
    return int(not (is_held and is_better))


if __name__ == "__main__":
    sys.exit(main())
