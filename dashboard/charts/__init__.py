"""The dashboard's charts in one set of colours; the pages supply the figures."""

from dashboard.charts.drawing import COLOURS, MONEY_AXIS, Click
from dashboard.charts.over_time import (
    NOTHING_TO_DRAW,
    OTHER,
    columns,
    keep_largest,
    lines,
    order,
    ranges,
    stacked_days,
)
from dashboard.charts.parts import WHOLE, Gauge, Step, bars, gauges, waterfall

__all__ = [
    "COLOURS",
    "MONEY_AXIS",
    "NOTHING_TO_DRAW",
    "OTHER",
    "WHOLE",
    "Click",
    "Gauge",
    "Step",
    "bars",
    "columns",
    "gauges",
    "keep_largest",
    "lines",
    "order",
    "ranges",
    "stacked_days",
    "waterfall",
]
