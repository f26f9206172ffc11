"""Opens the database and the reports that the settings name, each in its role, for the commands
and for the serving process; builds the commands' toolbox.

With `gateway.serving` it is the composition root: only these name adapters. `main` imports it when
the first part is needed, because its imports take longer than `tollgate --help`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from typing import TYPE_CHECKING
from uuid import uuid4

from gateway.cli.operator import operator_name, signed_in_person
from gateway.cli.toolbox import (
    DeploymentCredentials,
    EngineAccess,
    Options,
    ServeOptions,
    Toolbox,
)
from gateway.domain.logins import LoginPurpose
from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.providers.credentials import resolve
from gateway.reports import reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.services.ports import Clock
from gateway.settings import Settings
from gateway.storage import owned_files
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres import logins
from gateway.storage.postgres.database import SERVING_LIMIT_S, Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from gateway.storage.postgres.logins import renewed

if TYPE_CHECKING:
    from gateway.domain.alerts.mail import MailAccount
    from gateway.providers.credential_checks import CredentialChecks
    from gateway.services.deployments.engine_probes import ProbeNotes
    from gateway.services.deployments.engine_status import EngineStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingStores:
    """An open database in the gateway's role, and the stores of a serving process."""

    database: Database
    keys: KeyStore
    policies: PolicyStore
    prices: PriceStore
    ledger: Ledger


def toolbox_of(
    settings: Settings, *, clock: Clock, serve: Callable[[Settings, bool], None]
) -> Toolbox:
    """Return the dependencies of all commands. `serve` takes the settings and whether demo keys
    work.
    """
    options = Options(
        home=settings.home_path,
        database_url=settings.database_url,
        gateway_database_url=settings.gateway_database_url,
        admin_database_url=settings.admin_database_url,
        finance_database_url=settings.finance_database_url,
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

    account = settings.mail_account
    return Toolbox(
        options=options,
        open_admin=lambda: open_as(settings, LoginPurpose.ADMIN),
        open_entering=lambda: open_finance(settings, is_entering=True),
        open_approving=lambda: open_finance(settings),
        open_booking=lambda: open_as(settings, LoginPurpose.GATEWAY),
        open_owner=lambda: open_owner(settings),
        open_reports=lambda: open_reports(settings),
        open_address=lambda purpose: address_as(settings, purpose),
        credentials=_credentials(clock),
        engines=_engines(settings, clock),
        mail_problem=None if account is None else partial(_mail_problem, account),
        serve=lambda asked: serve(_with_address(settings, asked), asked.allow_demo_keys),
        now=clock.now,
        random_bytes=secrets.token_bytes,
    )


def _with_address(settings: Settings, asked: ServeOptions) -> Settings:
    """Return the settings with the address and port of `serve`'s command line, if it names them."""
    given = {"host": asked.host, "port": asked.port}
    return settings.model_copy(
        update={name: value for name, value in given.items() if value is not None}
    )


@contextmanager
def database_url(settings: Settings) -> Iterator[str]:
    """Yield the database's address with the owner's login; an embedded database runs while this is
    open. Raises `BadUsage` if the home is another user's.
    """
    owned_files.require_folder(settings.home_path)
    if settings.database_url is not None:
        with _answering(settings, settings.database_url) as url:
            yield url
        return
    postgres = EmbeddedPostgres(settings.home_path)
    try:
        yield postgres.start()
    finally:
        postgres.stop()


@contextmanager
def _answering(settings: Settings, url: str) -> Iterator[str]:
    """Yield an address from the settings. That of this home's own embedded database, as `tollgate
    db url` prints it, answers while this is open.
    """
    postgres = EmbeddedPostgres(settings.home_path)
    if not postgres.is_at(url):
        yield url
        return
    with postgres:
        yield url


@contextmanager
def address_as(settings: Settings, purpose: LoginPurpose) -> Iterator[str]:
    """Yield the database's address with the login for one purpose: from the settings, else the one
    that `db upgrade` made, else the owner's.
    """
    given = _given(settings, purpose)
    if given is not None:
        with _answering(settings, given) as url:
            yield url
        return
    with database_url(settings) as url:
        yield logins.address_as(url, purpose, settings.home_path)


def _given(settings: Settings, purpose: LoginPurpose) -> str | None:
    """Return the address that the settings name for one purpose; None if they name none."""
    return {
        LoginPurpose.GATEWAY: settings.gateway_database_url,
        LoginPurpose.REPORTS: settings.reports_database_url,
        LoginPurpose.ADMIN: settings.admin_database_url,
        LoginPurpose.FINANCE: settings.finance_database_url,
    }[purpose]


def _setting(settings: Settings, purpose: LoginPurpose) -> str:
    """Return the variable to fix if the address for one purpose is wrong."""
    owned = "" if _given(settings, purpose) is None else f"{purpose.value.upper()}_"
    return f"TOLLGATE_{owned}DATABASE_URL"


@contextmanager
def open_owner(settings: Settings) -> Iterator[Database]:
    """Open the database with the login of its own URL: the owner, for migrations."""
    with database_url(settings) as url, closing(_acting(url)) as database:
        yield database


@contextmanager
def open_as(settings: Settings, purpose: LoginPurpose) -> Iterator[Database]:
    """Open the database by the login for a purpose, in that purpose's role if the login may use
    it.
    """
    with (
        address_as(settings, purpose) as url,
        closing(
            _acting(url, f"tollgate_{purpose.value}", setting=_setting(settings, purpose))
        ) as database,
    ):
        yield database


def open_finance(
    settings: Settings, *, is_entering: bool = False
) -> AbstractContextManager[Database]:
    """Open the database for an entry or an approval of finance.

    An approval uses finance's login if the settings name it, else the administration's. An entry
    uses it only if no administration's login is named: author and approver are different logins.
    """
    has_admin = is_entering and settings.admin_database_url is not None
    is_admins = settings.finance_database_url is None or has_admin
    return open_as(settings, LoginPurpose.ADMIN if is_admins else LoginPurpose.FINANCE)


@contextmanager
def open_serving(settings: Settings) -> Iterator[ServingStores]:
    """Open the stores in the gateway's role, with a limit on each transaction's wait for
    Postgres.
    """
    home = settings.home_path
    with address_as(settings, LoginPurpose.GATEWAY) as url:
        database = Database(
            url,
            role="tollgate_gateway",
            limit_s=SERVING_LIMIT_S,
            renew=lambda: renewed(url, LoginPurpose.GATEWAY, home),
            setting=_setting(settings, LoginPurpose.GATEWAY),
        )
        with closing(database), closing(Ledger(database)) as ledger:
            yield ServingStores(
                database=database,
                keys=KeyStore(database),
                policies=PolicyStore(database),
                prices=PriceStore(database),
                ledger=ledger,
            )


def _acting(
    url: str, role: str | None = None, *, setting: str = "TOLLGATE_DATABASE_URL"
) -> Database:
    """Return a database that acts as a role, if the login may, for the person who runs the
    command.
    """
    return Database(
        url,
        role_if_member=role,
        operator=operator_name(),
        person=signed_in_person(),
        setting=setting,
    )


def _credentials(clock: Clock) -> DeploymentCredentials:
    """Return the ways to read and check the credentials of deployments on this machine."""

    @cache
    def checks() -> CredentialChecks:
        # Imported at the first use: cryptography and the token hosts slow every other command.
        from gateway.providers.credential_checks import CredentialChecks

        return CredentialChecks(clock.now)

    return DeploymentCredentials(
        secret_of=resolve,
        secret_problem=lambda deployment: checks().secret_problem(deployment),
        identity_problem=lambda deployment: checks().identity_problem(deployment),
    )


def _engines(settings: Settings, clock: Clock) -> EngineAccess:
    """Return the ways to ask an engine directly."""

    def load_page(deployment: Deployment, path: str) -> str | None:
        from gateway.providers.engine_sampler import EngineSampler  # with a parser of its own

        return EngineSampler(clock.now).metrics_page(deployment, path)

    def inspect(version: PolicyVersion, notes: ProbeNotes, over_s: float) -> Sequence[EngineStatus]:
        return asyncio.run(
            _inspected(version, notes, clock=clock, region=settings.region, over_s=over_s)
        )

    return EngineAccess(load_page=load_page, inspect=inspect)


def _mail_problem(account: MailAccount) -> str | None:
    """Return why the mail server refuses this machine's sign-in; None if it takes it."""
    from gateway.providers.alerts import mail  # smtplib, which no other command needs

    return mail.mail_problem(account)


async def _inspected(
    version: PolicyVersion, notes: ProbeNotes, *, clock: Clock, region: str, over_s: float
) -> Sequence[EngineStatus]:
    """Return the status of each engine of a policy, asked directly."""
    # Every provider's adapter, which no other command needs.
    from gateway.providers.engine_sampler import EngineSampler
    from gateway.providers.registry import build_providers
    from gateway.providers.transport import open_transport
    from gateway.services.deployments.engine_status import MOST_AT_ONCE, EngineInspection

    transport = open_transport(4 * MOST_AT_ONCE)
    try:
        return await EngineInspection(
            page=EngineSampler(clock.now).metrics_page,
            transport=transport,
            providers=build_providers(salt_key=secrets.token_bytes(32), now=clock.now),
            notes=notes,
            clock=clock,
            new_id=uuid4,
            region=region,
            over_s=over_s,
        ).run(version)
    finally:
        await transport.close()


@contextmanager
def open_reports(settings: Settings, *, limit_s: float = inf) -> Iterator[reports.Reports]:
    """Open finance's reports in the read-only role."""
    with address_as(settings, LoginPurpose.REPORTS) as url:
        opened = reports.open_reports(
            url,
            scope=WHOLE_ORGANISATION,
            limit_s=limit_s,
            renew=lambda: renewed(url, LoginPurpose.REPORTS, settings.home_path),
            setting=_setting(settings, LoginPurpose.REPORTS),
        )
        try:
            yield opened
        finally:
            opened.close()
