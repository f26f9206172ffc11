"""Declares the alert of a team's day that stands out: its text, its webhook body, and the days that
are due; reads no amounts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from msgspec import Raw

from gateway.domain.alerts.delivery import AlertMessage
from gateway.domain.forecasting.spikes import Spike, sentence
from gateway.domain.money import plain_usd, usd_from_nusd

TYPE = "spend.spike"
# Attempts that ran over midnight, and their sums, are written by then.
LATE_EVENTS = timedelta(hours=1)
MOST_MISSED_DAYS = 7
"""Days that a late start looks at. An older spike is history: `report spikes` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeAlert:
    """A day (UTC) on which a team spent far more than on its usual weekday.

    `model` and `key_id` name the part that grew most, by `driver_nusd`; None if events have none.
    """

    alert_id: UUID
    team: str
    day: date
    model: str | None
    key_id: str | None
    spent_nusd: int
    usual_nusd: int
    driver_nusd: int
    raised_at: datetime

    @property
    def command(self) -> str | None:
        """Return the command that stops the key, None without one."""
        return None if self.key_id is None else f"tollgate key pause {self.key_id}"


def days_due(looked_at: Sequence[date], *, now: datetime) -> tuple[date, ...]:
    """Return the days that are over and not looked at yet, the oldest first.

    Before the first look it is the last day alone; after a pause at most `MOST_MISSED_DAYS`.
    """
    last = (now.astimezone(UTC) - LATE_EVENTS).date() - timedelta(days=1)
    if not looked_at:
        return (last,)
    first = max(max(looked_at) + timedelta(days=1), last - timedelta(days=MOST_MISSED_DAYS - 1))
    return tuple(first + timedelta(days=n) for n in range((last - first).days + 1))


def text_of(alert: SpikeAlert) -> str:
    """Return the alert's text for people: the sentence of `report spikes`, and the command on a
    line of its own.
    """
    told = sentence(
        Spike(
            day=alert.day,
            amount=usd_from_nusd(alert.spent_nusd),
            usual=usd_from_nusd(alert.usual_nusd),
        ),
        part=f"team {alert.team}",
        model=alert.model or "unallocated",
        key=alert.key_id or "unallocated",
    )
    return told if alert.command is None else f"{told}\n{alert.command}"


def message_of(alert: SpikeAlert) -> AlertMessage:
    """Return the alert as its receivers get it."""
    return AlertMessage(
        alert_id=alert.alert_id,
        raised_at=alert.raised_at,
        about=f"team {alert.team} stands out on {alert.day}",
        text=text_of(alert),
        payload={
            "id": alert.alert_id,
            "type": TYPE,
            "created_at": alert.raised_at,
            "team": alert.team,
            "day": alert.day,
            "model": alert.model,
            "key_id": alert.key_id,
            "spent_usd": Raw(plain_usd(alert.spent_nusd).encode()),
            "usual_usd": Raw(plain_usd(alert.usual_nusd).encode()),
            "driver_usd": Raw(plain_usd(alert.driver_nusd).encode()),
            "command": alert.command,
            "text": text_of(alert),
        },
    )
