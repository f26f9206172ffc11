"""The composition root: reads the settings and hands the concrete parts to the commands.

Only this module and `gateway.serving`, which assembles a serving process, name adapters.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING

from gateway.settings import Settings, misspelt, read

if TYPE_CHECKING:
    from gateway.cli.toolbox import ServeOptions, Stores, Toolbox
    from gateway.domain.logins import As
    from gateway.reports import Reports
    from gateway.storage.postgres.database import Database


class SystemClock:
    """The real time."""

    def now(self) -> datetime:
        """UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.perf_counter()


def run() -> None:
    """Run the `tollgate` command."""
    from gateway.cli.app import run_cli

    sys.exit(run_cli(lambda: build_toolbox(_settings())))


def _settings() -> Settings:
    for warning in misspelt(os.environ):
        print(warning, file=sys.stderr)
    return read()


def build_toolbox(settings: Settings) -> Toolbox:
    """Hand the commands their dependencies. Slow imports happen when a part is opened."""
    from gateway.cli.toolbox import Options, Toolbox

    options = Options(
        home=settings.home_path,
        database_url=settings.database_url,
        gateway_database_url=settings.gateway_database_url,
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
        dashboard_hosts=settings.dashboard_hosts,
        dashboard_port=settings.dashboard_port,
        engine_port=settings.engine_port,
        region=settings.region,
    )

    return Toolbox(
        options=options,
        open_stores=lambda: open_administration(settings),
        open_as_owner=lambda: open_stores(settings),
        open_booking=lambda: open_booking(settings),
        open_reports=lambda: open_reports(settings),
        open_address=lambda purpose: address_as(settings, purpose),
        serve=lambda asked: serve(
            _with_address(settings, asked), allow_demo_keys=asked.allow_demo_keys
        ),
        now=SystemClock().now,
        random_bytes=secrets.token_bytes,
    )


def _with_address(settings: Settings, asked: ServeOptions) -> Settings:
    """Let the address on the command line override the settings."""
    given = {"host": asked.host, "port": asked.port}
    return settings.model_copy(
        update={name: value for name, value in given.items() if value is not None}
    )


@contextmanager
def database_url(settings: Settings) -> Iterator[str]:
    """Yield the database's address; the embedded database runs while this is open."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    from gateway.storage.postgres.embedded import EmbeddedPostgres

    postgres = EmbeddedPostgres(settings.home_path)
    try:
        yield postgres.start()
    finally:
        postgres.stop()


@contextmanager
def address_as(settings: Settings, purpose: As) -> Iterator[str]:
    """Yield the address for one purpose: from the settings, else `db upgrade`'s login, else the
    owner's.
    """
    from gateway.domain.logins import As
    from gateway.storage.postgres.logins import address_as

    given = {
        As.GATEWAY: settings.gateway_database_url,
        As.REPORTS: settings.reports_database_url,
        As.ADMIN: settings.admin_database_url,
    }[purpose]
    if given is not None:
        yield given
        return
    with database_url(settings) as url:
        yield address_as(url, purpose, settings.home_path)


@contextmanager
def open_stores(settings: Settings) -> Iterator[Stores]:
    """Open the stores with the login of the database's own URL: the owner, for migrations."""
    from gateway.cli.operator import operator_name
    from gateway.storage.postgres.database import Database

    with (
        database_url(settings) as url,
        _stores(url, Database(url, operator=operator_name())) as stores,
    ):
        yield stores


@contextmanager
def open_administration(settings: Settings) -> Iterator[Stores]:
    """Open the stores in the administration role, if the login may use it."""
    from gateway.cli.operator import operator_name
    from gateway.domain.logins import As
    from gateway.storage.postgres.database import Database

    with address_as(settings, As.ADMIN) as url:
        database = Database(url, role_if_member="tollgate_admin", operator=operator_name())
        with _stores(url, database) as stores:
            yield stores


@contextmanager
def open_booking(settings: Settings) -> Iterator[Stores]:
    """Open the stores in the gateway's role, if the login may use it, for commands that write
    events.
    """
    from gateway.cli.operator import operator_name
    from gateway.domain.logins import As
    from gateway.storage.postgres.database import Database

    with address_as(settings, As.GATEWAY) as url:
        database = Database(url, role_if_member="tollgate_gateway", operator=operator_name())
        with _stores(url, database) as stores:
            yield stores


@contextmanager
def open_serving(settings: Settings) -> Iterator[Stores]:
    """Open the stores in the gateway's role, with a limit on each transaction's wait for
    Postgres.
    """
    from gateway.domain.logins import As
    from gateway.storage.postgres.database import SERVING_LIMIT_S, Database
    from gateway.storage.postgres.logins import renewed

    home = settings.home_path
    with (
        address_as(settings, As.GATEWAY) as url,
        _stores(
            url,
            Database(
                url,
                role="tollgate_gateway",
                limit_s=SERVING_LIMIT_S,
                renew=lambda: renewed(url, As.GATEWAY, home),
            ),
        ) as stores,
    ):
        yield stores


@contextmanager
def _stores(url: str, database: Database) -> Iterator[Stores]:
    from gateway.cli.toolbox import Stores
    from gateway.storage.budgets.budgets import BudgetStore
    from gateway.storage.ledger.ledger import Ledger
    from gateway.storage.policy.keys import KeyStore
    from gateway.storage.policy.policies import PolicyStore
    from gateway.storage.policy.prices import PriceStore

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
def open_reports(settings: Settings, *, limit_s: float = inf) -> Iterator[Reports]:
    """Open the reports in the read-only role."""
    from gateway import reports
    from gateway.domain.logins import As
    from gateway.storage.postgres.logins import renewed

    with address_as(settings, As.REPORTS) as url:
        opened = reports.open(
            url, limit_s=limit_s, renew=lambda: renewed(url, As.REPORTS, settings.home_path)
        )
        try:
            yield opened
        finally:
            opened.close()


def serve(settings: Settings, *, allow_demo_keys: bool) -> None:
    """Run the gateway until it is asked to stop."""
    import uvloop

    from gateway.api.allocator import tune_allocator
    from gateway.api.server import bind
    from gateway.services.budgets.own_reads import PATIENCE_S
    from gateway.storage.policy import pepper
    from gateway.telemetry import logs

    tune_allocator()
    logs.configure(settings.log_level)
    peppers = pepper.load(settings.pepper_path)
    listener = bind(settings.host, settings.port, setting="--port or TOLLGATE_PORT")
    from gateway.serving import (
        process,
    )  # half a second of imports; a port in use is reported before

    with open_serving(settings) as stores, open_reports(settings, limit_s=PATIENCE_S) as opened:
        uvloop.run(
            process.serve(
                settings,
                listener,
                stores=stores,
                reports=opened,
                peppers=peppers,
                clock=SystemClock(),
                allows_demo_keys=allow_demo_keys,
            )
        )


if __name__ == "__main__":
    run()
