"""Holds the times and token counts of measured requests, and of one run of load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRequest:
    """One request as its client saw it; moments in seconds since the run began.

    Latencies count from `scheduled_s`. In a closed loop that is the moment of sending; in an open
    loop it is the arrival that was drawn beforehand, however late the client was. Without that, a
    stalled server would delay the requests that should observe it: coordinated omission (G. Tene,
    "How NOT to Measure Latency", 2013).
    """

    scheduled_s: float
    sent_s: float
    token_times_s: Sequence[float]
    """Arrivals of the chunks that hold tokens; one chunk can hold several tokens."""
    ended_s: float
    """The arrival of `finish_reason`, or the moment of the failure."""
    prompt_tokens: int | None
    """All tokens of the prompt, cached ones included; None if the server gave no usage."""
    cached_tokens: int | None
    output_tokens: int | None
    """From the usage; without one from `max_tokens` or, at worst, the number of chunks."""
    engine_metrics: Mapping[str, Any] | None
    """vLLM's own figures for this request (`--enable-per-request-metrics`)."""
    failure: str | None

    @property
    def ttft_s(self) -> float | None:
        """Return the time to the first token; None without one."""
        return self.token_times_s[0] - self.scheduled_s if self.token_times_s else None

    @property
    def tpot_s(self) -> float | None:
        """Return the time per output token after the first; None for fewer than two tokens."""
        if not self.token_times_s or not self.output_tokens or self.output_tokens < 2:
            return None
        return (self.ended_s - self.token_times_s[0]) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """Return the time to the end of the answer."""
        return self.ended_s - self.scheduled_s

    @property
    def gaps_s(self) -> list[float]:
        """Return the times between chunks of tokens (inter-token latency, ITL)."""
        return [after - before for before, after in pairwise(self.token_times_s)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """The measured requests of one run, in the order of their ends, and its length.

    The run ends with the last answer; `began` is the client's clock at its begin.
    """

    requests: Sequence[MeasuredRequest]
    began: float
    duration_s: float

    @property
    def answered(self) -> list[MeasuredRequest]:
        """Return the requests that did not fail."""
        return [one for one in self.requests if one.failure is None]

    @property
    def output_tokens(self) -> int:
        """Return the output tokens of all answered requests."""
        return sum(one.output_tokens or 0 for one in self.answered)
