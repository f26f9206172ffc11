"""Five times the allowed rate against three processes: the admitted amount in every 60 seconds, and
the truth of "later". At ten times, 770 requests a second, the bodies of all dialects fill two
cores, and the run would judge these.

Admissions are counted by the gateway's own clock: an event's `started_at` is taken right after its
request was admitted, and all processes are on one machine. Callers' clocks would add the time that
answers take. Tokens count as the gateway knew them at each moment: the reservation until the
attempt has ended, the true use from then on.

Beside the crowd, some callers are alone under a limit. They come back at the very moment that a 429
gave them, at another process, and must be admitted.

Crowds under a limit on requests use all endpoints. Those under a limit on tokens, or on concurrent
requests, send only chat: the first are judged by a chat's reservation, the second by its duration.
So do the callers that are alone.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from random import Random
from typing import Any, cast

from httptools import HttpResponseParser

from tests.chaos.checker import Finding
from tests.chaos.dialects import serves
from tests.chaos.fleet import ROUTES, Fleet, policy_of, team_line
from tests.chaos.load import idle
from tests.chaos.report import Result
from tests.fake_upstream.faults import Kind
from tests.fake_upstream.plans import ALL_ATTEMPTED, kind_of, shape

WINDOW_S, SHARE = 60.0, 0.02
MAX_TOKENS, OVERHEAD_TOKENS = 1000, 64
# of the slots on average: one that others had in use a moment ago is theirs for up to a second
LEAST_BUSY = 0.9
# Of the time: a process that waited 50 ms for Postgres may admit one by its own share.
MOST_OVER = 0.01
# Of the answers: with every core busy a process is late now and then, and says so.
MOST_SHED = 0.001
LEAST_OFFERED = 0.97  # of the rate that was meant: else the callers are too slow to prove anything
PROBES, PROBE_LIMIT, PROBE_TOKENS = 12, 4, 4000
# seconds after the crowd: Postgres then answers at once, and the given times must be true
QUIET_S = 75.0
# a process may refuse by an answer that is a quarter of a second old
STALE_S = (0.0, 0.1, 0.2, 0.3)
GRACE_S = 0.005  # a caller that comes back this much after its given time is on time
PROBE_PAUSE_S = (0.5, 2.0)  # after an answer: its request's unused part is returned meanwhile
ANSWER_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """A team under one limit, and its request rate.

    `seconds` and `tokens` are a request's duration and use.
    """

    team: str
    requests: int | None = None
    tokens: int | None = None
    at_once: int | None = None

    @property
    def terms(self) -> str:
        """The limit as the policy writes it."""
        field_name, figure = next(
            (name, figure)
            for name, figure in (
                ("requests_per_minute", self.requests),
                ("tokens_per_minute", self.tokens),
                ("concurrent", self.at_once),
            )
            if figure is not None
        )
        return f", limits: {{{field_name}: {figure}}}"


CROWDS = (
    Crowd(team="r60", requests=60),
    Crowd(team="r600", requests=600),
    Crowd(team="r3000", requests=3000),
    Crowd(team="t60000", tokens=60_000),
    Crowd(team="c6", at_once=6),
)
MIXED = frozenset(crowd.team for crowd in CROWDS if crowd.requests is not None)
# Of one request, on average; only how much is offered depends on them.
USED_TOKENS, SERVICE_S = (
    230,
    0.55,
)
PROBE_TEAMS = {
    "probe-requests": f"requests_per_minute: {PROBE_LIMIT}",
    "probe-tokens": f"tokens_per_minute: {PROBE_TOKENS}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One caller's view."""

    index: int
    team: str
    sent_s: float
    ended_s: float
    status: int
    request_id: str
    retry_after_s: float | None
    reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """One request by the gateway's own book: its admission, its end, its reservation and its
    use.
    """

    at_s: float
    ended_s: float
    reserved: int
    used: int


class _Line(asyncio.Protocol):
    """A connection that is kept, with one request on it at a time."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[tuple[int, str, float | None]] | None = None
        self.is_open = True
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._request_id = ""
        self._retry_after_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self.answered is not None and not self.answered.done():
            self.answered.set_exception(exc or ConnectionResetError())

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._request_id = value.decode()
        elif name.lower() == b"retry-after-ms":
            self._retry_after_s = int(value) / 1000

    def on_message_complete(self) -> None:
        assert self.answered is not None, "there was a question"
        if not self.answered.done():
            self.answered.set_result(
                (self._parser.get_status_code(), self._request_id, self._retry_after_s)
            )
        self._parser = HttpResponseParser(self)

    async def ask(self, request: bytes) -> tuple[int, str, float | None]:
        """Status, request id and when to come back."""
        assert self._transport is not None
        if self._transport.is_closing():
            raise ConnectionResetError
        self._request_id, self._retry_after_s = "", None
        self.answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await asyncio.wait_for(self.answered, ANSWER_WITHIN_S)


@dataclass(slots=True)
class Callers:
    """All who ask, on connections that are kept."""

    fleet: Fleet
    keys: dict[str, str]
    answers: list[Answer] = field(default_factory=list)
    broken: int = 0
    kinds: Counter[Kind] = field(default_factory=Counter)
    _lines: defaultdict[int, list[_Line]] = field(default_factory=lambda: defaultdict(list))
    _indices: Any = field(default_factory=lambda: count(1))

    async def one(
        self, team: str, process: int, *, key: str | None = None, index: int | None = None
    ) -> Answer | None:
        """Send one request to one process, the same again if it has an index; None if its
        connection broke.
        """
        index = index or next(self._indices)
        kind, route = Kind.CHAT, "bought"
        if team in MIXED:
            kind = kind_of(self.fleet.seed, index, ALL_ATTEMPTED)
            served = [name for name in ROUTES if serves(name, kind)]
            route = Random(f"{self.fleet.seed}/{index}/route").choice(served)
        self.kinds[kind] += 1
        wanted = shape(
            self.fleet.seed, index, most_output=self.fleet.most_output, stream_share=0, kind=kind
        )
        body = wanted.body(route, max_tokens=MAX_TOKENS)
        head = (
            f"POST {wanted.path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer "
            f"{key or self.keys[team]}"
            f"\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        sent_s = time.time()
        try:
            line = await self._line(process)
            status, request_id, retry_after_s = await line.ask(head.encode() + body)
        except OSError:
            self.broken += 1
            return None
        self._lines[process].append(line)
        answer = Answer(
            index=index,
            team=team,
            sent_s=sent_s,
            ended_s=time.time(),
            status=status,
            request_id=request_id,
            retry_after_s=retry_after_s,
            reserved=len(body) + OVERHEAD_TOKENS + MAX_TOKENS,
        )
        self.answers.append(answer)
        return answer

    async def _line(self, process: int) -> _Line:
        while self._lines[process]:
            if (line := self._lines[process].pop()).is_open:
                return line
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(
            _Line, "127.0.0.1", self.fleet.replicas[process].port
        )
        return made


async def run(result: Result, *, seconds: float, replicas: int, times: float) -> None:
    """Run the crowd and the single callers, then count the admissions."""
    fleet = Fleet(
        seed=result.seed,
        mix="long",
        replicas=replicas,
        policy=_policy(),
        teams=[crowd.team for crowd in CROWDS],
    )
    with fleet:
        alone = {team: fleet.new_keys(team, PROBES) for team in PROBE_TEAMS}
        fleet.start()
        result.print_step("the fleet is ready")
        callers = Callers(fleet, fleet.keys)
        stressed, quiet = Probed(), Probed()
        begun_s = time.time() + 0.5
        async with asyncio.TaskGroup() as group:
            for crowd in CROWDS:
                group.create_task(
                    _press(callers, crowd, begun_s=begun_s, seconds=seconds, times=times)
                )
            group.create_task(_probe_all(callers, stressed, alone, until_s=begun_s + seconds))
        result.print_step("the crowd is gone")
        await _probe_all(callers, quiet, alone, until_s=time.time() + QUIET_S)
        result.print_step("the callers are done")
        result.demand(await idle(fleet), "hanging", "requests are still in flight")
        await fleet.settled(sum(answer.status == 200 for answer in callers.answers))
        _judge(
            result,
            callers,
            fleet.events(),
            (stressed, quiet),
            span=(begun_s, begun_s + seconds),
            times=times,
        )


def _policy() -> str:
    teams = "".join(
        team_line(crowd.team, number=n, terms=crowd.terms) for n, crowd in enumerate(CROWDS)
    )
    for number, (team, limit) in enumerate(PROBE_TEAMS.items()):
        teams += team_line(
            team,
            number=10 + number,
            routes=ROUTES,
            terms=f', keys: [{{key: "*", limits: {{{limit}}}}}]',
        )
    return policy_of(teams, wait_s=15)


def _offered_per_s(crowd: Crowd, times: float) -> float:
    if crowd.requests is not None:
        return times * crowd.requests / 60
    if crowd.tokens is not None:
        return times * crowd.tokens / USED_TOKENS / 60
    assert crowd.at_once is not None
    return times * crowd.at_once / SERVICE_S


async def _press(
    callers: Callers, crowd: Crowd, *, begun_s: float, seconds: float, times: float
) -> None:
    """Evenly but for some jitter, to all processes in turn, whether earlier ones are answered or
    not.
    """
    rng, processes = Random(f"{callers.fleet.seed}/{crowd.team}"), len(callers.fleet.replicas)
    gap_s = 1 / _offered_per_s(crowd, times)
    async with asyncio.TaskGroup() as group:
        for number in range(int(seconds / gap_s)):
            due_s = begun_s + (number + rng.uniform(0, 0.8)) * gap_s
            await asyncio.sleep(max(due_s - time.time(), 0))
            group.create_task(callers.one(crowd.team, number % processes))


# ---- those who are alone


@dataclass(slots=True)
class Probed:
    """The times given to single callers, and their results."""

    returned: int = 0
    let_in: int = 0
    wrong: list[str] = field(default_factory=list)
    early: int = 0
    too_dark: list[str] = field(default_factory=list)


async def _probe_all(
    callers: Callers, found: Probed, alone: dict[str, list[str]], *, until_s: float
) -> None:
    async with asyncio.TaskGroup() as group:
        for team, keys in alone.items():
            for number, key in enumerate(keys):
                rng = Random(f"{callers.fleet.seed}/{team}/{number}")
                group.create_task(_probe(callers, found, team, key=key, rng=rng, until_s=until_s))


async def _probe(
    callers: Callers, found: Probed, team: str, *, key: str, rng: Random, until_s: float
) -> None:
    """Ask until refused; come back at the given time, mostly on time and now and then two
    seconds early.
    """
    processes = len(callers.fleet.replicas)
    while time.time() < until_s:
        process = rng.randrange(processes)
        answer = await callers.one(team, process, key=key)
        if answer is None or answer.status != 429 or answer.retry_after_s is None:
            await asyncio.sleep(rng.uniform(*PROBE_PAUSE_S))
            continue
        due_s = answer.ended_s + answer.retry_after_s
        if due_s > until_s:
            return
        if answer.retry_after_s > 5 and rng.random() < 0.25:
            await asyncio.sleep(max(due_s - 2 - time.time(), 0))
            early = await callers.one(team, rng.randrange(processes), key=key, index=answer.index)
            found.early += 1
            if early is None or early.status != 429:
                got = early and early.status
                found.too_dark.append(
                    f"{team}: told to come in {answer.retry_after_s:.3f} s, 2 s before that {got}"
                )
                await asyncio.sleep(rng.uniform(*PROBE_PAUSE_S))
                continue
        await asyncio.sleep(max(due_s - time.time(), 0) + GRACE_S)
        again = await callers.one(team, (process + 1) % processes, key=key, index=answer.index)
        found.returned += 1
        if again is not None and again.status == 200:
            found.let_in += 1
            await asyncio.sleep(rng.uniform(*PROBE_PAUSE_S))
        else:
            status = again and (again.status, again.retry_after_s)
            found.wrong.append(
                f"{team}: told to come in {answer.retry_after_s:.3f} s, then {status}"
            )


# ---- the judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How much of a limit was used: per minute, in the fullest 60 seconds, and in the emptiest
    before a refusal.
    """

    minutes: tuple[int, ...]
    most: int
    least: int
    wrong_refusals: int


def count_window(
    admitted: Sequence[Admitted],
    refused: Sequence[Answer],
    *,
    limit: int,
    slack: float,
    span: tuple[float, float],
    by_tokens: bool,
) -> Counted:
    """Count a window's units as they were known at each moment."""
    begun_s, until_s = span
    ordered = sorted(admitted, key=lambda one: one.at_s)
    units = [one.used if by_tokens else 1 for one in ordered]
    times, sums = [one.at_s for one in ordered], [0, *accumulate(units)]

    def between(start_s: float, end_s: float) -> int:
        return sums[bisect_left(times, end_s)] - sums[bisect_left(times, start_s)]

    # An unused reservation counts as well until the attempt has ended, because its real use was
    # unknown.
    changes = sorted(
        change
        for one in (ordered if by_tokens else ())
        for change in ((one.at_s, one.reserved - one.used), (one.ended_s, one.used - one.reserved))
    )
    moments, reserved = (
        [at_s for at_s, _ in changes],
        [0, *accumulate(change for _, change in changes)],
    )

    def counted(end_s: float) -> int:
        return between(end_s - WINDOW_S, end_s) + reserved[bisect_right(moments, end_s)]

    # A limit shows by its refusals: an emptier window without refusals only shows the demand.
    first_s = begun_s + WINDOW_S
    at_refusals = [
        max(counted(one.ended_s - ago_s) for ago_s in STALE_S)
        for one in refused
        if one.sent_s >= first_s
    ]
    least_room = max((one.reserved for one in refused), default=0) if by_tokens else 1
    minutes = range(int((until_s - begun_s + 0.01) // WINDOW_S))
    return Counted(
        minutes=tuple(
            between(begun_s + WINDOW_S * n, begun_s + WINDOW_S * (n + 1)) for n in minutes
        ),
        most=max(
            (between(at_s, at_s + WINDOW_S) for at_s in times if at_s + WINDOW_S <= until_s),
            default=0,
        ),
        least=min(at_refusals, default=0),
        wrong_refusals=sum(units_then + least_room + slack <= limit for units_then in at_refusals),
    )


def _judge_window(
    crowd: Crowd,
    admitted: Sequence[Admitted],
    refused: Sequence[Answer],
    *,
    span: tuple[float, float],
    replicas: int,
) -> tuple[str, list[Finding]]:
    limit = crowd.requests or crowd.tokens or 0
    largest = max((one.reserved for one in admitted), default=0) if crowd.tokens else 1
    slack = max(SHARE * limit, replicas * largest)
    seen = count_window(
        admitted, refused, limit=limit, slack=slack, span=span, by_tokens=crowd.tokens is not None
    )
    found = []
    if seen.most > limit + slack:
        found.append(
            Finding(
                "over", f"{crowd.team}: {seen.most:,} in 60 s, {limit:,} ± {slack:,.0f} allowed"
            )
        )
    found += [
        Finding("minute", f"{crowd.team}: {minute:,} in a minute, {limit:,} ± {slack:,.0f} allowed")
        for minute in seen.minutes
        if minute > limit + slack or minute < limit - slack
    ]
    if seen.wrong_refusals:
        wrong = f"{seen.wrong_refusals:,} of {len(refused):,} refused with room left"
        found.append(
            Finding(
                "under", f"{crowd.team}: {wrong}, one at {seen.least:,} of {limit:,} ± {slack:,.0f}"
            )
        )
    minutes = " / ".join(f"{minute:,}" for minute in seen.minutes)
    row = (
        f"each minute {minutes}; in 60 s at most {seen.most:,}, refused at {seen.least:,} or more; "
        f"± {slack:,.0f} allowed; {seen.wrong_refusals} of {len(refused):,} refused with room left"
    )
    return row, found


def _judge_slots(
    crowd: Crowd, admitted: Sequence[Admitted], *, span: tuple[float, float]
) -> tuple[str, list[Finding]]:
    limit = crowd.at_once or 0
    changes = sorted([(one.at_s, 1) for one in admitted] + [(one.ended_s, -1) for one in admitted])
    moments, running = (
        [at_s for at_s, _ in changes],
        [0, *accumulate(change for _, change in changes)],
    )
    samples = [
        running[bisect_right(moments, span[0] + 5 + n * 0.01)]
        for n in range(int((span[1] - span[0] - 5) / 0.01))
    ]
    mean, most = sum(samples) / max(len(samples), 1), max(running)
    over = sum(sample > limit for sample in samples) / max(len(samples), 1)
    found = []
    if over > MOST_OVER:
        found.append(
            Finding(
                "over", f"{crowd.team}: {most} at once, more than allowed {over:.2%} of the time"
            )
        )
    if mean < LEAST_BUSY * limit:
        found.append(Finding("under", f"{crowd.team}: {mean:.2f} at once on average"))
    return (
        f"at once {mean:.2f} on average, {most} at most, more than allowed {over:.2%} of the time",
        found,
    )


def _judge_crowd(
    crowd: Crowd,
    admitted: Sequence[Admitted],
    refused: Sequence[Answer],
    *,
    span: tuple[float, float],
    replicas: int,
) -> tuple[str, list[Finding]]:
    if crowd.at_once is not None:
        return _judge_slots(crowd, admitted, span=span)
    return _judge_window(crowd, admitted, refused, span=span, replicas=replicas)


def _judge(
    result: Result,
    callers: Callers,
    events: Sequence[dict[str, Any]],
    probed: tuple[Probed, Probed],
    *,
    span: tuple[float, float],
    times: float,
) -> None:
    replicas = len(callers.fleet.replicas)
    result.say(
        "processes, seconds, times the allowed rate",
        f"{replicas}, {span[1] - span[0]:.0f}, {times:.0f}",
    )
    statuses = Counter(answer.status for answer in callers.answers)
    result.say(
        "answers", ", ".join(f"{status} {number:,}" for status, number in statuses.most_common())
    )
    result.say(
        "callers asked for",
        ", ".join(f"{kind} {number:,}" for kind, number in callers.kinds.most_common()),
    )
    result.demand(
        not callers.broken
        and set(statuses) <= {200, 429, 503}
        and statuses[503] <= MOST_SHED * statuses.total(),
        "caller",
        f"{dict(statuses)}, {callers.broken} broken",
    )
    untold = sum(
        answer.status == 429 and answer.retry_after_s is None for answer in callers.answers
    )
    result.demand(not untold, "retry-after", f"{untold} answers 429 do not say when to come back")
    admitted = _admitted(callers.answers, events)
    result.demand(
        sum(map(len, admitted.values())) == statuses[200],
        "books",
        "answers 200 and requests in the books are not as many",
    )
    for crowd in CROWDS:
        own = [answer for answer in callers.answers if answer.team == crowd.team]
        meant = int((span[1] - span[0]) * _offered_per_s(crowd, times))
        result.demand(
            len(own) >= LEAST_OFFERED * meant,
            "not fired",
            f"{crowd.team}: {len(own):,} of {meant:,} asked",
        )
        refused = [answer for answer in own if answer.status == 429]
        row, wrong = _judge_crowd(
            crowd, admitted[crowd.team], refused, span=span, replicas=replicas
        )
        result.say(f"{crowd.team}{crowd.terms.replace(', limits:', ':')}", row)
        result.findings += wrong
    waits_ms = sorted(1000 * (a.ended_s - a.sent_s) for a in callers.answers if a.status == 429)
    result.say(
        "a refusal takes, p50 / p99",
        f"{waits_ms[len(waits_ms) // 2]:.1f} / {waits_ms[len(waits_ms) * 99 // 100]:.1f} ms",
    )
    for found, when in zip(probed, ("in the crowd", "when the crowd is gone"), strict=True):
        result.say(
            f"alone under a limit, {when}: came when told, let in",
            f"{found.returned}, {found.let_in}",
        )
        result.say(
            "  came two seconds before, let in all the same",
            f"{found.early}, {len(found.too_dark)}",
        )
        result.demand(
            found.returned >= 20, "not fired", f"{when}: only {found.returned} came back when told"
        )
    for one in probed[1].wrong:
        result.demand(False, "retry-after", one)
    for one in probed[1].too_dark:
        result.demand(False, "retry-after", f"{one}, though nobody gave anything back")
    for one in [*probed[0].wrong, *probed[0].too_dark]:
        result.print_step(f"in the crowd: {one}")
    missed = _self_test(admitted, callers.answers, span=span, replicas=replicas)
    result.say(
        "planted in the checker's input",
        "each found" if not missed else f"NOT FOUND: {', '.join(missed)}",
    )
    result.demand(not missed, "checker", f"planted and not found: {', '.join(missed)}")


def _admitted(
    answers: Sequence[Answer], events: Sequence[dict[str, Any]]
) -> dict[str, list[Admitted]]:
    reserved = {answer.request_id: answer.reserved for answer in answers if answer.status == 200}
    attempts: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        attempts[str(event["request_id"])].append(event)
    found: defaultdict[str, list[Admitted]] = defaultdict(list)
    # More than one if a deployment could not be reached in time.
    for (
        request_id,
        of_it,
    ) in attempts.items():
        found[of_it[0]["team"]].append(
            Admitted(
                at_s=min(event["started_at"].timestamp() for event in of_it),
                ended_s=max(
                    event["started_at"].timestamp() + event["duration_s"] for event in of_it
                ),
                reserved=reserved.get(request_id, 0),
                used=sum(
                    (event["input_tokens"] or 0) + (event["output_tokens"] or 0) for event in of_it
                ),
            )
        )
    return found


def _self_test(
    admitted: dict[str, list[Admitted]],
    answers: Sequence[Answer],
    *,
    span: tuple[float, float],
    replicas: int,
) -> list[str]:
    """Plant five requests too many in a hundred, or too few, for every crowd."""
    missed = []
    plants: tuple[tuple[str, str, Callable[[list[Admitted]], list[Admitted]]], ...] = (
        ("too many", "over", lambda all_of: [*all_of, *all_of[::8]]),
        ("too few", "under", lambda all_of: [one for n, one in enumerate(all_of) if n % 6]),
    )
    for crowd in CROWDS:
        refused = [
            answer for answer in answers if answer.team == crowd.team and answer.status == 429
        ]
        for name, kind, plant in plants:
            _, found = _judge_crowd(
                crowd, plant(admitted[crowd.team]), refused, span=span, replicas=replicas
            )
            if kind not in {finding.kind for finding in found}:
                missed.append(f"{name} of {crowd.team}")
    return missed
