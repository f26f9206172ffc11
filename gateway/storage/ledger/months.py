"""Closes and reopens months in Postgres, and computes the hash of a closed month's facts.

The hash is a list of named parts. Each part reads its facts once, in a stable order, in windows
that Postgres hashes one by one; so memory stays flat. A close keeps the names of its parts: a later
release may add parts, and still verifies the earlier closes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from gateway.domain.ledger.month_close import (
    BilledSpan,
    HashedPart,
    MonthClose,
    VerifiedMonth,
    month_moments,
    month_sha256,
)
from gateway.domain.money import usd_from_nusd
from gateway.errors import BadUsage, NothingFound, OperatorError
from gateway.storage.ledger.month_findings import CHECKS, month_findings
from gateway.storage.postgres.database import Database

REFUSED = "TG001"  # the SQLSTATE of `begin_close`, `finish_close` and `reopen_month`
# The texts that are hashed must not depend on the server's settings. The transaction of a close is
# idle while its days are hashed beside it.
_SESSION = (
    "SET LOCAL statement_timeout = '10min'; SET LOCAL lock_timeout = '30s'; "
    "SET LOCAL idle_in_transaction_session_timeout = '10min'; "
    "SET LOCAL datestyle = 'ISO, YMD'; SET LOCAL timezone = 'UTC'; SET LOCAL bytea_output = 'hex'"
)
_BEGIN = "SELECT version, closed_at FROM tollgate.begin_close(:month)"
_FINISH = """
SELECT tollgate.finish_close(:month, :closed_at, CAST(:accepted AS jsonb), CAST(:parts AS jsonb),
  :sha256, :events, :adjustments, CAST(:total_nusd AS numeric))
"""
_REOPEN = "SELECT tollgate.reopen_month(:month, :reason)"
_CLOSES = """
SELECT month, version, sha256, events, adjustments, total_nusd, closed_at, author, operator,
       accepted, parts, reopened_at IS NOT NULL AS is_reopened
FROM tollgate.month_closes WHERE month = :month ORDER BY version
"""
_OWN_MONTH = "(date_trunc('month', occurred_at AT TIME ZONE 'UTC'))::date"
# Every column that a report shows or splits by, and the digest of the whole event.
_EVENT = """ROW(request_id, attempt, team, project, cost_centre, key_id, end_user, tags, route,
  deployment, provider, model, region, is_self_hosted, data_class, outcome, usage_source,
  input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, reasoning_tokens, price_id,
  cost_nusd, held_nusd, digest)::text"""
_ADJUSTMENT = """ROW(adjustment_id, request_id, attempt, team, cost_centre, occurred_at,
  amount_nusd, kind, reason, author, deployment, settles, reallocation_id)::text"""
# By their names: a later migration may add a column, and the earlier closes still verify.
_GPU_HOUR = """ROW(month, version, hour, deployment, applied_usd, bill_usd, idle_usd, variance_usd,
  gpu_hours, usd_per_gpu_hour, up_hours, watched_hours, empty_usd, underfilled_usd, estimated_usd,
  imported_usd, estimated_gpu_hours, busy_hours)::text"""
_IDLE_COST = "ROW(month, version, hour, deployment, team, cost_centre, idle_usd)::text"
_TRUE_UP = """ROW(bill.adjustment_id, bill.provider, bill.account, bill.day, bill.model,
  bill.token_kind, bill.cause, bill.evidence)::text"""
_NO_MONEY = "count(*) AS rows, NULL AS nusd, 0 AS counted"


def _hash_of(line: str, *, order: str) -> str:
    """Return the SQL of the SHA-256 over the lines of a window, in a fixed order."""
    lines = f"string_agg({line}, E'\\n' ORDER BY {order})"
    return f"encode(sha256(convert_to({lines}, 'UTF8')), 'hex') AS sha256"


# By hour, as the roll-ups read them: an hour's text fits into memory.
_EVENTS_OF_HOURS = f"""
SELECT hour, count(*) AS rows, sum(cost_nusd) AS nusd, count(*) AS counted,
       {_hash_of("line", order="request_id, attempt")}
FROM generate_series(CAST(:begin AS timestamptz), CAST(:end AS timestamptz) - interval '1 hour',
  interval '1 hour') AS wanted (hour)
CROSS JOIN LATERAL (
    SELECT request_id, attempt, cost_nusd, {_EVENT} AS line FROM tollgate.usage_events
    WHERE occurred_at >= hour AND occurred_at < hour + interval '1 hour'
      AND posted_period = :month AND NOT is_demo AND recorded_at <= :until OFFSET 0
) AS event
GROUP BY hour ORDER BY hour
"""  # noqa: S608 - constants
_LATE_EVENTS = f"""
SELECT date_trunc('hour', occurred_at, 'UTC') AS hour, count(*) AS rows, sum(cost_nusd) AS nusd,
       count(*) AS counted,
       {_hash_of(_EVENT, order="request_id, attempt")}
FROM tollgate.usage_events
WHERE posted_period = :month AND posted_period <> {_OWN_MONTH} AND NOT is_demo
  AND recorded_at <= :until
GROUP BY 1 ORDER BY 1
"""  # noqa: S608 - constants
# A repricing books as many as there are events. Late bills are hashed, and belong to no total.
_ADJUSTMENTS = f"""
SELECT date_trunc('hour', occurred_at, 'UTC') AS hour, count(*) AS rows,
       sum(amount_nusd) FILTER (WHERE kind <> 'late_bill') AS nusd,
       count(*) FILTER (WHERE kind <> 'late_bill') AS counted,
       {_hash_of(_ADJUSTMENT, order="adjustment_id")}
FROM tollgate.adjustments WHERE posted_period = :month AND created_at <= :until
GROUP BY 1 ORDER BY 1
"""  # noqa: S608 - constants
_ALLOCATION = f"""
SELECT deployment, {_NO_MONEY},
       {_hash_of(_GPU_HOUR, order=f"hour, {_GPU_HOUR}")}
FROM tollgate.closed_gpu_hours WHERE month = :month AND version = :version
GROUP BY deployment ORDER BY deployment
"""  # noqa: S608 - constants
# Writers of prices do not wait for a close, and no transaction is older than ten minutes. So these
# were all committed.
_RATES = f"""
SELECT provider, {_NO_MONEY},
       {_hash_of("ROW(price_id, provider, model, source, rates)::text", order="price_id")}
FROM tollgate.prices WHERE created_at <= CAST(:until AS timestamptz) - interval '10 minutes'
GROUP BY provider ORDER BY provider
"""  # noqa: S608 - constants
# By the days of the month: a policy of a later day ends a share, and changes no day before.
_DAYS = """greatest(first_day, CAST(:month AS date)) AS first_day,
  least(next_day, (CAST(:month AS date) + interval '1 month')::date) AS next_day"""
_IN_MONTH = """first_day < CAST(:month AS date) + interval '1 month'
  AND coalesce(next_day > CAST(:month AS date), true)"""
_SHARES = f"""
SELECT team, {_NO_MONEY},
       {_hash_of("dated::text", order="first_day, cost_centre")}
FROM (SELECT team, {_DAYS}, event_cost_centre, cost_centre, trim_scale(share) AS share
      FROM finance.cost_centre_shares WHERE {_IN_MONTH}) AS dated
GROUP BY team ORDER BY team
"""  # noqa: S608 - constants
_IDLE_RULES = f"""
SELECT deployment, {_NO_MONEY},
       {_hash_of("dated::text", order="first_day")}
FROM (SELECT deployment, {_DAYS}, rule, weights FROM finance.idle_rules WHERE {_IN_MONTH}) AS dated
GROUP BY deployment ORDER BY deployment
"""  # noqa: S608 - constants
_IDLE_COSTS = f"""
SELECT deployment, {_NO_MONEY},
       {_hash_of(_IDLE_COST, order=f"hour, {_IDLE_COST}")}
FROM tollgate.closed_idle_costs WHERE month = :month AND version = :version
GROUP BY deployment ORDER BY deployment
"""  # noqa: S608 - constants
# Those that the close had. A currency without any may get its first one later.
_CURRENCIES = f"""
SELECT currency, {_NO_MONEY},
       {_hash_of("rate::text", order="first_day")}
FROM (
    SELECT currency, {_DAYS}, usd_per_unit, source FROM (
        SELECT newest.*, lead(first_day) OVER (PARTITION BY currency ORDER BY first_day) AS next_day
        FROM (SELECT DISTINCT ON (currency, first_day) * FROM tollgate.currency_rates
              WHERE created_at <= :until ORDER BY currency, first_day, rate_id DESC) AS newest
    ) AS dated WHERE {_IN_MONTH}
) AS rate
GROUP BY currency ORDER BY currency
"""  # noqa: S608 - constants
_TRUE_UPS = f"""
SELECT bill.provider, {_NO_MONEY},
       {_hash_of(_TRUE_UP, order="adjustment_id")}
FROM tollgate.true_ups AS bill JOIN tollgate.adjustments AS booked USING (adjustment_id)
WHERE booked.posted_period = :month AND booked.created_at <= :until
GROUP BY bill.provider ORDER BY bill.provider
"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of the hash: the SELECTs of its windows, each with the number of rows, their sum in
    nano-dollars, those that the close counts, and their hash. `by_day`: its window is a day.
    """

    name: str
    selects: Sequence[str]
    by_day: str | None = None


# In the order of the hash. A new kind of facts is one more part, at the end.
PARTS = (
    _Part(name="events", selects=(_LATE_EVENTS,), by_day=_EVENTS_OF_HOURS),
    _Part(name="adjustments", selects=(_ADJUSTMENTS,)),
    _Part(name="allocation", selects=(_ALLOCATION,)),
    _Part(name="rates", selects=(_RATES,)),
    _Part(name="shares", selects=(_SHARES,)),
    _Part(name="idle", selects=(_IDLE_RULES, _IDLE_COSTS)),
    _Part(name="currencies", selects=(_CURRENCIES,)),
    _Part(name="true-ups", selects=(_TRUE_UPS,)),
)
# A close has at least these. Whoever may close states its parts: a hash over none never differs.
FIRST_PARTS = frozenset(
    ("events", "adjustments", "allocation", "rates", "shares", "idle", "currencies", "true-ups")
)
OnPart = Callable[[str, int], None]  # called with the name of a part and the rows read
# Days are hashed side by side: to hash one takes a core of Postgres. Two, as the bar is for.
READERS = 2


@dataclass(slots=True)
class _Sums:
    """A part's hash so far, and the sums of its rows."""

    rows: int = 0
    counted: int = 0
    nusd: Decimal = Decimal(0)


class MonthStore:
    """A store of the versions of closed months."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def closes(self, month: date) -> list[MonthClose]:
        """Return the closed versions of a month, the first one first. Raises
        `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            return _closes(connection, month)

    def close(
        self,
        month: date,
        *,
        billed: Sequence[BilledSpan],
        accepted: Mapping[str, str],
        reason: str = "",
        on_part: OnPart = lambda name, rows: None,
    ) -> MonthClose:
        """Close a month in one transaction: check it, hash its facts, record the version.

        `accepted` has the reason for each check that may be open. Raises `BadUsage` for a check
        that does not exist, or `OperatorError` if a check is open, or the month is not over, out of
        order or closed; then nothing was changed.
        """
        unknown = sorted(accepted.keys() - {check.name for check in CHECKS})
        if unknown:
            raise BadUsage(
                f"There is no check '{unknown[0]}'. There are: "
                f"{', '.join(check.name for check in CHECKS)}. Nothing was changed."
            )
        with _explained(), self._database.begin(reason=reason, is_long=True) as connection:
            connection.execute(text(_SESSION))
            version, closed_at = connection.execute(text(_BEGIN), {"month": month}).one()
            found = _open_checks(connection, month, billed)
            _refuse_open(month, [name for name in found if name not in accepted])
            facts = _Facts(self._database, connection, month, version, closed_at)
            parts, sums = _hashed(facts, [one.name for one in PARTS], on_part)
            row = {
                "month": month,
                "closed_at": closed_at,
                "accepted": _json({name: accepted[name] for name in found}),
                "parts": _json(parts),
                "sha256": month_sha256(parts),
                "events": sums["events"].counted,
                "adjustments": sums["adjustments"].counted,
                "total_nusd": sums["events"].nusd + sums["adjustments"].nusd,
            }
            connection.execute(text(_FINISH), row)
            return _closes(connection, month)[-1]

    def reopen(self, month: date, *, reason: str) -> MonthClose:
        """Reopen the newest closed month; return the version that it had.

        Its late bills count in its own hours again, so they are reversed in their posted month.
        Raises `OperatorError` if it is not the newest closed month; then nothing was changed.
        """
        with _explained(), self._database.begin(reason=reason, is_long=True) as connection:
            connection.execute(text(_SESSION))
            connection.execute(text(_REOPEN), {"month": month, "reason": reason})
            return _closes(connection, month)[-1]

    def verify(
        self, month: date, *, on_part: OnPart = lambda name, rows: None
    ) -> Sequence[VerifiedMonth]:
        """Compute the hash of each version of a month again.

        Raises `NothingFound` if the month was never closed.
        """
        with self._database.begin(is_long=True) as connection:
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            connection.execute(text(_SESSION))
            closes = _closes(connection, month)
            if not closes:
                raise NothingFound(
                    f"{month:%Y-%m} was never closed. tollgate month status {month:%Y-%m} shows it."
                )
            return [
                _verified(
                    _Facts(self._database, connection, month, close.version, close.closed_at),
                    close,
                    on_part,
                )
                for close in closes
            ]


@contextmanager
def _explained() -> Iterator[None]:
    """Turn the refusal of a close or a reopening into an `OperatorError` with the next step."""
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != REFUSED:
            raise
        problem = str(error.orig).splitlines()[0]
        raise OperatorError(
            f"{problem[0].upper()}{problem[1:]}. Nothing was changed. "
            "tollgate report months lists the months and their states."
        ) from None


def _open_checks(connection: Connection, month: date, billed: Sequence[BilledSpan]) -> list[str]:
    """Return the names of a month's checks that have an open item."""

    def read(select: str, **values: object) -> Mapping[str, Any]:
        return dict(connection.execute(text(select), values).mappings().one())

    return [found.name for found in month_findings(read, month, billed=billed) if found.is_open]


def _refuse_open(month: date, names: Sequence[str]) -> None:
    """Raise `OperatorError` if checks are open that were not accepted."""
    if names:
        raise OperatorError(
            f"{len(names)} check(s) stand against closing {month:%Y-%m}: {', '.join(names)}. "
            f"Nothing was changed. tollgate month status {month:%Y-%m} says how to settle each; or "
            f"accept one with your reason: --accept '{names[0]}=WHY'."
        )


@dataclass(frozen=True, slots=True)
class _Facts:
    """The facts of a version of a month, read in windows in the transaction of `connection`.

    Days are read in transactions of their own. These see the same events: the month is locked, or
    closed, and later records are left out by `until`.
    """

    database: Database
    connection: Connection
    month: date
    version: int
    until: datetime

    def windows(self, part: _Part) -> Iterator[Any]:
        """Yield the row of each window of a part, in order."""
        for select in part.selects:
            yield from self.connection.execute(text(select), self._values(select))
        if part.by_day is not None:
            yield from self._days(part.by_day)

    def _days(self, select: str) -> Iterator[Any]:
        """Yield the rows of a statement for each day of the month, in order."""
        begin, end = month_moments(self.month)
        begins = [begin + timedelta(days=n) for n in range((end - begin).days)]
        pool = ThreadPoolExecutor(READERS, thread_name_prefix="hashed-days")
        try:
            for rows in pool.map(lambda day: self._day(select, day), begins):
                yield from rows
        finally:
            pool.shutdown(cancel_futures=True)

    def _day(self, select: str, begin: datetime) -> Sequence[Any]:
        """Return the rows of a statement for the day that begins at a moment."""
        day = {"begin": begin, "end": begin + timedelta(days=1)}
        with self.database.begin(is_long=True) as connection:
            connection.execute(text(_SESSION))
            return connection.execute(text(select), self._values(select) | day).all()

    def _values(self, select: str) -> dict[str, object]:
        """Return the values that a statement names."""
        values = {"month": self.month, "version": self.version, "until": self.until}
        return {name: value for name, value in values.items() if f":{name}" in select}


def _hashed(
    facts: _Facts, names: Collection[str], on_part: OnPart
) -> tuple[tuple[HashedPart, ...], dict[str, _Sums]]:
    """Return the parts of a month's hash with these names, and the sums of each."""
    parts, sums = [], {}
    for part in [one for one in PARTS if one.name in names]:
        digest, so_far = sha256(), _Sums()
        for row in facts.windows(part):
            digest.update(f"{row[0]} {row.rows} {row.sha256}\n".encode())
            so_far.rows += row.rows
            so_far.counted += row.counted
            so_far.nusd += row.nusd or 0
            on_part(part.name, so_far.rows)
        parts.append(HashedPart(name=part.name, rows=so_far.rows, sha256=digest.hexdigest()))
        sums[part.name] = so_far
    return tuple(parts), sums


def _verified(facts: _Facts, close: MonthClose, on_part: OnPart) -> VerifiedMonth:
    """Return a closed version with the parts of its hash computed again."""
    parts, sums = _hashed(facts, FIRST_PARTS | {part.name for part in close.parts}, on_part)
    return VerifiedMonth(
        close=close,
        recomputed=parts,
        events=sums["events"].counted,
        adjustments=sums["adjustments"].counted,
        total_usd=usd_from_nusd(int(sums["events"].nusd + sums["adjustments"].nusd)),
    )


def _closes(connection: Connection, month: date) -> list[MonthClose]:
    """Return the closed versions of a month, the first one first."""
    found = connection.execute(text(_CLOSES), {"month": month})
    return [
        MonthClose(
            month=row.month,
            version=row.version,
            sha256=row.sha256,
            events=row.events,
            adjustments=row.adjustments,
            total_usd=usd_from_nusd(int(row.total_nusd)),
            closed_at=row.closed_at,
            author=row.author,
            operator=row.operator,
            accepted=row.accepted,
            parts=tuple(HashedPart(**part) for part in row.parts),
            is_reopened=row.is_reopened,
        )
        for row in found
    ]


def _json(value: object) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()
