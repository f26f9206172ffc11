"""Gives each channel the alerts that it is to deliver, and records the results in Postgres; sends
none.

A channel's deliveries are rows of its own, so a dead webhook holds no mail back.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import text

from gateway.domain.alerts import spikes
from gateway.domain.alerts.delivery import (
    FARTHEST_TRY,
    GIVE_UP_AFTER,
    Channel,
    Delivery,
    DueAlert,
)
from gateway.domain.budgets import alerts as budgets
from gateway.storage.alerts.spikes import spike_alert_from_row
from gateway.storage.budgets.alerts import budget_alert_from_row
from gateway.storage.postgres.database import Database

# Alerts of the last day also go to a receiver that is declared later. A gateway of the release
# before this table has perhaps delivered one already, and noted that in its own row.
_OPEN = """
INSERT INTO tollgate.alert_deliveries (alert_id, channel, next_try_at)
SELECT alert_id, :channel, raised_at FROM (
    SELECT alert_id, raised_at FROM tollgate.budget_alerts
    WHERE raised_at > :since
        AND (:channel <> 'webhook' OR num_nonnulls(delivered_at, given_up_at) = 0)
    UNION ALL SELECT alert_id, raised_at FROM tollgate.spike_alerts WHERE raised_at > :since
) AS raised
WHERE NOT EXISTS (SELECT FROM tollgate.alert_deliveries AS begun
    WHERE begun.alert_id = raised.alert_id AND begun.channel = :channel)
ORDER BY alert_id
ON CONFLICT (alert_id, channel) DO NOTHING
"""
# A threshold waits for the lower ones of its period, so that the alert for 80 % arrives before that
# for 100 %.
_TAKE = """
UPDATE tollgate.alert_deliveries AS taken SET next_try_at = :until
WHERE taken.channel = :channel AND taken.alert_id = (
    SELECT waiting.alert_id FROM tollgate.alert_deliveries AS waiting
    LEFT JOIN tollgate.budget_alerts AS budget ON budget.alert_id = waiting.alert_id
    WHERE waiting.channel = :channel
        AND (waiting.next_try_at <= :now OR waiting.next_try_at > :wrong) AND NOT EXISTS (
        SELECT FROM tollgate.budget_alerts AS lower
        JOIN tollgate.alert_deliveries AS before ON before.alert_id = lower.alert_id
        WHERE before.channel = :channel AND before.next_try_at IS NOT NULL
            AND lower.account_id = budget.account_id AND lower.starts_at = budget.starts_at
            AND lower.threshold < budget.threshold)
    ORDER BY waiting.next_try_at, budget.account_id, budget.starts_at, waiting.alert_id
    LIMIT 1 FOR UPDATE OF waiting SKIP LOCKED)
RETURNING taken.alert_id, taken.tries
"""
_BUDGET = "SELECT * FROM tollgate.budget_alerts WHERE alert_id = :alert_id"
_SPIKE = "SELECT * FROM tollgate.spike_alerts WHERE alert_id = :alert_id"
_RECORD = """
UPDATE tollgate.alert_deliveries
SET tries = :tries, last_error = coalesce(:error, last_error), next_try_at = :next_try_at,
    delivered_at = :delivered_at, given_up_at = :given_up_at
WHERE alert_id = :alert_id AND channel = :channel AND next_try_at IS NOT NULL
"""
_WAITING = """
SELECT count(*) FROM tollgate.alert_deliveries WHERE channel = :channel AND next_try_at IS NOT NULL
"""


class AlertDeliveries:
    """A store of the deliveries of all alerts.

    Safe with several workers at once: each method is one transaction.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, channel: Channel, *, now: datetime) -> None:
        """Let a channel with a receiver deliver the alerts of the last day that it has not yet.

        Raises `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            connection.execute(text(_OPEN), {"channel": channel, "since": now - GIVE_UP_AFTER})

    def take(self, channel: Channel, *, now: datetime, until: datetime) -> DueAlert | None:
        """Claim and return the next alert for a channel, or None if none is due. No other worker
        gets it before `until`.

        Raises `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            taken = connection.execute(
                text(_TAKE),
                {"channel": channel, "now": now, "until": until, "wrong": now + FARTHEST_TRY},
            ).one_or_none()
            if taken is None:
                return None
            wanted = {"alert_id": taken.alert_id}
            row = connection.execute(text(_BUDGET), wanted).one_or_none()
            message = (
                budgets.message_of(budget_alert_from_row(row))
                if row is not None
                else spikes.message_of(
                    spike_alert_from_row(connection.execute(text(_SPIKE), wanted).one())
                )
            )
            return DueAlert(message=message, tries=taken.tries)

    def record_delivery(self, delivery: Delivery) -> None:
        """Record the result of a delivery attempt; a repetition changes nothing. Raises
        `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            connection.execute(text(_RECORD), _delivery_to_row(delivery))

    def waiting(self, channel: Channel) -> int:
        """Return the number of a channel's alerts that are neither delivered nor given up. Raises
        `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            return int(connection.execute(text(_WAITING), {"channel": channel}).scalar_one())


def _delivery_to_row(delivery: Delivery) -> dict[str, Any]:
    """Return the SQL parameters that record a delivery's result."""
    return {
        "alert_id": delivery.alert_id,
        "channel": delivery.channel,
        "tries": delivery.tries,
        "error": delivery.error,
        "next_try_at": delivery.next_try_at,
        "delivered_at": delivery.delivered_at,
        "given_up_at": delivery.given_up_at,
    }
