"""Lists the schedules of statements, each with its last delivery; the addresses of webhooks are
shortened, because they may hold a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

from sqlalchemy import select

from gateway.reports.sources.connection import ReadSnapshot
from gateway.storage.postgres.schema import finance_views


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSchedule:
    """One schedule. Everything from `last_month` on is of its last delivery, None before the
    first.
    """

    name: str
    cost_centre: str
    every: str
    sent_to: str
    created_at: datetime
    author: str
    last_month: date | None
    last_version: int | None
    tries: int | None
    next_try_at: datetime | None
    last_error: str | None
    delivered_at: datetime | None
    given_up_at: datetime | None

    @property
    def state(self) -> str:
        """Return the state of the last delivery in a word."""
        if self.last_month is None:  # a month may be closed, but only a gateway begins to send it
            return "waits for a closed month and a gateway"
        if self.delivered_at is not None:
            return "sent"
        return "given up" if self.given_up_at is not None else "to be sent"


def schedules(snapshot: ReadSnapshot) -> Sequence[ListedSchedule]:
    """Return all schedules by name."""
    row = finance_views.report_schedules.c
    return tuple(ListedSchedule(**one) for one in snapshot.rows(select(*row).order_by(row.name)))
