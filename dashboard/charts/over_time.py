"""Draws charts over time: stacked days, lines, columns beside an earlier time, and ranges."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from dashboard.charts.drawing import (
    COLOURS,
    HEIGHT_PX,
    Click,
    Point,
    clickable,
    colour,
    draw,
    show,
)

OTHER = "Other"
NOTHING_TO_DRAW = "Nothing in the shown time."
MOST_GROUPS = len(COLOURS) - 1


def keep_largest(points: Sequence[Point], *, group: str, size: str) -> list[Point]:
    """Return the points with all but the largest groups merged as `Other`, day by day, so that no
    colour is used twice.
    """
    sums: dict[str, Decimal] = {}
    for point in points:
        sums[point[group]] = sums.get(point[group], Decimal(0)) + Decimal(str(point[size] or 0))
    ranked = sorted(sums, key=lambda name: -sums[name])
    kept = set(ranked if len(ranked) <= MOST_GROUPS + 1 else ranked[:MOST_GROUPS])
    merged: dict[tuple[Any, str], dict[str, Any]] = {}
    for point in points:
        name = point[group] if point[group] in kept else OTHER
        place = merged.setdefault((point["day"], name), {**point, group: name, size: None})
        if point[size] is not None:  # unknown plus unknown is unknown, not 0
            place[size] = (place[size] or 0) + point[size]
    return list(merged.values())


def order(points: Sequence[Point], *, group: str) -> list[str]:
    """Return the groups' names in the order of their colours: by name, so that a team keeps its
    colour from month to month.
    """
    names = sorted({str(point[group]) for point in points} - {OTHER})
    return [*names, OTHER] if any(point[group] == OTHER for point in points) else names


def stacked_days(
    points: Sequence[Point],
    *,
    group: str,
    size: str,
    size_title: str,
    read: Any,
    size_format: str,
    names: Sequence[str] | None = None,
    colours: Sequence[str] = COLOURS,
    alt_text: str,
    currency: str = "USD",
    click: Click | None = None,
    is_by_month: bool = False,
) -> None:
    """Show a chart with one bar a day, its parts by group. `read` formats a figure for the
    tooltip. `is_by_month`: one bar a month, whose first day a point has. Without points it says so.
    """
    if not points:  # only the compared time has any
        st.caption(NOTHING_TO_DRAW)
        return
    domain = list(names or order(points, group=group))
    frame = _frame(points, group=group, size=size, read=read)
    frame["place"] = [domain.index(name) for name in frame["group"]]
    chart = (
        alt.Chart(frame)
        .mark_bar(cornerRadius=1)
        .encode(
            x=_months() if is_by_month else _days(points),
            y=alt.Y(
                "sum(size):Q", title=size_title, axis=alt.Axis(format=size_format, tickCount=5)
            ),
            color=colour(domain, colours),
            order=alt.Order("place:Q"),
            tooltip=[
                alt.Tooltip(
                    "day:T",
                    title="Month (UTC)" if is_by_month else "Day (UTC)",
                    format="%B %Y" if is_by_month else "%a %d %b %Y",
                ),
                alt.Tooltip("group:N", title="Part"),
                alt.Tooltip("words:N", title=size_title),
            ],
        )
    )
    show(chart, alt_text, currency=currency, click=click)


def lines(
    points: Sequence[Point],
    *,
    group: str,
    size: str,
    size_title: str,
    read: Any,
    size_format: str,
    alt_text: str,
) -> None:
    """Show a chart with one line per group; a day without a measurement has no point, never a
    zero.
    """
    frame = _frame(points, group=group, size=size, read=read)
    chart = (
        alt.Chart(frame)
        .mark_line(interpolate="monotone", point=alt.OverlayMarkDef(size=18), strokeWidth=2)
        .encode(
            x=_days(points),
            y=alt.Y(
                "size:Q",
                title=size_title,
                axis=alt.Axis(format=size_format, tickCount=5),
                scale=alt.Scale(zero=True),
            ),
            color=colour(order(points, group=group), COLOURS),
            tooltip=[
                alt.Tooltip("day:T", title="Day (UTC)", format="%a %d %b %Y"),
                alt.Tooltip("group:N", title="Deployment"),
                alt.Tooltip("words:N", title=size_title),
            ],
        )
    )
    show(chart, alt_text)


def columns(
    points: Sequence[Point],
    *,
    place: str,
    size: str,
    earlier: str | None = None,
    names: tuple[str, str] = ("This period", "Before"),
    size_title: str,
    read: Any,
    size_format: str,
    alt_text: str,
    currency: str = "USD",
    click: Click | None = None,
) -> None:
    """Show a chart with one column per point, in their order, and a line of the `earlier` amounts.

    `names` are those of the columns and of the line. A point has its `place` for people, and an
    `iso` that a click gives back.
    """
    frame = pd.DataFrame(
        {
            "place": [str(p[place]) for p in points],
            "iso": [str(p["iso"]) for p in points],
            "size": [None if p[size] is None else float(p[size]) for p in points],
            "words": [read(p[size]) for p in points],
            "earlier": [_float(p.get(earlier)) if earlier else None for p in points],
            "before": [_words(p.get(earlier), read) if earlier else "" for p in points],
            "kind": names[0],
            "line": names[1],
        }
    )
    tooltip = [
        alt.Tooltip("iso:N", title="Time (UTC)"),
        alt.Tooltip("words:N", title=names[0]),
        *([alt.Tooltip("before:N", title=names[1])] if earlier else []),
    ]
    x = alt.X("place:N", title=None, sort=None, axis=alt.Axis(labelAngle=0, labelOverlap=True))
    colour = alt.Scale(domain=list(names), range=[COLOURS[0], COLOURS[1]])
    legend = alt.Legend(title=None, orient="top", offset=6, labelLimit=260) if earlier else None
    bar = (
        alt.Chart(frame)
        .mark_bar(cornerRadius=1)
        .encode(
            x=x,
            y=alt.Y("size:Q", title=size_title, axis=alt.Axis(format=size_format, tickCount=5)),
            color=alt.Color("kind:N", scale=colour, legend=legend),
            tooltip=tooltip,
        )
    )
    if click is not None:
        bar = clickable(bar, click)
    drawn: Any = bar
    if earlier:
        line = (
            alt.Chart(frame)
            .mark_line(strokeWidth=2, strokeDash=[5, 3], interpolate="monotone")
            .encode(
                x=x,
                y=alt.Y("earlier:Q", title=size_title),
                color=alt.Color("line:N", scale=colour, legend=legend),
                tooltip=tooltip,
            )
        )
        drawn = alt.layer(bar, line)
    draw(drawn.properties(height=HEIGHT_PX), alt_text, currency, click)


def _words(amount: Any, read: Any) -> str:
    """Return an amount for people, a dash for a day that the earlier time does not have."""
    return "–" if amount is None else str(read(amount))


def _float(amount: Any) -> float | None:
    """Return an amount as a chart has it, None for an unknown one."""
    return None if amount is None else float(amount)


def ranges(
    points: Sequence[Point],
    *,
    place: str,
    size: str,
    ends: tuple[str, str],
    size_title: str,
    read: Any,
    size_format: str,
    alt_text: str,
) -> None:
    """Show a chart with one bar per point, in their order, and a line from its low to its high
    end.
    """
    low, high = ends
    frame = pd.DataFrame(
        {
            "place": [str(p[place]) for p in points],
            "size": [float(p[size]) for p in points],
            "low": [float(p[low]) for p in points],
            "high": [float(p[high]) for p in points],
            "words": [read(p[size]) for p in points],
            "between": [f"{read(p[low])} to {read(p[high])}" for p in points],
        }
    )
    x = alt.X("place:N", title=None, sort=None, axis=alt.Axis(labelAngle=0, labelOverlap=True))
    tooltip = [
        alt.Tooltip("place:N", title="Month"),
        alt.Tooltip("words:N", title=size_title),
        alt.Tooltip("between:N", title="Range"),
    ]
    bar = (
        alt.Chart(frame)
        .mark_bar(cornerRadius=1, color=COLOURS[0])
        .encode(
            x=x,
            y=alt.Y("size:Q", title=size_title, axis=alt.Axis(format=size_format, tickCount=5)),
            tooltip=tooltip,
        )
    )
    line = (
        alt.Chart(frame)
        .mark_rule(strokeWidth=2, color=COLOURS[1])
        .encode(x=x, y=alt.Y("low:Q", title=size_title), y2="high:Q", tooltip=tooltip)
    )
    show(bar + line, alt_text)


def _frame(points: Sequence[Point], *, group: str, size: str, read: Any) -> pd.DataFrame:
    """Return a chart's data frame. Floats are used only here: a pixel is coarser than any rounding,
    and the tooltip has the exact figure.
    """
    return pd.DataFrame(
        {
            "day": pd.to_datetime([point["day"] for point in points]),
            "iso": [str(point["day"]) for point in points],
            "group": [str(point[group]) for point in points],
            "size": [None if point[size] is None else float(point[size]) for point in points],
            "words": [read(point[size]) for point in points],
        }
    )


def _days(points: Sequence[Point]) -> alt.X:
    """Return the x axis of days: the complete month if the points lie in one, else weekly ticks."""
    days: list[date] = [point["day"] for point in points]
    several_months = (max(days) - min(days)).days > 31
    axis = alt.Axis(
        format="%-d %b",
        grid=False,
        labelOverlap=True,
        labelBound=True,
        tickCount="week" if several_months else "day",
    )
    if several_months:
        return alt.X("yearmonthdate(day):T", title=None, axis=axis)
    # The complete month, so that its first day is one bar and not the whole width.
    first = min(days).replace(day=1)
    end = (max(days).replace(day=28) + timedelta(days=4)).replace(day=1)
    month = [alt.DateTime(year=edge.year, month=edge.month, date=edge.day) for edge in (first, end)]
    return alt.X("yearmonthdate(day):T", title=None, axis=axis, scale=alt.Scale(domain=month))


def _months() -> alt.X:
    """Return the x axis of months."""
    axis = alt.Axis(format="%b %Y", grid=False, labelOverlap=True, tickCount="month")
    return alt.X("yearmonth(day):T", title=None, axis=axis)
