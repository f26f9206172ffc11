"""Declares the dependencies that commands share: settings as plain values, openers of the database
in each role and of reports, and the ways to a policy's deployments; `gateway.composition` builds
them.

A command makes the store that it uses over the opened database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.domain.logins import LoginPurpose
    from gateway.domain.policy.policy import Deployment, PolicyVersion
    from gateway.reports.reports import Reports
    from gateway.services.deployments.engine_probes import ProbeNotes
    from gateway.services.deployments.engine_status import EngineStatus
    from gateway.storage.postgres.database import Database

SecretOf = Callable[["Deployment"], str | None]
CredentialProblem = Callable[["Deployment"], str | None]
LoadPage = Callable[["Deployment", str], str | None]


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
class DeploymentCredentials:
    """The credentials of deployments on this machine, for `doctor`, `policy plan` and `engine
    calibrate`.
    """

    secret_of: SecretOf  # raises `UpstreamAuth`
    secret_problem: CredentialProblem  # reads the secrets alone
    identity_problem: CredentialProblem  # fetches one token or key of the platform's identity


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAccess:
    """The ways to ask an engine directly, for `doctor` and `engine status`."""

    load_page: LoadPage  # reads an engine's page; None without an answer
    # Asks each engine; rates over so many seconds, or all (0).
    inspect: Callable[[PolicyVersion, ProbeNotes, float], Sequence[EngineStatus]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """The settings and openers that the composition root gives to commands.

    Opening may start the embedded Postgres; closing may stop it.
    """

    options: Options
    # The database in a role, if the login may act in it.
    open_admin: Callable[[], AbstractContextManager[Database]]  # administration
    open_entering: Callable[[], AbstractContextManager[Database]]  # entries for approval
    open_approving: Callable[[], AbstractContextManager[Database]]  # approvals, and months
    open_booking: Callable[[], AbstractContextManager[Database]]  # the gateway's, to write events
    open_owner: Callable[[], AbstractContextManager[Database]]  # only for migrations and logins
    open_reports: Callable[[], AbstractContextManager[Reports]]
    # The database's address, by the login for one purpose.
    open_address: Callable[[LoginPurpose], AbstractContextManager[str]]
    credentials: DeploymentCredentials
    engines: EngineAccess
    mail_problem: Callable[[], str | None] | None  # signs in to the mail server; None without one
    serve: Callable[[ServeOptions], None]
    now: Callable[[], datetime]
    random_bytes: Callable[[int], bytes]
