"""Draws the dashboard's charts (stacked days, lines, bars, budget gauges) in one set of colours;
the pages supply the figures.

Colour-blind readers can distinguish the colours, on both themes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from dashboard.shell.viewer import separators

# After Okabe and Ito, each adjusted until it has a contrast of 3:1 with the white and with the dark
# background.
COLOURS = ("#2F7FC8", "#C97B00", "#00997A", "#B5609A", "#D9622B", "#7A7FD0", "#8A8F98")
OTHER = "Other"
HEIGHT_PX = 290
MOST_GROUPS = len(COLOURS) - 1
MONEY_AXIS = "$,~r"
ROOM_FOR_WORDS = 1.9  # of the longest bar
WHOLE = "Bill"  # the last step of a waterfall, in grey
MOST_OF_A_GAUGE = (
    1.5  # early in a period a forecast may be many times the limit: it must not shrink all bars
)

Point = Mapping[str, Any]
PICK = "pick"  # the name of a chart's selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Click:
    """The action of a click on a mark: `on_pick` gets the value of `field` (`group`, or `iso` for
    the day). `key` is the chart's name in the session.
    """

    key: str
    field: str
    on_pick: Callable[[str], None]


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
    tooltip. `is_by_month`: one bar a month, whose first day a point has.
    """
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
            color=_colour(domain, colours),
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
    _show(chart, alt_text, currency=currency, click=click)


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
            color=_colour(order(points, group=group), COLOURS),
            tooltip=[
                alt.Tooltip("day:T", title="Day (UTC)", format="%a %d %b %Y"),
                alt.Tooltip("group:N", title="Deployment"),
                alt.Tooltip("words:N", title=size_title),
            ],
        )
    )
    _show(chart, alt_text)


def bars(
    points: Sequence[Point],
    *,
    group: str,
    size: str,
    size_title: str,
    read: Any,
    size_format: str,
    alt_text: str,
    currency: str = "USD",
    click: Click | None = None,
    group_title: str = "Part",
) -> None:
    """Show a chart with one bar per group in the order given, with its figure beside it: for groups
    that need no colour of their own, or that overlap and so must not be stacked.
    """
    frame = pd.DataFrame(
        {
            "group": [str(p[group]) for p in points],
            "size": [float(p[size] or 0) for p in points],
            "words": [read(p[size]) for p in points],
        }
    )
    ends = [0.0, *frame["size"]]
    scale = alt.Scale(domain=[min(ends), max(ends) * ROOM_FOR_WORDS or 1], nice=False)
    drawn = alt.Chart(frame).encode(
        y=alt.Y("group:N", title=None, sort=list(frame["group"]), axis=alt.Axis(labelLimit=120))
    )
    marks = drawn.mark_bar(cornerRadius=1, color=COLOURS[0], height={"band": 0.7}).encode(
        x=alt.X(
            "size:Q",
            title=size_title,
            scale=scale,
            axis=alt.Axis(format=size_format, tickCount=4),
        ),
        tooltip=[
            alt.Tooltip("group:N", title=group_title),
            alt.Tooltip("words:N", title=size_title),
        ],
    )
    texts = drawn.mark_text(align="left", dx=5, color=COLOURS[-1]).encode(
        x=alt.X("size:Q"), text="words:N"
    )
    if click is not None:
        marks = _clickable(marks, click)
    _draw(alt.layer(marks, texts).properties(height=alt.Step(26)), alt_text, currency, click)


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
        bar = _clickable(bar, click)
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
    _draw(drawn.properties(height=HEIGHT_PX), alt_text, currency, click)


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
    _show(bar + line, alt_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One bar: shares of its limit (1 is full); `words` are for its tooltip."""

    name: str
    spent: float
    leased: float
    forecast: float | None
    words: Mapping[str, str]


def gauges(bars: Sequence[Gauge], *, alt_text: str) -> None:
    """Show a bar for each budget with the used and forecast share of its limit, in the order given.

    Spent is a full bar, leased a hollow one, the forecast a diamond: no reader has to distinguish
    colours. Values beyond the scale are an arrow at its edge.
    """
    names = [bar.name for bar in bars]
    edge = min(
        max(1.0, *(max(bar.spent + bar.leased, bar.forecast or 0) for bar in bars)), MOST_OF_A_GAUGE
    )
    y = alt.Y("name:N", title=None, sort=names, axis=alt.Axis(labelLimit=320, labelOverlap=False))
    scale = alt.Scale(domain=[0, edge], nice=False, clamp=True)
    kinds = ("spent (bar)", "leased (outline)", "forecast (diamond)")
    part = alt.Scale(domain=list(kinds), range=[COLOURS[0], COLOURS[1], COLOURS[3]])
    colour = alt.Color("part:N", scale=part, legend=alt.Legend(title=None, orient="top", offset=6))
    parts = pd.DataFrame(
        [
            {"name": bar.name, "part": name, "begin": begin, "end": end, **bar.words}
            for bar in bars
            for name, begin, end in (
                (kinds[0], 0.0, bar.spent),
                (kinds[1], bar.spent, bar.spent + bar.leased),
            )
        ]
    )
    tips = [
        alt.Tooltip("name:N", title="Budget"),
        *(alt.Tooltip(f"{word}:N") for word in bars[0].words),
    ]
    x = alt.X("begin:Q", title=None, scale=scale, axis=alt.Axis(format="%", tickCount=6))
    drawn = alt.Chart(parts).encode(x=x, x2="end:Q", y=y, color=colour, tooltip=tips)
    full = drawn.mark_bar(height=14, cornerRadius=1).transform_filter(alt.datum.part == kinds[0])
    hollow = drawn.mark_bar(
        height=14, cornerRadius=1, filled=False, strokeWidth=1.5
    ).transform_filter((alt.datum.part == kinds[1]) & (alt.datum.end > alt.datum.begin))
    ahead = pd.DataFrame(
        [
            {
                "name": bar.name,
                "part": kinds[2],
                "end": bar.forecast,
                "is_beyond": bar.forecast > edge,
                **bar.words,
            }
            for bar in bars
            if bar.forecast
        ],
        columns=["name", "part", "end", "is_beyond", *bars[0].words],
    )
    marks = (
        alt.Chart(ahead)
        .mark_point(size=90, filled=True, opacity=1)
        .encode(
            x=alt.X("end:Q", scale=scale),
            y=y,
            color=colour,
            tooltip=tips,
            shape=alt.condition(
                alt.datum.is_beyond, alt.value("triangle-right"), alt.value("diamond")
            ),
        )
    )
    limit = (
        alt.Chart(pd.DataFrame({"at": [1.0]}))
        .mark_rule(color=COLOURS[4], strokeWidth=2, strokeDash=[5, 3])
        .encode(x=alt.X("at:Q", scale=scale))
    )
    chart = alt.layer(full, hollow, limit, marks)
    st.altair_chart(chart.properties(height=alt.Step(30)), alt=alt_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a deployment's waterfall, from `begin` to `end` in USD; `words` is its amount."""

    deployment: str
    name: str
    kind: str
    begin: Decimal
    end: Decimal
    words: str


def waterfall(steps: Sequence[Step], *, size_title: str, alt_text: str) -> None:
    """Show a waterfall for each deployment: each step begins where the one above ends, and the last
    is the whole. The steps' names stand at the axis, so that no reader needs the colours.
    """
    frame = pd.DataFrame(
        {
            "deployment": [step.deployment for step in steps],
            "step": [f"{step.deployment}: {step.name}" for step in steps],
            "kind": [step.kind for step in steps],
            "begin": [float(step.begin) for step in steps],
            "end": [float(step.end) for step in steps],
            "words": [step.words for step in steps],
        }
    )
    kinds = list(dict.fromkeys(step.kind for step in steps))
    colours = dict(zip(kinds, COLOURS, strict=False)) | {WHOLE: COLOURS[-1]}
    ends = [float(edge) for step in steps for edge in (step.begin, step.end)]
    # Room for the amount beside the longest bar.
    scale = alt.Scale(domain=[min(0.0, *ends), max(0.0, *ends) * 1.15], nice=False)
    y = alt.Y(
        "step:N",
        title=None,
        sort=list(frame["step"]),
        axis=alt.Axis(labelLimit=320, labelOverlap=False, labelExpr="datum.label"),
    )
    axis = alt.Axis(format=MONEY_AXIS, tickCount=5)
    x = alt.X("begin:Q", title=size_title, axis=axis, scale=scale)
    drawn = alt.Chart(frame).encode(y=y)
    marks = drawn.mark_bar(height=16, cornerRadius=1).encode(
        x=x,
        x2="end:Q",
        color=alt.Color(
            "kind:N",
            scale=alt.Scale(domain=kinds, range=[colours[kind] for kind in kinds]),
            legend=alt.Legend(title=None, orient="top", offset=6, columns=3),
        ),
        tooltip=[
            alt.Tooltip("deployment:N", title="Deployment"),
            alt.Tooltip("step:N", title="Line"),
            alt.Tooltip("words:N", title=size_title),
        ],
    )
    amounts = drawn.transform_calculate(right="max(datum.begin, datum.end)")
    texts = amounts.mark_text(align="left", dx=5, color="#8A8F98").encode(
        x=alt.X("right:Q"), text="words:N"
    )
    st.altair_chart(alt.layer(marks, texts).properties(height=alt.Step(26)), alt=alt_text)


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
        format="%d %b", grid=False, labelOverlap=True, tickCount="week" if several_months else "day"
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


def _colour(domain: Sequence[str], colours: Sequence[str]) -> alt.Color:
    """Return the colours and the legend of a chart's groups, in the order of `domain`.

    Three short names in a row fit a screen of 420 pixels; four were cut at its edge.
    """
    return alt.Color(
        "group:N",
        scale=alt.Scale(domain=list(domain), range=[*colours[: len(domain)]]),
        legend=alt.Legend(title=None, orient="top", offset=6, labelLimit=100, columns=3),
    )


def _show(chart: Any, alt_text: str, *, currency: str = "USD", click: Click | None = None) -> None:
    """Draw a chart at the common height, with its text for screen readers."""
    if click is not None:
        chart = _clickable(chart, click)
    _draw(chart.properties(height=HEIGHT_PX), alt_text, currency, click)


def _clickable(chart: Any, click: Click) -> Any:
    """Return a chart whose marks can be picked, and look like it."""
    chart = chart.add_params(alt.selection_point(name=PICK, fields=[click.field], toggle=False))
    chart.mark.cursor = "pointer"
    return chart


def _draw(chart: Any, alt_text: str, currency: str, click: Click | None) -> None:
    """Draw a chart with the reader's separators, and call back if a mark is picked."""
    thousands, decimals = separators()
    signs = ["$", ""] if currency == "USD" else ["", f" {currency}"]
    numbers = alt.NumberLocale(decimal=decimals, thousands=thousands, grouping=[3], currency=signs)
    chart = chart.configure(locale=alt.Locale(number=numbers))
    if click is None:
        st.altair_chart(chart, alt=alt_text)
        return

    def picked() -> None:
        found = st.session_state[click.key].selection.get(PICK) or []
        if found and click.field in found[0]:
            click.on_pick(str(found[0][click.field]))

    st.altair_chart(chart, alt=alt_text, key=click.key, on_select=picked, selection_mode=PICK)
