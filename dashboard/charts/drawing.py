"""Draws a chart on the page in the one set of colours, with the reader's separators, a text for
screen readers, and an action for a click on a mark.

Colour-blind readers can distinguish the colours, on both themes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import streamlit as st

from dashboard.shell.viewer import separators

# After Okabe and Ito, each adjusted until it has a contrast of 3:1 with the white and with the dark
# background.
COLOURS = ("#2F7FC8", "#C97B00", "#00997A", "#B5609A", "#D9622B", "#7A7FD0", "#8A8F98")
HEIGHT_PX = 290
MONEY_AXIS = "$,~r"
LABEL_PX, LETTER_PX, SYMBOL_PX = 130, 7, 30  # of a name in a legend
# Room for half a mark at the edge; the bottom is Streamlit's own.
PADDING_PX = {"left": 0, "top": 6, "right": 6, "bottom": 20}

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


def colour(domain: Sequence[str], colours: Sequence[str]) -> alt.Color:
    """Return the colours and the legend of a chart's groups, in the order of `domain`."""
    scale = alt.Scale(domain=list(domain), range=[*colours[: len(domain)]])
    return alt.Color("group:N", scale=scale, legend=legend(domain))


def legend(names: Sequence[str], *, columns: int | None = None) -> alt.Legend:
    """Return a legend above a chart, with as many columns as fit the chart's width: on a narrow
    screen a third or fourth was cut at its edge. A chart whose height follows from its lines needs
    a number of `columns`, because it keeps room for the rows of its first width.
    """
    label_px = min(LABEL_PX, LETTER_PX * max(map(len, names), default=0))
    fitting = columns or alt.ExprRef(f"max(1, floor(width / {label_px + SYMBOL_PX}))")
    return alt.Legend(title=None, orient="top", offset=6, labelLimit=LABEL_PX, columns=fitting)


def show(chart: Any, alt_text: str, *, currency: str = "USD", click: Click | None = None) -> None:
    """Draw a chart at the common height, with its text for screen readers."""
    if click is not None:
        chart = clickable(chart, click)
    draw(chart.properties(height=HEIGHT_PX), alt_text, currency, click)


def clickable(chart: Any, click: Click) -> Any:
    """Return a chart whose marks can be picked, and look like it."""
    chart = chart.add_params(alt.selection_point(name=PICK, fields=[click.field], toggle=False))
    chart.mark.cursor = "pointer"
    return chart


def draw(chart: Any, alt_text: str, currency: str, click: Click | None) -> None:
    """Draw a chart with the reader's separators, and call back if a mark is picked."""
    thousands, decimals = separators()
    signs = ["$", ""] if currency == "USD" else ["", f" {currency}"]
    numbers = alt.NumberLocale(decimal=decimals, thousands=thousands, grouping=[3], currency=signs)
    chart = chart.configure(locale=alt.Locale(number=numbers)).properties(padding=PADDING_PX)
    if click is None:
        st.altair_chart(chart, alt=alt_text)
        return

    def picked() -> None:
        found = st.session_state[click.key].selection.get(PICK) or []
        if found and click.field in found[0]:
            click.on_pick(str(found[0][click.field]))

    st.altair_chart(chart, alt=alt_text, key=click.key, on_select=picked, selection_mode=PICK)
