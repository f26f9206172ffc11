"""Generates the usage events of the demo organisation, hour by hour.

Pure: size, last day and prices are arguments, and an hour's events depend only on these. Each
attempt is a copy of its project's template with a settled answer of `answers`: figures and rules
are those of a real attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from itertools import accumulate
from math import exp
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from gateway.domain.ids import uuid7
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import TokenUsage
from gateway.services.demo.answers import AnswerBook, make_answers
from gateway.services.demo.catalogue import DESTINATIONS, HOLIDAYS, HOURS, RUNAWAY, DemoActivity
from gateway.services.demo.hours import (
    SPIKE_SHARE,
    Hour,
    hours_of,
    is_incident,
    is_spike,
    share_of_day,
)
from gateway.services.demo.organisation import (
    Calendar,
    OrganisationSize,
    projects_of,
    runaway_project,
)
from gateway.services.demo.prices import PriceSince
from gateway.services.demo.streams import NO_TAGS, Stream, stream_of

INCIDENT_AT = "mini-us"
TIMEOUT_S = 60.0
HOUR_MS = 3_600_000
SHARE_WITHOUT_TAGS = 0.07
FACTORS = 1024  # drawn once for all events: a power of two, so that ten random bits choose one
_STATUS: Mapping[Outcome, int | None] = {
    Outcome.OK: 200,
    Outcome.CLIENT_GONE: 200,
    Outcome.UPSTREAM_CUT: 200,
    Outcome.UPSTREAM_ERROR: 503,
    Outcome.UPSTREAM_TIMEOUT: None,
}
_RETRIED = frozenset({Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_TIMEOUT})


class _Mix(NamedTuple):
    """The share of attempts that succeed, and the weights of the other outcomes."""

    ok: float
    others: Mapping[Outcome, int]


_USUAL = _Mix(
    0.989,
    {
        Outcome.CLIENT_GONE: 60,
        Outcome.UPSTREAM_ERROR: 42,
        Outcome.UPSTREAM_CUT: 6,
        Outcome.UPSTREAM_TIMEOUT: 5,
    },
)
_INCIDENT = _Mix(
    0.45,
    {Outcome.UPSTREAM_ERROR: 38, Outcome.UPSTREAM_CUT: 9, Outcome.UPSTREAM_TIMEOUT: 8},
)


class _Now(NamedTuple):
    """One hour of the history: its random source and its circumstances; `prices` are those in force
    by deployment.
    """

    begins: datetime
    unix_ms: int
    random: Random
    prices: Mapping[str, Price]
    failing: str | None  # the deployment with a bad morning


class Traffic:
    """The events of one demo organisation.

    `prices` are by deployment, in the order of their starts. `is_demo` is False for events that
    count as real ones.
    """

    def __init__(
        self,
        size: OrganisationSize,
        calendar: Calendar,
        prices: Mapping[str, Sequence[PriceSince]],
        *,
        is_demo: bool,
    ) -> None:
        """Build the organisation; no event is made yet."""
        self.size, self.calendar, self.prices = size, calendar, prices
        self.projects = projects_of(size)
        runaway = runaway_project(self.projects)._replace(work=RUNAWAY)
        self._streams = [
            stream_of(project, is_demo=is_demo) for project in (*self.projects, runaway)
        ]
        self._books: dict[tuple[str, str, str], AnswerBook] = {}
        self._weights: dict[tuple[int, bool, bool], list[float]] = {}

    def hours(self) -> list[Hour]:
        """Return the hours of the history with the number of their events."""
        return hours_of(self.calendar, self.projects, events=self.size.events)

    def events(self, hours: Iterable[Hour]) -> list[UsageEvent]:
        """Return the events of some hours, by the time of their requests."""
        return [event for hour in hours for event in self._of_hour(hour)]

    def _of_hour(self, hour: Hour) -> Iterator[UsageEvent]:
        """Yield exactly the number of events that an hour has."""
        random = Random(f"{self.size.name}/{hour.begins:%Y-%m-%dT%H}")  # noqa: S311 - made-up data, not a secret
        failing = INCIDENT_AT if is_incident(hour.begins, self.calendar) else None
        prices = {
            name: next(dated.price for dated in reversed(each) if dated.since <= hour.begins)
            for name, each in self.prices.items()
        }
        now = _Now(hour.begins, round(hour.begins.timestamp() * 1000), random, prices, failing)
        weights = self._weights_at(hour.begins)
        streams = random.choices(self._streams, cum_weights=weights, k=hour.events)
        moments = sorted(random.choices(range(HOUR_MS), k=hour.events))
        left = hour.events
        for stream, ms in zip(streams, moments, strict=True):
            if not left:
                return
            attempts = self._request(now, stream, ms, may_fail=left > 1)
            left -= len(attempts)
            yield from attempts

    def _request(self, now: _Now, stream: Stream, ms: int, *, may_fail: bool) -> list[UsageEvent]:
        """Return the attempts of one request: a second one if the first deployment fails."""
        random = now.random
        work = stream.project.work
        request_id = uuid7(now.unix_ms + ms, random.randbytes(10))
        started_at = now.begins + timedelta(milliseconds=ms + 1)
        # The square makes some end users far more active than others.
        end_user = stream.end_users[int(random.random() ** 2 * len(stream.end_users))]
        tags = (
            NO_TAGS
            if random.random() < SHARE_WITHOUT_TAGS
            else stream.tags[int(random.random() * len(stream.tags))]
        )
        is_stream = random.random() < work.streamed
        attempts: list[UsageEvent] = []
        for number, template in enumerate(stream.templates, start=1):
            outcome = _outcome(now, template.deployment) if may_fail else Outcome.OK
            book = self._book(work, template.deployment, now.prices[template.deployment])
            pool = book.of(outcome)
            settled = pool[int(random.random() * len(pool))]
            load = _load(work.hours, now.begins.hour)
            ttft_s, tpot_s, duration_s, overhead_s = _times(
                random, template, settled.usage, outcome, load
            )
            shows_tokens = is_stream and outcome not in _RETRIED
            output_tokens = settled.usage.output_tokens or 0
            attempts.append(
                replace(
                    template,
                    request_id=request_id,
                    attempt=number,
                    started_at=started_at,
                    end_user=end_user,
                    tags=tags,
                    outcome=outcome,
                    http_status=_STATUS[outcome],
                    streamed=is_stream,
                    usage=settled.usage,
                    usage_source=settled.source,
                    price_id=book.price_id,
                    lines=settled.lines,
                    cost_nusd=settled.cost_nusd,
                    held_nusd=settled.held_nusd,
                    ttft_s=ttft_s if shows_tokens else None,
                    tpot_s=tpot_s if shows_tokens and output_tokens > 1 else None,
                    duration_s=duration_s,
                    overhead_s=overhead_s,
                    finish_reason="stop" if outcome is Outcome.OK else None,
                    is_suspect=settled.is_suspect,
                )
            )
            if outcome not in _RETRIED:
                break
            started_at += timedelta(seconds=duration_s)
            may_fail = False  # the second deployment answers
        return attempts

    def _book(self, work: DemoActivity, deployment: str, price: Price) -> AnswerBook:
        """Return the answers of one kind of work at a deployment and its price."""
        key = (work.name, deployment, price.price_id)
        found = self._books.get(key)
        if found is None:
            found = self._books[key] = make_answers(work, deployment, price, seed=self.size.seed)
        return found

    def _weights_at(self, moment: datetime) -> list[float]:
        """Return the cumulative weights of the projects in an hour; the runaway key is the last."""
        day, in_spike = moment.date(), is_spike(moment, self.calendar)
        key = (moment.hour, day.weekday() >= 5, in_spike)
        if (day.month, day.day) not in HOLIDAYS and key in self._weights:
            return self._weights[key]
        shares = {kind: share_of_day(kind, moment.hour, day=day) for kind in HOURS}
        weights = [one.weight * shares[one.work.hours] for one in self.projects]
        weights.append(sum(weights) * SPIKE_SHARE if in_spike else 0.0)
        found = list(accumulate(weights))
        if (day.month, day.day) not in HOLIDAYS:
            self._weights[key] = found
        return found


def _outcome(now: _Now, deployment: str) -> Outcome:
    """Return an attempt's random outcome: nearly always success, except on a bad morning."""
    mix = _INCIDENT if deployment == now.failing else _USUAL
    if now.random.random() < mix.ok:
        return Outcome.OK
    return now.random.choices(list(mix.others), list(mix.others.values()))[0]


def _times(
    random: Random, template: UsageEvent, usage: TokenUsage, outcome: Outcome, load: float
) -> tuple[float, float, float, float]:
    """Return an attempt's random TTFT, TPOT, duration and time in the gateway, in seconds.

    Long prompts and busy hours wait longer on a self-hosted GPU; `load` is 1 in the busiest.
    """
    place, is_own = DESTINATIONS[template.deployment], template.is_self_hosted
    bits = random.getrandbits(30)  # ten of them for each factor
    slower = _factors(0.32)[bits & 1023]
    prompt_s = (usage.input_tokens or 0) / (24_000 if is_own else 90_000)
    queue = 1 + (0.9 if is_own else 0.25) * load**2
    ttft_s = round((place.ttft_s * slower + prompt_s) * queue, 4)
    tpot_s = round(place.tpot_s * _factors(0.18)[bits >> 10 & 1023] * (1 + 0.3 * load), 5)
    overhead_s = round(0.0009 * _factors(0.3)[bits >> 20], 6)
    if outcome is Outcome.UPSTREAM_ERROR:
        return ttft_s, tpot_s, round(0.05 + exp(random.uniform(-3, 0)), 4), overhead_s
    if outcome is Outcome.UPSTREAM_TIMEOUT:
        return ttft_s, tpot_s, TIMEOUT_S, overhead_s
    duration_s = round(ttft_s + tpot_s * (usage.output_tokens or 0), 4)
    return ttft_s, tpot_s, duration_s, overhead_s


@cache
def _factors(sigma: float) -> tuple[float, ...]:
    """Return `FACTORS` log-normal factors. To draw a new one for each event takes ten times as
    long.
    """
    random = Random(f"factors/{sigma}")  # noqa: S311 - made-up data, not a secret
    return tuple(random.lognormvariate(0, sigma) for _ in range(FACTORS))


@cache
def _load(kind: str, hour: int) -> float:
    """Return how busy an hour is for a kind of use, 1 in the busiest."""
    weights = HOURS[kind].weights
    return weights[hour] / max(weights)
