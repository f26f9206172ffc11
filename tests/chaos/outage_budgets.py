"""Postgres is away while teams with budgets and limits send requests: leased money is served, the
rest is 503, never 402.

Three teams at two processes. `payments` has a budget whose leased money covers the outage, `search`
one whose slices are used up a third of the way in, `support` a limit on requests, of which each
process then has its share. Leases last one and a half times as long as the outage, which matches
the defaults for ten minutes.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psycopg

from gateway.domain.policy.api_keys import RANDOM_BYTES, mint
from tests.chaos.checker import Books
from tests.chaos.client import Call, ask
from tests.chaos.fleet import RATES, TEAMS, Fleet, policy_of, team_line
from tests.chaos.load import LIMIT_S, Load, idle, until
from tests.chaos.outage import WRITTEN_WITHIN_S
from tests.chaos.report import Result
from tests.fake_upstream.plans import ALL_COUNTABLE, shape

REPLICAS = 2
LEASE_SHARE = 1.5  # of the outage
WARM_UP_S, LEARN_S = 20.0, 10.0
# Of one request on average; only how long a slice of `search` lasts depends on it.
COST_USD = 0.00015
SLICE_LASTS = 1 / 3  # of the outage
SLICES = 100  # of a limit
PER_MINUTE = 600
ASK_EVERY_S = 2.0  # with unknown keys, and with idempotency keys
BACK_WITHIN_S = 10.0
STALE_AFTER_S = 5.0
UNKNOWN_AFTER_S = 0.5  # just before, Postgres may have named all keys there are
FIRST_ODD = 10**6
MOSTLY = 0.95


async def run(result: Result, *, away_s: float, per_s: float) -> None:
    """Warm up, take Postgres away, bring it back; then check each caller's answers, and the
    books.
    """
    spends_usd_per_s = per_s / len(TEAMS) * COST_USD
    search_usd = SLICES * spends_usd_per_s / REPLICAS * away_s * SLICE_LASTS
    fleet = Fleet(
        seed=result.seed,
        mix="healthy",
        replicas=REPLICAS,
        most_output=12,
        policy=_policy(search_usd),
        lease_s=LEASE_SHARE * away_s,
        outage_s=max(600, 2 * away_s),
    )
    with fleet:
        fleet.start()
        result.print_step("the fleet is ready")
        load, odd = (
            Load(fleet=fleet, stream_share=0.3, kinds=ALL_COUNTABLE),
            Odd(fleet),
        )
        await _ask(load, per_s, WARM_UP_S)
        await fleet.settled(_served(load))
        warm = len(load.calls)
        # Idle money went back: now it is leased again, as fast as it is spent.
        await _ask(load, per_s, LEARN_S)
        refused = Counter(
            f"{call.status} {call.code}" for call in load.calls[warm:] if call.status != 200
        )
        result.demand(
            set(refused) <= {"429 rate_limited"}, "caller", f"before the outage: {dict(refused)}"
        )
        before = len(load.calls)
        await asyncio.to_thread(fleet.postgres.stop)
        began_s = time.time()
        result.print_step("Postgres is away")
        asking = asyncio.create_task(odd.go_on())
        await _ask(load, per_s, away_s)
        asking.cancel()
        health, during = await asyncio.to_thread(_health, fleet), load.calls[before:]
        span = (began_s, time.time())
        await asyncio.to_thread(fleet.postgres.start)
        result.print_step("Postgres is back")
        took_s = await fleet.settled(_served(load), within_s=WRITTEN_WITHIN_S + 10, still_s=1)
        again_s = await _served_again(fleet, load, "search")
        await _ask(load, per_s, 3.0)
        result.demand(await idle(fleet), "hanging", "requests are still in flight")
        await fleet.settled(len(fleet.attempts()))
        result.say(
            "Postgres away, requests meanwhile", f"{away_s:.0f} s, {len(during):,} at {per_s:.0f}/s"
        )
        _judge_teams(result, during, began_s=began_s)
        _judge_limit(result, fleet, load.calls, span=span)
        odd.judge(result)
        _judge_health(result, health, away_s=away_s)
        _judge_return(result, fleet, took_s=took_s, again_s=again_s)
        await _judge_budgets(result, fleet)
        attempts, events = fleet.attempts(), fleet.events()
        result.judge(
            Books(attempts=attempts, events=events, calls=load.calls, kills_s=(), rates=RATES)
        )


def _policy(search_usd: float) -> str:
    month = "budgets: [{{period: month, limit_usd: {usd}}}]"
    terms = {
        "payments": ", " + month.format(usd=5000),
        "search": ", " + month.format(usd=f"{search_usd:.6f}"),
        "support": f", limits: {{requests_per_minute: {PER_MINUTE}}}",
    }
    return policy_of(
        "".join(
            team_line(team, number=number, terms=terms[team]) for number, team in enumerate(TEAMS)
        ),
    )


async def _ask(load: Load, per_s: float, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    await load.stream_of(per_s, lambda: time.monotonic() > end_s)


def _served(load: Load) -> int:
    return sum(call.status == 200 for call in load.calls)


async def _served_again(fleet: Fleet, load: Load, team: str) -> float:
    """How long until every process serves a team."""
    began_s = time.monotonic()

    async def serves() -> bool:
        answers = [await load.one(team=team, port=port) for port in fleet.ports]
        return all(answer.status == 200 for answer in answers)

    await until(serves, within_s=3 * BACK_WITHIN_S)
    return time.monotonic() - began_s


# ---- requests beside the teams' own ones


class Odd:
    """Requests with an unknown key, and with idempotency keys: neither can be decided without
    Postgres.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.unknown: list[Call] = []
        self.keyed: list[Call] = []

    async def go_on(self) -> None:
        """Ask each process in turn, until cancelled."""
        index = FIRST_ODD
        while True:
            for port in self._fleet.ports:
                index += 1
                self.unknown.append(
                    await self._ask(
                        index, port, key=mint(bytes(index % 256 for _ in range(RANDOM_BYTES)))
                    )
                )
                headers = {"idempotency-key": f"odd-{index}"}
                self.keyed.append(
                    await self._ask(index, port, key=self._fleet.keys["payments"], **headers)
                )
            await asyncio.sleep(ASK_EVERY_S)

    async def _ask(self, index: int, port: int, *, key: str, **headers: str) -> Call:
        call = Call(index=index, team="payments", route="own", is_stream=False)
        body = shape(self._fleet.seed, index, stream_share=0).body("own")
        return await ask(call, body, key=key, ports=[port], limit_s=LIMIT_S, headers=headers)

    def judge(self, result: Result) -> None:
        """Every one of them was 503 with a hint when to come back, as soon as the gateway can
        know.
        """
        first_s = self.unknown[0].sent_s
        early = [call for call in self.unknown if call.sent_s < first_s + UNKNOWN_AFTER_S]
        result.say(f"unknown keys in the first {UNKNOWN_AFTER_S:g} s", _answers(early))
        late = self.unknown[len(early) :]
        for what, calls in (
            ("unknown keys after that", late),
            ("requests with an Idempotency-Key", self.keyed),
        ):
            answers = Counter(f"{call.status} {call.code}" for call in calls)
            result.say(what, _answers(calls))
            result.demand(set(answers) == {"503 unavailable"}, "outage", f"{what}: {dict(answers)}")
            hints = sum(call.retry_after_s is not None for call in calls)
            result.demand(
                hints == len(calls),
                "outage",
                f"{what}: only {hints} of {len(calls)} say when to come back",
            )


def _answers(calls: Sequence[Call]) -> str:
    answers = Counter(
        call.ending if call.ending != "error" else f"{call.status} {call.code}" for call in calls
    )
    return ", ".join(f"{name} {times:,}" for name, times in answers.most_common())


def _health(fleet: Fleet) -> list[dict[str, Any]]:
    """Readiness and metrics of each process, at the end of the outage."""
    found = []
    for replica in fleet.replicas:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{replica.port}/readyz", timeout=5
            ) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            status, body = refused.code, refused.read()
        age_s, unwritten = (
            replica.gauge("tollgate_snapshot_age_seconds"),
            replica.gauge("tollgate_unwritten_events"),
        )
        found.append(
            {"status": status, "body": json.loads(body), "age_s": age_s, "unwritten": unwritten}
        )
    return found


def _judge_health(result: Result, health: Sequence[dict[str, Any]], *, away_s: float) -> None:
    for one in health:
        result.demand(
            one["status"] == 200,
            "outage",
            f"/readyz is {one['status']} though known keys are served",
        )
        warnings = [
            check["check"] for check in one["body"].get("checks", ()) if check["status"] == "warn"
        ]
        result.demand(
            "policy and keys" in warnings, "outage", f"/readyz does not tell it: {one['body']}"
        )
        result.demand(
            (one["age_s"] or 0) >= away_s - STALE_AFTER_S,
            "outage",
            f"snapshot age says {one['age_s']} s",
        )
        result.demand((one["unwritten"] or 0) > 0, "outage", "no event is said to wait")
    shown = ", ".join(
        f"{one['status']}, {one['age_s']:.0f} s, {one['unwritten']:.0f}" for one in health
    )
    result.say("at its end /readyz, age of the snapshot, events that wait", shown)


# ---- the teams' results


def _judge_teams(result: Result, during: Sequence[Call], *, began_s: float) -> None:
    for team in TEAMS:
        own = [call for call in during if call.team == team]
        answers = Counter(
            call.ending if call.ending != "error" else f"{call.status} {call.code}" for call in own
        )
        result.say(f"{team} meanwhile", _answers(own))
        allowed = {
            "payments": set(),
            "search": {"503 unavailable"},
            "support": {"429 rate_limited"},
        }[team]
        wrong = set(answers) - {"complete"} - allowed
        result.demand(
            not wrong,
            "outage",
            f"{team} got {', '.join(f'{answers[name]} x {name}' for name in sorted(wrong))}",
        )
        result.demand(answers["complete"] > 0, "outage", f"{team} was not served at all")
        result.demand(
            allowed <= set(answers),
            "not fired",
            f"{team} was never refused by {allowed - set(answers)}",
        )
        untold = sum(call.status in (429, 503) and call.retry_after_s is None for call in own)
        result.demand(
            not untold, "outage", f"{team}: {untold} refusals do not say when to come back"
        )
        if refused := [call for call in own if call.ending != "complete"]:
            first_s, last_s = refused[0].sent_s - began_s, own[-1].sent_s - began_s
            result.say(f"{team}: first refused after", f"{first_s:.0f} of {last_s:.0f} s")


def _judge_limit(
    result: Result, fleet: Fleet, calls: Sequence[Call], *, span: tuple[float, float]
) -> None:
    """Judge by the gateway's clock, as in `limits`; two processes, so each has half.

    Requests come at random: if a window slides faster than they come, some of it stays empty. So
    the minimum is compared with two exact windows over the same requests.
    """
    times = sorted(
        event["started_at"].timestamp() for event in fleet.events() if event["team"] == "support"
    )
    most = max(
        (bisect_left(times, at_s + 60) - place for place, at_s in enumerate(times)), default=0
    )
    slack = max(0.02 * PER_MINUTE, REPLICAS)
    result.say("support in any 60 seconds, at most", f"{most} of {PER_MINUTE} ± {slack:.0f}")
    result.demand(most <= PER_MINUTE + slack, "over", f"support: {most} in 60 s")
    seconds = int(span[1] - span[0])
    if seconds >= 90:
        offered = [call for call in calls if call.team == "support"]
        exact = sorted(
            at_s for port in fleet.ports for at_s in _exact(offered, port, from_s=span[0])
        )
        least, wanted = (_least(taken, span[0], seconds) for taken in (times, exact))
        result.say("and at least", f"{least}; two exact windows let through {wanted}")
        result.demand(
            least >= MOSTLY * wanted,
            "under",
            f"support: {least} in 60 s, {wanted} in an exact window",
        )


def _least(times: Sequence[float], from_s: float, seconds: int) -> int:
    """The emptiest minute, of those that end a minute and a quarter after the beginning or
    later.
    """
    ends = [from_s + at for at in range(75, seconds)]
    return min(bisect_left(times, end_s) - bisect_left(times, end_s - 60) for end_s in ends)


def _exact(offered: Sequence[Call], port: int, *, from_s: float) -> list[float]:
    """When a process with half of the limit lets a request in, if it forgets each at its very
    moment.
    """
    taken: list[float] = []
    for call in sorted(
        (call for call in offered if call.port == port), key=lambda call: call.sent_s
    ):
        in_window = len(taken) - bisect_left(taken, call.sent_s - 60)
        has_room = in_window < PER_MINUTE // REPLICAS
        if has_room if call.sent_s >= from_s else call.status == 200:
            taken.append(call.sent_s)
    return taken


def _judge_return(result: Result, fleet: Fleet, *, took_s: float, again_s: float) -> None:
    result.say("all written after its return", f"{took_s:.1f} s")
    result.demand(
        took_s <= WRITTEN_WITHIN_S, "late", f"all written only {took_s:.0f} s after its return"
    )
    result.say("search is served again after", f"{again_s:.1f} s, without a restart")
    result.demand(again_s <= BACK_WITHIN_S, "late", f"search is served again after {again_s:.1f} s")
    result.demand(
        all(replica.starts == 1 for replica in fleet.replicas),
        "restart",
        "a process was started again",
    )


async def _judge_budgets(result: Result, fleet: Fleet) -> None:
    def leased() -> int:
        with psycopg.connect(fleet.database_url) as connection:
            row = connection.execute(
                "SELECT coalesce(sum(leased_nusd), 0) FROM tollgate.budget_periods"
            ).fetchone()
        assert row is not None
        return int(row[0])

    async def is_back() -> bool:
        return await asyncio.to_thread(leased) == 0

    result.demand(
        await until(is_back, within_s=BACK_WITHIN_S),
        "stranded",
        f"{leased():,} n$ are still leased",
    )
    with psycopg.connect(fleet.database_url) as connection:
        wrong = connection.execute(
            "SELECT account_id, what FROM tollgate.budget_mistakes()"
        ).fetchall()
        rows = connection.execute(
            "SELECT account, spent_usd, limit_usd FROM finance.budgets WHERE starts_at IS NOT "
            "NULL ORDER BY 1"
        ).fetchall()
    for account_id, what in wrong:
        result.demand(False, "sums", f"{account_id}: {what}")
    for account, spent, limit in rows:
        result.say(f"{account}: spent", f"{spent:.6f} of {limit:.6f} USD, the sum of its events")
        result.demand(spent <= limit, "overrun", f"{account}: {spent} of {limit} USD")
