"""The cost of the gateway: direct to an upstream, through a plain nginx proxy, and through
Tollgate, in one run.

    python -m bench.overhead [--quick] [--peers] [--write] [--against CHECKOUT]

The gateway has everything on: key check, policy, hold, journal, settlement, rows in a real
Postgres, metrics, logs. Requests per second depend on the machine's other users; CPU per request
hardly does, so read that, and its ratio to the proxy's. All compared targets use the same core in
turn; the figures are medians of rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from bench.stand import machine, peers, probes
from bench.stand.gateways import Stand, StandError, Target, wait_until_written
from bench.stand.page import write_table
from bench.stand.table import (
    GATEWAY,
    MAX_STRANGERS_CORES,
    UNSYNCED,
    Probed,
    Row,
    Sample,
    Scenario,
    as_table,
    as_targets,
    summarise,
)

WARM_UP_S = 1
PROBE_ROUNDS = 3
TRIES = 3  # of a window that other programs disturbed
SLOW_WINDOW_S = 10  # of streams through a peer that answers ten of them a second

_OURS = frozenset({"nginx", GATEWAY, "against"})
_ALL = _OURS | {"direct", *peers.NAMES}
FULL = (
    Scenario(
        title="plain 1 KB chat, c=1",
        upstream="plain",
        connections=1,
        window_s=3,
        rounds=3,
        names=_ALL,
    ),
    Scenario(
        title="plain 1 KB chat, c=16",
        upstream="plain",
        connections=16,
        window_s=3,
        rounds=3,
        names=_OURS | {"direct"},
    ),
    Scenario(
        title="plain 1 KB chat, c=64",
        upstream="plain",
        connections=64,
        window_s=4,
        rounds=3,
        names=_ALL | {UNSYNCED},
    ),
    Scenario(
        title="stream of 101 events at once, c=64",
        upstream="burst",
        connections=64,
        window_s=4,
        rounds=3,
        names=_ALL,
    ),
    Scenario(
        title="same from a vLLM",
        upstream="burst-vllm",
        connections=64,
        window_s=4,
        rounds=3,
        names=_OURS,
    ),
    Scenario(
        title="200 streams, an event each 20 ms",
        upstream="paced",
        connections=200,
        window_s=8,
        rounds=3,
        names=_OURS | {"vllm-router"},
    ),
    Scenario(
        title="same from a vLLM",
        upstream="paced-vllm",
        connections=200,
        window_s=8,
        rounds=3,
        names=_OURS,
    ),
)
QUICK = (
    *(
        Scenario(
            title=f"plain 1 KB chat, c={c}",
            upstream="plain",
            connections=c,
            window_s=2,
            rounds=1,
            names=_ALL,
        )
        for c in (1, 64)
    ),
    Scenario(
        title="stream of 101 events at once, c=64",
        upstream="burst",
        connections=64,
        window_s=3,
        rounds=1,
        names=_OURS | set(peers.NAMES),
    ),
    Scenario(
        title="200 streams from a vLLM, an event each 20 ms",
        upstream="paced-vllm",
        connections=200,
        window_s=5,
        rounds=1,
        names=_OURS,
    ),
)


def main() -> int:
    """Run the benchmark; 0 if every request was answered and has its row."""
    chosen = _arguments()
    began_s = time.monotonic()
    try:
        with Stand() as stand:
            gateways = [stand.add_gateway(GATEWAY)]
            if not chosen.quick:
                gateways.append(stand.add_gateway(UNSYNCED, journal_fsync="false"))
            if chosen.against:
                gateways.append(stand.add_gateway("against", chosen.against))
            for name in peers.NAMES if chosen.peers else ():
                stand.add_peer(name)
            bench = Bench(stand, tries=1 if chosen.quick else TRIES)
            rows = bench.run(QUICK if chosen.quick else FULL)
            probed = Probed() if chosen.quick else bench.probe()
            notes = [bench.check_ledger(gateway) for gateway in gateways]
    except StandError as problem:
        print(problem, file=sys.stderr)
        return 3
    if chosen.peers:
        notes.append(
            "peers: " + ", ".join(f"{name} {version}" for name, version in peers.VERSIONS.items())
        )
    tables = [as_table(rows)] if chosen.quick else [as_targets(rows, probed), as_table(rows)]
    facts = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": "python -m " + " ".join(["bench.overhead", *sys.argv[1:]]),
        "took": f"{time.monotonic() - began_s:.0f} s",
    }
    print(
        "\n".join(
            [
                "\n\n".join(tables),
                "",
                *notes,
                *(f"{name}: {value}" for name, value in facts.items()),
            ]
        )
    )
    if chosen.write:
        write_table("overhead", "\n\n".join(tables), facts=facts, notes=notes)
    return 1 if any(row.errors for row in rows) else 0


class Bench:
    """Sends load in turns and keeps the samples.

    Counts each target's answered requests.
    """

    def __init__(self, stand: Stand, *, tries: int) -> None:
        self._stand, self._tries = stand, tries
        self._answered: dict[str, int] = defaultdict(int)
        self._left_open: dict[str, int] = defaultdict(int)

    def run(self, scenarios: tuple[Scenario, ...]) -> list[Row]:
        """Interleave the targets within each scenario and round, so that all meet the same
        conditions.
        """
        rows: list[Row] = []
        for scenario in scenarios:
            targets = [
                target for target in self._stand.targets.values() if target.name in scenario.names
            ]
            samples: dict[str, list[Sample]] = defaultdict(list)
            for target in targets:
                if target.renew is None:
                    self._load(target, scenario, WARM_UP_S)
            for _ in range(scenario.rounds):
                for target in targets:
                    samples[target.name].append(self._undisturbed(target, scenario))
                    print(
                        f"  {scenario.title}, {target.name}: {_brief(samples[target.name][-1])}",
                        file=sys.stderr,
                    )
            rows += summarise(scenario, samples)
        return rows

    def probe(self) -> Probed:
        """Return the gateway's delay beyond the proxy's: for the gaps between events, and for a
        small request beside large ones.
        """
        gaps: dict[str, list[float]] = defaultdict(list)
        stalls: dict[str, list[float]] = defaultdict(list)
        for _ in range(PROBE_ROUNDS):
            for name in ("nginx", GATEWAY):
                gaps[name].append(self._gap_p99_ms(self._stand.targets[name]))
                stalls[name].append(self._stall_p99_ms(self._stand.targets[name]))
                print(
                    f"  {name}: gap p99 {gaps[name][-1]:.2f} ms, 1 MB beside "
                    f"{stalls[name][-1]:.2f} ms",
                    file=sys.stderr,
                )
        return Probed(
            gap_added_ms=median(gaps[GATEWAY]) - median(gaps["nginx"]),
            # If a small request was quicker beside large ones, the proxy caused no delay: that is
            # no credit for the gateway.
            stall_ms=median(stalls[GATEWAY]) - max(0.0, median(stalls["nginx"])),
        )

    def check_ledger(self, gateway: Target) -> str:
        """Report that every answered request has its row. Raises `StandError` if one has none."""
        assert gateway.ledger is not None
        answered, left_open = self._answered[gateway.name], self._left_open[gateway.name]
        rows = wait_until_written(gateway.ledger, answered)
        if rows.get("ok", 0) > answered + left_open:
            raise StandError(
                f"{gateway.name}: {rows} rows for {answered} answers: some were charged twice."
            )
        others = ", ".join(
            f"{count:,} {outcome}" for outcome, count in sorted(rows.items()) if outcome != "ok"
        )
        return (
            f"{gateway.name}: {answered:,} requests answered, {rows.get('ok', 0):,} rows `ok` "
            "in finance.usage_events"
            + (f" and {others}" if others else "")
            + "; the surplus was left open at the end of the windows (at most "
            f"{left_open:,})."
        )

    def _undisturbed(self, target: Target, scenario: Scenario) -> Sample:
        """Return a window without other programs' load; after some tries, the least disturbed
        one.
        """
        tried: list[Sample] = []
        while len(tried) < self._tries:
            tried.append(self._fresh_sample(target, scenario))
            if tried[-1].strangers_cores <= MAX_STRANGERS_CORES:
                break
        return min(tried, key=lambda sample: sample.strangers_cores)

    def _fresh_sample(self, target: Target, scenario: Scenario) -> Sample:
        """Return a window, on a warmed-up fresh process if the target needs one."""
        if target.renew is None or target.end is None:
            if scenario.is_hot:
                self._load(target, scenario, WARM_UP_S)
            return self._sample(target, scenario)
        target.renew(scenario.upstream)
        try:
            self._load(target, scenario, WARM_UP_S)
            return self._sample(target, scenario)
        finally:
            target.end()

    def _sample(self, target: Target, scenario: Scenario) -> Sample:
        stand = self._stand
        pids, ledger = target.pids(), target.ledger
        window_s = max(
            scenario.window_s,
            SLOW_WINDOW_S if target.name == "litellm" and scenario.is_streamed else 0,
        )
        began_s, events = time.monotonic(), stand.events_sent()
        busy, ours, cpu = machine.busy_s(), stand.stranger_free_cpu_s(), machine.cpu_s(pids)
        postgres = ledger.cpu_s() if ledger else 0.0
        done = self._load(target, scenario, window_s)
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
        """Let wrk work for a while; return its figures."""
        result = finish_load(
            start_load(target, scenario.upstream, connections=scenario.connections, seconds=seconds)
        )
        self._answered[target.name] += result["answered"] - result["refused"]
        self._left_open[target.name] += scenario.connections
        return result

    def _gap_p99_ms(self, target: Target) -> float:
        """Measure beside enough streams from wrk to make 200 in all."""
        endpoint = probes.Endpoint(
            port=target.port_of["paced-vllm"], model="paced-vllm", key=target.key
        )
        load = start_load(target, "paced-vllm", connections=200 - probes.STREAMS, seconds=7)
        gaps = probes.event_gaps_ms(endpoint, 6)
        result = finish_load(load)
        self._answered[target.name] += result["answered"] - result["refused"]
        self._left_open[target.name] += 200 + len(gaps)  # the probe's own streams have rows too
        return _p99(gaps)

    def _stall_p99_ms(self, target: Target) -> float:
        small = probes.Endpoint(port=target.port_of["plain"], model="plain", key=target.key)
        large = probes.Endpoint(port=target.port_of["large"], model="large", key=target.key)
        alone = probes.small_beside_large_ms(small, 3)
        beside = probes.small_beside_large_ms(small, 3, large=large)
        self._left_open[target.name] += 10 * (len(alone) + len(beside))
        return _p99(beside) - _p99(alone)


def start_load(
    target: Target, upstream: str, *, connections: int, seconds: int, delay_ms: int | None = None
) -> subprocess.Popen[str]:
    """Start wrk."""
    variables = {
        **os.environ,
        "MODEL": upstream,
        "KEY": target.key,
        "STREAM": "0" if upstream == "plain" else "1",
        **({"DELAY_MS": str(delay_ms)} if delay_ms else {}),
    }
    return subprocess.Popen(
        [
            "wrk",
            "--threads",
            "1",
            "--connections",
            str(connections),
            "--duration",
            f"{seconds}s",
            "--timeout",
            "20s",
            "--latency",
            "--script",
            str(Path(__file__).with_name("load.lua")),
            f"http://127.0.0.1:{target.port_of[upstream]}",
        ],
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish_load(load: subprocess.Popen[str]) -> dict[str, int]:
    """Wait for wrk and return its figures. Raises `StandError` if it failed."""
    printed, complaints = load.communicate()
    try:
        result: dict[str, int] = json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError):
        raise StandError(f"wrk failed: {(complaints or printed)[-500:]}") from None
    return result


def _p99(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0


def _brief(sample: Sample) -> str:
    return (
        f"{sample.answered / sample.took_s:,.0f} req/s, p50 {sample.p50_ms:.2f} ms, "
        f"{sample.per_unit_us(sample.cpu_s):.1f} µs, {sample.errors} errors, strangers "
        f"{sample.strangers_cores:.2f}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.overhead",
        description="What the gateway costs, next to a plain nginx proxy.",
    )
    parser.add_argument("--quick", action="store_true", help="about a minute, for a first look")
    parser.add_argument("--peers", action="store_true", help="LiteLLM and the vLLM router as well")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/lab/bench")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="measure another checkout's gateway as well",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
