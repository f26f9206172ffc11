"""Do limits hold across replicas?

Separate processes, one Postgres, ten times as many requests as are allowed.

    python -m bench.limits [--seconds 180] [--replicas 3] [--times 10] [--seed 1]

Each replica is a process with its own event loop and `Limiter`. All record their admissions and
refusals; then every window of 60 seconds is counted. Exit 1 if one is further from its limit than 2
% or one request per replica.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from uuid import uuid4

from bench.stand import machine
from bench.stand.processes import end
from gateway.domain.budgets.limits import LimitedBy, Limits
from gateway.errors import ConcurrencyLimited, RateLimited
from gateway.main import SystemClock
from gateway.services.limits.limiter import Limiter
from gateway.storage.budgets.limits import LimitWindows
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parents[1]
WINDOW_S, STEP_S, SHARE = 60.0, 0.1, 0.02
# A replica of a busy machine may delay this much of the offered load into the next minute. It
# relaxes only the minimum, not the refusals: those are judged by the admissible load.
LATE_S = 0.1
# of the time, if replicas had to admit alone because Postgres did not answer within 50 ms
MOST_OVER = 0.01
# of the slots, on average: the next arrival follows an ended request, not the same one
LEAST_BUSY = 0.95
AHEAD_S = 0.5  # seconds for the last process to learn the starting time


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One limit and its callers.

    Tokens are reserved at admission and corrected to `used_tokens`.
    """

    name: str
    limits: Limits
    tokens: int = 0
    used_tokens: int = 0
    service_s: float = 0.0

    @property
    def allowed_per_s(self) -> float:
        """Return the rate that the limit allows."""
        if self.limits.requests_per_minute is not None:
            return self.limits.requests_per_minute / 60
        if self.limits.tokens_per_minute is not None:
            return self.limits.tokens_per_minute / self.used_tokens / 60
        assert self.limits.concurrent is not None, "something is limited"
        return self.limits.concurrent / self.service_s

    @property
    def limited(self) -> tuple[LimitedBy, ...]:
        """Return it with a second limit that is far away, because all of a request's limits are
        taken together.
        """
        return (self.name, self.limits), (
            f"{self.name}/key:k",
            Limits(requests_per_minute=1_000_000),
        )


LOADS = (
    Load(name="60 requests", limits=Limits(requests_per_minute=60)),
    Load(name="600 requests", limits=Limits(requests_per_minute=600)),
    Load(name="6000 requests", limits=Limits(requests_per_minute=6000)),
    Load(
        name="600000 tokens",
        limits=Limits(tokens_per_minute=600_000),
        tokens=1000,
        used_tokens=600,
        service_s=0.2,
    ),
    Load(name="12 at once", limits=Limits(concurrent=12), service_s=0.2),
)

Event = tuple[float, float, int]  # admitted, ended, finally counted units


def main() -> int:
    """Run it; 1 if a limit did not hold."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.limits", description="Limits across replicas, counted."
    )
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument(
        "--times", type=float, default=10, help="offered, as a multiple of what is allowed"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", nargs=2, metavar=("URL", "NUMBER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        print(json.dumps(asyncio.run(_offer_all(chosen))))
        return 0
    if chosen.seconds < 2 * WINDOW_S:
        parser.error("--seconds must be 120 at least: the first minute is not counted")
    begin_s, results = _run(chosen)
    rows = [_row(load, results, begin_s, chosen) for load in LOADS]
    print("\n".join(_table(rows)))
    print(f"machine: {machine.describe()}\ncommit: {machine.commit()}")
    print(
        f"date: {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}\ncommand: python -m "
        "bench.limits",
        *sys.argv[1:],
    )
    return 0 if all(is_good for _, is_good in rows) else 1


def _run(chosen: argparse.Namespace) -> tuple[float, list[dict[str, dict[str, list[list[float]]]]]]:
    """Start the replicas on one Postgres; return the load's start and each one's records."""
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="tollgate-limits-", dir="/tmp"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        home.chmod(0o711)  # as root, Postgres runs as another user
        url = stack.enter_context(EmbeddedPostgres(home)).start()
        database = Database(url)
        migrations.upgrade(database)
        database.close()
        replicas = []
        for number in range(chosen.replicas):
            command = [
                *(sys.executable, "-m", "bench.limits", "--worker", url, str(number)),
                *("--seconds", str(chosen.seconds), "--replicas", str(chosen.replicas)),
                *("--times", str(chosen.times), "--seed", str(chosen.seed)),
            ]
            process = subprocess.Popen(
                command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            stack.callback(end, process)
            replicas.append(process)
        for process in replicas:
            assert process.stdout is not None, "it was asked for"
            process.stdout.readline()  # it is ready
        begin_s = time.monotonic() + AHEAD_S
        for process in replicas:
            assert process.stdin is not None, "it was asked for"
            process.stdin.write(f"{begin_s}\n".encode())
            process.stdin.flush()
        return begin_s, [json.loads(process.communicate()[0]) for process in replicas]


async def _offer_all(chosen: argparse.Namespace) -> dict[str, dict[str, list[list[float]]]]:
    """Run one replica with its part of every load."""
    url, number = chosen.worker
    database = Database(url, role="tollgate_gateway")
    limiter = Limiter(LimitWindows(database), SystemClock(), worker=uuid4())
    await limiter.exchange()
    running = asyncio.create_task(limiter.run())
    print("ready", flush=True)
    begin_s = float(await asyncio.to_thread(sys.stdin.readline))
    random = Random(f"{chosen.seed}/{number}")
    found = await asyncio.gather(
        *(_offer(limiter, load, chosen, random, begin_s=begin_s) for load in LOADS)
    )
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await limiter.close()
    database.close()
    return {load.name: one for load, one in zip(LOADS, found, strict=True)}


async def _offer(
    limiter: Limiter, load: Load, chosen: argparse.Namespace, random: Random, *, begin_s: float
) -> dict[str, list[list[float]]]:
    admitted: list[list[float]] = []
    refused: list[list[float]] = []

    async def ask() -> None:
        try:
            admission = await limiter.admit(load.limited, load.tokens)
        except (RateLimited, ConcurrencyLimited):
            refused.append([time.monotonic()])
            return
        at_s, used = time.monotonic(), round(load.used_tokens * random.uniform(0.5, 1.5))
        if load.service_s:
            await asyncio.sleep(load.service_s * random.uniform(0.5, 1.5))
        # Before the notification: no other request may have the slot while this one still runs.
        ended_s = time.monotonic()
        admission.settle(used)
        admitted.append([at_s, ended_s, used if load.tokens else 1, admission.is_alone])

    # Evenly, with some jitter: by chance a minute could otherwise have fewer arrivals.
    gap_s = chosen.replicas / (load.allowed_per_s * chosen.times)
    next_s = begin_s + gap_s * int(chosen.worker[1]) / chosen.replicas
    async with asyncio.TaskGroup() as tasks:
        while next_s < begin_s + chosen.seconds:
            next_s += gap_s
            await asyncio.sleep(
                max(next_s + random.uniform(0, 0.8) * gap_s / chosen.replicas - time.monotonic(), 0)
            )
            tasks.create_task(ask())
    return {"admitted": admitted, "refused": refused}


def _row(
    load: Load,
    results: Sequence[dict[str, dict[str, list[list[float]]]]],
    begin_s: float,
    chosen: argparse.Namespace,
) -> tuple[list[str], bool]:
    admitted: list[Event] = sorted(
        (event[0], event[1], int(event[2]))
        for one in results
        for event in one[load.name]["admitted"]
    )
    refused = sorted(at[0] for one in results for at in one[load.name]["refused"])
    alone = sum(bool(event[3]) for one in results for event in one[load.name]["admitted"])
    until_s = begin_s + chosen.seconds
    if load.limits.concurrent is not None:
        return _row_of_slots(load, admitted, refused, alone=alone, span=(begin_s + 5, until_s))
    limit = load.limits.requests_per_minute or load.limits.tokens_per_minute or 0
    one_each = chosen.replicas * (
        max(units for _, _, units in admitted) if not load.tokens else load.tokens
    )
    slack = max(SHARE * limit, one_each)
    times, sums = [at for at, _, _ in admitted], [0, *accumulate(units for _, _, units in admitted)]

    def between(start_s: float, end_s: float) -> int:
        return sums[bisect_right(times, end_s)] - sums[bisect_left(times, start_s)]

    # A request's unused reservation counts as well: its real use was unknown at that moment.
    changes = sorted(
        change
        for at, ended, units in admitted
        if load.tokens
        for change in ((at, load.tokens - units), (ended, units - load.tokens))
    )
    moments, reserved = [at for at, _ in changes], [0, *accumulate(change for _, change in changes)]

    def counted(end_s: float) -> int:
        return between(end_s - WINDOW_S, end_s) + reserved[bisect_right(moments, end_s)]

    steps = int((until_s - begin_s - WINDOW_S) / STEP_S)
    lows = [counted(begin_s + WINDOW_S + n * STEP_S) for n in range(steps)]
    highs = [between(at, at + WINDOW_S) for at in times if at + WINDOW_S <= until_s]
    minutes = [
        between(begin_s + n * 60, begin_s + n * 60 + 60) for n in range(int(chosen.seconds // 60))
    ]
    wrong = sum(counted(at) + (load.tokens or 1) + slack <= limit for at in refused)
    late = LATE_S * load.allowed_per_s * chosen.times * (load.used_tokens or 1)
    is_good = max(highs) <= limit + slack and min(lows) >= limit - slack - late and not wrong
    is_good = is_good and all(abs(minute - limit) <= slack for minute in minutes)
    cells = [
        load.name,
        " / ".join(f"{minute:,}" for minute in minutes),
        f"{max(highs):,}",
        f"{min(lows):,}",
    ]
    return [*cells, f"{wrong:,} of {len(refused):,}", f"{alone:,}", f"± {slack:,.0f}"], is_good


def _row_of_slots(
    load: Load,
    admitted: Sequence[Event],
    refused: Sequence[float],
    *,
    alone: int,
    span: tuple[float, float],
) -> tuple[list[str], bool]:
    limit = load.limits.concurrent or 0
    changes = sorted([(at, 1) for at, _, _ in admitted] + [(ended, -1) for _, ended, _ in admitted])
    times, running = [at for at, _ in changes], [0, *accumulate(change for _, change in changes)]

    def at_once(at: float) -> int:
        return running[bisect_right(times, at)]

    samples = [at_once(span[0] + n * 0.01) for n in range(int((span[1] - span[0]) / 0.01))]
    mean = sum(samples) / len(samples)
    wrong = sum(at_once(at) < limit / 2 for at in refused if at > span[0])
    over = sum(sample > limit for sample in samples) / len(samples)
    is_good = over <= (MOST_OVER if alone else 0) and mean >= LEAST_BUSY * limit
    cells = [
        load.name,
        f"{mean:.2f} on average",
        f"{max(running)} (over: {over:.2%} of the time)",
        f"{min(samples)}",
    ]
    cells += [f"{wrong:,} of {len(refused):,}", f"{alone:,}"]
    return [*cells, f"not over, ≥ {LEAST_BUSY:.0%} on average"], is_good


def _table(rows: Sequence[tuple[list[str], bool]]) -> list[str]:
    head = [
        "limit",
        "accepted, each minute",
        "most in 60 s",
        "least in 60 s",
        "wrong refusals",
        "admitted alone",
    ]
    head += ["allowed", "holds"]
    lines = [[*cells, "yes" if is_good else "NO"] for cells, is_good in rows]
    return [" | ".join(["", *line, ""]).strip() for line in [head, ["---"] * len(head), *lines]]


if __name__ == "__main__":
    sys.exit(main())
