"""Turns samples into tables: medians per target, ratios within the run, and the targets.

A row with errors, or with other programs' load on the machine, gives no ratio and meets no target:
it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import median

MAX_STRANGERS_CORES = 0.15
# CPU of the plain proxy for one request, and for one event of a stream at once, on the machine for
# which the targets were set; both at c=64.
NGINX_PLAIN_US, NGINX_EVENT_US = 12.1, 2.28
GATEWAY, UNSYNCED = "tollgate", "tollgate, no fsync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of load. Streams are counted by event, plain answers by request.

    `names` are its targets.

    `is_hot`: each window follows a second of the same load.
    """

    title: str
    upstream: str
    connections: int
    window_s: int
    rounds: int
    names: frozenset[str]
    is_hot: bool = False

    @property
    def is_streamed(self) -> bool:
        return self.upstream != "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One window of load on one target.

    `units` are requests or events; CPU is until the last row was written.
    """

    answered: int
    units: int
    took_s: float
    p50_ms: float
    p99_ms: float
    errors: int
    cpu_s: float
    postgres_cpu_s: float
    strangers_cores: float
    pss_mib: float

    def per_unit_us(self, seconds: float) -> float:
        """Return the microseconds of each request or event."""
        return 1e6 * seconds / max(self.units, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: medians over the rounds, errors summed, the worst load of other
    programs.
    """

    scenario: Scenario
    target: str
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float | None
    times_nginx: float | None
    postgres_cpu_us: float | None
    pss_mib: float | None
    errors: int
    strangers_cores: float

    @property
    def is_sound(self) -> bool:
        """Return True if it was undisturbed and everything was answered."""
        return not self.errors and self.strangers_cores <= MAX_STRANGERS_CORES


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The probes' results, in milliseconds over the proxy; None if a probe did not run."""

    gap_added_ms: float | None = None
    stall_ms: float | None = None


def summarise(scenario: Scenario, samples: Mapping[str, Sequence[Sample]]) -> list[Row]:
    """Return the rows of one scenario. A ratio needs both sides sound."""
    cpu_of = {
        name: median(sample.per_unit_us(sample.cpu_s) for sample in taken)
        for name, taken in samples.items()
    }
    rows = []
    for name, taken in samples.items():
        is_direct = name == "direct"
        has_postgres = any(sample.postgres_cpu_s for sample in taken)
        rows.append(
            Row(
                scenario=scenario,
                target=name,
                requests_per_s=median(sample.answered / sample.took_s for sample in taken),
                p50_ms=median(sample.p50_ms for sample in taken),
                p99_ms=median(sample.p99_ms for sample in taken),
                cpu_us=None if is_direct else cpu_of[name],
                times_nginx=_ratio(samples, cpu_of, name),
                postgres_cpu_us=median(s.per_unit_us(s.postgres_cpu_s) for s in taken)
                if has_postgres
                else None,
                pss_mib=None if is_direct else max(sample.pss_mib for sample in taken),
                errors=sum(sample.errors for sample in taken),
                strangers_cores=max(sample.strangers_cores for sample in taken),
            )
        )
    return rows


def as_table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table; `*` marks those that other programs disturbed."""
    lines = [
        "| load | through | req/s | p50 ms | p99 ms | CPU µs | per | × nginx | Postgres CPU µs | "
        "PSS MiB | errors | strangers, cores |",
        "|---|---|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        mark = " *" if row.strangers_cores > MAX_STRANGERS_CORES else ""
        cells = (
            row.scenario.title,
            row.target,
            f"{row.requests_per_s:,.0f}",
            f"{row.p50_ms:.2f}",
            f"{row.p99_ms:.2f}",
            _or_dash(row.cpu_us, ".1f"),
            "event" if row.scenario.is_streamed else "request",
            _or_dash(row.times_nginx, ".1f"),
            _or_dash(row.postgres_cpu_us, ".1f"),
            _or_dash(row.pss_mib, ".0f"),
            str(row.errors),
            f"{row.strangers_cores:.2f}{mark}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def as_targets(rows: Sequence[Row], probed: Probed) -> str:
    """Return the gateway's targets with this run's measurements.

    Rates, and the wait behind 64 connections, depend on the machine's speed. Their targets were set
    on a machine on which the plain proxy took `NGINX_PLAIN_US`, and are scaled by its time here for
    the same load. Ratios are not scaled.
    """
    book = _Book(rows)
    plain, first, streams = ("plain", 64), ("plain", 1), ("burst", 64)
    paced, paced_vllm = ("paced", 200), ("paced-vllm", 200)

    def rate(row: Row) -> float:
        return row.requests_per_s

    def times_nginx(row: Row) -> float | None:
        return row.times_nginx

    # Without a sound figure of the proxy there is no scale, and the three have no target.
    speed = book.speed(plain, NGINX_PLAIN_US)
    stream_speed = book.speed(streams, NGINX_EVENT_US)
    lines = [
        _target(
            "plain 1 KB chat, c=64",
            f"≥ 5,000 req/s × {speed:.2f}",
            book.value(plain, rate),
            5000 * speed,
            "{:,.0f}",
        ),
        _target(
            "CPU per request ÷ nginx, c=64", "≤ 14", book.value(plain, times_nginx), -14, "{:.1f}"
        ),
        _target(
            "req/s ÷ LiteLLM's, c=64",
            "≥ 50",
            book.ratio(plain, GATEWAY, "litellm", rate),
            50,
            "{:.0f}",
        ),
        _target(
            "CPU per streamed event ÷ nginx, 200 paced streams",
            "≤ 3.5",
            book.value(paced, times_nginx),
            -3.5,
            "{:.1f}",
        ),
        _target(
            "same from a vLLM, whose running usage is cut out",
            "≤ 3.5",
            book.value(paced_vllm, times_nginx),
            -3.5,
            "{:.1f}",
        ),
        _target(
            "streams of 101 events, c=64",
            f"≥ 2,000/s × {stream_speed:.2f}",
            book.value(streams, rate),
            2000 * stream_speed,
            "{:,.0f}",
        ),
        _target(
            "added latency at c=1, p50",
            "≤ 0.8 ms",
            book.over_nginx(first, lambda r: r.p50_ms),
            -0.8,
            "{:.2f} ms",
        ),
        _target(
            "added latency at c=1, p99",
            "≤ 4 ms",
            book.over_nginx(first, lambda r: r.p99_ms),
            -4,
            "{:.2f} ms",
        ),
        _target(
            "p99 at c=64",
            f"≤ 30 ms ÷ {speed:.2f}",
            book.value(plain, lambda r: r.p99_ms),
            -30 / speed,
            "{:.1f} ms",
        ),
        _target(
            "added gap between events, p99, 200 paced streams",
            "≤ 3 ms",
            probed.gap_added_ms,
            -3,
            "{:.2f} ms",
        ),
        _target(
            "durability: req/s synced ÷ not synced, c=64",
            "≥ 0.70",
            book.ratio(plain, GATEWAY, UNSYNCED, rate),
            0.70,
            "{:.2f}",
        ),
        _target("memory, loaded", "≤ 150 MiB", book.most(lambda r: r.pss_mib), -150, "{:.0f} MiB"),
        _target(
            "1 MB bodies: what small requests beside them wait longer, p99",
            "≤ 1 ms",
            probed.stall_ms,
            -1,
            "{:.2f} ms",
        ),
    ]
    return "\n".join(["| target | wanted | measured | met |", "|---|--:|--:|---|", *lines])


class _Book:
    """The rows by load and target; refuses unsound ones."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {
            ((row.scenario.upstream, row.scenario.connections), row.target): row for row in rows
        }

    def value(
        self, load: tuple[str, int], of: Callable[[Row], float | None], target: str = GATEWAY
    ) -> float | None:
        row = self._rows.get((load, target))
        return of(row) if row is not None and row.is_sound else None

    def speed(self, load: tuple[str, int], reference_us: float) -> float:
        """Return this machine's speed relative to the reference: NaN if the proxy's row is
        unsound.
        """
        nginx_us = self.value(load, lambda row: row.cpu_us, "nginx")
        return reference_us / nginx_us if nginx_us else nan

    def over_nginx(self, load: tuple[str, int], of: Callable[[Row], float | None]) -> float | None:
        ours, theirs = self.value(load, of), self.value(load, of, "nginx")
        return None if ours is None or theirs is None else ours - theirs

    def ratio(
        self, load: tuple[str, int], above: str, below: str, of: Callable[[Row], float | None]
    ) -> float | None:
        top, bottom = self.value(load, of, above), self.value(load, of, below)
        return None if top is None or not bottom else top / bottom

    def most(self, of: Callable[[Row], float | None]) -> float | None:
        found = [of(row) for (_, target), row in self._rows.items() if target == GATEWAY]
        return max((value for value in found if value is not None), default=None)


def _target(name: str, wanted: str, measured: float | None, bound: float, form: str) -> str:
    """Return a line. A negative bound is an upper one."""
    if measured is None or isnan(bound):
        return f"| {name} | {wanted} | not measured, or refused | – |"
    is_met = measured <= -bound if bound < 0 else measured >= bound
    return f"| {name} | {wanted} | {form.format(measured)} | {'yes' if is_met else '**no**'} |"


def _ratio(
    samples: Mapping[str, Sequence[Sample]], cpu_of: Mapping[str, float], name: str
) -> float | None:
    if name == "direct" or "nginx" not in samples or not cpu_of["nginx"]:
        return None
    both = [*samples[name], *samples["nginx"]]
    if any(sample.errors or sample.strangers_cores > MAX_STRANGERS_CORES for sample in both):
        return None
    return cpu_of[name] / cpu_of["nginx"]


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"
