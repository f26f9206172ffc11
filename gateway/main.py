"""The composition root: reads the settings and puts the real parts together. Nothing else names adapters."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Protocol

from gateway.settings import Settings, read

if TYPE_CHECKING:
    from socket import socket
    from uuid import UUID

    from gateway.cli.toolbox import Stores, Toolbox
    from gateway.domain.api_keys import Pepper
    from gateway.domain.ledger_health import LedgerState
    from gateway.domain.policy import PolicyVersion
    from gateway.domain.usage_event import UsageEvent
    from gateway.reports import Reports
    from gateway.services.ports import Clock
    from gateway.services.snapshot import SnapshotHolder, SnapshotSource
    from gateway.storage.database import Database
    from gateway.telemetry.metrics import Metrics


class Job(Protocol):
    """Something that goes on in the background until it is cancelled."""

    async def run(self) -> None:
        """Do it."""


class SystemClock:
    """The real time."""

    def now(self) -> datetime:
        """UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.perf_counter()


def run() -> None:
    """The `tollgate` command."""
    from gateway.cli.app import run_cli

    sys.exit(run_cli(lambda: build_toolbox(read())))


def build_toolbox(settings: Settings) -> Toolbox:
    """Hand the commands what they need. Heavy parts are imported when they are opened."""
    from gateway.cli.toolbox import Options, Toolbox

    options = Options(
        home=settings.home_path,
        database_url=settings.database_url,
        admin_database_url=settings.admin_database_url,
        reports_database_url=settings.reports_database_url,
        pepper_path=settings.pepper_path,
        journal_path=settings.journal_path,
        engine_home=settings.engine_home_path,
        host=settings.host,
        port=settings.port,
        metrics_host=settings.metrics_host,
        metrics_port=settings.metrics_port,
        dashboard_host=settings.dashboard_host,
        dashboard_port=settings.dashboard_port,
        engine_port=settings.engine_port,
        region=settings.region,
    )

    return Toolbox(
        options=options,
        open_stores=lambda: open_administration(settings),
        open_as_owner=lambda: open_stores(settings),
        open_reports=lambda: open_reports(settings),
        serve=lambda allow_demo_keys: serve(settings, allow_demo_keys=allow_demo_keys),
        now=SystemClock().now,
        random_bytes=secrets.token_bytes,
    )


@contextmanager
def database_url(settings: Settings) -> Iterator[str]:
    """The address of the database; the embedded one runs for as long as this is open."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    from gateway.storage.embedded import EmbeddedPostgres

    postgres = EmbeddedPostgres(settings.home_path)
    try:
        yield postgres.start()
    finally:
        postgres.stop()


@contextmanager
def open_stores(settings: Settings, *, role: str | None = None) -> Iterator[Stores]:
    """Everything stored, as the login of the database's own URL or in a narrower role."""
    from gateway.cli.operator import operator_name
    from gateway.storage.database import Database

    operator = operator_name() if role is None else None
    with database_url(settings) as url, _stores(url, Database(url, role=role, operator=operator)) as stores:
        yield stores


@contextmanager
def open_administration(settings: Settings) -> Iterator[Stores]:
    """Everything stored, in the role of administration wherever the login may take it."""
    from gateway.cli.operator import operator_name
    from gateway.storage.database import Database

    given = settings.admin_database_url
    with nullcontext(given) if given is not None else database_url(settings) as url:
        database = Database(url, role_if_member="tollgate_admin", operator=operator_name())
        with _stores(url, database) as stores:
            yield stores


@contextmanager
def _stores(url: str, database: Database) -> Iterator[Stores]:
    from gateway.cli.toolbox import Stores
    from gateway.storage.budgets import BudgetStore
    from gateway.storage.keys import KeyStore
    from gateway.storage.ledger import Ledger
    from gateway.storage.policies import PolicyStore
    from gateway.storage.prices import PriceStore

    try:
        yield Stores(
            url=url,
            database=database,
            keys=KeyStore(database),
            policies=PolicyStore(database),
            prices=PriceStore(database),
            ledger=Ledger(database),
            budgets=BudgetStore(database),
        )
    finally:
        database.close()


@contextmanager
def open_reports(settings: Settings) -> Iterator[Reports]:
    """The reports, in the read-only role."""
    from gateway import reports

    with database_url(settings) as url:
        opened = reports.open(settings.reports_database_url or url)
        try:
            yield opened
        finally:
            opened.close()


def serve(settings: Settings, *, allow_demo_keys: bool) -> None:
    """Run the gateway until it is told to stop."""
    import uvloop

    from gateway import reports
    from gateway.api.server import bind, tune_allocator
    from gateway.storage import pepper
    from gateway.telemetry import logs

    tune_allocator()
    logs.configure(settings.log_level)
    peppers = pepper.load(settings.pepper_path)
    listener = bind(settings.host, settings.port, setting="TOLLGATE_PORT")
    with open_stores(settings, role="tollgate_gateway") as stores:
        opened = reports.open(settings.reports_database_url or stores.url)
        try:
            uvloop.run(_serve(settings, stores, opened, peppers, listener, allow_demo_keys=allow_demo_keys))
        finally:
            opened.close()


async def _serve(
    settings: Settings, stores: Stores, opened: Reports, peppers: tuple[Pepper, ...], listener: socket,
    *, allow_demo_keys: bool,
) -> None:  # fmt: skip
    import structlog

    from gateway.api.app import PlainEndpoints, build_app
    from gateway.api.edge import Drain, Edge
    from gateway.api.forward import Forwarder
    from gateway.api.server import serve_until_stopped
    from gateway.domain.allowance_health import allowance_checks
    from gateway.domain.end_user import end_user_key
    from gateway.domain.idempotency import claim_secret
    from gateway.domain.ledger_health import health_checks
    from gateway.providers import probe
    from gateway.providers.registry import build_providers
    from gateway.providers.token_counting import TokenCounter
    from gateway.providers.transport import open_transport
    from gateway.services.ejections import Ejections
    from gateway.services.endings import DrainLimits, Endings
    from gateway.services.engine_load import EngineLoads
    from gateway.services.engine_probes import EngineProbes
    from gateway.services.gate import Gate
    from gateway.services.health import Health
    from gateway.services.idempotency import Claims
    from gateway.services.ledger_health import ledger_health
    from gateway.services.ledger_watch import LedgerWatch
    from gateway.services.limiter import Limiter
    from gateway.services.meter import Meter
    from gateway.services.outlook import Outlook
    from gateway.services.purses import Purses
    from gateway.services.refresh import Refresher
    from gateway.services.refusals import Refusals
    from gateway.services.request import RequestService
    from gateway.services.shedding import Shedding
    from gateway.services.snapshot import SnapshotHolder, problems, snapshot_checks
    from gateway.services.writer import EventWriter, Progress
    from gateway.storage import event_journal
    from gateway.storage.budgets import BudgetLeases
    from gateway.storage.ejections import EjectionStore
    from gateway.storage.engine_probes import EngineProbeNotes
    from gateway.storage.idempotency import ClaimTable
    from gateway.storage.journals_table import JournalTable
    from gateway.storage.last_snapshot import SnapshotFile
    from gateway.storage.limits import LimitWindows
    from gateway.storage.refusals import RefusalStore
    from gateway.storage.serving import note_version
    from gateway.telemetry import logs
    from gateway.telemetry.metrics import Metrics, start_listener

    clock, metrics, drain = SystemClock(), Metrics(), Drain()
    holder = SnapshotHolder(clock=clock, outage_s=settings.outage_s)
    metrics.snapshot_age.set_function(holder.age_s)
    start_listener(metrics, host=settings.metrics_host, port=settings.metrics_port)
    journals = JournalTable(stores.database)
    own = event_journal.open_own(
        settings.journal_path, max_bytes=settings.journal_max_bytes, syncs=settings.journal_fsync,
        on_failed_sync=_end_process, on_synced=metrics.journal_sync.observe,
    )  # fmt: skip
    purses = Purses(
        BudgetLeases(stores.database), clock, worker=own.journal_id, lease_s=settings.lease_s,
        wait_s=settings.budget_wait_s,
    )  # fmt: skip
    limiter = Limiter(LimitWindows(stores.database), clock, worker=own.journal_id)
    claims = Claims(ClaimTable(stores.database), clock, secret=claim_secret(peppers[-1]), journal_id=own.journal_id)
    refusals = Refusals(RefusalStore(stores.database), clock, journal_id=own.journal_id)
    gate = Gate(purses=purses, limiter=limiter, claims=claims, refusals=refusals, clock=clock)
    ejections = Ejections(EjectionStore(stores.database), clock, on_ejected=metrics.count_ejection)

    def policy() -> PolicyVersion | None:
        return None if holder.current is None else holder.current.policy

    loads = EngineLoads(policy=policy, page=probe.metrics_page, clock=clock)
    outlook = Outlook(clock, loads=loads)

    def on_event(event: UsageEvent) -> None:
        metrics.count_event(event)
        outlook.note(event)

    meter = Meter(own, purses, on_event=on_event, ejections=ejections)

    def on_written(progress: Progress) -> None:
        if progress.is_own:
            meter.note_written(progress.keys)
        metrics.note_written(progress.written)

    writer = EventWriter(
        own, event_journal.LeftJournals(settings.journal_path).adopt, stores.ledger, journals, clock,
        every_s=settings.write_every_s, on_written=on_written, on_failure=metrics.write_failures.inc,
        replica=gethostname(),
    )  # fmt: skip
    transport = open_transport(settings.max_streams)
    counter = TokenCounter({model: str(path) for model, path in settings.tokenizers.items()})
    for model, problem in counter.check().items():
        structlog.get_logger().warning("tokenizer_not_usable", model=model, problem=problem)
    limits = DrainLimits(
        answers=settings.abandoned_answers, seconds=settings.abandoned_s, events=settings.abandoned_events
    )
    endings = Endings(counter, limits, is_stopping=lambda: drain.is_over)
    providers, new_id = build_providers(salt_key=peppers[0].secret), request_ids(clock)
    standings = Health(
        max_in_flight=max(settings.max_streams // 2, 1), on_begin=loads.began, on_open=metrics.note_opened,
        on_close=metrics.note_closed, on_retry=metrics.count_retry, on_retry_refused=metrics.count_refused_retry,
    )  # fmt: skip
    probes = EngineProbes(
        standings, transport=transport, providers=providers, policy=policy, ejections=ejections, clock=clock,
        new_id=new_id, region=settings.region, looks_alive=loads.looks_alive, notes=EngineProbeNotes(stores.database),
    )  # fmt: skip
    shedding = Shedding(
        journal_share=lambda: health().journal_used_bytes / settings.journal_max_bytes,
        streams=lambda: len(drain.in_flight), max_streams=settings.max_streams, lag_s=settings.shed_lag_s,
        on_shed=metrics.count_shed,
    )  # fmt: skip
    refresher = Refresher(
        _snapshots(stores, peppers, clock), holder, every_s=settings.refresh_s, clock=clock,
        on_swap=lambda snapshot: metrics.policy_version.set(snapshot.policy.version),
        shelf=SnapshotFile(settings.home_path / "snapshot", peppers, now=clock.now),
        tell=lambda version: note_version(stores.database, own.journal_id, version),
    )  # fmt: skip
    forwarder = Forwarder(
        requests=RequestService(
            transport=transport, providers=providers, gate=gate, meter=meter, endings=endings, clock=clock,
            max_attempts=settings.max_attempts, refusals=refusals, ejections=ejections, outlook=outlook,
            health=standings, region=settings.region,
        ),
        limiter=limiter, holder=holder, metrics=metrics,
        lines=logs.RequestLog(settings.log_level, partial(os.write, 2)), clock=clock,
        new_id=new_id, is_full=lambda: own.is_full, shedding=shedding,
        max_body_bytes=settings.max_body_bytes, allows_demo_keys=allow_demo_keys,
        end_user_key=end_user_key(peppers[0]),
    )  # fmt: skip
    metrics.ejected.set_function(lambda: len(ejections.out({} if holder.current is None else holder.current.ejected)))
    watch = LedgerWatch(lambda: _ledger_state(stores, clock), on_state=metrics.note_state)
    health = partial(ledger_health, own, writer, meter)
    metrics.watch_health(health)
    metrics.loop_lag.set_function(lambda: shedding.lag_s)
    metrics.watch_allowances(budgets_away_s=lambda: purses.away_s, is_alone=lambda: limiter.is_alone)
    plain = PlainEndpoints(
        holder=holder, reports=opened, clock=clock, standing=limiter.standing, allows_demo_keys=allow_demo_keys,
        not_ready=lambda: problems(holder, is_full=own.is_full, is_draining=drain.is_draining),
        checks=lambda: (
            *snapshot_checks(holder),
            *allowance_checks(
                budgets_away_s=purses.away_s, lease_s=settings.lease_s, is_alone=limiter.is_alone
            ),
            *health_checks(health()),
            *watch.checks(),
        ),
        recent=meter.recent, is_lagging=journals.is_lagging, region=settings.region,
        outlook=outlook, max_body_bytes=settings.max_body_bytes,
    )  # fmt: skip
    edge = Edge(
        forward=forwarder, plain=build_app(plain), allowed_hosts=frozenset(settings.allowed_hosts),
        max_in_flight=settings.max_streams, metrics_address=f"{settings.metrics_host}:{settings.metrics_port}",
        drain=drain,
    )  # fmt: skip
    await refresher.start()
    await limiter.exchange()  # until then a worker believes itself alone
    logs.say_serving(listener.getsockname(), metrics_at=edge.metrics_address, problem=holder.problem)
    others = _jobs(settings, stores, clock, holder=holder, metrics=metrics)
    jobs: Sequence[Job] = (
        refresher,
        meter,
        purses,
        limiter,
        claims,
        refusals,
        ejections,
        watch,
        loads,
        probes,
        shedding,
        *others,
    )
    background = [asyncio.create_task(job.run()) for job in jobs]
    writing = asyncio.create_task(writer.run())
    try:
        await serve_until_stopped(edge, listener, drain_s=settings.drain_s)
    finally:
        await endings.close()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        for shared in (purses, limiter, claims, refusals):
            await shared.close()
        await own.flush()  # the writer reads what is durable
        writer.stop()
        await writing
        counter.close()
        await transport.close()
        own.finish()


def _jobs(
    settings: Settings, stores: Stores, clock: Clock, *, holder: SnapshotHolder, metrics: Metrics
) -> Sequence[Job]:
    """What Postgres needs done from time to time; every worker has them, Postgres lets one at each at a time."""
    import random

    from gateway.providers import probe
    from gateway.providers.webhook import Webhook
    from gateway.services.budget_alerts import BudgetAlerts
    from gateway.services.engine_resolution import EngineResolution
    from gateway.services.engine_watch import EngineWatch
    from gateway.services.months import MonthKeeper
    from gateway.services.rollups import RollupKeeper
    from gateway.storage import adjustments, rollups
    from gateway.storage.budget_alerts import BudgetAlertStore
    from gateway.storage.engine_residuals import EngineResiduals
    from gateway.storage.engine_samples import EngineSamples
    from gateway.storage.journals_table import JournalTable
    from gateway.storage.leadership import Leadership
    from gateway.storage.partitions import ensure_months

    database = stores.database
    ttl = timedelta(seconds=settings.unknown_hold_ttl_s)

    def policy() -> PolicyVersion | None:
        return None if holder.current is None else holder.current.policy

    return (
        MonthKeeper(lambda first, last: ensure_months(database, first=first, last=last), clock),
        RollupKeeper(
            lambda: rollups.refresh(database), lambda: adjustments.expire_holds(database, ttl=ttl),
            lambda: JournalTable(database).lose_silent(timedelta(seconds=settings.journal_lost_after_s)), clock,
        ),
        EngineWatch(
            policy=policy, look_at=lambda deployment: probe.sample(deployment, now=clock.now),
            store=EngineSamples(database), leadership=Leadership(database, "engines"), clock=clock,
            after_round=EngineResolution(EngineResiduals(database), policy=policy).settle,
        ),
        BudgetAlerts(
            store=BudgetAlertStore(database), receiver=Webhook(clock.now), policy=policy,
            leadership=Leadership(database, "budget_alerts"), clock=clock, draw=random.random,
            on_raised=metrics.count_budget_alert, on_given_up=metrics.given_up_budget_alerts.inc,
            on_waiting=metrics.undelivered_budget_alerts.set,
        ),
    )  # fmt: skip


def _ledger_state(stores: Stores, clock: Clock) -> LedgerState:
    from gateway.services.months import AHEAD
    from gateway.storage.ledger_state import read_state

    return read_state(stores.database, partitions_until=clock.now().date() + AHEAD)


def _end_process(error: OSError) -> None:
    """After a failed sync nobody knows what is on the disk. What is in the journal is found by the next start."""
    os.write(2, f"The journal's disk failed ({error}): this process ends at once.\n".encode())
    os._exit(74)  # EX_IOERR


def request_ids(clock: Clock) -> Callable[[], UUID]:
    """Return what makes a UUIDv7 of each moment it is called in. The kernel is asked for randomness now and then."""
    from gateway.domain.identity import RANDOM_BYTES, uuid7

    def draw() -> Iterator[bytes]:
        while True:
            drawn = os.urandom(RANDOM_BYTES * 256)
            yield from (drawn[at : at + RANDOM_BYTES] for at in range(0, len(drawn), RANDOM_BYTES))

    random = draw()
    return lambda: uuid7(int(clock.now().timestamp() * 1000), next(random))


def _snapshots(stores: Stores, peppers: tuple[Pepper, ...], clock: Clock) -> SnapshotSource:
    from gateway.services.snapshot_source import StoredSnapshots
    from gateway.storage.changes import ChangeFeed
    from gateway.storage.ejections import EjectionStore
    from gateway.storage.pepper import check
    from gateway.storage.prices import builtin_price

    return StoredSnapshots(
        policies=stores.policies, keys=stores.keys, ejections=EjectionStore(stores.database), prices=stores.prices,
        changes=ChangeFeed(stores.database),
        peppers={pepper.pepper_id: pepper for pepper in peppers}, builtin=builtin_price, clock=clock,
        check=partial(check, stores.database, peppers),
    )  # fmt: skip


if __name__ == "__main__":
    run()
