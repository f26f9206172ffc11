"""Reads the reader's choices (time, comparison, currency, split, filters) from the page's address,
and keeps it when another page is opened.

The address alone decides: a colleague who opens it sees the same. The session only remembers the
choices for a page that the menu opens, whose address is empty.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import date

import streamlit as st

from dashboard.display import inert
from dashboard.filters import DATASET_KEY, NONE, dataset
from dashboard.shell import period
from dashboard.shell.period import Period
from dashboard.source import newest_event
from gateway.domain.reports.comparison import Compared
from gateway.errors import BadUsage
from gateway.reports.dimensions import TIME, Dimension
from gateway.reports.question import Question, ask, dimension
from gateway.reports.report import Dataset

COMPARE, CURRENCY, SPLIT = "compare", "currency", "by"
NO_COMPARISON = "none"
USD = "USD"
# All filters that an address may have; the bar offers them in this order. Times are the period.
FILTERS = (
    Dimension.TEAM,
    Dimension.PROJECT,
    Dimension.KEY,
    Dimension.COST_CENTRE,
    Dimension.TAG,
    Dimension.MODEL,
    Dimension.PROVIDER,
    Dimension.ROUTE,
    Dimension.DEPLOYMENT,
    Dimension.REGION,
    Dimension.DESTINATION,
    Dimension.END_USER,
    Dimension.OUTCOME,
    Dimension.USAGE_SOURCE,
    Dimension.DAY,
)
COMPARISONS = {
    Compared.PREVIOUS.value: "Previous period",
    Compared.YEAR.value: "Year before",
    NO_COMPARISON: "No comparison",
}
NAMES = (*period.NAMES, COMPARE, CURRENCY, SPLIT, *(one.value for one in FILTERS))
_KEPT = "kept_choices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The reader's choices. `where` has the filters by name, as the address has them."""

    dataset: Dataset
    period: Period
    compare: str = Compared.PREVIOUS.value
    currency: str = USD
    by: str | None = None
    where: Mapping[str, str]

    @property
    def label(self) -> str:
        """Return the shown time for people."""
        return self.time.label

    @property
    def time(self) -> Period:
        """Return the shown time: a day among the filters is the whole time."""
        day = self.where.get(Dimension.DAY)
        return self.period if day is None else Period(days=(_day(day), _day(day)))

    @property
    def file_label(self) -> str:
        """Return the shown time for the name of a file."""
        return period.key_of(self.time).replace("..", "-to-")

    def money(self, name: str) -> str:
        """Return the name that a column of USD has in the chosen currency."""
        return name.replace("usd", self.currency.lower())

    def question(
        self,
        *,
        by: tuple[str, ...] | None = None,
        compare: str | None = None,
        days: tuple[date, date] | None = None,
        has_currency: bool = True,
        limit: int = 100,
        offset: int = 0,
    ) -> Question:
        """Return the question about the shown time and filters, or about other `days`. Raises
        `BadUsage`.
        """
        shown = self.time if days is None else Period(days=days)
        return ask(
            month=shown.month,
            first=None if shown.days is None else shown.days[0].isoformat(),
            last=None if shown.days is None else shown.days[1].isoformat(),
            compare=compare,
            by=by,
            where={
                name: None if value == NONE else value
                for name, value in self.where.items()
                if name != Dimension.DAY
            },
            demo=self.dataset is Dataset.DEMO,
            currency=self.currency if has_currency else None,
            limit=limit,
            offset=offset,
        )

    def without(self, *names: str) -> Choices:
        """Return these choices without some filters."""
        return replace(self, where={k: v for k, v in self.where.items() if k not in names})

    @property
    def unfiltered(self) -> Choices:
        """Return these choices without a filter, about the same time."""
        return self.without(*(name for name in self.where if name != Dimension.DAY))


def _day(text: str) -> date:
    """Return the day of a filter, which was read without an error."""
    return date.fromisoformat(text)


def read_choices() -> Choices:
    """Return the choices of the address; a wrong part is taken out of it, with a warning.

    A page without a time shows the newest month with events, and its address says so from then on.
    """
    address = st.query_params
    try:
        shown = period.period_of(address)
    except BadUsage as wrong:
        _drop(wrong, *period.NAMES)
        shown = None
    if shown is None:
        shown = period.first_period(newest_event(dataset()))
    _keep_in_address(shown.address, period.NAMES)
    compare = address.get(COMPARE, Compared.PREVIOUS.value)
    if compare not in COMPARISONS:
        known = ", ".join(COMPARISONS)
        _drop(BadUsage(f"'{compare}' is no comparison. Use one of: {known}."), COMPARE)
        compare = Compared.PREVIOUS.value
    return Choices(
        dataset=dataset(),
        period=shown,
        compare=compare,
        currency=_currency(),
        by=_split(),
        where=_filters(),
    )


def _currency() -> str:
    """Return the currency of the address."""
    try:
        return ask(currency=st.query_params.get(CURRENCY)).currency or USD
    except BadUsage as wrong:
        _drop(wrong, CURRENCY)
        return USD


def _split() -> str | None:
    """Return the split of the address, None without one."""
    named = st.query_params.get(SPLIT)
    try:
        return None if named is None else str(dimension(named))
    except BadUsage as wrong:
        _drop(wrong, SPLIT)
        return None


def _filters() -> dict[str, str]:
    """Return the filters of the address; one that no question can have is taken out."""
    found = {}
    for one in FILTERS:
        if (value := st.query_params.get(one.value)) is None:
            continue
        try:
            ask(where={one.value: value})
        except BadUsage as wrong:
            _drop(wrong, one.value)
        else:
            found[one.value] = value
    return found


def _drop(wrong: BadUsage, *names: str) -> None:
    """Take a wrong part out of the address, and say why."""
    for name in names:
        st.query_params.pop(name, None)
    st.warning(inert(wrong.message))


def _keep_in_address(wanted: Mapping[str, str], names: tuple[str, ...]) -> None:
    """Let the address have exactly these values for some names; it changes only if it must."""
    for name in names:
        if name not in wanted:
            st.query_params.pop(name, None)
        elif st.query_params.get(name) != wanted[name]:
            st.query_params[name] = wanted[name]


def choose(**values: str | None) -> None:
    """Change choices in the address; None takes one out. A new time replaces the old one."""
    if {*values} & {*period.NAMES}:
        for name in (*period.NAMES, Dimension.DAY.value):
            st.query_params.pop(name, None)
    for name, value in values.items():
        if value is None:
            st.query_params.pop(name, None)
        else:
            st.query_params[name] = value


def is_named(names: Collection[str]) -> bool:
    """Return True if the address has any of these names."""
    return bool({*names} & {*st.query_params})


def restore_choices() -> None:
    """Fill an address without any choice, which the menu makes, with those of the page before."""
    if not is_named(NAMES):
        for name, value in st.session_state.get(_KEPT, {}).items():
            st.query_params[name] = value


def keep_choices() -> None:
    """Remember the choices of the address for the next page."""
    found = {name: st.query_params[name] for name in NAMES if name in st.query_params}
    if found:
        st.session_state[_KEPT] = found


def address_of(choices: Choices, **values: str) -> dict[str, str]:
    """Return the address of these choices, with some of them changed, for a page to open."""
    data = {DATASET_KEY: choices.dataset.value} if choices.dataset is Dataset.DEMO else {}
    compare = {} if choices.compare == Compared.PREVIOUS else {COMPARE: choices.compare}
    currency = {} if choices.currency == USD else {CURRENCY: choices.currency}
    return {**data, **choices.period.address, **compare, **currency, **choices.where, **values}


def is_time(name: str) -> bool:
    """Return True if a split is one of time."""
    return name in TIME
