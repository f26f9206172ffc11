"""What the gateway costs: direct to an upstream, through a plain nginx proxy, and through Tollgate, in one run.

    python -m bench.overhead [--quick] [--write] [--against CHECKOUT]

The gateway has everything on: key check, policy, hold, settlement, rows in a real Postgres, metrics, log lines.
Requests per second depend on whoever else uses the machine; CPU per request hardly does, so read that, and its ratio
to the proxy's. The proxy and the gateway have one core, the same one, and take turns; the figures are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import machine
from bench.page import write_page
from bench.stand import REPOSITORY, Stand, StandError, Target, wait_until_written

GATEWAY = "tollgate"
WARM_UP_S = 1
MAX_STRANGERS_CORES = 0.15
PAGE = REPOSITORY / "docs" / "performance.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of load. Streams are counted by event, plain answers by request."""

    title: str
    upstream: str
    connections: int
    window_s: int
    rounds: int
    has_direct: bool = True

    @property
    def is_streamed(self) -> bool:
        return self.upstream != "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One window of load on one target. `units` are requests or events; CPU is until the last row was written."""

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
        """Microseconds of each request or event."""
        return 1e6 * seconds / max(self.units, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: medians over the rounds, errors summed, strangers at their worst."""

    scenario: str
    target: str
    per: str
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float | None
    times_nginx: float | None
    postgres_cpu_us: float | None
    pss_mib: float | None
    errors: int
    strangers_cores: float


FULL = (
    *(Scenario(title=f"plain 1 KB chat, c={c}", upstream="plain", connections=c, window_s=3, rounds=3)
      for c in (1, 16, 64)),
    Scenario(title="stream of 101 events at once, c=64", upstream="burst", connections=64, window_s=4, rounds=2),
    Scenario(title="same from a vLLM", upstream="burst-vllm", connections=64, window_s=4, rounds=2),
    Scenario(title="100 streams, an event each 20 ms", upstream="paced", connections=100, window_s=8, rounds=2,
             has_direct=False),
    Scenario(title="same from a vLLM", upstream="paced-vllm", connections=100, window_s=8, rounds=2,
             has_direct=False),
)  # fmt: skip
QUICK = (
    *(Scenario(title=f"plain 1 KB chat, c={c}", upstream="plain", connections=c, window_s=2, rounds=1)
      for c in (1, 16, 64)),
    Scenario(title="stream of 101 events at once, c=64", upstream="burst", connections=64, window_s=3, rounds=1,
             has_direct=False),
    Scenario(title="100 streams from a vLLM, an event each 20 ms", upstream="paced-vllm", connections=100, window_s=5,
             rounds=1, has_direct=False),
)  # fmt: skip


def main() -> int:
    """Run the benchmark; 0 where every request was answered and has its row."""
    chosen = _arguments()
    scenarios = QUICK if chosen.quick else FULL
    began_s = time.monotonic()
    try:
        with Stand() as stand:
            gateways = [stand.add_gateway(GATEWAY)]
            if chosen.against:
                gateways.append(stand.add_gateway("against", chosen.against))
            bench = Bench(stand)
            rows = bench.run(scenarios)
            notes = [bench.check_ledger(gateway) for gateway in gateways]
    except StandError as problem:
        print(problem, file=sys.stderr)
        return 3
    table = as_table(rows)
    facts = {
        "machine": machine.describe(), "commit": _commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": "python -m " + " ".join(["bench.overhead", *sys.argv[1:]]),
    }  # fmt: skip
    print("\n".join([table, "", *notes, *(f"{name}: {value}" for name, value in facts.items())]))
    print(f"took {time.monotonic() - began_s:.0f} s")
    if chosen.write:
        write_page(PAGE, table, facts=facts, notes=notes)
        print(f"written to {PAGE.relative_to(REPOSITORY)}")
    return 1 if any(row.errors for row in rows) else 0


class Bench:
    """Sends load in turns and keeps the samples. Knows how many requests each target has answered."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._answered: dict[str, int] = defaultdict(int)
        self._left_open: dict[str, int] = defaultdict(int)

    def run(self, scenarios: tuple[Scenario, ...]) -> list[Row]:
        """Interleave the targets within each scenario and round, so that all meet the same weather."""
        rows: list[Row] = []
        for scenario in scenarios:
            targets = [t for t in self._stand.targets.values() if scenario.has_direct or t.name != "direct"]
            samples: dict[str, list[Sample]] = defaultdict(list)
            for target in targets:
                self._load(target, scenario, WARM_UP_S)
            for _ in range(scenario.rounds):
                for target in targets:
                    samples[target.name].append(self._sample(target, scenario))
                    print(f"  {scenario.title}, {target.name}: {_brief(samples[target.name][-1])}", file=sys.stderr)
            rows += summarise(scenario, samples)
        return rows

    def check_ledger(self, gateway: Target) -> str:
        """Say that every answered request has its row. Raises `StandError` where one has not."""
        assert gateway.ledger is not None
        answered, left_open = self._answered[gateway.name], self._left_open[gateway.name]
        rows = wait_until_written(gateway.ledger, answered)
        if rows.get("ok", 0) > answered + left_open:
            raise StandError(f"{gateway.name}: {rows} rows for {answered} answers: some were charged twice.")
        others = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(rows.items()) if outcome != "ok")
        return (
            f"{gateway.name}: {answered:,} requests answered, {rows.get('ok', 0):,} rows `ok` in finance.usage_events"
            + (f" and {others}" if others else "")
            + f"; the surplus is what wrk left open at the end of its windows (at most {left_open:,})."
        )

    def _sample(self, target: Target, scenario: Scenario) -> Sample:
        stand = self._stand
        pids, ledger = target.pids(), target.ledger
        began_s, events = time.monotonic(), stand.events_sent()
        busy, ours, cpu = machine.busy_s(), stand.stranger_free_cpu_s(), machine.cpu_s(pids)
        postgres = ledger.cpu_s() if ledger else 0.0
        done = self._load(target, scenario, scenario.window_s)
        if ledger:
            wait_until_written(ledger, self._answered[target.name])
        answered = int(done["answered"])
        others_s = machine.busy_s() - busy - (stand.stranger_free_cpu_s() - ours)
        return Sample(
            answered=answered,
            units=stand.events_sent() - events if scenario.is_streamed else answered,
            took_s=done["took_us"] / 1e6,
            p50_ms=done["p50_us"] / 1000,
            p99_ms=done["p99_us"] / 1000,
            errors=int(done["refused"] + done["broken"]),
            cpu_s=machine.cpu_s(target.pids()) - cpu,
            postgres_cpu_s=(ledger.cpu_s() if ledger else 0.0) - postgres,
            strangers_cores=max(0.0, others_s / (time.monotonic() - began_s)),
            pss_mib=machine.pss_mib(target.pids()),
        )

    def _load(self, target: Target, scenario: Scenario, seconds: int) -> dict[str, int]:
        """Let wrk work for a while; return what it says."""
        variables = {
            **os.environ,
            "MODEL": scenario.upstream, "KEY": target.key, "STREAM": "1" if scenario.is_streamed else "0",
        }  # fmt: skip
        done = subprocess.run(
            ["wrk", "--threads", "1", "--connections", str(scenario.connections), "--duration", f"{seconds}s",
             "--timeout", "20s", "--latency", "--script", str(Path(__file__).with_name("load.lua")),
             f"http://127.0.0.1:{target.port_of[scenario.upstream]}"],
            env=variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        try:
            result: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            raise StandError(f"wrk failed: {(done.stderr or done.stdout)[-500:]}") from None
        self._answered[target.name] += result["answered"] - result["refused"]
        self._left_open[target.name] += scenario.connections
        return result


def summarise(scenario: Scenario, samples: dict[str, list[Sample]]) -> list[Row]:
    """Return the rows of one scenario. A ratio needs both sides free of errors."""
    cpu_of = {name: median(sample.per_unit_us(sample.cpu_s) for sample in taken) for name, taken in samples.items()}
    is_clean = {name: not any(sample.errors for sample in taken) for name, taken in samples.items()}
    rows = []
    for name, taken in samples.items():
        is_direct = name == "direct"
        can_compare = not is_direct and is_clean[name] and is_clean["nginx"] and cpu_of["nginx"] > 0
        has_postgres = any(sample.postgres_cpu_s for sample in taken)
        rows.append(
            Row(
                scenario=scenario.title,
                target=name,
                per="event" if scenario.is_streamed else "request",
                requests_per_s=median(sample.answered / sample.took_s for sample in taken),
                p50_ms=median(sample.p50_ms for sample in taken),
                p99_ms=median(sample.p99_ms for sample in taken),
                cpu_us=None if is_direct else cpu_of[name],
                times_nginx=cpu_of[name] / cpu_of["nginx"] if can_compare else None,
                postgres_cpu_us=median(s.per_unit_us(s.postgres_cpu_s) for s in taken) if has_postgres else None,
                pss_mib=None if is_direct else max(sample.pss_mib for sample in taken),
                errors=sum(sample.errors for sample in taken),
                strangers_cores=max(sample.strangers_cores for sample in taken),
            )
        )
    return rows


def as_table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table; `*` marks those that strangers disturbed."""
    lines = [
        "| load | through | req/s | p50 ms | p99 ms | CPU µs | per | × nginx | Postgres CPU µs | PSS MiB | errors "
        "| strangers, cores |",
        "|---|---|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        mark = " *" if row.strangers_cores > MAX_STRANGERS_CORES else ""
        cells = (
            row.scenario, row.target, f"{row.requests_per_s:,.0f}", f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}",
            _or_dash(row.cpu_us, ".1f"), row.per, _or_dash(row.times_nginx, ".1f"),
            _or_dash(row.postgres_cpu_us, ".1f"), _or_dash(row.pss_mib, ".0f"), str(row.errors),
            f"{row.strangers_cores:.2f}{mark}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def _brief(sample: Sample) -> str:
    return (
        f"{sample.answered / sample.took_s:,.0f} req/s, p50 {sample.p50_ms:.2f} ms, "
        f"{sample.per_unit_us(sample.cpu_s):.1f} µs, {sample.errors} errors, "
        f"strangers {sample.strangers_cores:.2f}"
    )


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = " with uncommitted changes" if git("status", "--porcelain") else ""
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + changed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.overhead", description="What the gateway costs, next to a plain nginx proxy."
    )
    parser.add_argument("--quick", action="store_true", help="about a minute, for a first look")
    parser.add_argument("--write", action="store_true", help="write the table into docs/performance.md")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="measure another checkout's gateway as well")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
