"""All sides of a serving process but its edge, in the order in which they are made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from uuid import UUID

from gateway.services.own_reads import OwnReads
from gateway.services.refresh import Refresher
from gateway.services.shedding import Shedding
from gateway.services.snapshot_source import StoredSnapshots
from gateway.services.supervisor import Supervisor
from gateway.serving.allowances import Allowances, build_allowances
from gateway.serving.dispatch import Deployments, Dispatch, build_deployments, build_dispatch
from gateway.serving.ground import Ground
from gateway.serving.ledger import Ledger, build_ledger, open_journal
from gateway.serving.shared_jobs import SharedJobs, build_shared_jobs
from gateway.storage import pepper
from gateway.storage.changes import ChangeFeed
from gateway.storage.ejections import EjectionStore
from gateway.storage.last_snapshot import SnapshotFile
from gateway.storage.prices import builtin_price
from gateway.storage.serving import note_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The named parts. `refresher` brings in policy, prices and keys; `shedding` says when there is too much.

    `reads` looks up what callers ask of their own figures; `shared` are the jobs that one worker of all does;
    `supervisor` runs what goes on in the background.
    """

    ground: Ground
    allowances: Allowances
    deployments: Deployments
    ledger: Ledger
    dispatch: Dispatch
    shedding: Shedding
    refresher: Refresher
    reads: OwnReads
    shared: SharedJobs
    supervisor: Supervisor


def build_parts(ground: Ground) -> Parts:
    """The journal comes first: what this worker has at hand hangs on its id. Raises `BadUsage`."""
    own = open_journal(ground)
    allowances = build_allowances(ground, own.journal_id)
    deployments = build_deployments(ground)
    ledger = build_ledger(ground, own, purses=allowances.purses, deployments=deployments)
    dispatch = build_dispatch(ground, deployments)
    return Parts(
        ground=ground, allowances=allowances, deployments=deployments, ledger=ledger, dispatch=dispatch,
        shedding=_shedding(ground, ledger), refresher=_refresher(ground, own.journal_id),
        reads=OwnReads(allowances.limiter), shared=build_shared_jobs(ground),
        supervisor=Supervisor(ground.clock, on_failure=ground.metrics.count_background_failure),
    )  # fmt: skip


def _shedding(ground: Ground, ledger: Ledger) -> Shedding:
    settings, drain = ground.settings, ground.drain
    return Shedding(
        journal_share=lambda: ledger.health().journal_used_bytes / settings.journal_max_bytes,
        streams=lambda: len(drain.in_flight), max_streams=settings.max_streams, lag_s=settings.shed_lag_s,
        on_shed=ground.metrics.count_shed,
    )  # fmt: skip


def _refresher(ground: Ground, worker: UUID) -> Refresher:
    settings, database, peppers = ground.settings, ground.stores.database, ground.peppers
    version = ground.metrics.policy_version
    return Refresher(
        _snapshots(ground), ground.holder, every_s=settings.refresh_s, clock=ground.clock,
        on_swap=lambda snapshot: version.set(snapshot.policy.version),
        shelf=SnapshotFile(settings.home_path / "snapshot", peppers, now=ground.clock.now),
        tell=lambda served: note_version(database, worker, served),
    )  # fmt: skip


def _snapshots(ground: Ground) -> StoredSnapshots:
    stores, peppers = ground.stores, ground.peppers
    return StoredSnapshots(
        policies=stores.policies, keys=stores.keys, ejections=EjectionStore(stores.database), prices=stores.prices,
        changes=ChangeFeed(stores.database), peppers={one.pepper_id: one for one in peppers}, builtin=builtin_price,
        clock=ground.clock, check=partial(pepper.check, stores.database, peppers),
    )  # fmt: skip
