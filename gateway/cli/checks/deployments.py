"""Yields `doctor`'s checks of deployments: secrets, identities, connections, and the load of
engines. No prompt is sent.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.cli.checks.connections import connection, http_status
from gateway.domain.checks import Check, Status
from gateway.domain.deployments.engine_load import EngineMetrics
from gateway.domain.deployments.engine_pages import figures_on, pages_of
from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.domain.routing.decide import DEFAULT_PORTS
from gateway.errors import RequestError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from gateway.cli.toolbox import CredentialProblem, LoadPage, SecretOf, Toolbox

NEVER_RESOLVES = ".invalid"  # RFC 2606 §2; the demo policy's forbidden place
_IDENTITY_REMEDY = (
    "run doctor where the gateway runs; give that machine the identity and let it reach the host "
    "(docs/reference/policy.md, deployments: credentials), or name a key"
)
_TRUST_REMEDY = "have it renewed, or put its authority into SSL_CERT_FILE, here and at the gateway"


def deployment_checks(
    version: PolicyVersion, toolbox: Toolbox, *, is_demo: bool
) -> Iterator[Check]:
    """Yield the checks of each deployment's secret, identity and connection, and of the load of
    each engine that can be reached.
    """
    from concurrent.futures import ThreadPoolExecutor

    credentials = toolbox.credentials
    deployments = list(version.policy.deployments.values())
    for deployment in deployments:
        if deployment.secret_references:
            yield _secret(deployment, credentials.secret_problem)
    with ThreadPoolExecutor(max_workers=16) as pool:
        yield from _identities(deployments, credentials.identity_problem, pool)
        reach = partial(_reach_check, secret_of=credentials.secret_of, is_demo=is_demo)
        reached = list(pool.map(reach, deployments))
        yield from reached
        engines = [
            one
            for one, check in zip(deployments, reached, strict=True)
            if one.is_self_hosted and check.status is Status.OK
        ]
        yield from pool.map(partial(_load_check, page_of=toolbox.engines.load_page), engines)


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
        with connection(host, port) as opened:
            if parts.scheme == "https":
                ssl.create_default_context().wrap_socket(opened, server_hostname=host).close()
    except ssl.SSLCertVerificationError as untrusted:
        finding = f"the certificate of {host}:{port} is refused here: {untrusted.verify_message}"
        return Check(name, Status.FAIL, finding, _TRUST_REMEDY)
    except OSError as broken:
        reason = broken.strerror or type(broken).__name__
        return Check(name, Status.FAIL, f"no connection to {host}:{port}: {reason}", remedy)
    if deployment.provider != "vllm":
        return Check(name, Status.OK, f"{host}:{port} takes connections")
    status = http_status(f"{parts.scheme}://{parts.netloc}/health")
    if status == 200:
        # Not "is healthy": vLLM answers 200 there also while its core hangs or is dead.
        return Check(
            name, Status.OK, f"{host}:{port} answers /health; for a token: tollgate engine status"
        )
    # Many compatible servers have no /health; one that lists its models is loaded.
    header = _key_header(deployment, secret_of)
    if status == 404 and http_status(f"{deployment.base_url}/models", headers=header) == 200:
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


def _key_header(deployment: Deployment, secret_of: SecretOf) -> dict[str, str]:
    """Return the header with the engine's key, or nothing if it declares none or the key is
    missing here.
    """

    try:
        key = secret_of(deployment)
    except RequestError:
        return {}
    return {"authorization": f"Bearer {key}"} if key else {}
