"""Builds the notes on a report's total: its completeness, certainty and omissions, and reads the
freshness of the data for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Boolean, Label, Select, false, func, select

from gateway.domain.money import format_amount
from gateway.reports.dimensions import Dimension, Split
from gateway.reports.question import Question
from gateway.reports.report import Dataset
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.facts import EVENTS, fact
from gateway.reports.sources.gpu_days import IDLE_UNKNOWN, idle_note

NOTHING_YET = "No events yet: send a first request through the gateway."

# Selected beside every report's own figures, so that no report can omit its certainty.
_SUMS = {
    "sure_attempts": "attempts",
    "sure_unknown": "unknown_attempts",
    "sure_derived": "derived_attempts",
    "sure_held_usd": "held_usd",
    "sure_adjustments": "adjustments",
    "sure_adjustments_usd": "adjustments_usd",
    "sure_expected": "expected_attempts",
}
SURENESS: tuple[Label[Any], ...] = (
    *(func.coalesce(func.sum(fact(figure)), 0).label(name) for name, figure in _SUMS.items()),
    func.coalesce(func.bool_or(fact("is_self_hosted"), type_=Boolean), false()).label(
        "sure_self_hosted"
    ),
)
_RECENT = timedelta(days=2)
_CLOSED_DAYS = """
SELECT month FROM finance.periods WHERE state = 'closed' AND month <= CAST(:last AS date)
  AND month + interval '1 month' > CAST(:first AS date) LIMIT 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """The dataset's newest event, the state of the requested month (None: no month), the idle cost
    left out, and whether the requested days lie in part in a closed month.
    """

    complete_until: datetime | None
    month_state: str | None
    idle_note: str
    has_closed_days: bool = False

    @property
    def is_idle_unknown(self) -> bool:
        """Return True if no hour's bill is known."""
        return self.idle_note == IDLE_UNKNOWN


def read_freshness(
    snapshot: ReadSnapshot, question: Question, *, has_idle: bool = False
) -> Freshness:
    """Read the newest event of the dataset, the state of the question's month and its idle GPU
    cost; `has_idle`: the report has a column of it.
    """
    if question.closed_at is not None:
        return Freshness(
            complete_until=question.closed_at,
            month_state="closed",
            idle_note=idle_note(snapshot, question, has_column=has_idle),
        )
    newest = read_newest(snapshot, question.dataset)
    states = snapshot.rows(
        "SELECT state FROM finance.periods WHERE month = :month", month=question.month
    )
    is_real_month = question.dataset is Dataset.REAL and question.month is not None
    state = (states[0]["state"] if states else "open") if is_real_month else None
    return Freshness(
        complete_until=newest,
        month_state=state,
        idle_note=idle_note(snapshot, question, has_column=has_idle),
        has_closed_days=question.days is not None
        and question.dataset is Dataset.REAL
        and bool(snapshot.rows(_CLOSED_DAYS, first=question.days[0], last=question.days[1])),
    )


def read_newest(snapshot: ReadSnapshot, dataset: Dataset) -> datetime | None:
    """Return the time of a dataset's newest event, None without any."""
    newest: datetime | None = snapshot.row(_newest(dataset))["newest"]
    return newest


def read_now(snapshot: ReadSnapshot) -> datetime:
    """Return the moment of a snapshot, by the clock of Postgres: the newest event may be older."""
    now: datetime = snapshot.row("SELECT now() AS now")["now"]
    return now


def _newest(dataset: Dataset) -> Select[Any]:
    """Return the SELECT of the time of a dataset's newest event.

    Two queries: a scan of two days is quick on any table; only a gateway idle for longer needs a
    full scan.
    """
    occurred_at = EVENTS[dataset].c.occurred_at
    newest = select(func.max(occurred_at))
    recent = newest.where(occurred_at >= func.now() - _RECENT)
    either = func.coalesce(recent.scalar_subquery(), newest.scalar_subquery())
    return select(either.label("newest"))


def notes_on(
    question: Question, total: Row, fresh: Freshness, *, by: tuple[Split, ...] = ()
) -> tuple[str, ...]:
    """Return the notes on a report's total, in the order a reader needs them.

    `total` holds the columns of `SURENESS`.
    """
    currency = question.currency or "USD"
    return (
        *(("Demo data: generated, not real spend.",) if question.dataset is Dataset.DEMO else ()),
        _completeness(question, fresh),
        *_month_state(question, fresh),
        *_usage_certainty(total, currency),
        *_adjusted(total, currency),
        *(_SHARES if _names_cost_centres(question, by) else ()),
        *((fresh.idle_note,) if total["sure_self_hosted"] else ()),
        *(_TAGS if Dimension.TAG in by else ()),
        *(_CLOSED if fresh.has_closed_days else ()),
        _time(question),
    )


def _time(question: Question) -> str:
    """Return the note on the units, and on the time that a fact belongs to."""
    currency = question.currency or "USD"
    if question.days is None:
        every = "" if question.month else "Every month is in it. "
        return (
            f"{every}Money in {currency}, days and months in UTC; a month holds the events posted "
            "to it."
        )
    first, last = question.days
    return (
        f"Money in {currency}. From {first} to {last}, both inclusive, in UTC, by the moment at "
        "which each request arrived, whatever month it is posted to."
    )


def _names_cost_centres(question: Question, by: tuple[Split, ...]) -> bool:
    """Return True if a question splits by cost centre or asks for one."""
    return Dimension.COST_CENTRE in {*by, *(dimension for dimension, _ in question.where)}


_SHARES = (
    "A team with several cost centres: each has its share of the money of the day, and the largest "
    "has all counts and tokens.",
)
_CLOSED = (
    "Some of these days lie in closed months. What was posted to a later month since, such as a "
    "true-up, counts on its day here: these figures may change, those of --month do not.",
)
_TAGS = (
    "An event with several tags is in the row of each, in full. The row unallocated is the total "
    "minus the rows above: events without a tag, minus the repeated counts of the others. So "
    "it may be negative. What cannot be subtracted, such as percentiles and numbers of teams, is "
    "there that of the events without a tag.",
)


def _completeness(question: Question, fresh: Freshness) -> str:
    """Return the note that gives the time until which a total is complete."""
    if question.closed_at is not None:
        return (
            f"As version {question.close_version} of the month was closed at "
            f"{question.closed_at:%Y-%m-%d %H:%M:%S} UTC; later postings are not in it."
        )
    if fresh.complete_until is None:
        return NOTHING_YET
    return (
        f"Complete until {fresh.complete_until:%Y-%m-%d %H:%M:%S} UTC, the newest event recorded; "
        f"requests still running are not in it."
    )


def _month_state(question: Question, fresh: Freshness) -> tuple[str, ...]:
    """Return the note whether the month's total can still change; empty if no month was asked
    for.
    """
    if fresh.month_state is None or question.month is None:
        return ()
    meaning = {
        "open": "is open: its total can still change",
        "provisional": "is provisional: its total can still change until it is closed",
        "closed": "is closed: its total does not change any more",
    }[fresh.month_state]
    return (f"Month {question.month:%Y-%m} {meaning}.",)


def _usage_certainty(total: Mapping[str, object], currency: str) -> tuple[str, ...]:
    """Return the notes on the attempts with unknown or estimated usage, and on the money held for
    them.
    """
    attempts, unknown, derived = (
        int(str(total[f"sure_{name}"])) for name in ("attempts", "unknown", "derived")
    )
    if attempts == 0:
        return ()
    if not unknown and not derived:
        of_all = "the one attempt" if attempts == 1 else f"all {attempts:,} attempts"
        return (f"Usage is the provider's own final figure, or provably none, for {of_all}.",)
    found = []
    if unknown:
        held = format_amount(Decimal(str(total["sure_held_usd"])), currency)
        whose = (
            f"All attempts of this report ({attempts:,}) have"
            if unknown == attempts
            else f"{share_text(unknown, attempts)} of attempts ({unknown:,} of {attempts:,}) have"
        )
        found.append(
            f"{whose} an unknown cost: they are not in cost_usd; {held} is held for them, which is "
            "the most they can cost."
        )
    if derived:
        found.append(
            f"{share_text(derived, attempts)} of attempts ({derived:,} of {attempts:,}) are "
            "derived or estimated: the gateway's own count or a running figure, not the provider's "
            "final figure."
        )
    return tuple(found)


def _adjusted(total: Mapping[str, object], currency: str) -> tuple[str, ...]:
    """Return the notes on the adjustments in a total; empty if there are none."""
    adjustments, expected = (
        int(str(total[f"sure_{name}"])) for name in ("adjustments", "expected")
    )
    if not adjustments:
        return ()
    amount = format_amount(Decimal(str(total["sure_adjustments_usd"])), currency)
    found = [
        f"{adjustments:,} adjustment(s) of {amount} are in adjustments_usd and total_usd, not "
        "in cost_usd."
    ]
    if expected:
        found.append(
            f"{expected:,} of them stand at an expected cost, because their cost was not entered "
            "in time (tollgate reconcile resolve)."
        )
    return tuple(found)


def share_text(part: int, whole: int) -> str:
    """Return a share as a percentage for people.

    A positive share is never `0.00 %`, and an incomplete one never `100.00 %`.
    """
    share = f"{100 * part / whole:.2f}"
    if part and share == "0.00":
        return "under 0.01 %"
    if part < whole and share == "100.00":
        return "over 99.99 %"
    return f"{share} %"
