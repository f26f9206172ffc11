"""Computes an engine's live signals from its pages: queue, running requests, KV use, prefix-hit
rate, quantiles of its own TTFT and TPOT, and its pressure; fetches nothing.

The quantiles come from the engine's histograms, so they include callers that do not go through the
gateway. The gateway's own measurements are in the report `latency`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import inf, isfinite

from msgspec import Struct

from gateway.domain.deployments.engine_load import (
    EngineMetricNames,
    EngineMetrics,
    detected_engine,
    label_of,
    lines_of,
    number_in,
    was_restarted,
    whole_lines,
)
from gateway.domain.deployments.engine_pages import EnginePage, figures_on

QUANTILES = (0.5, 0.95, 0.99)


class Histogram(Struct, frozen=True, gc=False):
    """A histogram of seconds: pairs of a bucket's inclusive upper end and the number of all
    observations up to it, ascending. Empty if the engine has none.
    """

    buckets: tuple[tuple[float, float], ...] = ()

    def since(self, before: Histogram) -> Histogram:
        """Return the histogram of the observations after `before`; empty if the buckets differ."""
        if [end for end, _ in before.buckets] != [end for end, _ in self.buckets]:
            return Histogram()
        gained = zip(self.buckets, before.buckets, strict=True)
        return Histogram(tuple((end, max(now - then, 0.0)) for (end, now), (_, then) in gained))

    def quantile(self, share: float) -> float | None:
        """Return a quantile in seconds, interpolated within its bucket as Prometheus's
        `histogram_quantile` does; None without any observation.

        The last finite bucket's end if the quantile lies beyond it: then it is a lower bound.
        """
        total = self.buckets[-1][1] if self.buckets else 0.0
        if total <= 0:
            return None
        rank = share * total
        for (begin, below), (end, count) in pairwise(((0.0, 0.0), *self.buckets)):
            if count >= rank and count > below:
                if end == inf:
                    return begin
                found = begin + (end - begin) * (rank - below) / (count - below)
                return found if isfinite(found) else None  # absurd counts have no quantile
        return None  # a count that is no number lies in no bucket


class EngineReport(Struct, frozen=True, kw_only=True):
    """The figures and histograms on an engine's pages at one moment."""

    metrics: EngineMetrics = EngineMetrics()
    ttft: Histogram = Histogram()
    tpot: Histogram = Histogram()


class EngineSignals(Struct, frozen=True, kw_only=True):
    """An engine's live signals; None for one that it does not report.

    Now: `queue` and `running` requests, `room` (the most that runs at once), `kv_use` from 0 to 1.
    Over a time that its maker states: `prefix_hit_rate` from 0 to 1, the histograms `ttft` and
    `tpot`.
    """

    queue: float | None = None
    running: float | None = None
    room: float | None = None
    kv_use: float | None = None
    prefix_hit_rate: float | None = None
    ttft: Histogram = Histogram()
    tpot: Histogram = Histogram()

    @property
    def pressure(self) -> float | None:
        """Return the engine's demand in units of its capacity, 0 or more; 1.0 means full.

        The larger one of two shares: running and queued requests of its room, and the KV cache in
        use. Without a known room, the running requests are the room while others wait. None if
        neither share is known. docs/reference/metrics.md explains it to operators.
        """
        shares = [share for share in (self._request_share, self.kv_use) if share is not None]
        return max(shares, default=None)

    @property
    def _request_share(self) -> float | None:
        """Return the running and queued requests as a share of the room; None if unknown."""
        if self.running is None and self.queue is None:
            return None
        running, queue = self.running or 0.0, self.queue or 0.0
        if not running + queue:
            return 0.0
        room = self.room or (max(running, 1.0) if queue else None)
        share = None if room is None else (running + queue) / room
        return share if share is not None and isfinite(share) else None


def report_on(
    pages: Iterable[EnginePage], model: str, text_of: Callable[[str], str | None]
) -> EngineReport | None:
    """Return the figures and histograms on the pages of one group; None if the first one is silent.

    `text_of` returns the text of the page at a path, None without an answer.
    """
    texts: list[str] = []

    def kept(path: str) -> str | None:
        """Return a page's text, and keep it for the histograms."""
        text = text_of(path)
        texts.extend([] if text is None else [text])
        return text

    figures = figures_on(pages, model, kept)
    if figures is None:
        return None
    for text in texts:
        names = detected_engine(text)
        if names is not None and names.ttft:
            page = whole_lines(text)
            ttft, tpot = (_histogram(page, name, names, model) for name in (names.ttft, names.tpot))
            return EngineReport(metrics=figures, ttft=ttft, tpot=tpot)
    return EngineReport(metrics=figures)


def signals_between(
    before: EngineReport | None, now: EngineReport, *, room: float | None = None
) -> EngineSignals:
    """Return an engine's signals at `now`: rates and quantiles of the time since `before`, or since
    the engine's start without it or after a restart.

    `room` is an observed room, for an engine that states none.
    """
    metrics = now.metrics
    if before is None or was_restarted(before.metrics, metrics):
        looked_up, hits, ttft, tpot = (
            metrics.prefix_looked_up,
            metrics.prefix_hits,
            now.ttft,
            now.tpot,
        )
    else:
        looked_up = _gained(before.metrics.prefix_looked_up, metrics.prefix_looked_up)
        hits = _gained(before.metrics.prefix_hits, metrics.prefix_hits)
        ttft, tpot = now.ttft.since(before.ttft), now.tpot.since(before.tpot)
    return EngineSignals(
        queue=metrics.waiting,
        running=metrics.running,
        room=metrics.room or room,
        kv_use=metrics.kv_use,
        prefix_hit_rate=min(hits / looked_up, 1.0) if looked_up and hits is not None else None,
        ttft=ttft,
        tpot=tpot,
    )


def _gained(before: float | None, now: float | None) -> float | None:
    """Return a counter's increase; None if it is missing on either side."""
    return None if before is None or now is None else max(now - before, 0.0)


def _histogram(page: str, name: str, names: EngineMetricNames, model: str) -> Histogram:
    """Return one histogram of a metrics page: that of `model` if the engine serves several, else
    over all of them; an engine has one for each of its cores.
    """
    of_model: dict[float, float] = {}
    of_all: dict[float, float] = {}
    named = f',{names.model_label}="{model}"'
    for labels, value in lines_of(page, f"{name}_bucket"):
        end_text, count = label_of(labels, "le"), number_in(value)
        end = inf if end_text == "+Inf" else number_in(end_text)
        if end is None or count is None:
            continue
        of_all[end] = of_all.get(end, 0.0) + count
        if named in labels:
            of_model[end] = of_model.get(end, 0.0) + count
    return Histogram(tuple(sorted((of_model or of_all).items())))
