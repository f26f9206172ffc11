"""Declares the dependencies that commands receive (settings as plain values; openers of stores,
reports and files); `gateway.composition` builds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from gateway.domain.checks import Check
from gateway.domain.ledger.journals import LocalJournal
from gateway.domain.logins import LoginPurpose
from gateway.domain.policy.api_keys import Pepper
from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.reports import Reports
from gateway.services.stores import PriceList, ProbeNotes, Stores

if TYPE_CHECKING:
    from gateway.services.deployments.engine_status import EngineStatus

SecretOf = Callable[[Deployment], str | None]
CredentialProblem = Callable[[Deployment], str | None]
LoadPage = Callable[[Deployment, str], str | None]
InspectEngines = Callable[[PolicyVersion, ProbeNotes, float], Sequence["EngineStatus"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings that commands use, with defaults resolved. Paths are absolute."""

    home: Path
    database_url: str | None  # None: the embedded Postgres
    gateway_database_url: str | None  # None: the same, by the login that `db upgrade` made
    admin_database_url: str | None
    finance_database_url: str | None
    reports_database_url: str | None
    pepper_path: Path
    journal_path: Path
    engine_home: Path
    host: str
    port: int
    metrics_host: str
    metrics_port: int
    dashboard_host: str
    dashboard_hosts: tuple[str, ...]
    dashboard_port: int
    engine_port: int
    region: str  # the region of a gateway with these settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of `serve`; None keeps the setting."""

    host: str | None
    port: int | None
    allow_demo_keys: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What commands read or write on this machine, without a database."""

    price_list: Callable[[], PriceList]
    peppers: Callable[[], tuple[Pepper, ...]]  # raises `BadUsage`
    create_pepper: Callable[[], None]  # does nothing if there is one
    # Called with what cannot be read.
    journals: Callable[[Callable[[UUID, OSError], None]], Sequence[LocalJournal]]
    database_folder: Callable[[], Path]  # of the embedded Postgres
    dashboard_secrets: tuple[Path, ...]  # where sign-in is set up; the last one wins
    require_own_secret: Callable[[Path], None]  # raises `BadUsage` for a file of the home
    home_checks: Callable[[], Sequence[Check]]  # owner and mode of home and secrets
    secret_of: SecretOf  # raises `UpstreamAuth`
    secret_problem: CredentialProblem  # reads the secrets alone
    identity_problem: CredentialProblem  # fetches one token or key of the platform's identity
    load_page: LoadPage  # reads an engine's page; None without an answer
    inspect_engines: InspectEngines  # asks each engine; rates over so many seconds, or all (0)
    mail_problem: Callable[[], str | None] | None  # signs in to the mail server; None without one
    user_of: Callable[[str], str | None]  # of a database's address
    login_problem: Callable[[str], str | None]  # why Postgres refuses the login of an address
    owner: Callable[[], str | None]  # the user who owns the tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """The openers of stores, reports and files that the composition root gives to commands.

    Opening may start the embedded Postgres; closing may stop it.
    """

    options: Options
    machine: Machine
    open_stores: Callable[[], AbstractContextManager[Stores]]  # in the administration role
    open_entering: Callable[[], AbstractContextManager[Stores]]  # entries for approval
    open_approving: Callable[[], AbstractContextManager[Stores]]  # approvals, and months
    # Only for migrations and the logins.
    open_as_owner: Callable[[], AbstractContextManager[Stores]]
    # In the gateway's role, which writes events.
    open_booking: Callable[[], AbstractContextManager[Stores]]
    open_reports: Callable[[], AbstractContextManager[Reports]]
    # Of the database, by the login for one purpose.
    open_address: Callable[[LoginPurpose], AbstractContextManager[str]]
    serve: Callable[[ServeOptions], None]
    now: Callable[[], datetime]
    random_bytes: Callable[[int], bytes]
