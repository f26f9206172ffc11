"""Four processes, a hundred callers each, and the last dollars of one budget: never above it,
nearly all of it usable.

A round is a key with its own budget of a few hundred requests. Its callers ask until every process
has answered 402 for a while; meanwhile callers leave and processes die by `kill -9`. All the time
another process compares the sums in Postgres with each other and with the journals
(`budget_checker`). After the last round four mistakes are planted in Postgres itself, and must be
found.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import count
from random import Random
from typing import IO, Any

import psycopg

from gateway.domain.policy.api_keys import key_id_of
from tests.chaos import dialects
from tests.chaos.checker import Books, Finding, true_nusd
from tests.chaos.client import Call, Leave, ask
from tests.chaos.fleet import REPOSITORY, ROUTES, Fleet, policy_of, team_line
from tests.chaos.report import Result
from tests.fake_upstream.plans import ALL_COUNTABLE, kind_of, shape

# A thousand times the prices of the other scenarios, so that figures in dollars and cents differ.
# The least request is held at about 0.03 USD and the usual one at 0.15, so 97 % of 30 USD leaves
# room for 30 of the least.
BASE_RATES = {
    "vllm-a": ("153.7", "15.37", "610.1"),
    "vllm-b": ("211.1", "53.3", "777.7"),
    "paid-a": ("350.3", "35.1", "1999.1"),
    "paid-b": ("500.7", "125.3", "2800.3"),
}
# Those of the other dialects cost a hundred times as much as in the other scenarios.
RATES: Mapping[str, Sequence[str]] = {
    **BASE_RATES,
    **{
        name: tuple(str(100 * Decimal(rate)) for rate in one.rates)
        for name, one in dialects.DIALECTS.items()
    },
}
MORE_RATES = {
    name: {kind: str(100 * Decimal(rate)) for kind, rate in more.items()}
    for name, more in dialects.MORE_RATES.items()
}
# A key's budget: period, USD.
TEAMS = {"alpha": ("once", 30), "beta": ("month", 45), "gamma": ("week", 60)}
MOST_TOKENS = 160  # asked for at most; a quarter of it is generated at most
OVERHEAD_TOKENS = 64

USABLE = 0.97
LEASE_S = 5.0
ADOPTED_WITHIN_S = 2.5  # a neighbour looks for journals every two seconds, and then writes them
LEAVE_SHARE = 0.08
# One round of so many has no kill; this share of the others has two.
NO_KILL_EVERY, TWO_SHARE = (
    4,
    0.3,
)
KILL_WITHIN_S = 3.0
PAUSE_S = (0.3, 1.2)  # after a refusal
# The other processes' leases return within two seconds, a dead process's when its journal is
# written.
QUIET_S, QUIET_AFTER_KILL_S, QUIET_REFUSALS = 2.2, 4.0, 20
ROUND_S = 40.0
LIMIT_S = 30.0
ON_ITS_WAY_S = 2.0  # four hundred callers on two cores
# Of the answers may be 503: Postgres took more than 50 ms, on a machine that is full.
MOST_BUSY_SHARE = 0.05

_FIGURES = re.compile(
    r"\$(?P<limit>[\d,.]+) limit, \$(?P<spent>[\d,.]+) spent, \$(?P<held>[\d,.]+) held "
    r"or being booked; this request may cost up to \$(?P<hold>[\d,.]*\d)"
)
CENTS_USD = Fraction("0.025")  # four figures, each rounded to a cent


@dataclass(slots=True, kw_only=True)
class Round:
    """One budget and its result.

    `refused_since` counts 402s of each process since the last admission.
    """

    number: int
    team: str
    key: str
    limit_nusd: int
    is_over: bool = False
    last_admitted_s: float = field(default_factory=time.monotonic)
    last_kill_s: float = 0.0
    killed: int = 0
    is_killing: bool = False
    refused_since: Counter[int] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    spent_nusd: int = 0
    unknown_nusd: int = 0
    back_after_s: float = 0.0

    @property
    def account(self) -> str:
        """The budget's name."""
        return f"{self.team}/key:{key_id_of(self.key)}/{TEAMS[self.team][0]}"

    def is_quiet(self, processes: int) -> bool:
        """Return True when all processes have refused for a while, and no lease is still to
        return.
        """
        now_s = time.monotonic()
        return (
            now_s - self.last_admitted_s > QUIET_S
            and now_s - self.last_kill_s > QUIET_AFTER_KILL_S
            and all(self.refused_since[process] >= QUIET_REFUSALS for process in range(processes))
        )


class Watcher:
    """The checker's process."""

    def __init__(self, fleet: Fleet) -> None:
        self._path = fleet.folder / "watcher.jsonl"
        with self._path.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.chaos.budget_checker",
                    "--database",
                    fleet.database_url,
                    "--journals",
                    str(fleet.home / "journal"),
                ],
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=output,
            )

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def watch(self, keys: Sequence[str]) -> None:
        """From now on add up the events of these keys."""
        self._stdin.write(json.dumps([key_id_of(key) for key in keys]).encode() + b"\n")
        self._stdin.flush()

    def output_lines(self) -> list[dict[str, Any]]:
        """Return its output so far."""
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def end(self) -> dict[str, Any]:
        """Let it end; return its last words."""
        self._stdin.close()
        status = self._process.wait(30)
        output = self.output_lines()
        return (
            output[-1]
            if status == 0 and output and "counts" in output[-1]
            else {"counts": {}, "missed": ["it ended"]}
        )

    def kill(self) -> None:
        """End it if the run has failed."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Run:
    """The callers and the killer of all rounds."""

    def __init__(self, fleet: Fleet, result: Result, *, callers: int) -> None:
        self.fleet, self.result, self.callers = fleet, result, callers
        self.calls: list[Call] = []
        self.most_at_once: Counter[int] = Counter()
        self._at_once: Counter[int] = Counter()
        self._indices = count(1)

    async def round(self, one: Round, *, kills: bool = True) -> None:
        """Spend a budget."""
        rng = Random(f"{self.fleet.seed}/round/{one.number}")
        one.last_admitted_s = time.monotonic()  # rounds are made long before they begin
        end_s = one.last_admitted_s + ROUND_S
        async with asyncio.TaskGroup() as group:
            if kills:
                group.create_task(self._kill(one, rng))
            for process in range(len(self.fleet.replicas)):
                for _ in range(self.callers):
                    group.create_task(self._caller(one, process))
            replicas = len(self.fleet.replicas)
            while (one.is_killing or not one.is_quiet(replicas)) and time.monotonic() < end_s:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            one.is_over = True

    async def _caller(self, one: Round, process: int) -> None:
        while not one.is_over:
            index = next(self._indices)
            rng = Random(f"{self.fleet.seed}/{index}/caller")
            kind = kind_of(self.fleet.seed, index, ALL_COUNTABLE)
            wanted = shape(self.fleet.seed, index, most_output=self.fleet.most_output, kind=kind)
            route = rng.choice([name for name in ROUTES if dialects.serves(name, kind)])
            call = Call(
                index=index, team=one.team, route=route, kind=kind, is_stream=wanted.is_stream
            )
            leave = None
            if rng.random() < LEAVE_SHARE:
                leave = Leave(after_s=rng.uniform(0, 0.15), reset=rng.random() < 0.5)
            body = wanted.body(call.route, max_tokens=rng.randint(1, MOST_TOKENS))
            self._at_once[process] += 1
            self.most_at_once[process] = max(self.most_at_once[process], self._at_once[process])
            port = self.fleet.replicas[process].port
            await ask(
                call,
                body,
                path=wanted.path,
                key=one.key,
                ports=[port],
                limit_s=LIMIT_S,
                leave=leave,
            )
            self._at_once[process] -= 1
            call.body.clear()
            self._note(one, process, call)
            if call.status in (402, 503):
                await asyncio.sleep(rng.uniform(*PAUSE_S))

    def _note(self, one: Round, process: int, call: Call) -> None:
        one.answers[f"{call.status} {call.code}" if call.ending == "error" else call.ending] += 1
        if call.status == 503 and not one.answers["402 budget_exhausted"]:
            one.answers["of which 503 before the first 402"] += 1
        if call.status == 402:
            one.refused_since[process] += 1
            self._check_refusal(one, call)
            return  # a 402 is a finding to the books
        self.calls.append(call)
        if call.status == 200 or call.ending == "broken":
            one.last_admitted_s = time.monotonic()
            one.refused_since.clear()
        self.result.demand(
            call.status not in (400, 401, 403, 404, 429, 500),
            "caller",
            f"{call.index}: {call.status} {call.code} {call.message}",
        )

    def _check_refusal(self, one: Round, call: Call) -> None:
        """Postgres' own figures must say that there was no room."""
        figures = _FIGURES.search(call.message)
        if call.code != "budget_exhausted" or figures is None:
            self.result.demand(False, "refusal", f"{call.index}: 402 {call.code}: {call.message}")
            return
        usd = {
            name: Fraction(figure.replace(",", "")) for name, figure in figures.groupdict().items()
        }
        left = usd["limit"] - usd["spent"] - usd["held"]
        self.result.demand(
            left < usd["hold"] + CENTS_USD, "refusal", f"{one.account}: {call.message}"
        )

    async def _kill(self, one: Round, rng: Random) -> None:
        if one.number % NO_KILL_EVERY == NO_KILL_EVERY - 1:
            return
        one.is_killing = True
        await asyncio.sleep(rng.uniform(0.05, KILL_WITHIN_S))
        victims = rng.sample(self.fleet.replicas, 2 if rng.random() < TWO_SHARE else 1)
        for replica in victims:
            replica.kill()
            one.killed += 1
            one.last_kill_s = time.monotonic()
            await asyncio.sleep(rng.uniform(0, 0.3))
            replica.spawn()
        for replica in victims:
            await replica.ready()
        one.is_killing = False

    # ---- after a round

    async def close(self, one: Round) -> list[Finding]:
        """Wait until all leases are back; return the violations."""
        began_s = time.monotonic()
        while (stands := await asyncio.to_thread(self._stands, one))["leases"] or stands["leased"]:
            if time.monotonic() - began_s > LEASE_S + ADOPTED_WITHIN_S:
                break
            await asyncio.sleep(0.1)
        one.back_after_s = time.monotonic() - began_s
        one.spent_nusd, one.unknown_nusd = stands["spent"], stands["unknown"]
        found = []
        if stands["leases"] or stands["leased"]:
            left = (
                f"{stands['leased']:,} n$ leased in {stands['leases']} leases, "
                f"{one.back_after_s:.1f} s after it"
            )
            found.append(Finding("stranded", f"round {one.number}, {one.account}: {left}"))
        if one.spent_nusd > one.limit_nusd:
            found.append(
                Finding(
                    "overrun", f"{one.account}: {one.spent_nusd:,} spent of {one.limit_nusd:,} n$"
                )
            )
        if one.spent_nusd < USABLE * one.limit_nusd:
            used = f"{one.spent_nusd / one.limit_nusd:.2%} used, {dict(one.answers)}"
            found.append(Finding("unusable", f"round {one.number}, {one.account}: {used}"))
        if one.spent_nusd != stands["charged"]:
            both = f"{one.spent_nusd:,} spent, its events say {stands['charged']:,} n$"
            found.append(Finding("spent", f"round {one.number}, {one.account}: {both}"))
        return found

    async def probe(self, one: Round) -> list[Finding]:
        """Send one more small request with nothing leased: it must succeed exactly if it fits."""
        index = next(self._indices)
        wanted = shape(self.fleet.seed, index, most_output=1, stream_share=0)
        body = wanted.body("own", max_tokens=1)
        plain, _, output = (Fraction(rate) for rate in BASE_RATES["vllm-a"])
        hold_nusd = ((len(body) + OVERHEAD_TOKENS) * plain + output) * 1000
        left_nusd = one.limit_nusd - one.spent_nusd
        replica = self.fleet.replicas[one.number % len(self.fleet.replicas)]
        for _ in range(20):
            call = Call(index=index, team=one.team, route="own", is_stream=False)
            await ask(call, body, key=one.key, ports=[replica.port], limit_s=LIMIT_S)
            if call.status != 503:
                break
            await asyncio.sleep(0.2)
        if call.status != 402:
            self.calls.append(call)
        if (
            call.status == (402 if hold_nusd > left_nusd else 200)
            or abs(hold_nusd - left_nusd) < 10
        ):
            return []
        return [
            Finding(
                "refusal",
                f"{one.account}: {call.status} for {int(hold_nusd):,} n$, {left_nusd:,} left",
            )
        ]

    def _stands(self, one: Round) -> dict[str, int]:
        with psycopg.connect(self.fleet.database_url) as connection:
            row = connection.execute(
                _STANDS, {"account": one.account, "key": key_id_of(one.key)}
            ).fetchone()
        assert row is not None
        return dict(
            zip(("spent", "leased", "leases", "charged", "unknown"), map(int, row), strict=True)
        )


_STANDS = """
SELECT coalesce(sum(spent_nusd), 0), coalesce(sum(leased_nusd), 0),
       (SELECT count(*) FROM tollgate.leases WHERE account_id = %(account)s),
       (SELECT coalesce(sum(coalesce(cost_nusd, held_nusd)), 0) FROM tollgate.usage_events WHERE
         key_id = %(key)s),
       (SELECT coalesce(sum(held_nusd), 0) FROM tollgate.usage_events WHERE key_id = %(key)s AND
         cost_nusd IS NULL)
FROM tollgate.budget_periods WHERE account_id = %(account)s
"""


async def run(result: Result, *, rounds: int, processes: int, callers: int) -> None:
    """Run all rounds, then check the books, then the planted mistakes."""
    fleet = Fleet(
        seed=result.seed,
        mix="healthy",
        replicas=processes,
        policy=_policy(),
        teams=(),
        lease_s=LEASE_S,
        drain_s=2,
    )
    with fleet:
        every = _rounds(fleet, rounds)
        fleet.start()
        result.print_step("the fleet is ready")
        watcher, play = Watcher(fleet), Run(fleet, result, callers=callers)
        try:
            planted = every[rounds:]
            for one in every[:rounds]:
                watcher.watch([one.key])
                await play.round(one)
                found = await play.close(one)
                found += await play.probe(one) if not found else []
                result.findings += found
                result.print_step(f"round {one.number}: {_round_text(one)}")
            await fleet.settled(len(fleet.attempts()))
            _judge(result, fleet, play, every[:rounds])
            ended_s = time.time()
            await _plant(result, fleet, play, watcher, planted)
            last = watcher.end()
            _judge_watch(result, watcher, last, ended_s=ended_s)
        finally:
            watcher.kill()


def _policy() -> str:
    teams = "".join(
        team_line(
            team,
            number=number,
            terms=", budgets: [{period: month, limit_usd: 1000000}, {period: day, limit_usd: "
            "1, kind: soft}],"
            f' keys: [{{key: "*", budgets: [{{period: {period}, limit_usd: {usd}}}]}}]',
        )
        for number, (team, (period, usd)) in enumerate(TEAMS.items())
    )
    centres = "".join(
        f"  - {{name: CC-{number}, budgets: [{{period: month, limit_usd: 2000000}}]}}\n"
        for number in range(len(TEAMS))
    )
    return policy_of(
        teams,
        rates=RATES,
        more_rates=MORE_RATES,
        wait_s=15,
        more=f"cost_centres:\n{centres}",
    )


def _rounds(fleet: Fleet, rounds: int) -> list[Round]:
    """Run rounds with a key each; those for planted mistakes come last."""
    every, names = [], list(TEAMS)
    keys = {team: iter(fleet.new_keys(team, rounds + len(PLANTS))) for team in names}
    for number in range(rounds + len(PLANTS)):
        team = names[number % len(names)]
        every.append(
            Round(number=number, team=team, key=next(keys[team]), limit_nusd=TEAMS[team][1] * 10**9)
        )
    return every


def _round_text(one: Round) -> str:
    share = f"{one.spent_nusd / one.limit_nusd:.2%}"
    answers = ", ".join(f"{name} {times}" for name, times in one.answers.most_common())
    return f"{share} used, back after {one.back_after_s:.1f} s, {one.killed} killed; {answers}"


def _judge(result: Result, fleet: Fleet, play: Run, rounds: Sequence[Round]) -> None:
    shares = sorted(one.spent_nusd / one.limit_nusd for one in rounds)
    answers = sum((one.answers for one in rounds), Counter())
    result.say(
        "rounds, of which with a kill", f"{len(rounds)}, {sum(one.killed > 0 for one in rounds)}"
    )
    result.say("processes, callers of each", f"{len(fleet.replicas)}, {play.callers}")
    result.say("most requests in flight in one process", min(play.most_at_once.values()))
    result.say(
        "used of the limit: least, mean, most",
        f"{shares[0]:.2%}, {sum(shares) / len(shares):.2%}, {shares[-1]:.2%}",
    )
    unknown, spent = sum(one.unknown_nusd for one in rounds), sum(one.spent_nusd for one in rounds)
    result.say("of that counted at the hold, because unknown", f"{unknown / max(spent, 1):.2%}")
    result.say(
        "all leases back after a round: mean, longest",
        f"{sum(one.back_after_s for one in rounds) / len(rounds):.1f} s, "
        f"{max(one.back_after_s for one in rounds):.1f} s",
    )
    result.say("answers", ", ".join(f"{name} {times:,}" for name, times in answers.most_common()))
    busy = sum(times for name, times in answers.items() if name.startswith("503"))
    total = sum(times for name, times in answers.items() if not name.startswith("of "))
    result.demand(
        busy <= MOST_BUSY_SHARE * total, "busy", f"{busy:,} of {total:,} answers were 503"
    )
    with psycopg.connect(fleet.database_url) as connection:
        wrong = connection.execute(
            "SELECT account_id, what FROM tollgate.budget_mistakes()"
        ).fetchall()
    for account_id, what in wrong:
        result.demand(False, "sums", f"{account_id}: {what}")
    attempts, events = fleet.attempts(), fleet.events()
    books = Books(
        attempts=attempts,
        events=events,
        calls=play.calls,
        kills_s=fleet.kills_s,
        rates=RATES,
        more_rates=MORE_RATES,
        most_unknown=1.0,
        on_its_way_s=ON_ITS_WAY_S,
    )
    result.judge(books)
    _judge_accounts(result, attempts, events)


def _judge_accounts(
    result: Result, attempts: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]]
) -> None:
    """Compare by key: the upstream's tokens at the day's price against the budget's count."""
    key_of = {str(event["request_id"]): event["key_id"] for event in events}
    running = {
        str(event["request_id"])
        for event in events
        if event["usage_source"] in ("derived", "estimated")
    }
    true: Counter[str] = Counter()
    for attempt in attempts:
        cost = true_nusd(attempt, rates=RATES, more_rates=MORE_RATES)
        if (
            attempt["request_id"] in key_of
            and attempt["request_id"] not in running
            and attempt["generated"]
        ):
            true[key_of[attempt["request_id"]]] += cost
    booked: Counter[str] = Counter()
    for event in events:
        if str(event["request_id"]) not in running:
            counted = event["cost_usd"] if event["cost_usd"] is not None else event["held_usd"]
            booked[event["key_id"]] += int(counted * 10**9)
    for key_id, cost in true.items():
        # A line is rounded to the nano-dollar: at most three of them an attempt.
        slack = 3 * len(events)
        result.demand(
            booked[key_id] + slack >= cost,
            "account",
            f"{key_id}: {booked[key_id]:,} n$ of {cost:,}",
        )
    result.say(
        "generated, at its price, against what budgets count (without running figures)",
        f"{sum(true.values()) / 1e9:.2f} / {sum(booked.values()) / 1e9:.2f} USD",
    )


def _judge_watch(result: Result, watcher: Watcher, last: dict[str, Any], *, ended_s: float) -> None:
    """Report the checker's findings from before any mistake was planted."""
    counts = Counter(last["counts"])
    for entry in watcher.output_lines():
        if "kind" in entry and entry["at"] < ended_s:
            result.demand(False, f"watch: {entry['kind']}", entry["detail"])
    took_ms = counts["took_ms"] / max(counts["snapshots"], 1)
    result.say(
        "snapshots of Postgres and journals, each took",
        f"{counts['snapshots']:,}, {took_ms:.0f} ms",
    )
    result.say("of which saw unwritten holds", f"{counts['busy']:,}")
    result.say(
        "unwritten holds seen, most at once", f"{counts['unwritten']:,}, {counts['most_unwritten']}"
    )
    missed = last["missed"]
    result.say(
        "planted in the watch's input",
        "each found" if not missed else f"NOT FOUND: {', '.join(missed)}",
    )
    result.demand(not missed, "checker", f"planted and not found: {', '.join(missed)}")
    result.demand(counts["busy"] > 10, "checker", "it hardly saw an unwritten hold")


# ---- mistakes planted in Postgres


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A mistake.

    `function` is changed from the first text to the second, or `statement` is run in the middle.

    One of `kinds` must be found by somebody.
    """

    name: str
    kinds: tuple[str, ...]
    function: str = ""
    changes: tuple[tuple[str, str], ...] = ()
    statement: str = ""


_CHECK = (
    "period := tollgate.lock_budget_period(ask.account_id, starts, to_timestamp(ask.ends_s), rule);"
)
PLANTS = (
    Plant(
        name="a slice that is checked, then taken",
        kinds=("over", "overrun"),
        function="tollgate.exchange_slices",
        changes=(
            (
                _CHECK,
                f"""
            SELECT * INTO period FROM tollgate.budget_periods AS seen
                WHERE seen.account_id = ask.account_id AND seen.starts_at = starts;
            IF NOT FOUND THEN {_CHECK} END IF;
            IF ask.account_id LIKE '%/key:%' THEN PERFORM pg_sleep(0.02); END IF;
            """,
            ),
            (
                "SET leased_nusd = exchange_slices.leased_nusd,",
                "SET leased_nusd = changed.leased_nusd - returned + granted_nusd,",
            ),
        ),
    ),
    Plant(
        name="holds in no lease",
        kinds=("unleased",),
        statement="""
        SELECT 1 FROM tollgate.budget_periods WHERE account_id = %(account)s FOR UPDATE;
        UPDATE tollgate.leases SET outstanding_nusd = 0 WHERE account_id = %(account)s;
        UPDATE tollgate.budget_periods SET leased_nusd = 0 WHERE account_id = %(account)s;
        """,
    ),
    Plant(
        name="an event that is charged twice",
        kinds=("spent",),
        function="tollgate.settle_holds",
        changes=(
            (
                "spent_nusd = spent_nusd + move.spent_nusd",
                "spent_nusd = spent_nusd + 2 * move.spent_nusd",
            ),
        ),
    ),
    Plant(
        name="a lease that does not come back",
        kinds=("stranded",),
        function="tollgate.end_leases",
        changes=(
            (
                "SELECT account_id, starts_at FROM tollgate.leases WHERE journal_id = journal",
                "SELECT account_id, starts_at FROM tollgate.leases WHERE journal_id = journal "
                "AND false",
            ),
        ),
    ),
)


async def _plant(
    result: Result, fleet: Fleet, play: Run, watcher: Watcher, rounds: Sequence[Round]
) -> None:
    """Plant each in a separate round; the findings there must match the mistake."""
    for plant, one in zip(PLANTS, rounds, strict=True):
        began_s = time.time()
        watcher.watch([one.key])
        with _changed(fleet, plant):
            task = asyncio.create_task(play.round(one, kills=False))
            await asyncio.sleep(0.7)
            if plant.statement:
                await asyncio.to_thread(_execute, fleet.database_url, plant.statement, one.account)
            if plant.kinds == ("stranded",):
                fleet.replicas[0].kill()
                fleet.replicas[0].spawn()
                one.last_kill_s = time.monotonic()
            await task
            found = Counter(finding.kind for finding in await play.close(one))
        seen = Counter(
            entry["kind"]
            for entry in watcher.output_lines()
            if "kind" in entry
            and entry["at"] >= began_s
            and entry["detail"].startswith(f"{one.account}:")
        )
        caught = {
            **{
                kind: f"by the watch, {times} times"
                for kind, times in seen.items()
                if kind in plant.kinds
            },
            **{kind: "after the round" for kind in found if kind in plant.kinds},
        }
        words = "; ".join(f"{kind}, {how}" for kind, how in caught.items())
        result.say(
            f"planted in Postgres: {plant.name}", f"found as {words}" if caught else "NOT FOUND"
        )
        result.demand(
            bool(caught),
            "checker",
            f"{plant.name} was planted and not found; found: {dict(seen | found)}",
        )
        result.print_step(f"{plant.name}: {dict(seen)} {dict(found)}; {_round_text(one)}")


@contextmanager
def _changed(fleet: Fleet, plant: Plant) -> Iterator[None]:
    if not plant.function:
        yield
        return
    with psycopg.connect(fleet.database_url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT pg_get_functiondef(%s::regproc)", [plant.function]
        ).fetchone()
        assert row is not None
        original = planted = str(row[0])
        for before, after in plant.changes:
            assert planted.count(before) == 1, f"{plant.function} does not say: {before}"
            planted = planted.replace(before, after)
        connection.execute(planted.encode())
        try:
            yield
        finally:
            connection.execute(original.encode())


def _execute(url: str, statement: str, account: str) -> None:
    with psycopg.connect(url) as connection:
        for part in statement.split(";"):
            if part.strip():
                connection.execute(part.encode(), {"account": account})
