"""Starts a serving process for `tollgate serve`: tunes memory and logs, loads the pepper, binds the
address, opens the stores, and runs `process.serve`.
"""

from __future__ import annotations

import uvloop

from gateway.api.allocator import tune_allocator
from gateway.api.server import METRICS, bind
from gateway.composition import open_reports, open_serving
from gateway.errors import DatabaseUnavailable, ReadOnlyDatabase, UnsuitableDatabase
from gateway.services.limits.own_reads import PATIENCE_S
from gateway.services.ports import Clock
from gateway.serving import process
from gateway.settings import Settings
from gateway.storage import owned_files
from gateway.storage.policy import pepper
from gateway.storage.policy.last_snapshot import SNAPSHOT
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.schema.baseline import require_baseline
from gateway.telemetry import logs


def serve(settings: Settings, *, clock: Clock, allows_demo_keys: bool) -> None:
    """Run one serving process with these settings until it is asked to stop: bind the address, open
    the stores, serve.
    """
    tune_allocator()
    owned_files.require_folder(settings.home_path)
    peppers = pepper.load(settings.pepper_path)
    listener = bind(settings.host, settings.port)
    metrics_listener = bind(settings.metrics_host, settings.metrics_port, METRICS)
    with (
        logs.configured(settings.log_level) as log_writer,
        open_serving(settings) as stores,
        open_reports(settings, limit_s=PATIENCE_S) as opened,
    ):
        _require_suitable(stores.database, has_snapshot=(settings.home_path / SNAPSHOT).exists())
        uvloop.run(
            process.serve(
                settings,
                listener,
                metrics_listener,
                stores=stores,
                reports=opened,
                peppers=peppers,
                clock=clock,
                allows_demo_keys=allows_demo_keys,
                log_writer=log_writer,
            )
        )


def _require_suitable(database: Database, *, has_snapshot: bool) -> None:
    """Raise `UnsuitableDatabase` if the gateway's address leads to a pooler that keeps no sessions,
    or on the first start to a read-only server, and `BadUsage` if its database is older than the
    baseline.

    A gateway that has served before starts without Postgres, so also while another server is being
    made the primary.
    """
    try:
        database.require_sessions()
        database.require_primary()
        require_baseline(database)
    except ReadOnlyDatabase:
        if not has_snapshot:
            raise
    except UnsuitableDatabase:
        raise
    except DatabaseUnavailable:
        pass  # it is away; the start goes on without it
