"""Budget alerts: the reached thresholds, their texts, and one report each despite failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.domain.alerts.delivery import (
    GIVE_UP_AFTER,
    AlertMessage,
    Channel,
    Delivery,
    DueAlert,
    NotDelivered,
    retry_pause_s,
)
from gateway.domain.alerts.spikes import SpikeAlert
from gateway.domain.budgets.alerts import (
    BudgetAlert,
    crossed,
    message_of,
    payload,
    plain_share,
    text,
)
from gateway.domain.budgets.budgets import BudgetKind, BudgetPeriod, BudgetRule, BudgetScope
from gateway.domain.policy.policy import Alerts
from gateway.errors import DatabaseUnavailable
from gateway.services.ledger.alert_channel import TAKEN_FOR, AlertChannel
from gateway.services.ledger.alerts import AlertJob
from gateway.telemetry.metrics import Metrics
from tests import factories
from tests.factories import NOW
from tests.fakes import FakeClock
from tests.waiting import soon

USD = 10**9
NOVEMBER, DECEMBER = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
TO = Alerts(webhook="https://hooks.example/x", secret="env:TOLLGATE_ALERT_SECRET")
BOTH = replace(TO, email=("finops@example.com",))


def rule(limit_nusd: int = 1000, *shares: str, **changes: Any) -> BudgetRule:
    values: dict[str, Any] = {
        "rule_id": "payments/month",
        "scope": BudgetScope.TEAM,
        "team": "payments",
        "owner": "payments",
        "period": BudgetPeriod.MONTH,
        "limit_nusd": limit_nusd,
        "alert_at": tuple(Decimal(share) for share in shares or ("0.5", "0.8", "1")),
    }
    return BudgetRule(**values | changes)


def reached(spent_nusd: int, *, of: BudgetRule | None = None, **changes: Any) -> list[str]:
    values: dict[str, Any] = {"starts_at": NOVEMBER, "granted_nusd": 0, "now": NOW}
    return [
        str(share) for share in crossed(of or rule(), spent_nusd=spent_nusd, **values | changes)
    ]


def alert(threshold: str = "0.8", number: int = 1, **changes: Any) -> BudgetAlert:
    values: dict[str, Any] = {
        "alert_id": UUID(int=number),
        "account_id": "payments/month",
        "scope": BudgetScope.TEAM,
        "team": "payments",
        "owner": "payments",
        "kind": BudgetKind.HARD,
        "period": BudgetPeriod.MONTH,
        "time_zone": "Europe/Berlin",
        "starts_at": NOVEMBER,
        "ends_at": DECEMBER,
        "threshold": Decimal(threshold),
        "limit_nusd": 5000 * USD,
        "granted_nusd": 0,
        "spent_nusd": 4012 * USD + 500_000_001,
        "raised_at": NOW,
    }
    return BudgetAlert(**values | changes)


@pytest.mark.parametrize(
    ("spent", "granted", "expected"),
    [
        (499, 0, []),
        (500, 0, ["0.5"]),
        (799, 0, ["0.5"]),
        (800, 0, ["0.5", "0.8"]),
        (999, 0, ["0.5", "0.8"]),
        (1000, 0, ["0.5", "0.8", "1"]),
        (5000, 0, ["0.5", "0.8", "1"]),
        (800, 1000, []),
        (1000, 1000, ["0.5"]),
        (-5, 0, []),
    ],
)
def test_a_threshold_is_reached_at_its_share_and_not_a_nano_dollar_before(
    spent: int, granted: int, expected: list[str]
) -> None:
    """An alert too early is noise, one too late is money; a grant moves the mark."""
    assert reached(spent, granted_nusd=granted) == expected


def test_shares_are_exact_at_any_size() -> None:
    """A third of a limit with nineteen digits, in decimals: a float would be off by hundreds of
    nano-dollars.
    """
    limit = 9_000_000_000_000_000_001
    third = rule(limit, "0.3333333333333333333333")
    mark = -(-limit * 3333333333333333333333 // 10**22)  # rounded up
    assert reached(mark, of=third) == ["0.3333333333333333333333"]
    assert reached(mark - 1, of=third) == []


@pytest.mark.parametrize(
    ("now", "starts_at", "is_looked_at"),
    [
        (DECEMBER - timedelta(seconds=1), NOVEMBER, True),
        (DECEMBER, NOVEMBER, True),
        (DECEMBER + timedelta(minutes=59), NOVEMBER, True),
        (DECEMBER + timedelta(hours=1), NOVEMBER, False),
        (DECEMBER, DECEMBER, True),
        (NOW, NOVEMBER + timedelta(hours=1), False),
    ],
)
def test_a_period_is_looked_at_until_an_hour_after_its_end(
    now: datetime, starts_at: datetime, is_looked_at: bool
) -> None:
    """Events are written a little late, and a sum left by another rule of that name does not
    count.
    """
    assert bool(reached(900, now=now, starts_at=starts_at)) is is_looked_at


def test_the_payload_matches_the_reference() -> None:
    """Exact decimals, built only from stored values, so every try posts the same."""
    given = alert(granted_nusd=1)
    sent = json.loads(msgspec.json.encode(payload(given)), parse_float=str, parse_int=str)
    assert sent == {
        "id": "00000000-0000-0000-0000-000000000001",
        "type": "budget.threshold",
        "created_at": "2026-11-20T12:00:00Z",
        "budget": "payments/month",
        "scope": "team",
        "team": "payments",
        "owner": "payments",
        "kind": "hard",
        "period": "month",
        "starts_at": "2026-11-01T00:00:00Z",
        "ends_at": "2026-12-01T00:00:00Z",
        "threshold": "0.8",
        "limit_usd": "5000",
        "granted_usd": "0.000000001",
        "spent_usd": "4012.500000001",
        "text": text(given),
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            alert(),
            "Budget payments/month has reached 80% of its limit: $4,012.50 of $5,000.00 spent. "
            "Resets 1 Dec 01:00 Europe/Berlin.",
        ),
        (
            alert("1.0", granted_nusd=500 * USD, spent_nusd=5500 * USD),
            "Budget payments/month has reached 100% of its limit: $5,500.00 of $5,500.00 "
            "($5,000.00 limit, $500.00 granted) spent. It is hard: requests that do not fit are "
            "refused. Resets 1 Dec 01:00 Europe/Berlin. For more: tollgate budget grant "
            "payments/month 500 --reason …",
        ),
        (
            alert(
                "1.25",
                kind=BudgetKind.SOFT,
                period=BudgetPeriod.ONCE,
                ends_at=None,
                spent_nusd=6250 * USD,
            ),
            "Budget payments/month has reached 125% of its limit: $6,250.00 of $5,000.00 spent. "
            "It is soft: nothing is refused. It never resets.",
        ),
        (
            alert("0.125", limit_nusd=1, spent_nusd=1),
            "Budget payments/month has reached 12.5% of its limit: $0.000000001 of $0.000000001 "
            "spent. Resets 1 Dec 01:00 Europe/Berlin.",
        ),
    ],
)
def test_the_text_gives_the_consequence_and_the_next_step(
    given: BudgetAlert, expected: str
) -> None:
    """Whoever reads it in a chat has no other page open."""
    assert text(given) == expected


def test_a_suggested_grant_is_never_nothing() -> None:
    """The command that is suggested must be one that works."""
    assert "grant payments/month 0.000000001 " in text(alert("1", limit_nusd=1, spent_nusd=1))


def test_pauses_double_up_to_ten_minutes_and_are_drawn_in_full() -> None:
    """All replicas of a receiver come back at once; its senders must not."""
    longest = [retry_pause_s(tries, draw=1) for tries in (1, 2, 3, 4, 10, 11, 300, 10**6)]
    assert longest == [1, 2, 4, 8, 512, 600, 600, 600]
    assert retry_pause_s(5, draw=0.25) == 4
    assert retry_pause_s(5, draw=0) == 0


@dataclass
class FakeAlertStore:
    """Alerts of budgets and their deliveries in memory.

    It can be away, refuse one step, and lose the answer to one that it has done.
    """

    reached: list[BudgetAlert] = field(default_factory=list)
    raised: dict[UUID, BudgetAlert] = field(default_factory=dict)
    due: dict[tuple[Channel, UUID], datetime] = field(default_factory=dict)
    tries: dict[tuple[Channel, UUID], int] = field(default_factory=dict)
    announced: set[UUID] = field(default_factory=set)
    notes: list[Delivery] = field(default_factory=list)
    is_away: bool = False
    loses: str | None = None
    refuses: str | None = None

    def raise_crossed(self, *, now: datetime) -> None:
        self._ask("raise_crossed")
        for one in self.reached:
            if one.alert_id not in self.raised:
                self.raised[one.alert_id] = replace(one, raised_at=now)
        self._answer("raise_crossed")

    def unannounced(self) -> Sequence[BudgetAlert]:
        self._ask("unannounced")
        return [one for one in self.raised.values() if one.alert_id not in self.announced]

    def note_announced(self, alert_ids: Sequence[UUID], *, now: datetime) -> None:
        self._ask("note_announced")
        self.announced |= set(alert_ids)
        self._answer("note_announced")

    def open(self, channel: Channel, *, now: datetime) -> None:
        self._ask("open")
        for alert_id, one in self.raised.items():
            if (channel, alert_id) not in self.tries and one.raised_at > now - GIVE_UP_AFTER:
                self.tries[channel, alert_id] = 0
                self.due[channel, alert_id] = one.raised_at
        self._answer("open")

    def take(self, channel: Channel, *, now: datetime, until: datetime) -> DueAlert | None:
        self._ask("take")
        ready = [key for key, at in self.due.items() if at <= now and key[0] is channel]
        if not ready:
            return None
        taken = min(ready, key=lambda key: (self.due[key], self.raised[key[1]].threshold))
        self.due[taken] = until
        self._answer("take")
        return DueAlert(message=message_of(self.raised[taken[1]]), tries=self.tries[taken])

    def record_delivery(self, delivery: Delivery) -> None:
        self._ask("note")
        self.notes.append(delivery)
        key = (delivery.channel, delivery.alert_id)
        self.tries[key] = delivery.tries
        if delivery.next_try_at is None:
            self.due.pop(key, None)
        else:
            self.due[key] = delivery.next_try_at
        self._answer("note")

    def waiting(self, channel: Channel) -> int:
        self._ask("waiting")
        return sum(1 for one, _ in self.due if one is channel)

    def _ask(self, method: str) -> None:
        if self.is_away or self.refuses == method:
            self.refuses = None
            raise DatabaseUnavailable("Postgres is away.")

    def _answer(self, method: str) -> None:
        if self.loses == method:
            self.loses = None
            raise DatabaseUnavailable("committed, but the answer was lost")


@dataclass
class FakeReceiver:
    """Takes alerts; answers wrongly for as long as a test sets.

    `during` runs in the middle of each try.
    """

    sent: list[UUID] = field(default_factory=list)
    failure: Exception | None = None
    refused: str | None = None
    waits_for: asyncio.Event | None = None
    during: Callable[[], None] = lambda: None

    async def send(self, message: AlertMessage, alerts: Alerts) -> str | None:
        assert alerts.has_receiver
        self.sent.append(message.alert_id)
        self.during()
        if self.waits_for is not None:
            async with asyncio.timeout(20):
                await self.waits_for.wait()
        if self.failure is not None:
            raise self.failure
        return self.refused


@dataclass
class FakeLeadership:
    """Leads or not."""

    leads: bool = True

    def is_mine(self) -> bool:
        return self.leads


@dataclass
class FakeSpikeStore:
    """Days that are due, and the alerts that they raise."""

    days: list[date] = field(default_factory=list)
    is_summed: bool = True
    looked_at: list[tuple[date, int]] = field(default_factory=list)
    raised: list[SpikeAlert] = field(default_factory=list)

    def due(self, *, now: datetime) -> Sequence[date]:
        return [day for day in self.days if day not in [seen for seen, _ in self.looked_at]]

    def raise_spikes(self, day: date, *, floor_nusd: int, now: datetime) -> bool:
        if self.is_summed:
            self.looked_at.append((day, floor_nusd))
            self.raised.append(spike(day, raised_at=now))
        return self.is_summed

    def unannounced(self) -> Sequence[SpikeAlert]:
        return list(self.raised)

    def note_announced(self, alert_ids: Sequence[UUID], *, now: datetime) -> None:
        self.raised = [one for one in self.raised if one.alert_id not in alert_ids]


def spike(day: date, **changes: Any) -> SpikeAlert:
    values: dict[str, Any] = {
        "alert_id": UUID(int=day.toordinal()),
        "team": "payments",
        "day": day,
        "model": "gpt-5.5",
        "key_id": "k1a2b3c4d5",
        "spent_nusd": 533 * USD,
        "usual_nusd": 121 * USD,
        "driver_nusd": 400 * USD,
        "raised_at": NOW,
    }
    return SpikeAlert(**values | changes)


@dataclass
class World:
    """The job and all it sees. `draw` is 1: every pause is as long as it can be."""

    store: FakeAlertStore = field(default_factory=FakeAlertStore)
    spikes: FakeSpikeStore = field(default_factory=FakeSpikeStore)
    receiver: FakeReceiver = field(default_factory=FakeReceiver)
    mailbox: FakeReceiver = field(default_factory=FakeReceiver)
    leadership: FakeLeadership = field(default_factory=FakeLeadership)
    clock: FakeClock = field(default_factory=FakeClock)
    metrics: Metrics = field(default_factory=Metrics)
    alerts: Alerts | None = TO
    job: AlertJob = field(init=False)

    def __post_init__(self) -> None:
        self.job = self.start()

    def start(self) -> AlertJob:
        """The job, as a new process has it."""
        senders = {Channel.WEBHOOK: self.receiver.send, Channel.EMAIL: self.mailbox.send}
        return AlertJob(
            budgets=self.store,
            spikes=self.spikes,
            channels=[
                AlertChannel(
                    channel,
                    store=self.store,
                    send=send,
                    clock=self.clock,
                    draw=lambda: 1.0,
                    on_given_up=self.metrics.given_up_alerts.labels(channel).inc,
                    on_waiting=self.metrics.undelivered_alerts.labels(channel).set,
                )
                for channel, send in senders.items()
            ],
            is_leader=self.leadership.is_mine,
            clock=self.clock,
            policy=lambda: factories.version(factories.policy(alerts=self.alerts)),
            on_raised=self.metrics.count_alert,
        )

    def metric(self, name: str, **labels: str) -> float:
        labels = labels or {"channel": "webhook"}
        return (
            self.metrics.registry.get_sample_value(f"tollgate_budget_alerts_{name}", labels) or 0.0
        )


def lines(logs: Sequence[Any], event: str = "budget_alert") -> list[tuple[str, str]]:
    """Level and threshold of each line."""
    return [(line["log_level"], line["threshold"]) for line in logs if line["event"] == event]


async def test_each_alert_is_reported_once_lowest_first() -> None:
    """The log, the metric and the webhook: one of each, however often somebody looks."""
    world = World()
    world.store.reached = [alert("1", 3), alert("0.5", 1), alert("0.80", 2)]
    with capture_logs() as logs:
        for _ in range(3):
            assert await world.job.run_once() is True
    assert sorted(lines(logs)) == [("error", "1"), ("warning", "0.5"), ("warning", "0.8")]
    assert [alert_id.int for alert_id in world.receiver.sent] == [1, 2, 3]
    assert [world.metric("total", threshold=share) for share in ("0.5", "0.8", "1")] == [1, 1, 1]
    assert world.metric("undelivered") == 0
    assert [(note.tries, note.delivered_at) for note in world.store.notes] == [(1, NOW)] * 3


async def test_the_log_line_has_the_alerts_figures() -> None:
    """One structured line, in dollars, without anything of a request or a key."""
    world = World()
    world.store.reached = [alert(kind=BudgetKind.SOFT, threshold=Decimal(1))]
    with capture_logs() as logs:
        await world.job.run_once()
    (line,) = [line for line in logs if line["event"] == "budget_alert"]
    assert line == {
        "event": "budget_alert",
        "log_level": "warning",
        "alert_id": str(UUID(int=1)),
        "budget": "payments/month",
        "scope": "team",
        "team": "payments",
        "owner": "payments",
        "kind": "soft",
        "period": "month",
        "starts_at": "2026-11-01T00:00:00+00:00",
        "threshold": "1",
        "limit_usd": "5000",
        "granted_usd": "0",
        "spent_usd": "4012.500000001",
        "text": text(world.store.raised[UUID(int=1)]),
    }


async def test_without_a_receiver_alerts_are_logged_and_counted() -> None:
    """A team that has no webhook still finds them; nothing counts as undelivered, and nothing is
    sent.
    """
    world = World(alerts=None)
    world.store.reached = [alert()]
    with capture_logs() as logs:
        await world.job.run_once()
    assert lines(logs) == [("warning", "0.8")]
    assert (
        world.receiver.sent,
        world.metric("total", threshold="0.8"),
        world.metric("undelivered"),
    ) == ([], 1, 0)


async def test_a_later_declared_receiver_gets_the_last_days_alerts() -> None:
    """A replica may raise an alert a moment before it hears of the policy that names the
    receiver.
    """
    world = World(alerts=None)
    world.store.reached = [alert("0.5", 1)]
    await world.job.run_once()
    world.clock.advance(GIVE_UP_AFTER.total_seconds() - 1)
    world.store.reached.append(alert("0.8", 2))
    await world.job.run_once()
    world.clock.advance(1)
    world.alerts = TO
    with capture_logs() as logs:
        await world.job.run_once()
    assert [alert_id.int for alert_id in world.receiver.sent] == [2]
    # It had no receiver, so no delivery failed.
    assert [line for line in logs if line["event"] == "alert_given_up"] == []
    assert (world.metric("undelivered"), world.metric("given_up_total")) == (0, 0)


async def test_an_undelivered_alert_is_retried_with_growing_pauses() -> None:
    """A receiver that is down for minutes costs it no alert, and the alert does not keep it
    down.
    """
    world = World()
    world.store.reached = [alert()]
    world.receiver.failure = NotDelivered("The webhook answered 500.")
    tried_s: list[float] = []
    world.receiver.during = lambda: tried_s.append((world.clock.now() - NOW).total_seconds())
    with capture_logs() as logs:
        for _ in range(16):
            await world.job.run_once()
            world.clock.advance(1)
    assert tried_s == [0, 1, 3, 7, 15]
    assert world.metric("undelivered") == 1
    failed = [line for line in logs if line["event"] == "alert_not_delivered"]
    assert [line["next_try_s"] for line in failed] == [1, 2, 4, 8, 16]
    assert {line["problem"] for line in failed} == {"The webhook answered 500."}
    world.receiver.failure = None
    world.clock.advance(16)
    await world.job.run_once()
    assert len(set(world.receiver.sent)) == 1
    assert world.store.notes[-1] == Delivery(
        alert_id=UUID(int=1), channel=Channel.WEBHOOK, tries=6, delivered_at=world.clock.now()
    )
    assert world.metric("undelivered") == 0


async def test_a_failure_ends_the_round() -> None:
    """A thousand alerts are no reason to ask a receiver a thousand times whether it is still
    down.
    """
    world = World()
    world.store.reached = [alert("0.5", 1), alert("0.5", 2, account_id="search/day")]
    world.receiver.failure = NotDelivered("The webhook could not be reached.")
    await world.job.run_once()
    assert [alert_id.int for alert_id in world.receiver.sent] == [1]
    await world.job.run_once()
    assert [alert_id.int for alert_id in world.receiver.sent] == [1, 2]


async def test_a_slow_receiver_does_not_keep_others_from_being_raised() -> None:
    """The round ends after seconds; the rest is sent in the next ones."""
    world = World()
    world.store.reached = [alert("0.5", number) for number in range(1, 6)]
    world.receiver.during = lambda: world.clock.advance(3)
    await world.job.run_once()
    assert (len(world.receiver.sent), world.metric("undelivered")) == (2, 3)
    await world.job.run_once()
    await world.job.run_once()
    assert (len(world.receiver.sent), world.metric("undelivered")) == (5, 0)


async def test_after_a_day_it_is_given_up_with_an_error() -> None:
    """Yesterday's 80 % needs no action, but an undelivered alert must be reported."""
    world = World()
    world.store.reached = [alert()]
    world.receiver.failure = NotDelivered("The webhook answered 404.")
    await world.job.run_once()
    world.clock.advance(GIVE_UP_AFTER.total_seconds() - 1)
    await world.job.run_once()
    assert len(world.receiver.sent) == 2
    world.clock.advance(700)
    with capture_logs() as logs:
        await world.job.run_once()
        await world.job.run_once()
    (line,) = [line for line in logs if line["event"] == "alert_given_up"]
    assert (line["log_level"], line["about"]) == ("error", "budget payments/month at 80%")
    assert (
        len(world.receiver.sent),
        world.metric("given_up_total"),
        world.metric("undelivered"),
    ) == (2, 1, 0)
    assert world.store.notes[-1] == Delivery(
        alert_id=UUID(int=1), channel=Channel.WEBHOOK, tries=2, given_up_at=world.clock.now()
    )


async def test_only_the_leader_delivers_alerts() -> None:
    """Ten workers would tell ten times; and one that led has nothing undelivered of its own any
    more.
    """
    world = World()
    world.store.reached = [alert()]
    world.receiver.failure = NotDelivered("The webhook answered 500.")
    await world.job.run_once()
    assert world.metric("undelivered") == 1
    world.leadership.leads = False
    world.clock.advance(60)
    assert await world.job.run_once() is False
    assert (len(world.receiver.sent), world.metric("undelivered")) == (1, 0)


@pytest.mark.parametrize(
    "step", ["raise_crossed", "unannounced", "note_announced", "open", "take", "note", "waiting"]
)
@pytest.mark.parametrize("has_committed", [True, False])
async def test_a_failed_step_neither_repeats_nor_loses_an_alert(
    step: str, has_committed: bool
) -> None:
    """Postgres goes away for a moment: before a step, or after it has committed and before it could
    say so.
    """
    world = World()
    world.store.reached = [alert()]
    if has_committed and step not in (
        "unannounced",
        "waiting",
    ):  # those that only read have nothing to commit
        world.store.loses = step
    else:
        world.store.refuses = step
    with capture_logs() as logs:
        assert await world.job.run_once() is False
        for _ in range(3):
            world.clock.advance(TAKEN_FOR.total_seconds())
            assert await world.job.run_once() is True
    assert lines(logs) == [("warning", "0.8")]
    assert (
        len(world.receiver.sent),
        world.metric("total", threshold="0.8"),
        world.metric("undelivered"),
    ) == (1, 1, 0)


async def test_postgres_away_while_it_was_delivered_is_noted_when_it_is_back() -> None:
    """The receiver has it: an outage of any length is no reason to send it again."""
    world = World()
    world.store.reached = [alert()]

    def go_away() -> None:
        world.store.is_away = True

    world.receiver.during = go_away
    with capture_logs() as logs:
        for _ in range(3):
            assert await world.job.run_once() is False
            world.clock.advance(600)
        world.store.is_away = False
        assert await world.job.run_once() is True
    assert (len(world.receiver.sent), world.metric("undelivered")) == (1, 0)
    assert [line["problem"] for line in logs if line["event"] == "budget_alerts_not_looked_at"] == [
        "Postgres is away."
    ] * 3


async def test_a_leader_killed_between_send_and_note_leaves_one_repetition_under_the_same_id() -> (
    None
):
    """At least once: the next leader cannot know, and the receiver can tell by the id."""
    world = World()
    world.store.reached = [alert()]

    def die() -> None:
        world.receiver.during = lambda: None
        raise asyncio.CancelledError

    world.receiver.during = die
    with pytest.raises(asyncio.CancelledError):
        await world.job.run_once()
    world.job = world.start()
    with capture_logs() as logs:
        await world.job.run_once()
        assert len(world.receiver.sent) == 1, "who was killed a moment ago may still be at it"
        world.clock.advance(TAKEN_FOR.total_seconds())
        await world.job.run_once()
        await world.job.run_once()
    assert world.receiver.sent == [UUID(int=1)] * 2
    assert lines(logs) == []


async def test_no_fault_ends_the_job() -> None:
    """A bug in one round leaves the next its turn: the supervisor starts the loop again."""
    world = World()
    world.store.reached = [alert()]
    world.receiver.failure = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        await world.job.run_once()
    world.receiver.failure = None
    world.clock.advance(TAKEN_FOR.total_seconds())
    assert await world.job.run_once() is True
    assert world.metric("undelivered") == 0


async def test_it_runs_until_it_is_cancelled() -> None:
    """A job that outlives its cancellation holds the process up at its end."""
    world = World()
    world.store.reached = [alert()]
    running = asyncio.create_task(world.job.run())
    await soon(lambda: world.store.notes, "the first round")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_share_has_one_spelling() -> None:
    """It is a label: 0.80 and 0.8 would be two series."""
    assert [plain_share(Decimal(share)) for share in ("0.80", "0.8", "1.00", "10", "0.0625")] == [
        "0.8",
        "0.8",
        "1",
        "10",
        "0.0625",
    ]


async def test_a_dead_webhook_holds_no_mail_back() -> None:
    """Each channel has its own tries, and the other way round a dead mail server holds no post
    back.
    """
    world = World(alerts=BOTH)
    world.store.reached = [alert("0.5", 1), alert("0.8", 2)]
    world.receiver.failure = NotDelivered("The webhook answered 500.")
    await world.job.run_once()
    assert [alert_id.int for alert_id in world.receiver.sent] == [1]
    assert [alert_id.int for alert_id in world.mailbox.sent] == [1, 2]
    waiting = [world.metric("undelivered", channel=one) for one in ("webhook", "email")]
    assert waiting == [2, 0]
    world.receiver.failure, world.mailbox.failure = None, NotDelivered("The mail server is away.")
    world.store.reached.append(alert("1", 3))
    world.clock.advance(1)
    await world.job.run_once()
    assert sorted(alert_id.int for alert_id in world.receiver.sent) == [1, 1, 2, 3]
    assert [alert_id.int for alert_id in world.mailbox.sent] == [1, 2, 3]
    assert world.metric("undelivered", channel="email") == 1


async def test_a_receiver_that_hangs_holds_no_other_channel_back() -> None:
    """The channels deliver at the same time: the mail is out while the webhook still waits."""
    world = World(alerts=BOTH)
    world.store.reached = [alert()]
    mailed = asyncio.Event()
    world.mailbox.during = mailed.set
    world.receiver.waits_for = mailed
    assert await world.job.run_once()
    assert len(world.store.notes) == 2


async def test_mail_alone_is_enough() -> None:
    """A policy with addresses and no webhook has nothing undelivered, and posts nothing."""
    world = World(alerts=Alerts(email=("finops@example.com",)))
    world.store.reached = [alert()]
    await world.job.run_once()
    assert ([one.int for one in world.mailbox.sent], world.receiver.sent) == ([1], [])
    assert world.metric("undelivered") == 0


async def test_a_refused_address_is_kept_with_the_delivery() -> None:
    """The others have the mail, so it is not sent again; the operator sees the refused one."""
    world = World(alerts=BOTH)
    world.mailbox.refused = "The mail server refused gone@example.com (550)."
    world.store.reached = [alert()]
    with capture_logs() as logs:
        await world.job.run_once()
    (note,) = [note for note in world.store.notes if note.channel is Channel.EMAIL]
    assert (note.error, note.delivered_at) == (world.mailbox.refused, world.clock.now())
    problems = [line.get("problem") for line in logs if line["event"] == "alert_delivered"]
    assert world.mailbox.refused in problems


async def test_spikes_are_looked_for_only_if_the_policy_wants_them() -> None:
    """Alerts of spikes are off by default. With a floor each day is looked at once, and its alert
    is in the log and in the metrics.
    """
    world = World()
    world.spikes.days = [date(2026, 11, 17), date(2026, 11, 18)]
    await world.job.run_once()
    assert world.spikes.looked_at == []
    world.alerts = replace(TO, spikes_above_nusd=50 * USD)
    with capture_logs() as logs:
        for _ in range(3):
            await world.job.run_once()
    assert world.spikes.looked_at == [(day, 50 * USD) for day in world.spikes.days]
    assert world.metrics.registry.get_sample_value("tollgate_spike_alerts_total") == 2
    told = [line for line in logs if line["event"] == "spike_alert"]
    assert [line["day"] for line in told] == ["2026-11-17", "2026-11-18"]
    assert told[0]["text"] == (
        "2026-11-17: team payments, model gpt-5.5, key k1a2b3c4d5: 340 % above its usual Tuesday, "
        "$412.00.\ntollgate key pause k1a2b3c4d5"
    )


async def test_a_day_without_its_sums_is_looked_at_later() -> None:
    """The days after it wait too, so that none is passed over."""
    world = World(alerts=replace(TO, spikes_above_nusd=0))
    world.spikes.days, world.spikes.is_summed = [date(2026, 11, 17), date(2026, 11, 18)], False
    await world.job.run_once()
    assert world.spikes.looked_at == []
    world.spikes.is_summed = True
    await world.job.run_once()
    assert len(world.spikes.looked_at) == 2
