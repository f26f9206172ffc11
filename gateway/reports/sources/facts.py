"""The facts that reports sum: events or their roll-up, and the adjustments booked since, as one
relation.

All rows have the same columns, and every figure of every report is a sum over them. An event counts
as one attempt, a row of a roll-up as many, an adjustment as none. So a total does not depend on its
source.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.reports.dimensions import TAGS_THAT_ADD_UP, TAGS_THAT_OVERLAP, Dimension
from gateway.reports.report import Dataset

_EVERYWHERE = {
    Dimension.TEAM,
    Dimension.PROJECT,
    Dimension.COST_CENTRE,
    Dimension.ROUTE,
    Dimension.MODEL,
    Dimension.DESTINATION,
    Dimension.DAY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A view that events can be summed from.

    `moment` is its `occurred_at`; `splits` are its dimensions.
    """

    dataset: Dataset
    view: str
    moment: str
    splits: frozenset[Dimension]

    @property
    def is_events(self) -> bool:
        """Return True if a row is one event."""
        return self.view == self.dataset.events

    @property
    def relation(self) -> str:
        """Return the view with its `occurred_at`."""
        if self.is_events:
            return self.view
        return f"(SELECT summed.*, {self.moment} AS occurred_at FROM {self.view} AS summed)"  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class _Figure:
    """A column of figures: its type, and its SQL for an event and for an adjustment."""

    kind: str
    of_event: str
    of_adjustment: str = "NULL"


def events(dataset: Dataset) -> Source:
    """Return the events themselves: they have every dimension, and are many."""
    return Source(
        dataset=dataset, view=dataset.events, moment="occurred_at", splits=frozenset(Dimension)
    )


_HOUR = frozenset(
    _EVERYWHERE
    | {
        Dimension.DEPLOYMENT,
        Dimension.PROVIDER,
        Dimension.REGION,
        Dimension.OUTCOME,
        Dimension.USAGE_SOURCE,
    }
)
_DAY = "CAST(day AS timestamp) AT TIME ZONE 'UTC'"

# Each equals its events: it reads hours without a sum from them. The first source with the needed
# dimensions is read.
_REAL, _DEMO = Dataset.REAL, Dataset.DEMO
_SUMMED = {
    _REAL: (
        Source(dataset=_REAL, view="finance.spend_hourly_detail", moment="hour", splits=_HOUR),
        Source(
            dataset=_REAL,
            view="finance.spend_daily_by_key",
            moment=_DAY,
            splits=frozenset(_EVERYWHERE | {Dimension.KEY}),
        ),
        Source(
            dataset=_REAL,
            view="finance.spend_daily_by_end_user",
            moment=_DAY,
            splits=frozenset(_EVERYWHERE | {Dimension.END_USER}),
        ),
    ),
    _DEMO: (
        Source(dataset=_DEMO, view="finance.demo_spend_hourly_detail", moment="hour", splits=_HOUR),
    ),
}


def source_for(dataset: Dataset, splits: Iterable[Dimension]) -> Source:
    """Return the smallest source that can be split, or filtered, by all of these."""
    wanted = set(splits)
    return next((source for source in _SUMMED[dataset] if wanted <= source.splits), events(dataset))


# Tokens are summed as numeric: two of the largest counts together exceed 64 bits.
_FIGURES = {
    "attempts": _Figure("bigint", "1", "0"),
    "unknown_attempts": _Figure("bigint", "CASE WHEN is_unsettled THEN 1 ELSE 0 END"),
    "derived_attempts": _Figure(
        "bigint", "CASE WHEN usage_source IN ('derived', 'estimated') THEN 1 ELSE 0 END"
    ),
    "failed_attempts": _Figure("bigint", "CASE WHEN outcome <> 'ok' THEN 1 ELSE 0 END"),
    "unreported_attempts": _Figure("bigint", "CASE WHEN input_tokens IS NULL THEN 1 ELSE 0 END"),
    "input_tokens": _Figure("numeric", "input_tokens"),
    "cached_input_tokens": _Figure("numeric", "cached_input_tokens"),
    "cache_write_tokens": _Figure("numeric", "cache_write_tokens"),
    "output_tokens": _Figure("numeric", "output_tokens"),
    "reasoning_tokens": _Figure("numeric", "reasoning_tokens"),
    "uncached_input_tokens": _Figure(
        "numeric",
        "CAST(input_tokens AS numeric) - coalesce(cached_input_tokens, 0) - "
        "coalesce(cache_write_tokens, 0)",
    ),
    "plain_output_tokens": _Figure(
        "numeric", "CAST(output_tokens AS numeric) - coalesce(reasoning_tokens, 0)"
    ),
    "total_tokens": _Figure("numeric", "CAST(input_tokens AS numeric) + output_tokens"),
    "cost_usd": _Figure("numeric", "cost_usd"),
    "held_usd": _Figure("numeric", "CASE WHEN is_unsettled THEN held_usd END"),
}
_OF_ADJUSTMENTS = {
    "adjustments": _Figure("bigint", "0", "1"),
    "expected_attempts": _Figure("bigint", "0", "CASE WHEN is_expected THEN 1 ELSE 0 END"),
    "adjustments_usd": _Figure("numeric", "NULL", "amount_usd"),
}


def _bound(name: str) -> str:
    """Return a bound of the event's route when it was sent; NULL if it had none.

    An event never changes: a record of another shape must not make every report fail for ever.
    """
    place = f"decision -> 'bounds' -> '{name}'"
    return f"CASE WHEN jsonb_typeof({place}) = 'number' THEN {place} #>> '{{}}' END"


# Only events have these. Postgres skips unused columns, so they cost nothing.
_OF_EVENTS = {
    "request_id": _Figure("uuid", "request_id"),
    "ttft_s": _Figure("double precision", "ttft_s"),
    "tpot_s": _Figure("double precision", "tpot_s"),
    "duration_s": _Figure("double precision", "duration_s"),
    "max_gap_s": _Figure("double precision", "max_gap_s"),
    "queue_s": _Figure("double precision", "queue_s"),
    "overhead_s": _Figure("double precision", "overhead_s"),
    "degraded": _Figure("text", "degraded"),
    "is_error": _Figure("boolean", "outcome NOT IN ('ok', 'client_gone', 'gateway_stopped')"),
    "ttft_bound_s": _Figure("double precision", _bound("ttft_p95_s")),
    "cost_bound_usd": _Figure(
        "numeric", f"CAST({_bound('max_cost_nusd')} AS numeric) * 0.000000001"
    ),
}


def facts(
    source: Source,
    condition: str,
    *,
    by: tuple[Dimension, ...] = (),
    has_adjustments: bool = True,
    adds_up: bool = True,
) -> str:
    """Return the relation with its FROM: columns `by_…`, posted_period, team, is_self_hosted, the
    figures.

    `condition` is over the columns of an event; a roll-up's hour or day is named `occurred_at` here
    too. Only real events have adjustments. Split by tag, the rows add up to the whole, unless
    `adds_up` is False.
    """
    tags = "" if Dimension.TAG not in by else TAGS_THAT_ADD_UP if adds_up else TAGS_THAT_OVERLAP
    parts = [_part(source.relation, condition, by, _of_source(source), tags)]
    if has_adjustments and source.dataset is Dataset.REAL:
        parts.append(_part("finance.adjustments", condition, by, _of_adjustments(), tags))
    return f"FROM ({' UNION ALL '.join(parts)}) AS fact"


def _part(
    relation: str, condition: str, by: tuple[Dimension, ...], figures: dict[str, str], tags: str
) -> str:
    groups = "".join(f"{dimension.sql} AS by_{dimension.value}, " for dimension in by)
    if tags == TAGS_THAT_ADD_UP:
        figures = {
            name: f"{sql} * pair.times" if name in _SUMS else sql for name, sql in figures.items()
        }
    listed = ", ".join(f"{sql} AS {name}" for name, sql in figures.items())
    return (
        f"SELECT {groups}posted_period, team, is_self_hosted, {listed} "  # noqa: S608 - constants; values are bound
        f"FROM {relation} AS event {tags} WHERE {condition}"
    )


def _of_source(source: Source) -> dict[str, str]:
    if source.is_events:
        return {name: _cast(figure.of_event, figure) for name, figure in _ALL.items()}
    summed = {name: _cast(name, figure) for name, figure in _FIGURES.items()}
    none = {name: _cast("NULL", figure) for name, figure in _OF_EVENTS.items()}
    return (
        summed
        | {name: _cast(figure.of_event, figure) for name, figure in _OF_ADJUSTMENTS.items()}
        | none
    )


def _of_adjustments() -> dict[str, str]:
    return {name: _cast(figure.of_adjustment, figure) for name, figure in _ALL.items()}


def _cast(sql: str, figure: _Figure) -> str:
    """Return the SQL with its type: Postgres sees through a union only if its parts have equal
    types.
    """
    return f"CAST({sql} AS {figure.kind})"


_SUMS = _FIGURES | _OF_ADJUSTMENTS
_ALL = _SUMS | _OF_EVENTS
