"""Generates realistic usage events of five invented teams, 90 days by default, for `tollgate
demo-data`, which writes them to the ledger.

Pure: the moment, the seed and the prices are arguments. A day's events depend only on the seed and
its date. So generating the data again tomorrow adds one day and changes none. Every event is marked
`is_demo`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from math import exp
from random import Random

from gateway.domain.ids import uuid7
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.pricing import Price, hold_nusd
from gateway.domain.pricing.selfhost import standard_price
from gateway.domain.pricing.settlement import Evidence, Settlement, settle
from gateway.domain.pricing.tokens import TokenUsage
from gateway.services.demo_teams import DEPLOYMENTS, TEAMS, DemoDeployment, DemoTeam, DemoWork

POLICY_VERSION = 1
OBJECTIVE = "priority"
MAX_OUTPUT_TOKENS = 8_192

# Traffic of a working day: it grew and then settled. A weekend day has a seventh of it.
FIRST_DAY, EVENTS_AT_FIRST, MORE_EACH_DAY, EVENTS_AT_MOST = date(2026, 8, 1), 200, 1.1, 420
WEEKEND_SHARE = 0.14
# Weight of each hour in UTC: offices in Europe, and a few scheduled jobs at night.
HOURS = (2, 2, 3, 2, 2, 4, 12, 30, 55, 70, 72, 60, 48, 62, 70, 66, 50, 28, 14, 8, 6, 4, 3, 2)
# One provider has a bad morning every 83 days, so that any 90 days include one.
INCIDENT_EVERY_DAYS, INCIDENT_PHASE, INCIDENT_HOURS, INCIDENT_DEPLOYMENT = (
    83,
    63,
    range(8, 12),
    "gpt-eu",
)


def demo_prices(external: Mapping[str, Price]) -> dict[str, Price]:
    """Return the price of each demo deployment.

    `external` has those of the deployments without a GPU, by name.
    """
    own = {
        name: standard_price(d.gpu, model=d.model)
        for name, d in DEPLOYMENTS.items()
        if d.gpu is not None
    }
    missing = DEPLOYMENTS.keys() - own.keys() - external.keys()
    assert not missing, f"every demo deployment needs a price: {missing}"
    return own | {name: external[name] for name in DEPLOYMENTS.keys() - own.keys()}


def demo_events(
    *, until: datetime, days: int = 90, seed: int, prices: Mapping[str, Price]
) -> Iterator[UsageEvent]:
    """Yield the events of `days` days that end with `until`, oldest first.

    `prices` is by deployment.
    """
    last = until.astimezone(UTC).date()
    for back in range(days - 1, -1, -1):
        day = last - timedelta(days=back)
        for event in sorted(_day(day, seed, prices), key=lambda e: (e.request_id, e.attempt)):
            if event.occurred_at <= until:
                yield event


def _day(day: date, seed: int, prices: Mapping[str, Price]) -> Iterator[UsageEvent]:
    """Yield the demo events of all teams on one day, determined by the seed and the date."""
    grown = EVENTS_AT_FIRST + MORE_EACH_DAY * max(0, (day - FIRST_DAY).days)
    volume = min(grown, EVENTS_AT_MOST) * (WEEKEND_SHARE if day.weekday() >= 5 else 1.0)
    for team in TEAMS:
        # Seeded by text: equal on every machine and Python, and each team's day is independent of
        # the others.
        random = Random(f"{seed}/{day.isoformat()}/{team.name}")  # noqa: S311 - made-up data, not a secret
        for _ in range(round(volume * team.share * random.uniform(0.85, 1.15))):
            yield from _request(day, team, random, prices)


def _request(
    day: date, team: DemoTeam, random: Random, prices: Mapping[str, Price]
) -> Iterator[UsageEvent]:
    """Yield the events of one demo request: attempts in the route's order until one answers."""
    work = random.choices(team.works, [work.weight for work in team.works])[0]
    midnight = datetime.combine(day, time(), UTC)
    hour = random.choices(range(24), HOURS)[0]
    received = midnight + timedelta(hours=hour, milliseconds=random.randrange(3_600_000))
    draft = _Draft(
        team=team,
        work=work,
        random=random,
        received=received,
        id_bits=random.randbytes(10),
        usage=_usage(work, random),
        is_stream=random.random() < work.streamed_share,
        end_user=f"user-{random.randrange(work.end_users):03}" if work.end_users else None,
        environment="staging" if random.random() < 0.12 else "production",
    )
    waited_s = 0.0
    for number, name in enumerate(work.order, start=1):
        event = draft.attempt(number, DEPLOYMENTS[name], prices[name], waited_s=waited_s)
        yield event
        if event.outcome not in (Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_TIMEOUT):
            return
        waited_s += event.duration_s


def _usage(work: DemoWork, random: Random) -> TokenUsage:
    """Return random token figures of a kind of work, for an answer that is complete."""
    whole = max(40, int(random.lognormvariate(0, 0.55) * work.input_tokens))
    output = max(8, int(random.lognormvariate(0, 0.6) * work.output_tokens))
    is_cached = random.random() < 0.8
    cached = (
        int(whole * work.cached_share * random.uniform(0.6, 1.1)) // 16 * 16 if is_cached else 0
    )
    # A prompt that was not cached is written as a whole; one that was, from its last turn on.
    written = int((whole - cached) * work.write_share * (0.3 if is_cached else 1))
    return TokenUsage(
        input_tokens=whole,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        cache_write_1h_tokens=written if work.writes_for_an_hour else None,
        output_tokens=output,
        reasoning_tokens=int(output * work.reasoning_share * random.uniform(0.5, 1.3)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A demo request before its attempts: its team, work, time and random source."""

    team: DemoTeam
    work: DemoWork
    random: Random
    received: datetime
    id_bits: bytes
    usage: TokenUsage
    is_stream: bool
    end_user: str | None
    environment: str

    def attempt(
        self, number: int, deployment: DemoDeployment, price: Price, *, waited_s: float
    ) -> UsageEvent:
        """Return the usage event of one demo attempt: outcome, tokens, cost, times and decision."""
        outcome = self._outcome(deployment)
        settlement = self._settlement(outcome, price)
        has_begun = outcome in (Outcome.OK, Outcome.UPSTREAM_CUT, Outcome.CLIENT_GONE)
        ttft_s, tpot_s, duration_s = self._times(deployment, settlement.usage, outcome)
        shows_tokens = self.is_stream and has_begun
        unix_ms = round(self.received.timestamp() * 1000)
        return UsageEvent(
            request_id=uuid7(unix_ms, self.id_bits),
            attempt=number,
            started_at=self.received + timedelta(seconds=waited_s, milliseconds=1),
            team=self.team.name,
            project=self.work.project,
            cost_centre=self.team.cost_centre,
            key_id=self.work.key_id,
            end_user=self.end_user,
            tags={"feature": self.work.feature, "env": self.environment}
            if self.random.random() < 0.93
            else {},
            route=self.work.route,
            deployment=deployment.name,
            provider=deployment.provider,
            model=deployment.model,
            region=deployment.region,
            is_self_hosted=deployment.gpu is not None,
            data_class=self.team.data_class,
            policy_version=POLICY_VERSION,
            operation=self.work.operation.value,
            outcome=outcome,
            http_status=_STATUS[outcome],
            streamed=self.is_stream,
            usage=settlement.usage,
            usage_source=settlement.source,
            price_id=price.price_id,
            lines=settlement.lines,
            cost_nusd=settlement.cost_nusd,
            held_nusd=settlement.held_nusd,
            ttft_s=ttft_s if shows_tokens else None,
            tpot_s=tpot_s if shows_tokens and (settlement.usage.output_tokens or 0) > 1 else None,
            duration_s=duration_s,
            overhead_s=round(self.random.lognormvariate(0, 0.3) * 0.0009, 6),
            finish_reason="stop" if outcome is Outcome.OK else None,
            is_suspect=settlement.is_suspect,
            is_demo=True,
            features={"max_output_tokens": MAX_OUTPUT_TOKENS, "class_source": "team"},
            decision=self._decision(),
        )

    def _outcome(self, deployment: DemoDeployment) -> Outcome:
        """Return an attempt's random outcome: nearly always success, except on the provider's bad
        morning.
        """
        is_incident = (
            deployment.name == INCIDENT_DEPLOYMENT
            and self.received.date().toordinal() % INCIDENT_EVERY_DAYS == INCIDENT_PHASE
            and self.received.hour in INCIDENT_HOURS
        )
        weights = _INCIDENT if is_incident else _NORMAL
        return self.random.choices(list(weights), list(weights.values()))[0]

    def _settlement(self, outcome: Outcome, price: Price) -> Settlement:
        """Return the settlement of an attempt, by the same rules as for real ones."""
        bound = hold_nusd(
            price,
            input_bound_tokens=4 * (self.usage.input_tokens or 0),
            output_bound_tokens=MAX_OUTPUT_TOKENS,
        )
        whole, part = self.usage, self._part_of_usage()
        if outcome in (Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_UNREACHABLE):
            return settle(Evidence(was_served=False), price=price, held_nusd=bound)
        # it may have processed the prompt; that cannot be known
        if outcome is Outcome.UPSTREAM_TIMEOUT:
            return settle(Evidence(was_served=True), price=price, held_nusd=bound)
        if outcome is Outcome.OK:
            return settle(Evidence(final=whole, was_served=True), price=price, held_nusd=bound)
        return settle(Evidence(running=part, was_served=True), price=price, held_nusd=bound)

    def _part_of_usage(self) -> TokenUsage:
        """Return the visible usage of an interrupted answer.

        Reasoning is reported only at the end.
        """
        seen = int((self.usage.output_tokens or 0) * self.random.uniform(0.05, 0.8))
        return TokenUsage(
            input_tokens=self.usage.input_tokens,
            cached_input_tokens=self.usage.cached_input_tokens,
            cache_write_tokens=self.usage.cache_write_tokens,
            cache_write_1h_tokens=self.usage.cache_write_1h_tokens,
            output_tokens=max(1, seen),
            reasoning_tokens=None,
        )

    def _times(
        self, deployment: DemoDeployment, usage: TokenUsage, outcome: Outcome
    ) -> tuple[float, float, float]:
        """Return an attempt's random TTFT, TPOT and duration in seconds.

        Long prompts and busy hours wait longer on a self-hosted GPU.
        """
        load = HOURS[self.received.hour] / max(HOURS)
        is_own = deployment.gpu is not None
        prompt_s = (self.usage.input_tokens or 0) / (24_000 if is_own else 90_000)
        queue = 1 + (0.9 if is_own else 0.25) * load**2
        ttft_s = round(
            (deployment.ttft_s * self.random.lognormvariate(0, 0.32) + prompt_s) * queue, 4
        )
        tpot_s = round(
            deployment.tpot_s * self.random.lognormvariate(0, 0.18) * (1 + 0.3 * load), 5
        )
        if outcome is Outcome.UPSTREAM_ERROR:
            return ttft_s, tpot_s, round(0.05 + exp(self.random.uniform(-3, 0)), 4)
        if outcome is Outcome.UPSTREAM_TIMEOUT:
            return ttft_s, tpot_s, 60.0
        return ttft_s, tpot_s, round(ttft_s + tpot_s * (usage.output_tokens or 0), 4)

    def _decision(self) -> dict[str, object]:
        """Return the routing decision in the form that a real event records."""
        reasons = dict(self.team.left_out)
        names = [*self.work.order, *(name for name in reasons if name not in self.work.order)]
        candidates = [
            {
                "deployment": name,
                "region": DEPLOYMENTS[name].region,
                "obstacles": [["residency", reasons[name]]] if name in reasons else [],
            }
            for name in names
        ]
        rule = self.team.data_class
        return {
            "objective": OBJECTIVE,
            "rule": rule,
            "ranked": list(self.work.order),
            "candidates": candidates,
        }


_STATUS: dict[Outcome, int | None] = {
    Outcome.OK: 200,
    Outcome.CLIENT_GONE: 200,
    Outcome.UPSTREAM_CUT: 200,
    Outcome.UPSTREAM_ERROR: 503,
    Outcome.UPSTREAM_TIMEOUT: None,
}
_NORMAL = {
    Outcome.OK: 9_890,
    Outcome.CLIENT_GONE: 60,
    Outcome.UPSTREAM_ERROR: 42,
    Outcome.UPSTREAM_CUT: 6,
    Outcome.UPSTREAM_TIMEOUT: 2,
}
_INCIDENT = {
    Outcome.OK: 45,
    Outcome.UPSTREAM_ERROR: 38,
    Outcome.UPSTREAM_CUT: 9,
    Outcome.UPSTREAM_TIMEOUT: 8,
}
