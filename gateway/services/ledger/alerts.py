"""Raises an alert once for each budget threshold reached in a period, logs and counts it, and
delivers it by webhook with retries.

One worker does it for all. If that worker ends, another takes over at its next turn. Postgres
stores the alert before it is announced, and also the state of its delivery. So a killed worker
loses nothing. An alert may then arrive twice, with the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import structlog

from gateway.domain.budgets.alerts import (
    BudgetAlert,
    Delivery,
    NotDelivered,
    plain_share,
    retry_pause_s,
    text,
)
from gateway.domain.money import plain_usd
from gateway.domain.policy.policy import Alerts, PolicyVersion
from gateway.errors import OperatorError
from gateway.services.ports import Clock

log = structlog.get_logger()

LOOK_EVERY_S = 2.0
# A worker that does not lead opens a new connection for each question.
STAND_BY_S = 10.0
# Longer than any delivery try. So a leader that lost its job during a try is not overtaken, and a
# killed one soon is.
TAKEN_FOR = timedelta(seconds=30)
# A slow receiver must not keep new alerts from being raised.
LONGEST_ROUND_S = 5.0


class AlertStore(Protocol):
    """Stores budget alerts; `storage.budgets.alerts.BudgetAlertStore` implements it.

    Called in threads; each method raises `DatabaseUnavailable`.
    """

    def raise_crossed(self, *, now: datetime) -> None:
        """Store an alert for each reached budget threshold that has none in its period yet."""

    def unannounced(self) -> Sequence[BudgetAlert]:
        """Return the budget alerts that no worker has logged yet, oldest first."""

    def note_announced(self, alert_ids: Sequence[UUID], *, now: datetime) -> None:
        """Record that these budget alerts are in the log."""

    def take(self, *, now: datetime, until: datetime) -> BudgetAlert | None:
        """Return the next budget alert to deliver, or None. No other worker gets it before
        `until`.
        """

    def record_delivery(self, delivery: Delivery) -> None:
        """Record one attempt to deliver an alert; a repeated call changes nothing."""

    def waiting(self) -> int:
        """Return the number of budget alerts that are neither delivered nor given up."""


class BudgetAlerts:
    """Raises, announces and delivers budget alerts.

    `deliver` sends one alert within seconds, or raises `NotDelivered`. `is_leader` returns True in
    the one worker that does this for all, or raises `DatabaseUnavailable`. `policy` returns the
    current version, None before the first; `draw` returns a number from 0 to 1.

    `on_raised` is called with each alert, `on_given_up` with each that is no longer tried.
    `on_waiting` is called with the number of alerts to deliver: 0 in workers that do not lead and
    if the policy names no receiver.
    """

    def __init__(
        self,
        *,
        store: AlertStore,
        deliver: Callable[[BudgetAlert, Alerts], Awaitable[None]],
        policy: Callable[[], PolicyVersion | None],
        is_leader: Callable[[], bool],
        clock: Clock,
        draw: Callable[[], float],
        on_raised: Callable[[BudgetAlert], None],
        on_given_up: Callable[[], None],
        on_waiting: Callable[[int], None],
    ) -> None:
        """Make the job that delivers budget alerts; `run` starts it."""
        self._store, self._deliver_one, self._policy = store, deliver, policy
        self._is_leader, self._clock, self._draw = is_leader, clock, draw
        self._on_raised, self._on_given_up, self._on_waiting = on_raised, on_given_up, on_waiting
        self._announced: list[UUID] = []  # logged, but perhaps not recorded in Postgres yet
        self._unwritten: Delivery | None = None  # the last delivery try, likewise

    async def run(self) -> None:
        """Raise, announce and deliver budget alerts, round after round, until cancelled."""
        while True:
            leads = await self.run_once()
            await asyncio.sleep(LOOK_EVERY_S if leads else STAND_BY_S)

    async def run_once(self) -> bool:
        """Do one round of budget alerts if this worker leads. Return False if it does not lead or
        could not finish.
        """
        try:
            await self._record_last_delivery()
            if not await asyncio.to_thread(self._is_leader):
                self._on_waiting(0)
                return False
            await self._raise_and_announce()
            await self._deliver()
        except OperatorError as problem:
            log.warning("budget_alerts_not_looked_at", problem=problem.message)
            return False
        return True

    async def _raise_and_announce(self) -> None:
        """Raise alerts for thresholds that were crossed, and log each new one once."""
        await asyncio.to_thread(self._store.raise_crossed, now=self._clock.now())
        for alert in await asyncio.to_thread(self._store.unannounced):
            if alert.alert_id not in self._announced:
                self._announced.append(alert.alert_id)
                self._announce(alert)
        if self._announced:
            await asyncio.to_thread(
                self._store.note_announced, tuple(self._announced), now=self._clock.now()
            )
            self._announced.clear()

    def _announce(self, alert: BudgetAlert) -> None:
        """Write a raised alert's log line and count it in the metrics."""
        say = log.error if alert.is_refusing else log.warning
        say(
            "budget_alert",
            alert_id=str(alert.alert_id),
            budget=alert.account_id,
            scope=alert.scope.value,
            team=alert.team,
            owner=alert.owner,
            kind=alert.kind.value,
            period=alert.period.value,
            starts_at=alert.starts_at.isoformat(),
            threshold=plain_share(alert.threshold),
            limit_usd=plain_usd(alert.limit_nusd),
            granted_usd=plain_usd(alert.granted_nusd),
            spent_usd=plain_usd(alert.spent_nusd),
            text=text(alert),
        )
        self._on_raised(alert)

    async def _deliver(self) -> None:
        """Send the due budget alerts to the policy's webhook.

        A failure ends the round, because all alerts have the same receiver.
        """
        policy = self._policy()
        alerts = policy.policy.alerts if policy is not None else None
        if alerts is None:
            self._on_waiting(0)
            return
        until_s = self._clock.monotonic() + LONGEST_ROUND_S
        while self._clock.monotonic() < until_s:
            now = self._clock.now()
            alert = await asyncio.to_thread(self._store.take, now=now, until=now + TAKEN_FOR)
            if alert is None:
                break
            self._unwritten = await self._try_delivery(alert, alerts)
            has_failed = self._unwritten.next_try_at is not None
            await self._record_last_delivery()
            if has_failed:
                break
        self._on_waiting(await asyncio.to_thread(self._store.waiting))

    async def _try_delivery(self, alert: BudgetAlert, alerts: Alerts) -> Delivery:
        """Send one alert once and return the result: delivered, given up, or when to try again."""
        if alert.is_too_old(self._clock.now()):
            return self._given_up(alert)
        tries = alert.tries + 1
        try:
            await self._deliver_one(alert, alerts)
        except NotDelivered as problem:
            now = self._clock.now()
            pause_s = retry_pause_s(tries, draw=self._draw())
            log.warning(
                "budget_alert_not_delivered",
                alert_id=str(alert.alert_id),
                budget=alert.account_id,
                threshold=plain_share(alert.threshold),
                tries=tries,
                next_try_s=round(pause_s, 1),
                problem=str(problem),
            )
            next_try_at = now + timedelta(seconds=pause_s)
            return Delivery(
                alert_id=alert.alert_id, tries=tries, error=str(problem), next_try_at=next_try_at
            )
        log.info(
            "budget_alert_delivered",
            alert_id=str(alert.alert_id),
            budget=alert.account_id,
            tries=tries,
        )
        return Delivery(alert_id=alert.alert_id, tries=tries, delivered_at=self._clock.now())

    def _given_up(self, alert: BudgetAlert) -> Delivery:
        """Return the record of an alert that is no longer sent, and log it if it was ever tried."""
        # An alert without a try had no receiver: the policy named none while it was new.
        if alert.tries:
            log.error(
                "budget_alert_given_up",
                alert_id=str(alert.alert_id),
                budget=alert.account_id,
                threshold=plain_share(alert.threshold),
                tries=alert.tries,
            )
            self._on_given_up()
        return Delivery(alert_id=alert.alert_id, tries=alert.tries, given_up_at=self._clock.now())

    async def _record_last_delivery(self) -> None:
        """Record the last try to deliver an alert in Postgres, if that is not done yet.

        If Postgres is away the record waits: the alert was delivered all the same.
        """
        if self._unwritten is not None:
            await asyncio.to_thread(self._store.record_delivery, self._unwritten)
            self._unwritten = None
