"""Runs `tollgate doctor`: checks database, policy, deployments, prices, clock, ports, ledger and
machine, and prints each problem with its remedy; it repairs nothing.

Sends no content.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

import typer

from gateway.cli.checks.connections import connection, http_status, json_object
from gateway.cli.checks.deployments import deployment_checks
from gateway.cli.checks.ledger import journal_checks, ledger_checks, unlisted_check
from gateway.cli.checks.machine import machine_checks
from gateway.cli.terminal.output import Format, FormatOption, Table, note, show
from gateway.domain.checks import Check, Status
from gateway.domain.database_server import server_checks
from gateway.domain.logins import LoginPurpose
from gateway.domain.policy.policy import PolicyVersion
from gateway.domain.pricing.pricing import Price
from gateway.domain.words import host_and_port
from gateway.errors import BadUsage, DatabaseUnavailable, PolicyRejected, UnsuitableDatabase
from gateway.services.policy.apply import prices_of, unpriced, version_of
from gateway.services.policy.place_changes import place_changes
from gateway.storage.administration import clock_skew_s, require_suitable, too_powerful
from gateway.storage.policy import pepper
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres import logins, migrations
from gateway.storage.postgres.database import Database, user_of
from gateway.storage.postgres.home_checks import home_checks
from gateway.storage.postgres.server_facts import read_facts

if TYPE_CHECKING:
    from gateway.cli.toolbox import Options, Toolbox

SKEW_WARN_S, SKEW_FAIL_S = 1.0, 30.0
PLACE_NEWS = timedelta(days=30)  # a price that changed with its place is named for so long
_OWN_LOGINS = (
    "tollgate db upgrade, which makes a login for each purpose. If it reports an existing one: "
    "tollgate db upgrade --new-passwords"
)

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    "doctor",
    short_help="Find problems on this machine and their remedies.",
    epilog="\b\nExamples:\n  tollgate doctor\n  tollgate doctor --format json",
)
def doctor(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """Check database, migrations, key secret, policy, deployments, prices, clock, ports, ledger and
    this machine.

    Every line names the next step. Exit 1 if a check fails, 3 if the database cannot be asked.
    Engines are asked for their health and their load, providers for a connection and their
    certificate, and the platform for one token of an ambient identity; no prompt is ever sent.
    """
    toolbox: Toolbox = ctx.obj
    checks = [
        *_faults_named(
            "home", lambda: home_checks(toolbox.options.home, toolbox.options.pepper_path)
        ),
        *_faults_named("journals", lambda: journal_checks(toolbox)),
    ]
    try:
        with toolbox.open_admin() as database:
            checks += _database_checks(toolbox, database)
    except OSError as fault:
        checks.append(_named("database", fault))
    except (UnsuitableDatabase, BadUsage) as wrong:
        checks.append(Check("database", Status.FAIL, wrong.message))
    except DatabaseUnavailable as away:
        checks.append(Check("database", Status.UNKNOWN, away.message))
    checks += _faults_named("machine", lambda: machine_checks(toolbox.options))
    checks += _trust_check(os.environ.get("SSL_CERT_FILE", ""))
    checks += _port_checks(toolbox.options)
    checks += _gateway_checks(toolbox.options)
    rows = [(check.status.value, check.name, check.finding, check.remedy) for check in checks]
    show(Table(("status", "check", "finding", "what to do"), rows), format, empty="")
    statuses = {check.status for check in checks}
    if Status.UNKNOWN in statuses:
        raise typer.Exit(3)
    if Status.FAIL in statuses:
        raise typer.Exit(1)
    note(
        "Nothing is broken."
        if Status.WARN not in statuses
        else "Nothing is broken; mind the warnings."
    )


def _faults_named(name: str, make: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """Yield checks; a file or folder that this user cannot use becomes a failed check of its
    name.
    """
    try:
        yield from make()
    except OSError as fault:
        yield _named(name, fault)


def _named(name: str, fault: OSError) -> Check:
    """Return the failed check for a file or folder that cannot be used."""
    return Check(
        name,
        Status.FAIL,
        f"{fault.filename or 'a file of the home'}: {fault.strerror}",
        "mount it for writing, or run as the user who owns it",
    )


def _database_checks(toolbox: Toolbox, database: Database) -> Iterator[Check]:
    """Yield the checks that need Postgres; only the first ones if migrations are pending."""
    require_suitable(database)
    pending = migrations.pending(database)
    yield _database(toolbox, database)
    if pending:
        yield Check(
            "migrations",
            Status.FAIL,
            f"{len(pending)} pending: {', '.join(pending)}",
            "tollgate db upgrade",
        )
        return  # every further check would fail for the same reason
    yield Check("migrations", Status.OK, "the tables are those of this version")
    yield from server_checks(read_facts(database))
    yield _administration(database)
    yield from _logins(toolbox, database)
    for check in (_pepper, _clock):
        yield from _own_error_as_finding(check, toolbox, database)
    yield from ledger_checks(toolbox, database)
    version, policy_check = _policy(database)
    yield policy_check
    if version is not None:
        yield from deployment_checks(version, toolbox, is_demo=_is_demo(database))
        yield from _prices(version, toolbox, database)
        yield from _mail(version, toolbox)
        yield unlisted_check(toolbox, database, version.policy)


def _database(toolbox: Toolbox, database: Database) -> Check:
    """Check that Postgres answers, and that it lets the gateway's own login in, not this command's
    alone.
    """
    answers = f"answers at {database.name}"
    problem = _login_problem(toolbox, database, LoginPurpose.GATEWAY)
    if problem is None:
        return Check("database", Status.OK, answers)
    return Check("database", Status.FAIL, f"{answers}, but not to the gateway: {problem}")


def _login_problem(toolbox: Toolbox, database: Database, purpose: LoginPurpose) -> str | None:
    """Return why the login for a purpose cannot work, with the remedy; None if it can, and in a
    container that has no address for it.
    """
    if not _has_address(toolbox.options, purpose):
        return None
    try:
        with toolbox.open_address(purpose) as address:
            return logins.role_problem(database, address, purpose) or logins.login_problem(address)
    except BadUsage as refused:
        return refused.message


def _has_address(options: Options, purpose: LoginPurpose) -> bool:
    """Return True if this machine has an address for a purpose: a container may need none."""
    has_shared = options.database_url is not None or options.admin_database_url is None
    return has_shared or _given(options)[purpose] is not None


def _given(options: Options) -> dict[LoginPurpose, str | None]:
    """Return the address that the settings name for each purpose."""
    return {
        LoginPurpose.GATEWAY: options.gateway_database_url,
        LoginPurpose.REPORTS: options.reports_database_url,
        LoginPurpose.ADMIN: options.admin_database_url,
        LoginPurpose.FINANCE: options.finance_database_url,
    }


def _own_error_as_finding(
    check: Callable[[Toolbox, Database], Check], toolbox: Toolbox, database: Database
) -> Iterator[Check]:
    """Run a check and yield its result; a `BadUsage` that it raises becomes a failed check."""
    try:
        yield check(toolbox, database)
    except BadUsage as wrong:
        yield Check(check.__name__.strip("_"), Status.FAIL, wrong.message)


def _pepper(toolbox: Toolbox, database: Database) -> Check:
    """Check that this machine's pepper belongs to the database's API keys. Raises `BadUsage` if
    not.
    """
    path = toolbox.options.pepper_path
    pepper.check(database, pepper.load(path))
    return Check("pepper", Status.OK, f"{path} belongs to this database")


def _administration(database: Database) -> Check:
    """Check the role that commands act in, and warn if it has all rights of the owner: one mistake
    can then do more damage.
    """
    login, role = database.acts_as()
    if role == "tollgate_admin":
        return Check("administration", Status.OK, f"commands run as {role} (login {login})")
    finding = (
        f"commands run as {role}, with all its rights: {login} is not a member of tollgate_admin"
    )
    return Check(
        "administration", Status.WARN, finding, f'as its owner: GRANT tollgate_admin TO "{login}"'
    )


def _logins(toolbox: Toolbox, database: Database) -> Iterator[Check]:
    """Check the login for each purpose, and warn of one that is a superuser or the owner: it may
    drop triggers and change booked events.
    """
    users: dict[str, list[str]] = {}
    for purpose in LoginPurpose:
        if not _has_address(toolbox.options, purpose):
            continue
        problem = _login_problem(toolbox, database, purpose)
        if problem is not None:
            if purpose is not LoginPurpose.GATEWAY:  # the line `database` has that of the gateway
                yield Check("logins", Status.FAIL, f"the login for {purpose}: {problem}")
            continue
        with toolbox.open_address(purpose) as address:
            users.setdefault(str(user_of(address)), []).append(purpose.value)
    found = too_powerful(database, users)
    for user, is_superuser in found:
        power = "a superuser" if is_superuser else "the owner of the tables or a member of it"
        finding = f"the login for {', '.join(users[user])} is {user}, {power}"
        yield Check("logins", Status.WARN, finding, _OWN_LOGINS)
    if users and not found:
        yield Check(
            "logins", Status.OK, f"{', '.join(users)} are neither the owner's nor a superuser's"
        )


def _clock(toolbox: Toolbox, database: Database) -> Check:
    """Compare this machine's clock with the database's: warn over 1 s, fail over 30 s."""
    skew_s = clock_skew_s(database, toolbox.now)
    finding = f"the database's clock is {abs(skew_s):.3f} s {'ahead' if skew_s > 0 else 'behind'}"
    if abs(skew_s) > SKEW_FAIL_S:
        return Check("clock", Status.FAIL, finding, "run a time service (chrony) on both machines")
    if abs(skew_s) > SKEW_WARN_S:
        return Check("clock", Status.WARN, finding, "run a time service (chrony) on both machines")
    return Check("clock", Status.OK, finding)


def _policy(database: Database) -> tuple[PolicyVersion | None, Check]:
    """Check the policy in force; return its version, None if there is none that this release can
    read.
    """
    stored = PolicyStore(database).current()
    if stored is None:
        return None, Check(
            "policy", Status.FAIL, "none was applied yet", "tollgate policy apply FILE"
        )
    try:
        version = version_of(stored)
    except PolicyRejected as rejected:
        finding = f"version {stored.version} is not valid for this Tollgate: {rejected.findings[0]}"
        return None, Check(
            "policy", Status.FAIL, finding, "fix it and run: tollgate policy apply FILE"
        )
    count = f"{len(version.policy.deployments)} deployment(s), {len(version.policy.teams)} team(s)"
    demo = ", demo" if stored.is_demo else ""
    return version, Check("policy", Status.OK, f"version {stored.version}{demo}: {count}")


def _prices(version: PolicyVersion, toolbox: Toolbox, database: Database) -> Iterator[Check]:
    """Yield a failed check for each deployment without a price, or one good check for all; and a
    warning for each whose place changes its price, or is not known.
    """
    book = PriceStore(database).book(version.policy.deployments.values())
    prices = prices_of(version.policy, at=toolbox.now(), builtin=builtin_price, book=book)
    for name in unpriced(version.policy, prices):
        yield Check(
            f"price {name}",
            Status.FAIL,
            "none: its requests are refused",
            "add 'gpu' to it"
            if version.policy.deployments[name].is_self_hosted
            else f"add 'price' to it, or: tollgate price add --deployment {name} …",
        )
    if version.policy.deployments and not unpriced(version.policy, prices):
        yield Check("prices", Status.OK, f"all {len(prices)} deployment(s) have one")
    yield from _place_prices(prices, toolbox, database)


def _place_prices(
    prices: Mapping[str, Price], toolbox: Toolbox, database: Database
) -> Iterator[Check]:
    """Yield a warning for each deployment whose list price changes with its place at the next
    start, did so lately, or is an estimate.
    """
    stored = PriceStore(database)
    for name, change in place_changes(stored.charged(prices), prices):
        yield Check(
            f"price {name}",
            Status.WARN,
            f"changes when the gateway starts: {change}",
            f"compare it with a bill, or: tollgate price add --deployment {name} …",
        )
    for name, price in prices.items():
        if price.factor == 1 and not price.is_estimated:
            continue
        charged = stored.in_force(name, limit=2)
        if len(charged) == 2 and charged[0].valid_from > toolbox.now() - PLACE_NEWS:
            now, before = charged
            since = f"since {now.valid_from:%Y-%m-%d %H:%M} UTC"
            finding = f"{since}: {now.source}; before: {before.source}"
            yield Check(f"price {name}", Status.OK, finding)
        if price.is_estimated:
            yield Check(
                f"place {name}",
                Status.WARN,
                f"what its tokens cost there is not known for sure: {price.source}",
                "write the provider's own address, 'region: global' if that is so, or 'price'",
            )


def _mail(version: PolicyVersion, toolbox: Toolbox) -> Iterator[Check]:
    """Check that this machine can mail alerts, if the policy names addresses. Sends no mail."""
    alerts = version.policy.alerts
    if alerts is None or not alerts.email:
        return
    if toolbox.mail_problem is None:
        finding = "the policy mails alerts, and TOLLGATE_SMTP_URL is not set here"
        remedy = "set it where the gateway runs (docs/reference/settings.md)"
        yield Check("mail", Status.WARN, finding, remedy)
        return
    problem = toolbox.mail_problem()
    if problem is None:
        yield Check("mail", Status.OK, "the mail server takes this machine's sign-in")
    else:
        yield Check("mail", Status.FAIL, problem, "see docs/runbooks/budget-alerts.md")


def _is_demo(database: Database) -> bool:
    """Return True if the policy in force is that of the demo."""
    stored = PolicyStore(database).current()
    return stored is not None and stored.is_demo


def _trust_check(file: str) -> Iterator[Check]:
    """Check the file of trusted certificates, if one is named. OpenSSL ignores a file that it
    cannot read, and then refuses the certificates of its authorities.
    """
    if not file:
        return
    name = "certificates"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except OSError as broken:
        reason = "no certificates in it" if isinstance(broken, ssl.SSLError) else broken.strerror
        yield Check(
            name,
            Status.FAIL,
            f"SSL_CERT_FILE names {file}: {reason}; it is ignored",
            "name a file of certificates (PEM), or unset it",
        )
    else:
        yield Check(name, Status.OK, f"those in {file} are trusted (SSL_CERT_FILE)")


def _port_checks(options: Options) -> Iterator[Check]:
    """Check the ports of gateway, metrics and dashboard; one that this running Tollgate has is as
    good as a free one.
    """
    gateway = f"{_url(options.host, options.port)}/healthz"
    dashboard = f"{_url(options.dashboard_host, options.dashboard_port)}/_stcore/health"
    metrics = f"{_url(options.metrics_host, options.metrics_port)}/metrics"
    yield _port_check(
        "gateway", options.host, options.port, health=gateway, setting="TOLLGATE_PORT"
    )
    yield _port_check(
        "metrics",
        options.metrics_host,
        options.metrics_port,
        health=metrics,
        setting="TOLLGATE_METRICS_PORT",
    )
    yield _port_check(
        "dashboard",
        options.dashboard_host,
        options.dashboard_port,
        health=dashboard,
        setting="TOLLGATE_DASHBOARD_PORT",
    )


def _gateway_checks(options: Options) -> Iterator[Check]:
    """Report the findings of the gateway that runs here, from its `/readyz`; yield nothing if none
    answers.

    It answers whether it is ready or not: its reasons not to be ready are failures here.
    """
    answer = json_object(f"{_url(options.host, options.port)}/readyz")
    for problem in answer.get("problems", ()):
        yield Check("gateway", Status.FAIL, str(problem))
    for reported in answer.get("checks", ()):
        yield Check(
            f"gateway {reported['check']}",
            Status(reported["status"]),
            reported["finding"],
            reported["what_to_do"],
        )


def _port_check(part: str, host: str, port: int, *, health: str, setting: str) -> Check:
    """Check a port that Tollgate needs: fine if it is free or this Tollgate has it, else warn that
    another program has it.
    """
    name, place = f"port {part}", host_and_port(host, port)
    try:
        connection(_dialable(host), port).close()
    except OSError:
        return Check(name, Status.OK, f"{place} is free")
    if http_status(health) == 200:
        return Check(name, Status.OK, f"{place} is in use by this Tollgate's {part}")
    return Check(
        name, Status.WARN, f"{place} is taken by something else", f"stop it, or set {setting}"
    )


def _url(host: str, port: int) -> str:
    """Return the URL by which this machine reaches a listener."""
    return f"http://{host_and_port(_dialable(host), port)}"


def _dialable(host: str) -> str:
    """Return the address by which a listener at `host` is reached from this machine: a wildcard
    becomes the loopback.
    """
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - for dialling, not for listening
