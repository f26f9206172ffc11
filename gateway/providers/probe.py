"""Samples self-hosted engines by a `GET` of their metrics page.

No content and no credential leaves here, so no permit is needed. It does not use the HTTP client
for content and follows no redirect: a probe goes to the declared address or is not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from math import isfinite
from time import monotonic
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from gateway.domain.deployments.engine_sample import EngineSample
from gateway.domain.policy.policy import Deployment

METRICS = "/metrics"
TIMEOUT_S = 2.0
MOST_BYTES = 4 * 2**20  # vLLM's page has about 100 KB
_COUNTS = {
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
}
_STARTED = "process_start_time_seconds"


def sample(deployment: Deployment, *, now: Callable[[], datetime]) -> EngineSample:
    """Return a sample of a deployment's engine.

    Takes a few seconds at most and raises nothing.

    An engine that answers in any way is up: its GPUs are in use, even if something else is wrong.
    """
    page = metrics_page(deployment)
    at = now()
    if page is None:
        return EngineSample(deployment=deployment.name, at=at)
    found = _figures(page, model=deployment.model)
    return EngineSample(
        deployment=deployment.name,
        at=at,
        is_up=True,
        started_at=_started_at(found.get(_STARTED), at),
        prompt_tokens=_count(found, "prompt_tokens"),
        generation_tokens=_count(found, "generation_tokens"),
        running=_count(found, "running"),
        waiting=_count(found, "waiting"),
    )


def _count(figures: dict[str, float], name: str) -> int | None:
    """Return a whole number that Postgres can hold; None if the engine reports none or nonsense."""
    value = figures.get(name)
    return int(value) if value is not None and 0 <= value < 2**63 else None


def _started_at(started_s: float | None, at: datetime) -> datetime | None:
    is_past = started_s is not None and 0 < started_s <= at.timestamp()
    return datetime.fromtimestamp(started_s, UTC) if is_past and started_s is not None else None


def metrics_page(deployment: Deployment, path: str = METRICS) -> str | None:
    """Return the text of an engine's metrics page, empty if it has none there; None if nothing
    answered.

    Takes a few seconds at most and raises nothing.
    """
    parts = urlsplit(deployment.base_url)
    connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"accept": "text/plain", "connection": "close"})
        answer = connection.getresponse()
        body = _read(answer, until_s=monotonic() + TIMEOUT_S)
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
    return body.decode("utf-8", "replace") if answer.status == 200 else ""


def _read(answer: HTTPResponse, *, until_s: float) -> bytes:
    """Read within time and size limits: the socket's own timeout restarts with every byte of a
    slow answer.
    """
    parts: list[bytes] = []
    size = 0
    while size < MOST_BYTES and monotonic() < until_s and (part := answer.read1(65_536)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _figures(page: str, *, model: str) -> dict[str, float]:
    """Return a page's figures: those of `model` if the engine serves several, else sums over all.

    A cut or garbled page yields its readable part.
    """
    sums: dict[str, dict[str, float]] = {}
    try:
        for name, named, value in _samples(page):
            by_model = sums.setdefault(name, {})
            by_model[named] = by_model.get(named, 0.0) + value
    except ValueError:
        pass
    return {
        name: by_model.get(model, sum(by_model.values()))
        for name, by_model in sums.items()
        if name != _STARTED
    } | {name: max(by_model.values()) for name, by_model in sums.items() if name == _STARTED}


def _samples(page: str) -> Iterator[tuple[str, str, float]]:
    """Yield name, model and value of each wanted figure.

    Raises `ValueError` at a line that cannot be read.
    """
    for family in text_string_to_metric_families(page):
        for one in family.samples:
            name = _COUNTS.get(one.name, one.name)
            if (one.name in _COUNTS or one.name == _STARTED) and isfinite(one.value):
                yield name, one.labels.get("model_name", ""), one.value
