"""Raises an alert for each team's day that stands out, from the sums by day in Postgres; reads no
event, and sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, text

from gateway.domain.alerts.spikes import SpikeAlert, days_due
from gateway.domain.forecasting.daily import History
from gateway.domain.forecasting.spikes import (
    COMPARED_DAYS,
    Spike,
    largest_driver,
    spikes,
    weekdays_before,
)
from gateway.domain.money import nusd_from_usd, usd_from_nusd
from gateway.storage.postgres.database import Database

MOST_AT_ONCE = 1000

_LOOKED_AT = "SELECT day FROM tollgate.spike_days ORDER BY day DESC LIMIT 1"
# Reports read the events of days whose sums are not made yet. This job waits for the sums.
_IS_SUMMED = """
SELECT NOT EXISTS (SELECT FROM tollgate.dirty_days WHERE day BETWEEN :first AND :day)
    AND NOT EXISTS (SELECT FROM tollgate.dirty_hours
        WHERE (hour AT TIME ZONE 'UTC')::date BETWEEN :first AND :day)
"""
_NOTE_DAY = """
INSERT INTO tollgate.spike_days (day, looked_at) VALUES (:day, :now)
ON CONFLICT (day) DO NOTHING RETURNING day
"""
_SPENDING = """
SELECT team, day, sum(cost_nusd) AS nusd FROM tollgate.spend_rollup_by_key
WHERE day BETWEEN :first AND :day AND NOT is_demo AND team IS NOT NULL
GROUP BY team, day HAVING sum(cost_nusd) <> 0 ORDER BY team
"""
_DRIVERS = """
SELECT day, model, key_id, sum(cost_nusd) AS nusd FROM tollgate.spend_rollup_by_key
WHERE team = :team AND day = ANY(:days) AND NOT is_demo
GROUP BY day, model, key_id HAVING sum(cost_nusd) <> 0
"""
_RAISE = """
INSERT INTO tollgate.spike_alerts
    (team, day, model, key_id, spent_nusd, usual_nusd, driver_nusd, raised_at)
VALUES (:team, :day, :model, :key_id, :spent_nusd, :usual_nusd, :driver_nusd, :now)
ON CONFLICT (team, day) DO NOTHING
"""
_UNANNOUNCED = """
SELECT * FROM tollgate.spike_alerts WHERE announced_at IS NULL
ORDER BY raised_at, day, team LIMIT :most
"""
_ANNOUNCED = """
UPDATE tollgate.spike_alerts SET announced_at = :now
WHERE alert_id = ANY(:alert_ids) AND announced_at IS NULL
"""


class SpikeAlertStore:
    """A store that raises alerts of spikes.

    Safe with several workers at once: each method is one transaction.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def due(self, *, now: datetime) -> tuple[date, ...]:
        """Return the days that are over and not looked at, the oldest first. Raises
        `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            looked_at = connection.execute(text(_LOOKED_AT)).scalars().all()
        return days_due(looked_at, now=now)

    def raise_spikes(self, day: date, *, floor_nusd: int, now: datetime) -> bool:
        """Store an alert for each team whose spending rose on a day by more than the floor, once.

        Returns False, and looks at nothing, while the sums of the day or of those before it are not
        made. Raises `DatabaseUnavailable`.
        """
        days = {"first": day - timedelta(days=COMPARED_DAYS), "day": day}
        with self._database.begin() as connection:
            if not connection.execute(text(_IS_SUMMED), days).scalar_one():
                return False
            noted = connection.execute(text(_NOTE_DAY), {"day": day, "now": now})
            if noted.one_or_none() is None:
                return True  # another worker led for a moment
            found = [
                _to_row(connection, team, spike) | {"now": now}
                for team, history in _histories(connection, day).items()
                for spike in spikes(history, floor=usd_from_nusd(floor_nusd))
                if spike.day == day and spike.change > 0
            ]
            if found:
                connection.execute(text(_RAISE), found)
        return True

    def unannounced(self) -> tuple[SpikeAlert, ...]:
        """Return the alerts of spikes that no worker has written to its log yet, oldest first.
        Raises `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            rows = connection.execute(text(_UNANNOUNCED), {"most": MOST_AT_ONCE})
            return tuple(spike_alert_from_row(row) for row in rows)

    def note_announced(self, alert_ids: Sequence[UUID], *, now: datetime) -> None:
        """Record that a worker wrote these alerts to its log. Raises `DatabaseUnavailable`."""
        with self._database.begin() as connection:
            connection.execute(text(_ANNOUNCED), {"alert_ids": list(alert_ids), "now": now})


def spike_alert_from_row(row: Row[*tuple[object, ...]]) -> SpikeAlert:
    """Return the alert of a row."""
    return SpikeAlert(
        alert_id=row.alert_id,
        team=row.team,
        day=row.day,
        model=row.model,
        key_id=row.key_id,
        spent_nusd=int(row.spent_nusd),
        usual_nusd=int(row.usual_nusd),
        driver_nusd=int(row.driver_nusd),
        raised_at=row.raised_at,
    )


def _histories(connection: Connection, day: date) -> dict[str, History]:
    """Return the spending of each team in USD up to a day; unknown costs count as 0."""
    first = day - timedelta(days=COMPARED_DAYS)
    amounts: dict[str, list[Decimal]] = {}
    for row in connection.execute(text(_SPENDING), {"first": first, "day": day}):
        of_team = amounts.setdefault(row.team, [Decimal(0)] * (COMPARED_DAYS + 1))
        of_team[(row.day - first).days] = usd_from_nusd(int(row.nusd))
    return {
        team: History(first_day=first, amounts=tuple(of_team)) for team, of_team in amounts.items()
    }


def _to_row(connection: Connection, team: str, spike: Spike) -> dict[str, Any]:
    """Return the row of a spike, with the model and key that drove it."""
    before = weekdays_before(spike.day)
    by_day: dict[date, dict[tuple[str | None, str | None], Decimal]] = {
        day: {} for day in (spike.day, *before)
    }
    for row in connection.execute(text(_DRIVERS), {"team": team, "days": list(by_day)}):
        by_day[row.day][row.model, row.key_id] = usd_from_nusd(int(row.nusd))
    (model, key_id), driver = largest_driver(
        spike, now=by_day[spike.day], before=[by_day[day] for day in before]
    )
    return {
        "team": team,
        "day": spike.day,
        "model": model,
        "key_id": key_id,
        "spent_nusd": nusd_from_usd(spike.amount),
        "usual_nusd": nusd_from_usd(spike.usual),
        "driver_nusd": nusd_from_usd(driver),
    }
