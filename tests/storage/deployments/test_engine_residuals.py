"""Settlement of our own engines' unknown attempts from the engine's counters: once, with a
precise reason, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from gateway.domain.deployments.engine_counters import Tokens
from gateway.domain.deployments.engine_sample import EngineSample
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.policy.policy import PolicyVersion
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.services.deployments.engine_resolution import EngineResolution, alone
from gateway.storage.deployments.engine_probes import EngineProbeNotes
from gateway.storage.deployments.engine_residuals import EngineResiduals
from gateway.storage.deployments.engine_samples import EngineSamples
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import Database
from tests import factories
from tests.storage.factories import NOON, event

PRICE = factories.price("1", "4")
POLICY = factories.version(factories.policy(factories.deployment("qwen", is_self_hosted=True)))
UNKNOWN: dict[str, Any] = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
    "held_nusd": 10**8,
}
# No tokens, so that only its time matters.
SILENT: dict[str, Any] = {"usage": TokenUsage(input_tokens=0, output_tokens=0)}
LATER = NOON + timedelta(minutes=30)


def attempt(second: float, *, lasts_s: float = 10, **changes: Any) -> UsageEvent:
    """Return an attempt that began that many seconds after noon; 100 and 20 tokens unless
    changed.
    """
    at = NOON + timedelta(seconds=second)
    values: dict[str, Any] = {
        "deployment": "qwen",
        "provider": "vllm",
        "is_self_hosted": True,
        "price_id": PRICE.price_id,
        "lines": (),
        "cost_nusd": 180_000,
        "usage": TokenUsage(input_tokens=100, output_tokens=20),
        "duration_s": lasts_s,
    }
    return event(int(second * 10) + 1, at=at, started_at=at, **values | changes)


@dataclass
class Stand:
    """A ledger, an engine's samples and the settlement job, in the gateway's role."""

    database: Database
    url: str

    def write(self, *events: UsageEvent) -> None:
        assert Ledger(self.database).write(events) == len(events)

    def look(
        self, second: float, prompt: int, generation: int, *, running: int = 0, started: int = 0
    ) -> None:
        at = NOON + timedelta(seconds=second)
        seen = EngineSample(
            deployment="qwen",
            at=at,
            is_up=True,
            prompt_tokens=prompt,
            generation_tokens=generation,
            running=running,
            waiting=0,
            started_at=NOON - timedelta(days=1, seconds=-started),
        )
        EngineSamples(self.database).record([seen], POLICY, at=at)

    def probe(self, second: float, made: Tokens | None, *, lasts_s: float = 1) -> None:
        notes, probe_id, at = (
            EngineProbeNotes(self.database),
            uuid4(),
            NOON + timedelta(seconds=second),
        )
        notes.sent(probe_id, "qwen", at=at)
        notes.ended(probe_id, made, at=at + timedelta(seconds=lasts_s))

    def settle(self, *, now: datetime = LATER, policy: PolicyVersion = POLICY) -> None:
        EngineResolution(EngineResiduals(self.database), policy=lambda: policy).settle(now)

    def query(self, statement: str) -> list[dict[str, Any]]:
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            return connection.execute(statement.encode()).fetchall()

    def booked(self) -> list[int]:
        """Return the booked amounts in nano-dollars, in the order of the requests."""
        rows = self.query(
            "SELECT amount_nusd FROM tollgate.adjustments ORDER BY request_id, attempt"
        )
        return [row["amount_nusd"] for row in rows]


@pytest.fixture
def stand(database_url: str) -> Iterator[Stand]:
    database = Database(database_url, role="tollgate_gateway")
    PriceStore(database).store_event_prices([PRICE])
    yield Stand(database, database_url)
    database.close()


def test_an_unknown_attempt_is_settled_by_the_uncharged_tokens(stand: Stand) -> None:
    """The engine made 130 and 27 tokens, of which 100 and 20 are in the ledger. The other 30 and
    7 belong to the cut attempt.
    """
    stand.look(0, 1000, 500)
    stand.write(attempt(10), attempt(30, **UNKNOWN))
    stand.look(60, 1130, 527)
    stand.settle()
    (row,) = stand.query("SELECT * FROM finance.adjustments")
    assert stand.booked() == [30 * 1000 + 7 * 4000]
    assert (row["kind"], row["settles"], row["team"], row["deployment"]) == (
        "engine_counters",
        True,
        "payments",
        "qwen",
    )
    assert row["reason"].startswith("30 prompt and 7 generated tokens")
    assert (row["occurred_at"], f"{row['posted_period']:%Y-%m}") == (
        NOON + timedelta(seconds=30),
        "2026-11",
    )
    (unsettled,) = stand.query("SELECT count(*) AS n FROM finance.usage_events WHERE is_unsettled")
    (dirty,) = stand.query(
        f"SELECT count(*) AS n FROM tollgate.dirty_hours WHERE hour = '{NOON.isoformat()}'"
    )
    assert (unsettled["n"], dirty["n"] > 0) == (0, True)


def test_settling_twice_books_once(stand: Stand) -> None:
    """The job runs every minute, on the worker that leads at that time."""
    stand.look(0, 0, 0)
    stand.write(attempt(10, **UNKNOWN))
    stand.look(60, 30, 7)
    for _ in range(3):
        stand.settle()
    assert stand.booked() == [58_000]


def test_the_gateways_own_probes_are_not_charged(stand: Stand) -> None:
    """The engine made 130 and 27 tokens: 100 and 20 are in the ledger, 23 and 2 are its probes',
    7 and 5 the attempt's.
    """
    stand.look(0, 1000, 500)
    stand.write(attempt(10), attempt(30, **UNKNOWN))
    stand.probe(45, Tokens(prompt=11, generation=1))
    stand.probe(50, Tokens(prompt=12, generation=1))
    stand.look(60, 1130, 527)
    stand.probe(70, Tokens(prompt=12, generation=1))
    stand.settle()
    assert stand.booked() == [7 * 1000 + 5 * 4000]


def test_a_look_beside_a_probe_is_no_idle_one(stand: Stand) -> None:
    """The counters may or may not contain the probe's tokens yet, so the next sample settles
    both.
    """
    stand.look(0, 0, 0)
    stand.write(attempt(10, **UNKNOWN))
    stand.probe(59, Tokens(prompt=12, generation=1), lasts_s=5)
    stand.look(60, 30, 7)
    stand.look(120, 42, 8)
    stand.settle()
    assert stand.booked() == [30 * 1000 + 7 * 4000]


def test_two_windows_are_settled_apart(stand: Stand) -> None:
    """The engine's tokens for one window are not shared with attempts that came after an idle
    moment.
    """
    stand.look(0, 0, 0)
    stand.write(attempt(10, **UNKNOWN), attempt(70, **UNKNOWN), attempt(90, **UNKNOWN))
    stand.look(60, 30, 7)
    stand.look(120, 50, 9)
    stand.settle()
    assert stand.booked() == [58_000, 14_000, 14_000]


def other_engine(stand: Stand) -> None:
    stand.write(attempt(10, **UNKNOWN | {"deployment": "gpt", "is_self_hosted": False}))


def demo(stand: Stand) -> None:
    stand.write(attempt(10, **UNKNOWN, is_demo=True))


def in_flight_at_the_end(stand: Stand) -> None:
    """Write a long answer that runs past the sample at second 60, which sees the engine pause
    between two batches.
    """
    stand.write(attempt(10, **UNKNOWN), attempt(50, lasts_s=30, **SILENT))


def just_ended(stand: Stand) -> None:
    """Write an attempt that ended a second before the sample; clocks are not that exact."""
    stand.write(attempt(10, **UNKNOWN), attempt(50, lasts_s=9, **SILENT))


def engine_busy(stand: Stand) -> None:
    """Take a sample while the engine works for another caller."""
    stand.write(attempt(10, **UNKNOWN))
    stand.look(59, 30, 7, running=1)


def used_by_others(stand: Stand) -> None:
    """Write an attempt whose hold is below the cost of the unbooked tokens."""
    stand.write(attempt(10, **UNKNOWN | {"held_nusd": 57_999}))


def metered_more(stand: Stand) -> None:
    stand.write(attempt(10, **UNKNOWN), attempt(30))


def settled_by_hand(stand: Stand) -> None:
    """Resolve one of two attempts by hand, so that its share of the tokens is unknown."""
    resolved = attempt(30, **UNKNOWN)
    stand.write(attempt(10, **UNKNOWN), resolved)
    stand.query(
        "INSERT INTO tollgate.adjustments (adjustment_id, request_id, attempt, team, cost_centre, "
        "posted_period, occurred_at, amount_nusd, kind, reason, author, settles) SELECT "
        "gen_random_uuid(), request_id, attempt, team, cost_centre, posted_period, occurred_at, 5, "
        "'resolution', 'said so', 'ada', true FROM tollgate.usage_events WHERE request_id = "
        f"'{resolved.request_id}' RETURNING request_id"
    )


def probed_without_an_answer(stand: Stand) -> None:
    """End a probe without an answer, so that its tokens are unknown."""
    stand.write(attempt(10, **UNKNOWN))
    stand.probe(30, None)


def probed_by_one_that_died(stand: Stand) -> None:
    """Record a probe as sent by a process that died before the answer."""
    stand.write(attempt(10, **UNKNOWN))
    EngineProbeNotes(stand.database).sent(uuid4(), "qwen", at=NOON + timedelta(seconds=30))


def behind(stand: Stand) -> None:
    """Add a silent worker that may hold settlements of the window."""
    stand.write(attempt(10, **UNKNOWN))
    journal(stand, "live", heartbeat=NOON + timedelta(seconds=100))


def lost(stand: Stand) -> None:
    """Add a lost journal. Its attempts are charged to no team, and another attempt must not pay
    for them.
    """
    stand.write(attempt(10, **UNKNOWN))
    journal(stand, "lost", heartbeat=NOON - timedelta(hours=1))


def journal(stand: Stand, state: str, *, heartbeat: datetime) -> None:
    stand.query(
        "INSERT INTO tollgate.journals (id, replica, started_at, heartbeat, state) VALUES "
        f"(gen_random_uuid(), 'one', '{(NOON - timedelta(days=2)).isoformat()}', "
        f"'{heartbeat.isoformat()}', '{state}') RETURNING id"
    )


@pytest.mark.parametrize(
    "happening",
    [
        other_engine,
        demo,
        in_flight_at_the_end,
        just_ended,
        engine_busy,
        used_by_others,
        metered_more,
        settled_by_hand,
        probed_without_an_answer,
        probed_by_one_that_died,
        behind,
        lost,
    ],
)
def test_ambiguous_attempts_stay_unknown(stand: Stand, happening: Callable[[Stand], None]) -> None:
    """The hold stands until the cost is known: a wrong settlement would look like a right one."""
    stand.look(0, 0, 0)
    happening(stand)
    if happening is not engine_busy:
        stand.look(60, 30, 7)
    before = stand.booked()
    stand.settle()
    assert stand.booked() == before


def test_live_and_drained_journals_do_not_delay_a_settlement(stand: Stand) -> None:
    """Neither a live journal that writes nor a drained one may delay a settlement."""
    stand.look(0, 0, 0)
    stand.write(attempt(10, **UNKNOWN))
    stand.look(60, 30, 7)
    journal(stand, "live", heartbeat=LATER)
    journal(stand, "drained", heartbeat=NOON - timedelta(hours=1))
    stand.settle()
    assert stand.booked() == [58_000]


def test_a_window_waits_until_it_is_written(stand: Stand) -> None:
    """Settlements are written a moment later, or minutes later after an outage."""
    stand.look(0, 0, 0)
    stand.write(attempt(10, **UNKNOWN))
    stand.look(60, 30, 7)
    stand.settle(now=NOON + timedelta(minutes=5))
    assert stand.booked() == []
    stand.settle(now=NOON + timedelta(minutes=6))
    assert stand.booked() == [58_000]


def test_a_restarted_engine_settles_nothing(stand: Stand) -> None:
    """Its counters restarted at 0 and have passed their old values."""
    stand.look(0, 100, 10)
    stand.write(attempt(10, **UNKNOWN))
    stand.look(60, 130, 17, started=3600)
    stand.settle()
    assert stand.booked() == []


def test_an_interrupted_attempt_without_an_end_is_settled(stand: Stand) -> None:
    """A killed gateway leaves no duration, so the engine's next idle moment counts as the end."""
    stand.look(0, 0, 0)
    stand.write(attempt(10, lasts_s=0, **UNKNOWN))
    stand.look(60, 30, 7, running=1)
    stand.look(120, 70, 9)
    stand.settle()
    assert stand.booked() == [70 * 1000 + 9 * 4000]


def test_a_failed_settlement_is_logged_once(
    stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job runs every minute: a warning each time would hide all others.

    Without a policy it does nothing.
    """
    stand.look(0, 0, 0)
    stand.write(attempt(10, **UNKNOWN | {"held_nusd": 1}))
    stand.look(60, 30, 7)
    job = EngineResolution(EngineResiduals(stand.database), policy=lambda: POLICY)
    for _ in range(3):
        job.settle(LATER)
    EngineResolution(EngineResiduals(stand.database), policy=lambda: None).settle(LATER)
    assert capsys.readouterr().out.count("unknown_not_resolved") == 1
    assert stand.booked() == []


def test_counters_of_two_deployments_are_nobodys_alone() -> None:
    """Two deployments name the same model on one engine, so the unbooked tokens may belong to
    either.
    """
    shared = factories.policy(
        factories.deployment("a", is_self_hosted=True),
        factories.deployment("b", is_self_hosted=True),
        factories.deployment("c", is_self_hosted=True, model="m-2"),
        factories.deployment("d"),
        factories.deployment("e", is_self_hosted=True, base_url="http://127.0.0.1:10/v1"),
    )
    assert alone(shared) == ["c", "e"]
