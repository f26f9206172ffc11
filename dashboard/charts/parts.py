"""Draws charts of the parts of a whole: bars, gauges of budgets, and the waterfall of a bill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from dashboard.charts.drawing import COLOURS, MONEY_AXIS, Click, Point, clickable, draw, legend

ROOM_FOR_WORDS = 1.9  # of the longest bar, with an amount and a share beside it
ROOM_FOR_AMOUNT = 1.4  # of the longest bar, also on a narrow screen
WHOLE = "Bill"  # the last step of a waterfall, in grey
# Early in a period a forecast may be many times the limit: it must not shrink all bars.
MOST_OF_A_GAUGE = 1.5


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
        y=alt.Y("group:N", title=None, sort=list(frame["group"]), axis=alt.Axis(labelLimit=170))
    )
    marks = drawn.mark_bar(cornerRadius=1, color=COLOURS[0], height={"band": 0.7}).encode(
        x=alt.X(
            "size:Q",
            title=size_title,
            scale=scale,
            # A grid would strike through the words beside the bars.
            axis=alt.Axis(format=size_format, tickCount=4, grid=False),
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
        marks = clickable(marks, click)
    draw(alt.layer(marks, texts).properties(height=alt.Step(26)), alt_text, currency, click)


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
    colour = alt.Color("part:N", scale=part, legend=legend(kinds, columns=1))
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


def waterfall(
    steps: Sequence[Step], *, kinds: Sequence[str], size_title: str, alt_text: str
) -> None:
    """Show a waterfall for each deployment: each step begins where the one above ends, and the last
    is the whole. The steps' names stand at the axis, so that no reader needs the colours, which are
    those of all `kinds` in their order.
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
    colours = dict(zip(kinds, COLOURS, strict=False)) | {WHOLE: COLOURS[-1]}
    ends = [float(edge) for step in steps for edge in (step.begin, step.end)]
    # Room for the amount beside the longest bar.
    scale = alt.Scale(domain=[min(0.0, *ends), max(0.0, *ends) * ROOM_FOR_AMOUNT], nice=False)
    y = alt.Y(
        "step:N",
        title=None,
        sort=list(frame["step"]),
        axis=alt.Axis(labelLimit=320, labelOverlap=False, labelExpr="datum.label"),
    )
    axis = alt.Axis(format=MONEY_AXIS, tickCount=5, grid=False)
    x = alt.X("begin:Q", title=size_title, axis=axis, scale=scale)
    drawn = alt.Chart(frame).encode(y=y)
    marks = drawn.mark_bar(height=16, cornerRadius=1).encode(
        x=x,
        x2="end:Q",
        color=alt.Color(
            "kind:N",
            scale=alt.Scale(domain=list(kinds), range=[colours[kind] for kind in kinds]),
            legend=legend(kinds, columns=2),
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
