"""Past requests for a replay: streamed in time order, with every input of a decision.

Memory stays bounded for any number of requests: Postgres keeps a cursor, and the fields that
requests share are read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from gateway.domain.money import nusd_from_usd
from gateway.domain.policy.policy import Operation
from gateway.domain.routing.replay import Alike, PastRequest, PastSpeed, PastSpend
from gateway.reports.report import Dataset
from gateway.reports.sources.connection import ReadSnapshot

BATCH = 5_000
SLOT_S = 900  # seconds; every budget's period begins at a quarter of an hour of UTC

# The fields that similar requests share, as one text: it repeats in most of a day's requests.
_ALIKE = """jsonb_build_array(team, project, key_id, route, deployment, model, region, data_class,
    features -> 'class_source', operation, service_tier, price_id, features -> 'capabilities',
    features -> 'features', features -> 'data_tags', decision -> 'ranked',
    decision -> 'degraded' -> 'missed')::text"""
# In the order of the ids, which is time order.
_REQUESTS = f"""
SELECT {_ALIKE},
       CAST(extract(epoch FROM occurred_at) * 1000 AS bigint),
       input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, reasoning_tokens,
         usage_detail,
       CAST(cost_usd * 1000000000 AS bigint), CAST(held_usd * 1000000000 AS bigint),
       coalesce(CAST(features ->> 'input_bound_tokens' AS bigint), input_tokens, 0),
       CAST(features ->> 'max_output_tokens' AS bigint), coalesce(CAST(features ->> 'choices' AS
         bigint), 1),
       lead(request_id) OVER (ORDER BY request_id, attempt) IS NOT DISTINCT FROM request_id,
       coalesce(CAST(features ->> 'prompts' AS bigint), 1)
FROM {{events}} WHERE occurred_at >= :since AND occurred_at < :until ORDER BY request_id, attempt
"""  # noqa: S608 - constants
_SPEEDS = """
SELECT deployment, percentile_cont(0.5) WITHIN GROUP (ORDER BY ttft_s) AS ttft_s,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY tpot_s) AS tpot_s
FROM {events} WHERE occurred_at >= :since AND occurred_at < :until GROUP BY deployment
"""
_SPENT = f"""
SELECT team, project, key_id,
       CAST(floor(extract(epoch FROM occurred_at) / {SLOT_S}) * {SLOT_S} AS bigint) AS slot_s,
       CAST(least(sum(coalesce(cost_usd, held_usd, 0)) * 1000000000, 9223372036854775807) AS
         bigint) AS nusd
FROM {{events}} WHERE occurred_at >= :since AND occurred_at < :until GROUP BY 1, 2, 3, 4 ORDER BY 4
"""  # noqa: S608 - a constant
_GRANTS = """
SELECT account, CAST(extract(epoch FROM starts_at) AS bigint) AS starts_s, sum(amount_usd) AS
  amount_usd
FROM finance.budget_grants GROUP BY 1, 2
"""


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
        """Yield every attempt in time order, a few thousand at once."""
        alike: dict[str, Alike] = {}
        for rows in self.snapshot.stream(
            self._sql(_REQUESTS), since=self.since, until=self.until, batch=BATCH
        ):
            yield [PastRequest(_known(alike, row[0]), *row[1:]) for row in rows]

    def speeds(self) -> Mapping[str, PastSpeed]:
        """Return each deployment's answer times."""
        rows = self.snapshot.rows(self._sql(_SPEEDS), since=self.since, until=self.until)
        return {row["deployment"]: PastSpeed(row["ttft_s"], row["tpot_s"]) for row in rows}

    def spent_before(self, first: datetime) -> Iterator[PastSpend]:
        """Yield the spending from `first` until this past begins, for budgets whose period had
        begun by then.
        """
        for rows in self.snapshot.stream(
            self._sql(_SPENT), since=first, until=self.since, batch=BATCH
        ):
            yield from (PastSpend(*row) for row in rows)

    def grants(self) -> Mapping[tuple[str, int], int]:
        """Return the amounts granted on top of limits, by account and the second when its period
        began.
        """
        rows = self.snapshot.rows(_GRANTS)
        return {(row["account"], row["starts_s"]): nusd_from_usd(row["amount_usd"]) for row in rows}

    def _sql(self, statement: str) -> str:
        return statement.format(events=self.dataset.events)


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


def _known(alike: dict[str, Alike], text: str) -> Alike:
    found = alike.get(text)
    if found is None:
        found = alike[text] = _alike(text)
    return found


def _alike(text: str) -> Alike:
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
    )
