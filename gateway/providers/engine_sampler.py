"""Reads a self-hosted engine's metrics page with one GET, and returns its figures as a sample or
its text; callers decide when, and store it.

No content and no credential leaves here, so no permit is needed. It does not use the HTTP client
for content, follows no redirect, keeps no cookie and uses no proxy of the environment: a probe goes
to the declared address or is not sent.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from io import StringIO
from itertools import islice
from math import isfinite
from time import monotonic
from urllib.parse import SplitResult, urlsplit

import httpcore2
from prometheus_client.parser import text_string_to_metric_families

from gateway.domain.deployments.engine_sample import EngineSample
from gateway.domain.policy.policy import Deployment
from gateway.domain.words import host_and_port
from gateway.providers.timed_stream import NETWORK_ERRORS, connect

METRICS = "/metrics"
TIMEOUT_S = 2.0  # for everything: address, connection, request and answer
MOST_BYTES = 4 * 2**20  # vLLM's page has about 100 KB
HEADERS = (("accept", "text/plain"), ("connection", "close"))
_COUNTS = {
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "llamacpp:tokens_predicted_total": "generation_tokens",
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
    # llama.cpp counts the prompts' tokens in two parts. Older ones do not report the second, and
    # one part alone is no count of the prompts.
    "llamacpp:prompt_tokens_total": "processed_tokens",
    "llamacpp:prompt_tokens_cached_total": "reused_tokens",
}
TOO_LARGE = 2**63  # one count that Postgres cannot hold would lose the round of every engine
_STARTED = "process_start_time_seconds"
_NAMES = (*_COUNTS, _STARTED)
MOST_LINE_CHARS, MOST_LINES = 1024, 1024  # vLLM has one of 100 for each core and model


class EngineSampler:
    """Reads engines' metrics pages, each time on a new connection. Used from several threads.

    Trusts the machine's certificates, or `SSL_CERT_FILE`.

    It uses httpcore2, the blocking layer of httpx2: httpx2 itself has no deadline for a whole
    exchange. Its asynchronous client also takes five times the CPU (2 ms per page).
    """

    def __init__(self, now: Callable[[], datetime], *, timeout_s: float = TIMEOUT_S) -> None:
        """Make the sampler; `now` dates the samples, and `timeout_s` bounds each read of a page."""
        self._now, self._timeout_s = now, timeout_s

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Load the trusted certificates when first needed: it takes 20 ms, and few engines use
        TLS.
        """
        return ssl.create_default_context()

    def sample(self, deployment: Deployment) -> EngineSample:
        """Read an engine's metrics page now, and return whether it is up, its token counters and
        queue, for GPU hours and settling.

        Takes a few seconds at most and raises nothing.

        An engine that answers in any way is up: its GPUs are in use, even if something else is
        wrong.
        """
        page, is_whole = self._page(deployment, METRICS)
        at = self._now()
        if page is None:
            return EngineSample(deployment=deployment.name, at=at)
        # Unknown attempts are settled from these counters, and the sum of a part is too small.
        found = _figures(page, model=deployment.model) if is_whole else {}
        return EngineSample(
            deployment=deployment.name,
            at=at,
            is_up=True,
            started_at=_started_at(found.get(_STARTED), at),
            prompt_tokens=_prompt_tokens(found),
            generation_tokens=_count(found, "generation_tokens"),
            running=_count(found, "running"),
            waiting=_count(found, "waiting"),
        )

    def metrics_page(self, deployment: Deployment, path: str = METRICS) -> str | None:
        """Return the text of an engine's metrics page, for its load; empty if it has none there,
        None if nothing answered. A path such as `:8002/metrics` names another port of the same
        host.

        Takes a few seconds at most and raises nothing. A page that is cut, too long or late yields
        the part that arrived.
        """
        return self._page(deployment, path)[0]

    def _page(self, deployment: Deployment, path: str) -> tuple[str | None, bool]:
        """Return the page's text, and True if all of it arrived."""
        parts = urlsplit(deployment.base_url)
        status, body, is_whole = None, bytearray(), False
        try:
            if path.startswith(":"):
                port, _, path = path[1:].partition("/")
                path = f"/{path}"
                parts = parts._replace(netloc=_with_port(parts, port))
            url = httpcore2.URL(f"{parts.scheme}://{parts.netloc}{path}")
            stream = connect(parts, left_s=_time_left(self._timeout_s), tls=lambda: self._tls)
            with (
                httpcore2.HTTP11Connection(url.origin, stream) as connection,
                connection.stream("GET", url, headers=[("host", parts.netloc), *HEADERS]) as answer,
            ):
                status = answer.status
                for part in answer.iter_stream() if status == 200 else ():
                    body += part
                    if len(body) >= MOST_BYTES:
                        break
                else:
                    is_whole = True
        except NETWORK_ERRORS:
            pass
        return None if status is None else body.decode("utf-8", "replace"), is_whole


def _with_port(parts: SplitResult, port: str) -> str:
    """Return an address's host with another port, without a credential that the address names."""
    return host_and_port(parts.hostname or "", port)


def _time_left(timeout_s: float) -> Callable[[], float]:
    """Return a function that gives the seconds left of `timeout_s`; after them it raises."""
    until_s = monotonic() + timeout_s

    def left_s() -> float:
        """Return the seconds left. Raises `TimeoutException` after the last one."""
        seconds = until_s - monotonic()
        if seconds <= 0:
            raise httpcore2.TimeoutException
        return seconds

    return left_s


def _count(figures: dict[str, float], name: str) -> int | None:
    """Return one figure of an engine as a whole number that Postgres can hold; None if absent or
    nonsense.
    """
    value = figures.get(name)
    return int(value) if value is not None and 0 <= value < TOO_LARGE else None


def _prompt_tokens(figures: dict[str, float]) -> int | None:
    """Return an engine's count of prompt tokens, reused ones included; None if it reports only a
    part of them.
    """
    processed, reused = _count(figures, "processed_tokens"), _count(figures, "reused_tokens")
    if processed is None or reused is None:
        return _count(figures, "prompt_tokens")
    total = processed + reused
    return total if total < TOO_LARGE else None


def _started_at(started_s: float | None, at: datetime) -> datetime | None:
    """Return the moment when the engine started; None if it is unknown or not in the past."""
    is_past = started_s is not None and 0 < started_s <= at.timestamp()
    return datetime.fromtimestamp(started_s, UTC) if is_past and started_s is not None else None


def _figures(page: str, *, model: str) -> dict[str, float]:
    """Return a metrics page's figures: those of `model` if the engine serves several, else sums
    over all.

    A cut or garbled page yields its readable part.
    """
    sums: dict[str, dict[str, float]] = {}
    with suppress(ValueError, ArithmeticError, LookupError):  # each is raised for some odd line
        for name, named, value in _samples(page):
            by_model = sums.setdefault(name, {})
            by_model[named] = by_model.get(named, 0.0) + value
    return {
        name: by_model.get(model, sum(by_model.values()))
        for name, by_model in sums.items()
        if name != _STARTED
    } | {name: max(by_model.values()) for name, by_model in sums.items() if name == _STARTED}


def _samples(page: str) -> Iterator[tuple[str, str, float]]:
    """Yield name, model and value of each figure on a metrics page that the gateway uses.

    Raises an error of the parser at a line that cannot be read.
    """
    for family in text_string_to_metric_families(_wanted(page)):
        for one in family.samples:
            if one.name in _NAMES and isfinite(one.value):
                yield _COUNTS.get(one.name, one.name), one.labels.get("model_name", ""), one.value


def _wanted(page: str) -> str:
    """Return the lines of a metrics page with the figures that the gateway uses.

    The parser takes minutes for a line of 4 MB. A last line without its end is left out, because it
    may lack digits.
    """
    lines = StringIO(page[: page.rfind("\n") + 1])
    wanted = (line for line in lines if line.startswith(_NAMES) and len(line) <= MOST_LINE_CHARS)
    return "".join(islice(wanted, MOST_LINES))
