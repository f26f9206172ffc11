"""Builds all parts of a serving process except its HTTP edge, in the order of their dependencies;
`process.py` starts their loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from uuid import UUID

from gateway.services.budgets.postgres_time import PostgresTime
from gateway.services.limits.own_reads import OwnReads
from gateway.services.request.shedding import Shedding
from gateway.services.snapshot.refresh import Refresher
from gateway.services.snapshot.source import StoredSnapshots
from gateway.services.supervisor import Supervisor
from gateway.serving.admission_parts import AdmissionParts, build_admission_parts
from gateway.serving.context import ProcessContext
from gateway.serving.dispatch import Deployments, Dispatch, build_deployments, build_dispatch
from gateway.serving.ledger import LedgerParts, build_ledger, open_journal
from gateway.serving.shared_jobs import SharedJobs, build_shared_jobs
from gateway.storage.deployments.ejections import EjectionStore
from gateway.storage.ledger.served_versions import note_version
from gateway.storage.policy import pepper
from gateway.storage.policy.last_snapshot import SNAPSHOT, SnapshotFile
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.postgres.change_notifications import ChangeFeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The parts of one serving process by name.

    `refresher` loads policy, prices and keys; `shedding` detects overload.

    `reads` looks up callers' own figures; `shared` are the jobs that one worker does for all;
    `supervisor` runs the background loops.
    """

    context: ProcessContext
    admission_parts: AdmissionParts
    deployments: Deployments
    ledger: LedgerParts
    dispatch: Dispatch
    shedding: Shedding
    refresher: Refresher
    reads: OwnReads
    shared: SharedJobs
    supervisor: Supervisor


def build_parts(context: ProcessContext) -> Worker:
    """Build the parts of a serving process. The journal comes first: leases belong to its id.
    Raises `BadUsage`.
    """
    own = open_journal(context)
    admission_parts = build_admission_parts(context, own.journal_id)
    deployments = build_deployments(context)
    ledger = build_ledger(
        context, own, budget_leases=admission_parts.budget_leases, deployments=deployments
    )
    dispatch = build_dispatch(context, deployments)
    return Worker(
        context=context,
        admission_parts=admission_parts,
        deployments=deployments,
        ledger=ledger,
        dispatch=dispatch,
        shedding=_shedding(context, ledger),
        refresher=_refresher(context, own.journal_id),
        reads=OwnReads(admission_parts.limiter.admit_read),
        shared=build_shared_jobs(context, deployments.loads, look_again=ledger.watch.look_again),
        supervisor=Supervisor(context.clock, on_failure=context.metrics.count_background_failure),
    )


def _shedding(context: ProcessContext, ledger: LedgerParts) -> Shedding:
    """Build the measurement of this worker's load that refuses requests early."""
    settings, drain = context.settings, context.drain
    return Shedding(
        journal_share=lambda: ledger.health().journal_used_bytes / settings.journal_max_bytes,
        streams=lambda: len(drain.in_flight),
        max_streams=settings.max_streams,
        lag_s=settings.shed_lag_s,
        on_shed=context.metrics.count_shed,
    )


def _refresher(context: ProcessContext, worker: UUID) -> Refresher:
    """Build the job that keeps policy, prices and keys current, and reports the served version."""
    settings, database, peppers = context.settings, context.stores.database, context.peppers
    version = context.metrics.policy_version
    return Refresher(
        _snapshots(context),
        context.holder,
        every_s=settings.refresh_s,
        clock=context.clock,
        on_swap=lambda snapshot: version.set(snapshot.policy.version),
        shelf=SnapshotFile(settings.home_path / SNAPSHOT, peppers, now=context.clock.now),
        report=lambda served: note_version(database, worker, served),
    )


def _snapshots(context: ProcessContext) -> StoredSnapshots:
    """Build the source of snapshots over the stores of policies, keys, prices and ejections."""
    stores, peppers = context.stores, context.peppers
    time = context.holder.postgres_time = PostgresTime(context.clock)
    return StoredSnapshots(
        policies=stores.policies,
        keys=stores.keys,
        ejections=EjectionStore(stores.database),
        prices=stores.prices,
        wait_for_change=ChangeFeed(stores.database).wait,
        peppers={one.pepper_id: one for one in peppers},
        builtin=builtin_price,
        clock=context.clock,
        check=partial(pepper.check, stores.database, peppers),
        note_time=partial(time.note_if_old, stores.database.stated_time),
    )
