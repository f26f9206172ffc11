"""Reads past requests for a policy replay, streamed in time order with every input of a decision,
and recent traffic by team and route.

Memory stays bounded for any number of requests: Postgres keeps a cursor, and the fields that
requests share are read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    Text,
    and_,
    cast,
    extract,
    func,
    literal_column,
    select,
)

from gateway.domain.money import nusd_from_usd
from gateway.domain.operation import Operation
from gateway.domain.routing.replay import Alike, PastRequest, PastSpeed, PastSpend
from gateway.reports.dimensions import Columns
from gateway.reports.report import Dataset
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import EVENTS

BATCH = 5_000
SLOT_S = 900  # seconds; every budget's period begins at a quarter of an hour of UTC
_SLOT = literal_column(str(SLOT_S), Integer)  # a constant: the slots are grouped by it
NUSD = 1_000_000_000
MOST_NUSD = 2**63 - 1

_GRANTS = """
SELECT account, CAST(extract(epoch FROM starts_at) AS bigint) AS starts_s, sum(amount_usd) AS
  amount_usd
FROM finance.budget_grants GROUP BY 1, 2
"""


def _in_period(row: Columns, *, since: datetime, until: datetime) -> ColumnElement[bool]:
    """Return the SQL condition that an event occurred from `since` on and before `until`."""
    return and_(row.occurred_at >= since, row.occurred_at < until)


def _shared(row: Columns) -> ColumnElement[str]:
    """Return the SQL for the fields that similar requests share, as one text: it repeats in most of
    a day's requests.
    """
    features, decision = row.features, row.decision
    fields = func.jsonb_build_array(
        row.team,
        row.project,
        row.key_id,
        row.route,
        row.deployment,
        row.model,
        row.region,
        row.data_class,
        features["class_source"],
        row.operation,
        row.service_tier,
        row.price_id,
        features["capabilities"],
        features["features"],
        features["data_tags"],
        decision["ranked"],
        decision["degraded"]["missed"],
        features["unlisted"],
    )
    return cast(fields, Text)


def _requests(row: Columns) -> Select[*tuple[Any, ...]]:
    """Return the SELECT of the members of `PastRequest` in the order of the ids, which is time
    order.
    """

    def number(name: str) -> ColumnElement[int]:
        return cast(row.features[name].astext, BigInteger)

    keys = row.request_id, row.attempt
    next_id = func.lead(row.request_id).over(order_by=keys)
    return select(
        _shared(row),
        cast(extract("epoch", row.occurred_at) * 1000, BigInteger),
        row.input_tokens,
        row.cached_input_tokens,
        row.cache_write_tokens,
        row.output_tokens,
        row.reasoning_tokens,
        row.usage_detail,
        cast(row.cost_usd * NUSD, BigInteger),
        cast(row.held_usd * NUSD, BigInteger),
        func.coalesce(number("input_bound_tokens"), row.input_tokens, 0),
        number("max_output_tokens"),
        func.coalesce(number("choices"), 1),
        next_id.is_not_distinct_from(row.request_id),
        func.coalesce(number("prompts"), 1),
    ).order_by(*keys)


def _speeds(row: Columns) -> Select[Any]:
    """Return the SELECT of each deployment's median TTFT and TPOT."""
    medians = (
        func.percentile_cont(0.5).within_group(row[name]).label(name)
        for name in ("ttft_s", "tpot_s")
    )
    return select(row.deployment, *medians).group_by(row.deployment)


def _spent(row: Columns) -> Select[*tuple[Any, ...]]:
    """Return the SELECT of each key's spending by quarter of an hour, unknown costs at their hold:
    the members of `PastSpend`.
    """
    second = extract("epoch", row.occurred_at)
    slot_s = cast(func.floor(second / _SLOT) * _SLOT, BigInteger)
    spent = func.sum(func.coalesce(row.cost_usd, row.held_usd, 0)) * NUSD
    owner = row.team, row.project, row.key_id
    return (
        select(*owner, slot_s, cast(func.least(spent, MOST_NUSD), BigInteger))
        .group_by(*owner, slot_s)
        .order_by(slot_s)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The traffic from `since` up to, not including, `until`.

    All of it is read in one snapshot.
    """

    snapshot: ReadSnapshot
    since: datetime
    until: datetime
    dataset: Dataset

    def requests(self) -> Iterator[Sequence[PastRequest]]:
        """Yield every attempt of this past in time order, a few thousand at once."""
        alike: dict[str, Alike] = {}
        found = _requests(self._events).where(
            _in_period(self._events, since=self.since, until=self.until)
        )
        for rows in self.snapshot.stream(found, batch=BATCH):
            yield [PastRequest(_decoded_once(alike, row[0]), *row[1:]) for row in rows]

    def speeds(self) -> Mapping[str, PastSpeed]:
        """Return each deployment's median TTFT and TPOT."""
        rows = self.snapshot.rows(
            _speeds(self._events).where(
                _in_period(self._events, since=self.since, until=self.until)
            )
        )
        return {row["deployment"]: PastSpeed(row["ttft_s"], row["tpot_s"]) for row in rows}

    def spent_before(self, first: datetime) -> Iterator[PastSpend]:
        """Yield each key's spending by quarter of an hour from `first` until this past begins, for
        budgets whose period had begun by then.
        """
        found = _spent(self._events).where(_in_period(self._events, since=first, until=self.since))
        for rows in self.snapshot.stream(found, batch=BATCH):
            yield from (PastSpend(*row) for row in rows)

    def grants(self) -> Mapping[tuple[str, int], int]:
        """Return the amounts granted on top of limits, by account and the second when its period
        began.
        """
        rows = self.snapshot.rows(_GRANTS)
        return {(row["account"], row["starts_s"]): nusd_from_usd(row["amount_usd"]) for row in rows}

    @property
    def _events(self) -> Columns:
        """Return the columns of the dataset's view of events."""
        return EVENTS[self.dataset].c


_RECENT = """
SELECT team, route, CAST(sum(attempts) AS bigint) AS attempts FROM finance.spend_hourly_detail
WHERE hour >= :since GROUP BY 1, 2
"""


def recent_traffic(snapshot: ReadSnapshot, since: datetime) -> Mapping[tuple[str, str], int]:
    """Return each team's number of attempts on each route since the hour of a moment."""
    hour = since.replace(minute=0, second=0, microsecond=0)
    return {
        (row["team"], row["route"]): row["attempts"] for row in snapshot.rows(_RECENT, since=hour)
    }


def _decoded_once(alike: dict[str, Alike], text: str) -> Alike:
    """Return the decoded fields that a row shares with similar requests; equal texts share one
    object.
    """
    found = alike.get(text)
    if found is None:
        found = alike[text] = _decode_shared(text)
    return found


def _decode_shared(text: str) -> Alike:
    """Return the fields that many past requests share, decoded from a row's JSON text."""
    row: list[Any] = msgspec.json.decode(text)
    return Alike(
        team=row[0],
        project=row[1],
        key_id=row[2],
        route=row[3],
        deployment=row[4],
        model=row[5],
        region=row[6],
        data_class=row[7],
        class_source=row[8] or "team",
        operation=Operation(row[9]),
        service_tier=row[10],
        price_id=row[11],
        capabilities=frozenset(row[12] or ()),
        features=frozenset(row[13] or ()),
        data_tags=frozenset(row[14] or ()),
        ranked=tuple(row[15] or ()),
        missed=frozenset(row[16] or ()),
        unlisted=frozenset(row[17] or ()),
    )
