"""The cost of budgets: a gateway whose every request is held on four hot budgets, beside one
without any, in one run.

    python -m bench.budgets [--rounds N] [--write]

Both use the same core in turn, so one core's work is compared under equal conditions. Each window
follows a second of the same load, because a budget unused for a second has returned its lease. The
tested promise: a hot budget adds at most 5 ms to the 99th percentile and takes at most a tenth of
the throughput.
"""

from __future__ import annotations

import argparse
import sys
import time

from bench.overhead import Bench
from bench.stand import machine
from bench.stand.gateways import Stand, StandError
from bench.stand.page import write_table
from bench.stand.table import Row, Scenario, as_table

FREE, HELD, LIMITED = "no budget", "four hot budgets", "four hot budgets and limits"
BUDGETS = (
    ", budgets: [{period: month, limit_usd: 100000}, {period: day, limit_usd: 50000, kind: soft}]"
    ', keys: [{key: "*", budgets: [{period: hour, limit_usd: 20000}]}]'
)
LIMITS = ", limits: {requests_per_minute: 2000000, tokens_per_minute: 1000000000, concurrent: 5000}"
CENTRE = "cost_centres: [{name: CC-BENCH, budgets: [{period: month, limit_usd: 1000000}]}]\n"
MOST_ADDED_P99_MS, LEAST_RATIO = 5.0, 0.9


def main() -> int:
    """Run it; 0 if the promise holds."""
    parser = argparse.ArgumentParser(prog="bench.budgets", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="windows of each (5)")
    parser.add_argument(
        "--write", action="store_true", help="write the figures into docs/lab/bench"
    )
    chosen = parser.parse_args()
    scenarios = tuple(
        Scenario(
            title=f"plain 1 KB chat, c={connections}",
            upstream="plain",
            connections=connections,
            window_s=4,
            rounds=chosen.rounds,
            is_hot=True,
            names=frozenset({FREE, HELD, LIMITED}),
        )
        for connections in (1, 64, 100)
    )
    try:
        with Stand() as stand:
            gateways = [
                stand.add_gateway(FREE),
                stand.add_gateway(HELD, team_fields=BUDGETS, more=CENTRE),
                stand.add_gateway(LIMITED, team_fields=BUDGETS + LIMITS, more=CENTRE),
            ]
            bench = Bench(stand, tries=2)
            rows = bench.run(scenarios)
            notes = [bench.check_ledger(gateway) for gateway in gateways]
    except StandError as problem:
        print(problem, file=sys.stderr)
        return 3
    findings, verdict = _verdict(rows)
    text = "\n\n".join([verdict, as_table(rows)])
    facts = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": "python -m " + " ".join(["bench.budgets", *sys.argv[1:]]),
    }
    print("\n".join([text, "", *notes, *(f"{name}: {value}" for name, value in facts.items())]))
    if chosen.write:
        write_table("budgets", text, facts=facts, notes=notes)
    return 1 if findings or any(row.errors for row in rows) else 0


def _verdict(rows: list[Row]) -> tuple[int, str]:
    """Return the number of broken promises, and their table."""
    lines = ["| load | added p99 | wanted | throughput | wanted |", "|---|---|---|---|---|"]
    findings = 0
    for title in dict.fromkeys(row.scenario.title for row in rows):
        of = {row.target: row for row in rows if row.scenario.title == title}
        for name in (HELD, LIMITED):
            added_ms = of[name].p99_ms - of[FREE].p99_ms
            ratio = of[name].requests_per_s / of[FREE].requests_per_s
            wanted = ("–", "–")  # the further cost of limits is shown without a promise
            if name == HELD:
                findings += added_ms > MOST_ADDED_P99_MS or round(ratio, 2) < LEAST_RATIO
                wanted = (f"≤ {MOST_ADDED_P99_MS:g} ms", f"≥ {LEAST_RATIO:g}")
            lines.append(
                f"| {title}, {name} | {added_ms:.2f} ms | {wanted[0]} | {ratio:.2f} | {wanted[1]} |"
            )
    return findings, "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
