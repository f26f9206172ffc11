"""The composition root: reads the settings and hands the concrete parts to the commands.

Only this module and `gateway.serving`, which assembles a serving process, name adapters.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING

from gateway.settings import Settings, misspelt, read

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from gateway.cli.toolbox import Machine, ServeOptions, Toolbox
    from gateway.domain.ledger.journals import LocalJournal
    from gateway.domain.logins import As
    from gateway.domain.policy.api_keys import Pepper
    from gateway.domain.policy.policy import Deployment
    from gateway.reports import Reports
    from gateway.services.stores import PriceList, Stores
    from gateway.serving.context import ServingStores
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
        machine=_machine(settings),
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
        _stores(settings, url, Database(url, operator=operator_name())) as stores,
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
        with _stores(settings, url, database) as stores:
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
        with _stores(settings, url, database) as stores:
            yield stores


@contextmanager
def open_serving(settings: Settings) -> Iterator[ServingStores]:
    """Open the stores in the gateway's role, with a limit on each transaction's wait for
    Postgres.
    """
    from gateway.domain.logins import As
    from gateway.serving.context import ServingStores
    from gateway.storage.ledger.ledger import Ledger
    from gateway.storage.policy.keys import KeyStore
    from gateway.storage.policy.policies import PolicyStore
    from gateway.storage.policy.prices import PriceStore
    from gateway.storage.postgres.database import SERVING_LIMIT_S, Database
    from gateway.storage.postgres.logins import renewed

    home = settings.home_path
    with address_as(settings, As.GATEWAY) as url:
        database = Database(
            url,
            role="tollgate_gateway",
            limit_s=SERVING_LIMIT_S,
            renew=lambda: renewed(url, As.GATEWAY, home),
        )
        try:
            yield ServingStores(
                database=database,
                keys=KeyStore(database),
                policies=PolicyStore(database),
                prices=PriceStore(database),
                ledger=Ledger(database),
            )
        finally:
            database.close()


@contextmanager
def _stores(settings: Settings, url: str, database: Database) -> Iterator[Stores]:
    from gateway.services.stores import Stores
    from gateway.storage.administration import Administration
    from gateway.storage.budgets.budgets import BudgetStore
    from gateway.storage.deployments.ejections import EjectionStore
    from gateway.storage.ledger.adjustments import ResolutionStore
    from gateway.storage.ledger.dead_letters import DeadLetters
    from gateway.storage.ledger.journals_table import JournalTable
    from gateway.storage.ledger.ledger import Ledger
    from gateway.storage.ledger.repricing import RepriceStore
    from gateway.storage.policy import price_list
    from gateway.storage.policy.audit import AuditLog
    from gateway.storage.policy.keys import KeyStore
    from gateway.storage.policy.policies import PolicyStore
    from gateway.storage.policy.prices import PriceStore

    try:
        yield Stores(
            url=url,
            database=Administration(database, url=url, home=settings.home_path),
            keys=KeyStore(database),
            policies=PolicyStore(database),
            prices=PriceStore(database),
            price_list=price_list,
            budgets=BudgetStore(database),
            ledger=Ledger(database),
            letters=DeadLetters(database),
            resolutions=ResolutionStore(database),
            repricing=RepriceStore(database),
            journals=JournalTable(database),
            ejections=EjectionStore(database),
            audit=AuditLog(database),
        )
    finally:
        database.close()


def _machine(settings: Settings) -> Machine:
    """Return what commands need of this machine; each adapter is imported when it is asked."""
    from gateway.cli.toolbox import Machine

    def price_list() -> PriceList:
        from gateway.storage.policy import price_list

        return price_list

    def peppers() -> tuple[Pepper, ...]:
        from gateway.storage.policy import pepper

        return pepper.load(settings.pepper_path)

    def create_pepper() -> None:
        from gateway.storage.policy import pepper

        pepper.create(settings.pepper_path)

    def journals(on_odd: Callable[[UUID, OSError], None]) -> Sequence[LocalJournal]:
        from gateway.storage.journal import journals_on

        return journals_on(settings.journal_path, on_odd=on_odd)

    def database_folder() -> Path:
        from gateway.storage.postgres.embedded import EmbeddedPostgres

        return EmbeddedPostgres(settings.home_path).place()

    def secret_of(deployment: Deployment) -> str | None:
        from gateway.providers.credentials import resolve

        return resolve(deployment)

    def user_of(address: str) -> str | None:
        from gateway.storage.postgres.database import parse_url

        user = parse_url(address).get("user")
        return None if user is None else str(user)

    def owner() -> str | None:
        from gateway.storage.postgres.embedded import ROLE

        return ROLE if settings.database_url is None else user_of(settings.database_url)

    return Machine(
        price_list=price_list,
        peppers=peppers,
        create_pepper=create_pepper,
        journals=journals,
        database_folder=database_folder,
        secret_of=secret_of,
        user_of=user_of,
        owner=owner,
    )


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
