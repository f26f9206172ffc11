"""Raises an alert once for each budget threshold reached in a period, and for each day of a team
that stands out, logs and counts it, and lets each channel deliver it.

One worker does it for all. If that worker ends, another takes over at its next turn. Postgres
stores the alert before it is announced, and also the state of its delivery. So a killed worker
loses nothing. An alert may then arrive twice, with the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Protocol
from uuid import UUID

import structlog

from gateway.domain.alerts.spikes import SpikeAlert, text_of
from gateway.domain.budgets.alerts import BudgetAlert, plain_share, text
from gateway.domain.money import plain_usd
from gateway.domain.policy.policy import Alerts, PolicyVersion
from gateway.errors import OperatorError
from gateway.services.ledger.alert_channel import AlertChannel
from gateway.services.ports import Clock

log = structlog.get_logger()

LOOK_EVERY_S = 2.0
# A worker that does not lead opens a new connection for each question.
STAND_BY_S = 10.0


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


class SpikeStore(Protocol):
    """Stores alerts of spikes; `storage.alerts.spikes.SpikeAlertStore` implements it.

    Called in threads; each method raises `DatabaseUnavailable`.
    """

    def due(self, *, now: datetime) -> Sequence[date]:
        """Return the days that are over and not looked at, the oldest first."""

    def raise_spikes(self, day: date, *, floor_nusd: int, now: datetime) -> bool:
        """Store an alert for each team whose day stands out; False while its sums are not made."""

    def unannounced(self) -> Sequence[SpikeAlert]:
        """Return the alerts of spikes that no worker has logged yet, oldest first."""

    def note_announced(self, alert_ids: Sequence[UUID], *, now: datetime) -> None:
        """Record that these alerts of spikes are in the log."""


class AlertJob:
    """Raises and announces alerts, and lets the channels deliver them.

    `is_leader` returns True in the one worker that does this for all, or raises
    `DatabaseUnavailable`. `policy` returns the current version, None before the first. `on_raised`
    is called with each alert.
    """

    def __init__(
        self,
        *,
        budgets: AlertStore,
        spikes: SpikeStore,
        channels: Sequence[AlertChannel],
        policy: Callable[[], PolicyVersion | None],
        is_leader: Callable[[], bool],
        clock: Clock,
        on_raised: Callable[[BudgetAlert | SpikeAlert], None],
    ) -> None:
        """Make the job that raises alerts; `run` starts it."""
        self._budgets, self._spikes, self._channels = budgets, spikes, channels
        self._policy, self._is_leader, self._clock = policy, is_leader, clock
        self._on_raised = on_raised
        self._announced: set[UUID] = set()  # logged, but perhaps not recorded in Postgres yet

    async def run(self) -> None:
        """Raise, announce and deliver alerts, round after round, until cancelled."""
        while True:
            leads = await self.run_once()
            await asyncio.sleep(LOOK_EVERY_S if leads else STAND_BY_S)

    async def run_once(self) -> bool:
        """Do one round of alerts if this worker leads. Return False if it does not lead or could
        not finish.
        """
        try:
            for channel in self._channels:
                await channel.record_last_delivery()
            if not await asyncio.to_thread(self._is_leader):
                for channel in self._channels:
                    channel.stand_by()
                return False
            version = self._policy()
            alerts = None if version is None else version.policy.alerts
            await self._raise_and_announce(alerts)
            return await self._deliver(alerts)
        except OperatorError as problem:
            log.warning("budget_alerts_not_looked_at", problem=problem.message)
            return False

    async def _raise_and_announce(self, alerts: Alerts | None) -> None:
        """Raise alerts for crossed thresholds and for days that stand out, and log each new one
        once.
        """
        await asyncio.to_thread(self._budgets.raise_crossed, now=self._clock.now())
        await self._raise_spikes(None if alerts is None else alerts.spikes_above_nusd)
        await self._announce_new(self._budgets)
        await self._announce_new(self._spikes)
        self._announced.clear()

    async def _announce_new(self, store: AlertStore | SpikeStore) -> None:
        """Log each alert of a store that no worker has logged yet."""
        found: Sequence[BudgetAlert | SpikeAlert] = await asyncio.to_thread(store.unannounced)
        for alert in found:
            if alert.alert_id not in self._announced:
                self._announced.add(alert.alert_id)
                self._announce(alert)
        if found:
            ids = tuple(alert.alert_id for alert in found)
            await asyncio.to_thread(store.note_announced, ids, now=self._clock.now())

    async def _raise_spikes(self, floor_nusd: int | None) -> None:
        """Look once at each day that is over, if the policy wants alerts of spikes."""
        if floor_nusd is None:
            return
        now = self._clock.now()
        for day in await asyncio.to_thread(self._spikes.due, now=now):
            is_done = await asyncio.to_thread(
                self._spikes.raise_spikes, day, floor_nusd=floor_nusd, now=now
            )
            if not is_done:
                return

    def _announce(self, alert: BudgetAlert | SpikeAlert) -> None:
        """Write a raised alert's log line and count it in the metrics."""
        match alert:
            case BudgetAlert():
                _log_budget(alert)
            case SpikeAlert():
                _log_spike(alert)
        self._on_raised(alert)

    async def _deliver(self, alerts: Alerts | None) -> bool:
        """Let each channel deliver at the same time: none waits for another. Return False if one
        could not finish.
        """
        rounds = (channel.deliver(alerts) for channel in self._channels)
        problems = [
            problem
            for problem in await asyncio.gather(*rounds, return_exceptions=True)
            if problem is not None
        ]
        for problem in problems:
            if not isinstance(problem, OperatorError):
                raise problem
            log.warning("budget_alerts_not_looked_at", problem=problem.message)
        return not problems


def _log_budget(alert: BudgetAlert) -> None:
    """Write the log line of a budget's alert."""
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


def _log_spike(alert: SpikeAlert) -> None:
    """Write the log line of a spike's alert."""
    log.warning(
        "spike_alert",
        alert_id=str(alert.alert_id),
        team=alert.team,
        day=alert.day.isoformat(),
        model=alert.model,
        key_id=alert.key_id,
        spent_usd=plain_usd(alert.spent_nusd),
        usual_usd=plain_usd(alert.usual_nusd),
        driver_usd=plain_usd(alert.driver_nusd),
        command=alert.command,
        text=text_of(alert),
    )
