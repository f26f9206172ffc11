"""Random policies, requests, faults and edits against an independent oracle, and endpoints that
count connections.

    python -m tests.residency [--cases 20000] [--seed N] [--from N] [--lanes 8] [--write] [--first-finding]
    python -m tests.residency --mutations     # flip each operator of the rules; the oracle must notice every one

A case that fails is run again by `--from NUMBER --cases 1` with the printed seed.
"""  # noqa: E501

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time

import structlog
import uvloop

from bench.stand import machine
from bench.stand.page import replace_between
from tests.residency import corpus, mutations
from tests.residency.cases import case
from tests.residency.lane import Lane
from tests.residency.trial import Tally, run, shown

SEED = 20261122
EVERY_S = 2.0
MOST_SHOWN = 20


async def trials(
    seed: int, numbers: range, *, lanes: int, quiet: bool = False, stops: bool = False
) -> Tally:
    """Run these cases, several at once, each lane with endpoints of its own. `stops`: no case is
    begun after the first finding.
    """
    tally, waiting = Tally(), iter(numbers)
    began_s = shown_s = time.monotonic()
    done = 0

    async def work() -> None:
        nonlocal done, shown_s
        lane = Lane()
        await lane.open()
        try:
            for number in waiting:
                if stops and tally.findings:
                    break
                await run(case(seed, number), lane, tally)
                lane.forget()
                done += 1
                now_s = time.monotonic()
                if not quiet and now_s - shown_s >= EVERY_S:
                    shown_s = now_s
                    rate = done / (now_s - began_s)
                    print(f"  {done:,} of {len(numbers):,} cases, {rate:.0f}/s", file=sys.stderr)
        finally:
            await lane.close()

    await asyncio.gather(*[work() for _ in range(lanes)])
    tally.seen["cases"] = done
    return tally


async def field_findings() -> list[str]:
    """Return the findings of the corpus of provider fields."""
    lane = Lane()
    await lane.open()
    try:
        return await corpus.findings(lane)
    finally:
        await lane.close()


def main() -> int:
    """Run them; return 0 if the gateway meets the specification."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    parser = argparse.ArgumentParser(
        prog="python -m tests.residency", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first case's number")
    parser.add_argument("--lanes", type=int, default=8, help="gateways at once")
    parser.add_argument(
        "--first-finding", action="store_true", help="no corpus, and stop at the first finding"
    )
    parser.add_argument(
        "--mutations", action="store_true", help="change the rules' code and see it noticed"
    )
    parser.add_argument(
        "--write", action="store_true", help="write the figures into docs/residency.md"
    )
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}")
    if chosen.mutations:
        return mutations.main(chosen.seed, is_written=chosen.write)
    began_s = time.monotonic()
    fields = [] if chosen.first_finding else uvloop.run(field_findings())
    if not chosen.first_finding:
        print(
            f"{sum(1 for _ in corpus.corpus()):>9,}  bodies of the corpus of fields, under a rule "
            "and without one, to upstreams of every dialect"
        )
    numbers = range(chosen.first, chosen.first + chosen.cases)
    tally = uvloop.run(trials(chosen.seed, numbers, lanes=chosen.lanes, stops=chosen.first_finding))
    tally.findings[:0] = fields
    for line in shown(tally.seen):
        print(line)
    for finding in tally.findings[:MOST_SHOWN]:
        print(finding)
    print(f"{len(tally.findings)} violation(s)")
    if chosen.write:
        facts = {
            "machine": machine.describe(),
            "commit": machine.commit(),
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "command": "python -m " + " ".join(["tests.residency", *sys.argv[1:]]),
            "seed": str(chosen.seed),
            "took": f"{time.monotonic() - began_s:.0f} s",
        }
        rows = [f"| {what} | {times:,} |" for what, times in tally.seen.most_common()]
        lines = [
            *(f"- {name}: {value}" for name, value in facts.items()),
            "",
            "| | |",
            "|---|--:|",
            *rows,
        ]
        lines.append(f"| **violations** | {len(tally.findings)} |")
        replace_between(mutations.PAGE, "<!-- cases:begin -->", "<!-- cases:end -->", lines=lines)
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
