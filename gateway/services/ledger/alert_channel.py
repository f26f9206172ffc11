"""Delivers alerts by one channel, with retries, and gives one up after a day.

Each channel has its own deliveries, pauses and rounds, so that a dead receiver holds no other
channel back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from gateway.domain.alerts.delivery import (
    AlertMessage,
    Channel,
    Delivery,
    DueAlert,
    NotDelivered,
    retry_pause_s,
)
from gateway.domain.policy.policy import Alerts
from gateway.services.ports import Clock

log = structlog.get_logger()

# Longer than any delivery try. So a leader that lost its job during a try is not overtaken, and a
# killed one soon is.
TAKEN_FOR = timedelta(seconds=30)
# A slow receiver must not keep new alerts from being raised.
LONGEST_ROUND_S = 5.0

Send = Callable[[AlertMessage, Alerts], Awaitable[str | None]]


class DeliveryStore(Protocol):
    """Stores deliveries; `storage.alerts.deliveries.AlertDeliveries` implements it.

    Called in threads; each method raises `DatabaseUnavailable`.
    """

    def open(self, channel: Channel, *, now: datetime) -> None:
        """Let a channel with a receiver deliver the alerts of the last day that it has not yet."""

    def take(self, channel: Channel, *, now: datetime, until: datetime) -> DueAlert | None:
        """Return the next alert for a channel, or None. No other worker gets it before `until`."""

    def record_delivery(self, delivery: Delivery) -> None:
        """Record one attempt to deliver an alert; a repeated call changes nothing."""

    def waiting(self, channel: Channel) -> int:
        """Return the number of a channel's alerts that are neither delivered nor given up."""


class AlertChannel:
    """Delivers alerts by one channel.

    `send` sends one message within seconds, or raises `NotDelivered`; it returns the part that was
    refused, if any was. `draw` returns a number from 0 to 1.

    `on_given_up` is called for each alert that is no longer tried. `on_waiting` is called with the
    number of alerts to deliver: 0 in workers that do not lead and if the policy names no receiver.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        store: DeliveryStore,
        send: Send,
        clock: Clock,
        draw: Callable[[], float],
        on_given_up: Callable[[], None],
        on_waiting: Callable[[int], None],
    ) -> None:
        self._channel, self._store, self._send = channel, store, send
        self._clock, self._draw = clock, draw
        self._on_given_up, self._on_waiting = on_given_up, on_waiting
        self._unwritten: Delivery | None = None  # the last try, perhaps not recorded yet

    def stand_by(self) -> None:
        """Show that another worker delivers."""
        self._on_waiting(0)

    async def deliver(self, alerts: Alerts | None) -> None:
        """Send the due alerts to the policy's receiver of this channel.

        A failure ends the round, because all alerts have the same receiver. Raises
        `DatabaseUnavailable`.
        """
        if alerts is None or not _has_receiver(self._channel, alerts):
            self._on_waiting(0)
            return
        await asyncio.to_thread(self._store.open, self._channel, now=self._clock.now())
        until_s = self._clock.monotonic() + LONGEST_ROUND_S
        while self._clock.monotonic() < until_s:
            now = self._clock.now()
            due = await asyncio.to_thread(
                self._store.take, self._channel, now=now, until=now + TAKEN_FOR
            )
            if due is None:
                break
            self._unwritten = await self._try_delivery(due, alerts)
            has_failed = self._unwritten.next_try_at is not None
            await self.record_last_delivery()
            if has_failed:
                break
        self._on_waiting(await asyncio.to_thread(self._store.waiting, self._channel))

    async def record_last_delivery(self) -> None:
        """Record the last try to deliver an alert in Postgres, if that is not done yet.

        If Postgres is away the record waits: the alert was delivered all the same. Raises
        `DatabaseUnavailable`.
        """
        if self._unwritten is not None:
            await asyncio.to_thread(self._store.record_delivery, self._unwritten)
            self._unwritten = None

    async def _try_delivery(self, due: DueAlert, alerts: Alerts) -> Delivery:
        """Send one alert once and return the result: delivered, given up, or when to try again."""
        message = due.message
        if due.is_too_old(self._clock.now()):
            return self._given_up(due)
        tries = due.tries + 1
        try:
            refused = await self._send(message, alerts)
        except NotDelivered as problem:
            now = self._clock.now()
            pause_s = retry_pause_s(tries, draw=self._draw())
            self._note(
                log.warning,
                "alert_not_delivered",
                message,
                tries=tries,
                next_try_s=round(pause_s, 1),
                problem=str(problem),
            )
            return Delivery(
                alert_id=message.alert_id,
                channel=self._channel,
                tries=tries,
                error=str(problem),
                next_try_at=now + timedelta(seconds=pause_s),
            )
        if refused is None:
            self._note(log.info, "alert_delivered", message, tries=tries)
        else:
            self._note(log.warning, "alert_delivered", message, tries=tries, problem=refused)
        return Delivery(
            alert_id=message.alert_id,
            channel=self._channel,
            tries=tries,
            error=refused,
            delivered_at=self._clock.now(),
        )

    def _given_up(self, due: DueAlert) -> Delivery:
        """Return the record of an alert that is no longer sent, and log it if it was ever tried."""
        # An alert without a try lost its receiver: a policy took it away while the alert was new.
        if due.tries:
            self._note(log.error, "alert_given_up", due.message, tries=due.tries)
            self._on_given_up()
        return Delivery(
            alert_id=due.message.alert_id,
            channel=self._channel,
            tries=due.tries,
            given_up_at=self._clock.now(),
        )

    def _note(
        self, say: Callable[..., None], event: str, message: AlertMessage, **figures: object
    ) -> None:
        """Write a log line about one alert's delivery."""
        say(
            event,
            channel=self._channel.value,
            alert_id=str(message.alert_id),
            about=message.about,
            **figures,
        )


def _has_receiver(channel: Channel, alerts: Alerts) -> bool:
    """Return True if the policy names a receiver for a channel."""
    match channel:
        case Channel.WEBHOOK:
            return alerts.webhook is not None
        case Channel.EMAIL:
            return bool(alerts.email)
