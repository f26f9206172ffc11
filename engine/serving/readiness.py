"""Probes an engine with a request for one token; only an answer means that the engine is ready.

vLLM's `/health` also answers 200 while its core is hung or its workers are dead (vLLM issues 36451
and 39863), so it is not asked.
"""

import time
import urllib.error
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.arguments.printable import printable
from engine.errors import UnknownStateError, UsageError
from engine.load.json_answer import BROKEN_ANSWER, ask_json
from engine.progress import StageProgress

POLL_S = 0.5
PROBE_LIMIT_S = 15.0
NOT_OFFERED = frozenset({400, 404, 405, 501})
"""Statuses of an endpoint that this kind of model does not have; the next one is tried."""

REQUESTS: Mapping[str, Mapping[str, object]] = {
    "/v1/completions": {"prompt": "1", "max_tokens": 1, "temperature": 0},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "1"}],
        "max_tokens": 1,
        "temperature": 0,
    },
    "/v1/embeddings": {"input": "1"},
    "/score": {"text_1": "1", "text_2": "1"},
}
"""The smallest request of each kind of model: it writes one token, or pools one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProbe:
    """One engine to be probed: its address without `/v1`, its model and its key."""

    url: str
    model: str | None = None
    """The served model's name; None takes the first that the engine lists."""
    key: str | None = None

    def failure(self) -> str | None:
        """Ask for one token; return None if it was answered, else the reason why not."""
        try:
            model = self.model or self._listed()[0]["id"]
            answered = None
            for path, body in REQUESTS.items():
                answered = self._ask(path, {"model": model, **body})
                if answered is None:
                    break
            return answered
        except urllib.error.HTTPError as error:
            return f"HTTP {error.code}"
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                return "connection refused"
            return str(error.reason)
        except BROKEN_ANSWER as error:
            return printable(str(error)) or type(error).__name__

    def context_tokens(self) -> int | None:
        """Return the tokens of the context that the engine lists for its model, or None."""
        try:
            for listed in self._listed():
                if self.model in (None, listed["id"]):
                    tokens = listed.get("max_model_len")
                    return tokens if isinstance(tokens, int) else None
        except BROKEN_ANSWER:
            return None
        return None

    def version(self) -> str | None:
        """Return the version that the engine states, as vLLM does; None without."""
        try:
            stated = self._send("/version", None).get("version")
        except BROKEN_ANSWER:
            return None
        return stated if isinstance(stated, str) else None

    def _ask(self, path: str, body: Mapping[str, object]) -> str | None:
        """Send one request; return None if it was answered, else the reason why the next endpoint
        is to be tried. Raises `URLError` if no endpoint can answer.
        """
        try:
            answer = self._send(path, body)
        except urllib.error.HTTPError as error:
            if error.code not in NOT_OFFERED:
                raise
            return f"HTTP {error.code} from {path}"
        results = answer.get("choices") or answer.get("data")
        return None if results else f"no result from {path}"

    def _listed(self) -> list[dict[str, Any]]:
        """Return the models that the engine lists."""
        listed: list[dict[str, Any]] = self._send("/v1/models", None)["data"]
        return listed

    def _send(self, path: str, body: Mapping[str, object] | None) -> dict[str, Any]:
        """Return the JSON object that answers one request."""
        parsed = ask_json(f"{self.url}{path}", key=self.key, body=body, limit_s=PROBE_LIMIT_S)
        if not isinstance(parsed, dict):
            raise TypeError(f"no JSON object from {path}")
        return parsed


def probe_of(url: str, *, model: str | None = None, key: str | None = None) -> EngineProbe:
    """Return the probe of an engine whose address may end in `/v1`. Raises `UsageError` if it is no
    HTTP address.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"{url!r} is no HTTP address. Write for example: --url http://127.0.0.1:8001"
        )
    return EngineProbe(url=url.rstrip("/").removesuffix("/v1"), model=model, key=key)


def wait_until_ready(probe: EngineProbe, timeout_s: float, progress: StageProgress) -> None:
    """Wait until an engine answers the probe. Raises `UnknownStateError` if it does not in time."""
    last = "it was not asked"
    for last in _failures(probe, timeout_s, progress):
        progress.advance(
            "starting",
            f"Engine is starting ({last})",
            done=round(progress.elapsed_s),
            total=round(timeout_s),
            unit="s",
        )
        time.sleep(POLL_S)
    if progress.elapsed_s < timeout_s:
        progress.say("done", f"Engine is ready at {probe.url} ({progress.elapsed_s:.0f} s).")
        return
    raise UnknownStateError(
        f"No engine answered a one-token request at {probe.url} within {timeout_s:.0f} s; last: "
        f"{last}. Read the engine's log for the reason, or wait longer with --timeout."
    )


def _failures(probe: EngineProbe, timeout_s: float, progress: StageProgress) -> Iterator[str]:
    """Yield the reason of each failed probe until one is answered or the time is over."""
    while progress.elapsed_s < timeout_s:
        if (reason := probe.failure()) is None:
            return
        yield reason
