"""`python -m tests.chaos SCENARIO`: each prints a table and exits with 1 if it has findings."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Coroutine

import uvloop

from tests.chaos import (
    budgets,
    cancel,
    cuts,
    drain,
    kill,
    limits,
    outage,
    outage_budgets,
    pgfaults,
    storm,
    twins,
)
from tests.chaos.report import Result

SEED = 20261121


def main() -> int:
    """Run one scenario."""
    chosen = _parser().parse_args()
    name = "outage-budgets" if getattr(chosen, "budgets", False) else chosen.scenario
    result = Result(scenario=name, seed=chosen.seed)
    print(f"seed {chosen.seed}", flush=True)
    # so that all started processes are ended
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    uvloop.run(_scenario(chosen, result))
    return result.finish(
        write=chosen.write, command="python -m " + " ".join(["tests.chaos", *sys.argv[1:]])
    )


def _scenario(chosen: argparse.Namespace, result: Result) -> Coroutine[None, None, None]:
    if chosen.scenario == "kill":
        return kill.run(
            result,
            requests=chosen.requests,
            kills=chosen.kills,
            replicas=chosen.replicas,
            callers=chosen.callers,
            most_unknown=chosen.most_unknown,
        )
    if chosen.scenario == "outage" and chosen.budgets:
        return outage_budgets.run(result, away_s=chosen.seconds or 240, per_s=chosen.rate)
    if chosen.scenario == "outage":
        return outage.run(
            result,
            away_s=chosen.seconds or 600,
            per_s=chosen.rate,
            most_growth_mib=chosen.most_growth,
        )
    if chosen.scenario == "pgfaults":
        return pgfaults.run(result, fault_s=chosen.seconds, per_s=chosen.rate, only=chosen.only)
    if chosen.scenario == "drain":
        return drain.run(result, streams=chosen.streams, drain_s=chosen.drain)
    if chosen.scenario == "cancel":
        return cancel.run(result, requests=chosen.requests, callers=chosen.callers)
    if chosen.scenario == "budgets":
        return budgets.run(
            result, rounds=chosen.rounds, processes=chosen.processes, callers=chosen.callers
        )
    if chosen.scenario == "storm":
        return storm.run(result, requests=chosen.requests, callers=chosen.callers)
    if chosen.scenario == "twins":
        return twins.run(result, pairs=chosen.pairs, kills=chosen.kills, replicas=chosen.replicas)
    if chosen.scenario == "limits":
        return limits.run(
            result, seconds=chosen.seconds, replicas=chosen.replicas, times=chosen.times
        )
    return cuts.run(result, side=chosen.side, callers=chosen.callers, step=chosen.step)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Break it on purpose, and count."
    )
    scenarios = parser.add_subparsers(dest="scenario", required=True)

    def scenario(name: str, help_text: str) -> argparse.ArgumentParser:
        one = scenarios.add_parser(name, help=help_text)
        one.add_argument("--seed", type=int, default=SEED)
        one.add_argument("--write", action="store_true", help="write the table into docs/lab/chaos")
        return one

    one = scenario("kill", "kill -9 of random replicas under the fault mix")
    one.add_argument("--requests", type=int, default=10_000)
    one.add_argument("--kills", type=int, default=6)
    one.add_argument("--replicas", type=int, default=3)
    one.add_argument("--callers", type=int, default=15)
    one.add_argument(
        "--most-unknown", type=float, default=0.005, help="share of events that may be unknown"
    )
    one = scenario("outage", "Postgres away while requests go on")
    one.add_argument("--seconds", type=float, help="how long: 600 by default, 240 with --budgets")
    one.add_argument("--rate", type=float, default=100)
    one.add_argument(
        "--most-growth", type=float, default=24, help="MiB that the gateway may grow meanwhile"
    )
    one.add_argument("--budgets", action="store_true", help="under budgets and limits")
    one = scenario(
        "pgfaults", "Postgres paused, read-only, out of connections, killed, restarted, deaf, full"
    )
    one.add_argument("--seconds", type=float, default=8, help="how long each fault lasts")
    one.add_argument("--rate", type=float, default=40)
    one.add_argument("--only", help="one fault by name")
    one = scenario("drain", "SIGTERM in live streams")
    one.add_argument("--streams", type=int, default=200)
    one.add_argument("--drain", type=float, default=25)
    one = scenario("cancel", "requests whose callers mean to leave, most of them in time")
    one.add_argument("--requests", type=int, default=30_000)
    one.add_argument("--callers", type=int, default=64)
    one = scenario(
        "budgets", "the last dollars of a budget, wanted by 4 x 100 callers while processes die"
    )
    one.add_argument("--rounds", type=int, default=40)
    one.add_argument("--processes", type=int, default=4)
    one.add_argument("--callers", type=int, default=100, help="in flight at each process")
    one = scenario("storm", "hostile members, characters and tools against hard budgets")
    one.add_argument("--requests", type=int, default=100_000)
    one.add_argument("--callers", type=int, default=32)
    one = scenario(
        "twins",
        "pairs of requests with one Idempotency-Key, while upstreams fail and processes die",
    )
    one.add_argument("--pairs", type=int, default=1000)
    one.add_argument("--kills", type=int, default=5)
    one.add_argument("--replicas", type=int, default=3)
    one = scenario("limits", "five times the allowed rate")
    one.add_argument("--seconds", type=float, default=180)
    one.add_argument("--replicas", type=int, default=3)
    one.add_argument(
        "--times", type=float, default=5, help="offered, as a multiple of what is allowed"
    )
    one = scenario("cuts", "twelve recorded transcripts cut at every byte")
    one.add_argument("--side", choices=("both", "upstream", "client"), default="both")
    one.add_argument("--callers", type=int, default=48)
    one.add_argument("--step", type=int, default=1, help="every n-th byte only, for a first look")
    return parser


if __name__ == "__main__":
    sys.exit(main())
