"""Builds the periodic jobs that one worker does for all (partitions, roll-ups, engine samples,
alerts, statements); `process.py` runs them.

Every worker has them, and Postgres lets one worker at a time run each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from gateway.domain.alerts.delivery import Channel
from gateway.domain.deployments.engine_sample import EngineSample
from gateway.domain.policy.policy import Deployment
from gateway.providers.alerts.mail import Mail
from gateway.providers.alerts.webhook import Webhook
from gateway.providers.engine_sampler import EngineSampler
from gateway.services.deployments.engine_load import EngineLoads
from gateway.services.deployments.engine_resolution import EngineResolution
from gateway.services.deployments.engine_watch import EngineWatch
from gateway.services.ledger.alert_channel import AlertChannel, Send
from gateway.services.ledger.alerts import AlertJob
from gateway.services.ledger.partitions import PartitionKeeper
from gateway.services.ledger.rollups import RollupKeeper
from gateway.services.reports.statement_job import StatementJob
from gateway.serving.context import ProcessContext
from gateway.serving.statements import build_statement_job
from gateway.storage.alerts.deliveries import AlertDeliveries
from gateway.storage.alerts.spikes import SpikeAlertStore
from gateway.storage.budgets.alerts import BudgetAlertStore
from gateway.storage.deployments.engine_residuals import EngineResiduals
from gateway.storage.deployments.engine_samples import EngineSamples
from gateway.storage.ledger import adjustments, rollups
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.postgres.leadership import Leadership
from gateway.storage.postgres.locks import TableLock
from gateway.storage.postgres.partitions import ensure_months


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedJobs:
    """The jobs that one worker does for all: partitions, roll-ups and holds, engine samples, alerts
    and statements.
    """

    months: PartitionKeeper
    rollups: RollupKeeper
    engines: EngineWatch
    alerts: AlertJob
    statements: StatementJob


def build_shared_jobs(
    context: ProcessContext, loads: EngineLoads, *, look_again: Callable[[], None]
) -> SharedJobs:
    """Build the jobs that one worker does for all, without starting them. `loads` has the engines'
    live signals, and `look_again` asks for new findings about the ledger.
    """
    database, metrics, clock = context.stores.database, context.metrics, context.clock
    ttl = timedelta(seconds=context.settings.unknown_hold_ttl_s)
    lost_after = timedelta(seconds=context.settings.journal_lost_after_s)
    sampler = EngineSampler(clock.now)

    def look_at(deployment: Deployment) -> EngineSample:
        """Return a sample of an engine with its live signals."""
        return sampler.sample(deployment).with_signals(loads.signals().get(deployment.name))

    return SharedJobs(
        months=PartitionKeeper(
            lambda first, last: ensure_months(database, first=first, last=last),
            clock,
            on_made=look_again,
        ),
        rollups=RollupKeeper(
            lambda: rollups.refresh(database),
            lambda: adjustments.expire_holds(database, ttl=ttl),
            lambda: JournalTable(database).lose_silent(lost_after),
            clock,
        ),
        engines=EngineWatch(
            policy=context.policy,
            look_at=look_at,
            store=EngineSamples(database),
            is_leader=Leadership(database, TableLock.LEADER_ENGINES).is_mine,
            clock=clock,
            after_round=EngineResolution(EngineResiduals(database), policy=context.policy).settle,
        ),
        alerts=AlertJob(
            budgets=BudgetAlertStore(database),
            spikes=SpikeAlertStore(database),
            channels=_alert_channels(context),
            policy=context.policy,
            is_leader=Leadership(database, TableLock.LEADER_BUDGET_ALERTS).is_mine,
            clock=clock,
            on_raised=metrics.count_alert,
        ),
        statements=build_statement_job(context),
    )


def _alert_channels(context: ProcessContext) -> tuple[AlertChannel, ...]:
    """Build the channels that deliver alerts."""
    metrics, clock = context.metrics, context.clock
    senders: dict[Channel, Send] = {
        Channel.WEBHOOK: Webhook(clock.now).send,
        Channel.EMAIL: Mail(context.settings.mail_account).send,
    }
    return tuple(
        AlertChannel(
            channel,
            store=AlertDeliveries(context.stores.database),
            send=send,
            clock=clock,
            draw=random.random,
            on_given_up=metrics.given_up_alerts.labels(channel).inc,
            on_waiting=metrics.undelivered_alerts.labels(channel).set,
        )
        for channel, send in senders.items()
    )
