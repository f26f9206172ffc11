"""Runs `tollgate doctor`: checks database, policy, deployments, prices, clock, ports, ledger and
machine, and prints each problem with its remedy; it repairs nothing.

Sends no content.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import typer

from gateway.cli.checks.ledger import journal_checks, ledger_checks
from gateway.cli.checks.machine import machine_checks
from gateway.cli.terminal.fetch import NO_HEADERS, fetch
from gateway.cli.terminal.output import Format, FormatOption, Table, note, show
from gateway.domain.checks import Check, Status
from gateway.domain.deployments.engine_load import EngineMetrics
from gateway.domain.deployments.engine_pages import figures_on, pages_of
from gateway.domain.logins import LoginPurpose
from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.domain.routing.decide import DEFAULT_PORTS
from gateway.errors import BadUsage, DatabaseUnavailable, PolicyRejected, RequestError
from gateway.services.policy.apply import prices_of, unpriced, version_of

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from gateway.cli.toolbox import CredentialProblem, LoadPage, Machine, Options, SecretOf, Toolbox
    from gateway.services.stores import Stores

PROBE_LIMIT_S = 3.0
NEVER_RESOLVES = ".invalid"  # RFC 2606 §2; the demo policy's forbidden place
SKEW_WARN_S, SKEW_FAIL_S = 1.0, 30.0
_OWN_LOGINS = (
    "tollgate db upgrade, which makes a login for each purpose. If it reports an existing one: "
    "tollgate db upgrade --new-passwords"
)
_IDENTITY_REMEDY = (
    "run doctor where the gateway runs; give that machine the identity and let it reach the host "
    "(docs/reference/policy.md, deployments: credentials), or name a key"
)
_TRUST_REMEDY = "have it renewed, or put its authority into SSL_CERT_FILE, here and at the gateway"

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
    checks: list[Check] = list(journal_checks(toolbox))
    try:
        with toolbox.open_stores() as stores:
            checks += _database_checks(toolbox, stores)
    except DatabaseUnavailable as away:
        checks.append(Check("database", Status.UNKNOWN, away.message))
    except BadUsage as wrong:
        checks.append(Check("database", Status.FAIL, wrong.message))
    checks += machine_checks(toolbox.options)
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


def _database_checks(toolbox: Toolbox, stores: Stores) -> Iterator[Check]:
    """Yield the checks that need Postgres; only the first ones if migrations are pending."""
    pending = stores.database.pending()
    yield Check("database", Status.OK, f"answers at {stores.database.name}")
    if pending:
        yield Check(
            "migrations",
            Status.FAIL,
            f"{len(pending)} pending: {', '.join(pending)}",
            "tollgate db upgrade",
        )
        return  # every further check would fail for the same reason
    yield Check("migrations", Status.OK, "the tables are those of this version")
    yield _administration(stores)
    yield from _logins(toolbox, stores)
    for check in (_pepper, _clock):
        yield from _own_error_as_finding(check, toolbox, stores)
    yield from ledger_checks(toolbox, stores)
    version, policy_check = _policy(stores)
    yield policy_check
    if version is not None:
        yield from _deployments(version, toolbox.machine, is_demo=_is_demo(stores))
        yield from _prices(version, toolbox, stores)


def _own_error_as_finding(
    check: Callable[[Toolbox, Stores], Check], toolbox: Toolbox, stores: Stores
) -> Iterator[Check]:
    """Run a check and yield its result; a `BadUsage` that it raises becomes a failed check."""
    try:
        yield check(toolbox, stores)
    except BadUsage as wrong:
        yield Check(check.__name__.strip("_"), Status.FAIL, wrong.message)


def _pepper(toolbox: Toolbox, stores: Stores) -> Check:
    """Check that this machine's pepper belongs to the database's API keys. Raises `BadUsage` if
    not.
    """
    path = toolbox.options.pepper_path
    stores.database.check_peppers(toolbox.machine.peppers())
    return Check("pepper", Status.OK, f"{path} belongs to this database")


def _administration(stores: Stores) -> Check:
    """Check the role that commands act in, and warn if it has all rights of the owner: one mistake
    can then do more damage.
    """
    login, role = stores.database.acts_as()
    if role == "tollgate_admin":
        return Check("administration", Status.OK, f"commands run as {role} (login {login})")
    finding = (
        f"commands run as {role}, with all its rights: {login} is not a member of tollgate_admin"
    )
    return Check(
        "administration", Status.WARN, finding, f'as its owner: GRANT tollgate_admin TO "{login}"'
    )


def _logins(toolbox: Toolbox, stores: Stores) -> Iterator[Check]:
    """Check the login for each purpose, and warn of one that is a superuser or the owner: it may
    drop triggers and change booked events.
    """

    users, options = {}, toolbox.options
    given = {
        LoginPurpose.GATEWAY: options.gateway_database_url,
        LoginPurpose.REPORTS: options.reports_database_url,
        LoginPurpose.ADMIN: options.admin_database_url,
    }
    has_shared = options.database_url is not None or options.admin_database_url is None
    for purpose in LoginPurpose:
        if given[purpose] is None and not has_shared:
            continue  # this container has no address for it, and needs none
        with toolbox.open_address(purpose) as address:
            users[str(toolbox.machine.user_of(address))] = purpose
    found = stores.database.too_powerful(users)
    for user, is_superuser in found:
        power = "a superuser" if is_superuser else "the owner of the tables or a member of it"
        finding = f"the login for {users[user]} is {user}, {power}"
        yield Check("logins", Status.WARN, finding, _OWN_LOGINS)
    if not found:
        yield Check(
            "logins", Status.OK, f"{', '.join(users)} are neither the owner's nor a superuser's"
        )


def _clock(toolbox: Toolbox, stores: Stores) -> Check:
    """Compare this machine's clock with the database's: warn over 1 s, fail over 30 s."""
    skew_s = stores.database.clock_skew_s(toolbox.now)
    finding = f"the database's clock is {abs(skew_s):.3f} s {'ahead' if skew_s > 0 else 'behind'}"
    if abs(skew_s) > SKEW_FAIL_S:
        return Check("clock", Status.FAIL, finding, "run a time service (chrony) on both machines")
    if abs(skew_s) > SKEW_WARN_S:
        return Check("clock", Status.WARN, finding, "run a time service (chrony) on both machines")
    return Check("clock", Status.OK, finding)


def _policy(stores: Stores) -> tuple[PolicyVersion | None, Check]:
    """Check the policy in force; return its version, None if there is none that this release can
    read.
    """
    stored = stores.policies.current()
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


def _prices(version: PolicyVersion, toolbox: Toolbox, stores: Stores) -> Iterator[Check]:
    """Yield a failed check for each deployment without a price, or one good check for all."""
    book = stores.prices.book(version.policy.deployments.values())
    prices = prices_of(
        version.policy, at=toolbox.now(), builtin=stores.price_list.builtin_price, book=book
    )
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


def _is_demo(stores: Stores) -> bool:
    """Return True if the policy in force is that of the demo."""
    stored = stores.policies.current()
    return stored is not None and stored.is_demo


def _deployments(version: PolicyVersion, machine: Machine, *, is_demo: bool) -> Iterator[Check]:
    """Yield the checks of each deployment's secret, identity and connection, and of the load of
    each engine that can be reached.
    """
    from concurrent.futures import ThreadPoolExecutor

    deployments = list(version.policy.deployments.values())
    for deployment in deployments:
        if deployment.secret_references:
            yield _secret(deployment, machine.secret_problem)
    with ThreadPoolExecutor(max_workers=16) as pool:
        yield from _identities(deployments, machine.identity_problem, pool)
        reach = partial(_reach_check, secret_of=machine.secret_of, is_demo=is_demo)
        reached = list(pool.map(reach, deployments))
        yield from reached
        engines = [
            one
            for one, check in zip(deployments, reached, strict=True)
            if one.is_self_hosted and check.status is Status.OK
        ]
        yield from pool.map(partial(_load_check, page_of=machine.load_page), engines)


def _secret(deployment: Deployment, problem_of: CredentialProblem) -> Check:
    """Check that a deployment's secrets can be read on this machine, and a key that is exchanged
    for tokens can sign.
    """
    name, problem = f"secret {deployment.name}", problem_of(deployment)
    if problem is not None:
        return Check(name, Status.FAIL, problem, "set it on the gateway's machine")
    verb = "is" if len(deployment.secret_references) == 1 else "are"
    return Check(name, Status.OK, f"{', '.join(deployment.secret_references)} {verb} set here")


def _identities(
    deployments: Sequence[Deployment], problem_of: CredentialProblem, pool: Executor
) -> Iterator[Check]:
    """Yield the check of each deployment with the platform's identity: one token or key for each
    host is fetched, and dropped.
    """
    ambient = [one for one in deployments if one.is_ambient]
    asked = {_host_of(one): one for one in ambient}
    problems = dict(zip(asked, pool.map(problem_of, asked.values()), strict=True))
    for one in ambient:
        name, problem = f"identity {one.name}", problems[_host_of(one)]
        if problem is None:
            yield Check(name, Status.OK, "the platform gives this machine its identity")
        else:
            yield Check(name, Status.FAIL, f"the identity {problem}", _IDENTITY_REMEDY)


def _host_of(deployment: Deployment) -> tuple[str, str]:
    """Return a deployment's provider and host: deployments with the same ones share a token."""
    return deployment.provider, urlsplit(deployment.base_url).netloc


def _reach_check(deployment: Deployment, *, secret_of: SecretOf, is_demo: bool) -> Check:
    """Check that a deployment can be reached: an engine by its health endpoint, a provider only by
    a connection, with its certificate.
    """
    parts = urlsplit(deployment.base_url)
    host, port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
    name = f"reach {deployment.name}"
    remedy = f"start it, or fix base_url; from here: nc -zv {host} {port}"
    if is_demo and deployment.is_self_hosted:
        remedy = "tollgate up, which starts the demo's engine too"
    if host.endswith(NEVER_RESOLVES):
        return Check(name, Status.WARN, f"{host} is a name for examples: nothing is there")
    try:
        with socket.create_connection((host, port), timeout=PROBE_LIMIT_S) as connection:
            if parts.scheme == "https":
                ssl.create_default_context().wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLCertVerificationError as untrusted:
        finding = f"the certificate of {host}:{port} is refused here: {untrusted.verify_message}"
        return Check(name, Status.FAIL, finding, _TRUST_REMEDY)
    except OSError as broken:
        reason = broken.strerror or type(broken).__name__
        return Check(name, Status.FAIL, f"no connection to {host}:{port}: {reason}", remedy)
    if deployment.provider != "vllm":
        return Check(name, Status.OK, f"{host}:{port} takes connections")
    status = _http_status(f"{parts.scheme}://{parts.netloc}/health")
    if status == 200:
        return Check(name, Status.OK, f"{host}:{port} is healthy")
    # Many compatible servers have no /health; one that lists its models is loaded.
    header = _key_header(deployment, secret_of)
    if status == 404 and _http_status(f"{deployment.base_url}/models", headers=header) == 200:
        return Check(name, Status.OK, f"{host}:{port} lists its models; it has no /health")
    answer = "does not answer" if status is None else f"answers {status}"
    return Check(
        name,
        Status.FAIL,
        f"/health of {host}:{port} {answer}",
        "wait until it is loaded, or see its log",
    )


def _load_check(deployment: Deployment, *, page_of: LoadPage) -> Check:
    """Check that an engine shows its load on one of the pages that the gateway reads."""
    name, groups = f"load {deployment.name}", pages_of(deployment.provider)
    for pages in groups:
        found = figures_on(pages, deployment.model, partial(page_of, deployment))
        if found not in (None, EngineMetrics()):
            paths = " and ".join(page.path for page in pages)
            return Check(name, Status.OK, f"its load is read from {paths}")
    paths = ", ".join(page.path for pages in groups for page in pages)
    return Check(
        name,
        Status.WARN,
        f"no page shows its queue or its memory, so requests are not routed by them ({paths})",
        "have the engine show its metrics there (llama-server: --metrics), and let the gateway "
        "read them without a key",
    )


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
    gateway = f"http://{_dialable(options.host)}:{options.port}/healthz"
    dashboard = (
        f"http://{_dialable(options.dashboard_host)}:{options.dashboard_port}/_stcore/health"
    )
    metrics = f"http://{_dialable(options.metrics_host)}:{options.metrics_port}/metrics"
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
    answer = _json(f"http://{_dialable(options.host)}:{options.port}/readyz")
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
    name = f"port {part}"
    try:
        with socket.create_connection((_dialable(host), port), timeout=PROBE_LIMIT_S):
            pass
    except OSError:
        return Check(name, Status.OK, f"{host}:{port} is free")
    if _http_status(health) == 200:
        return Check(name, Status.OK, f"{host}:{port} is in use by this Tollgate's {part}")
    return Check(
        name, Status.WARN, f"{host}:{port} is taken by something else", f"stop it, or set {setting}"
    )


def _dialable(host: str) -> str:
    """Return the address by which a listener at `host` is reached from this machine: a wildcard
    becomes the loopback.
    """
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - for dialling, not for listening


def _json(url: str) -> dict[str, Any]:
    """Return the JSON object that a GET of an address answers, whatever its status; empty without
    an answer.
    """
    try:
        found = fetch(url, timeout_s=PROBE_LIMIT_S).json()
    except (httpx2.HTTPError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _key_header(deployment: Deployment, secret_of: SecretOf) -> dict[str, str]:
    """Return the header with the engine's key, or nothing if it declares none or the key is
    missing here.
    """

    try:
        key = secret_of(deployment)
    except RequestError:
        return {}
    return {"authorization": f"Bearer {key}"} if key else {}


def _http_status(url: str, *, headers: Mapping[str, str] = NO_HEADERS) -> int | None:
    """Return the status that a GET of an address answers; None if no HTTP answer came within the
    time limit.
    """
    try:
        return int(fetch(url, headers=headers, timeout_s=PROBE_LIMIT_S).status_code)
    except httpx2.HTTPError:
        return None
