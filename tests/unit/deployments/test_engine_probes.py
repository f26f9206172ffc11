"""Self-hosted engines: a hung one is passed over, a recovered one is found without a caller
paying for it.
"""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest

from gateway.domain.deployments.engine_counters import Tokens
from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.operation import OF_OPENAI, Operation
from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import UpstreamError, UpstreamTimeout, UpstreamUnreachable
from gateway.providers.registry import build_providers
from gateway.services.deployments.ejections import Ejections
from gateway.services.deployments.engine_probes import (
    HANGS_AFTER_S,
    NOTE_AGAIN_S,
    NOTHING,
    EngineProbes,
)
from gateway.services.deployments.state import DeploymentHealth, DeploymentState, Slot
from gateway.services.request.service import CallerAnswer
from tests import factories
from tests.answers import at_once
from tests.fakes import FakeClock, FakeEjections, FakeProbeNotes, FakeTransport, FakeUpstreamAnswer
from tests.unit.request.test_request_service import (
    DONE,
    TAIL,
    WHOLE,
    Stage,
    body,
    piece,
    rest_of,
)
from tests.waiting import soon

ENGINE = factories.deployment("engine", provider="vllm", is_self_hosted=True)
HOSTED = factories.deployment("hosted")


class Watch:
    """Probes over fakes."""

    def __init__(
        self, *answers: FakeUpstreamAnswer | UpstreamUnreachable, is_alive: bool | None = False
    ) -> None:
        self.transport, self.clock = FakeTransport(list(answers)), FakeClock()
        self.notes = FakeProbeNotes()
        self.opened: list[tuple[str, str]] = []
        self.closed: list[str] = []
        self.health = DeploymentHealth(
            on_open=lambda name, why: self.opened.append((name, why)), on_close=self.closed.append
        )
        self.version: PolicyVersion | None = factories.version(factories.policy(ENGINE, HOSTED))
        self.probes = EngineProbes(
            self.health,
            transport=self.transport,
            providers=build_providers(salt_key=b""),
            policy=lambda: self.version,
            ejections=Ejections(FakeEjections(), self.clock, on_ejected=lambda _: None),
            clock=self.clock,
            new_id=uuid4,
            region="unknown",
            looks_alive=lambda name: is_alive,
            notes=self.notes,
        )

    def open(self) -> DeploymentState:
        self.health.open_breaker(ENGINE, "upstream_unreachable", now_s=self.clock.monotonic())
        return self.health.of(ENGINE)


async def test_an_engine_that_is_back_is_found_by_one_token() -> None:
    """At its declared address, with a fixed body and without a charge: there is no attempt."""
    watch = Watch(FakeUpstreamAnswer([WHOLE]))
    watch.open()
    watch.probes.run_once()
    assert watch.transport.sent == []
    watch.clock.advance(5)
    watch.probes.run_once()
    watch.probes.run_once()
    await soon(lambda: watch.closed, "the breaker's closing")
    ((permit, call),) = watch.transport.sent
    assert (permit.attempt, permit.origin, call.url) == (
        0,
        "http://127.0.0.1:9",
        "http://127.0.0.1:9/v1/chat/completions",
    )
    assert json.loads(call.body) == {
        "model": "m-1",
        "messages": [{"role": "user", "content": "."}],
        "max_tokens": 1,
    }
    assert "authorization" not in call.headers


@pytest.mark.parametrize(
    "answer", [UpstreamUnreachable("x"), FakeUpstreamAnswer([b"{}"], status=500)]
)
async def test_one_that_is_not_back_is_asked_again_later(
    answer: FakeUpstreamAnswer | UpstreamUnreachable,
) -> None:
    """Refused while it loads, 500 while it stops: no caller's request is spent on finding that
    out.
    """
    watch = Watch(answer, FakeUpstreamAnswer([WHOLE]))
    standing = watch.open()
    watch.clock.advance(5)
    watch.probes.run_once()
    await soon(
        lambda: not standing.breaker.is_due(watch.clock.monotonic()) and watch.transport.sent,
        "the probe",
    )
    assert watch.closed == []
    await soon(lambda: not watch.probes._under_way, "its end")
    watch.clock.advance(9.9)
    watch.probes.run_once()
    await soon(lambda: watch.closed, "the breaker's closing")


async def test_a_company_s_api_is_never_probed() -> None:
    """It would be paid for; the next real request finds out."""
    watch = Watch()
    watch.health.open_breaker(HOSTED, "upstream_auth", now_s=watch.clock.monotonic())
    watch.clock.advance(60)
    watch.probes.run_once()
    assert watch.transport.sent == []
    assert not watch.health.is_open(watch.health.of(HOSTED), watch.clock.monotonic())


async def test_while_engines_are_probed_no_request_has_to_be_the_probe() -> None:
    """Without a prober the next request is the probe, or the engine would stay shut for ever."""
    watch = Watch(FakeUpstreamAnswer([WHOLE]))
    standing = watch.open()
    watch.clock.advance(5)
    assert not watch.health.is_open(standing, watch.clock.monotonic())
    running = asyncio.create_task(watch.probes.run())
    await soon(lambda: watch.health.probes_engines, "the job")
    await soon(lambda: watch.closed, "the breaker's closing")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not watch.health.probes_engines


async def test_without_a_policy_nothing_is_probed() -> None:
    """Nothing is known yet, so nothing may be sent."""
    watch = Watch()
    watch.open()
    watch.clock.advance(5)
    watch.version = None
    watch.probes.run_once()
    assert watch.transport.sent == []


ANSWER = b'{"usage": {"prompt_tokens": 3, "completion_tokens": 1}}'


@pytest.mark.parametrize(
    ("answer", "made"),
    [
        (FakeUpstreamAnswer([ANSWER]), Tokens(prompt=3, generation=1)),
        (FakeUpstreamAnswer([b"{}"]), None),
        (FakeUpstreamAnswer([b"no json"]), None),
        (FakeUpstreamAnswer([b'{"usage": {"prompt_tokens": 3}}']), None),
        (FakeUpstreamAnswer([WHOLE], fails=UpstreamTimeout("deaf")), None),
        (FakeUpstreamAnswer([WHOLE], then=UpstreamError("cut")), None),
        (UpstreamUnreachable("x"), NOTHING),
        (FakeUpstreamAnswer([b"{}"], status=500), NOTHING),
        (FakeUpstreamAnswer([ANSWER], status=500), Tokens(prompt=3, generation=1)),
    ],
)
async def test_the_tokens_of_a_probe_are_recorded(
    answer: FakeUpstreamAnswer | UpstreamUnreachable, made: Tokens | None
) -> None:
    """Its tokens stand in the engine's counters, from which unknown attempts are settled: of none
    but itself.
    """
    watch = Watch(answer)
    watch.open()
    watch.clock.advance(5)
    watch.probes.run_once()
    await soon(lambda: watch.notes.tokens and not watch.probes._under_way, "the probe's end")
    assert list(watch.notes.tokens.values()) == [made]


async def test_a_probe_that_cannot_be_noted_is_not_sent() -> None:
    """Its tokens would be charged to whoever is settled from the counters: a caller's request finds
    out instead.
    """
    watch = Watch(FakeUpstreamAnswer([WHOLE]))
    watch.notes.is_away = True
    standing = watch.open()
    watch.clock.advance(5)
    watch.probes.run_once()
    assert watch.health.is_open(standing, watch.clock.monotonic())
    await soon(lambda: not watch.probes._under_way, "the note's failure")
    assert (watch.transport.sent, watch.health.is_open(standing, watch.clock.monotonic())) == (
        [],
        False,
    )
    watch.probes.run_once()
    assert not watch.probes._under_way
    watch.notes.is_away = False
    watch.clock.advance(NOTE_AGAIN_S)
    watch.probes.run_once()
    assert watch.health.is_open(standing, watch.clock.monotonic())
    await soon(lambda: watch.closed, "the breaker's closing")


async def hanging(is_alive: bool | None, *, silent_s: float) -> tuple[Stage, Watch]:
    """A stream that gave one token and then nothing, for so long."""
    held = asyncio.Event()
    upstream = FakeUpstreamAnswer([piece("a"), TAIL], waits_for={1: held.wait})
    watch = Watch(is_alive=is_alive)
    on = Stage(FakeTransport([upstream]), clock=watch.clock, health=watch.health)
    answer = await on.answer(body(stream=True), ENGINE)
    assert answer.rest is not None
    on.clock.advance(silent_s)
    watch.probes.run_once()
    await answer.rest.aclose()
    await on.abandoned.close()
    return on, watch


async def test_an_engine_that_stands_still_is_passed_over() -> None:
    """Its `/health` answers 200; its attempts in flight show more."""
    _, watch = await hanging(False, silent_s=HANGS_AFTER_S)
    assert watch.opened == [("engine", "no_progress")]


async def test_requests_that_keep_arriving_do_not_hide_a_hang() -> None:
    """A start is no sign of life: under steady traffic the youngest attempt never waits for long.
    An answer is one.
    """
    watch = Watch(is_alive=False)
    state = watch.health.of(ENGINE)

    def begin() -> Slot:
        slot, now_s = watch.health.take_slot(state), watch.clock.monotonic()
        watch.health.note_started(slot, team="payments", number=1, now_s=now_s)
        slot.last_received_s = now_s
        return slot

    for _ in range(int(HANGS_AFTER_S)):
        begin()
        watch.clock.advance(1)
        watch.probes.run_once()
    assert watch.opened == [("engine", "no_progress")]

    watch, state = (other := Watch(is_alive=False)), other.health.of(ENGINE)
    for _ in range(int(HANGS_AFTER_S) + 4):
        begin()
        watch.clock.advance(1)
        watch.health.note_answer(begin(), at_s=watch.clock.monotonic())
        watch.probes.run_once()
    assert watch.opened == []


async def waiting_at_a_hung_engine(
    *others: Deployment, is_stream: bool, second: FakeUpstreamAnswer
) -> tuple[Stage, asyncio.Task[CallerAnswer], FakeUpstreamAnswer]:
    """A request that has waited for its first content while the engine hangs."""
    held = asyncio.Event()
    first = FakeUpstreamAnswer(
        [piece("a"), TAIL] if is_stream else [WHOLE], waits_for={0: held.wait}
    )
    watch = Watch(is_alive=False)
    on = Stage(FakeTransport([first, second]), clock=watch.clock, health=watch.health)
    request = asyncio.create_task(on.answer(body(stream=is_stream), ENGINE, *others))
    await soon(lambda: on.transport.sent, "the request")
    watch.clock.advance(HANGS_AFTER_S)
    await soon(lambda: watch.health.of(ENGINE).under_way, "its attempt")
    await asyncio.sleep(0)
    watch.probes.run_once()
    assert watch.opened == [("engine", "no_progress")]
    return on, request, first


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_request_that_streamed_nothing_leaves_a_hung_engine(is_stream: bool) -> None:
    """Its caller would wait a minute for the time limit; the other place answers now. The attempt
    at the engine may have been generated, so it is unknown and not free.
    """
    parts = [piece("b"), TAIL, DONE] if is_stream else [WHOLE]
    on, request, first = await waiting_at_a_hung_engine(
        HOSTED, is_stream=is_stream, second=FakeUpstreamAnswer(parts)
    )
    answer = await request
    assert first.given_up
    if is_stream:
        await rest_of(answer)
    assert [(event.deployment, event.outcome) for event in on.journal.events] == [
        ("engine", Outcome.UPSTREAM_TIMEOUT),
        ("hosted", Outcome.OK),
    ]
    assert on.journal.events[0].cost_nusd is None
    assert on.journal.events[0].usage_source is UsageSource.UNKNOWN


async def test_a_request_without_another_place_keeps_waiting() -> None:
    """An engine that is only very slow may still answer, and an error is certain otherwise."""
    on, request, first = await waiting_at_a_hung_engine(
        is_stream=False, second=FakeUpstreamAnswer([WHOLE])
    )
    await asyncio.sleep(0)
    assert not first.given_up
    assert not request.done()
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await on.abandoned.close()


async def test_a_stream_that_has_begun_does_not_leave() -> None:
    """Half an answer from each of two models is no answer."""
    held = asyncio.Event()
    upstream = FakeUpstreamAnswer([piece("a"), TAIL], waits_for={1: held.wait})
    watch = Watch(is_alive=False)
    on = Stage(FakeTransport([upstream]), clock=watch.clock, health=watch.health)
    answer = await on.answer(body(stream=True), ENGINE, HOSTED)
    on.clock.advance(HANGS_AFTER_S)
    watch.probes.run_once()
    assert watch.opened == [("engine", "no_progress")]
    assert not upstream.given_up
    assert answer.rest is not None
    await answer.rest.aclose()
    await on.abandoned.close()


@pytest.mark.parametrize(
    ("is_alive", "silent_s"), [(True, 60), (None, 60), (False, HANGS_AFTER_S - 1)]
)
async def test_an_engine_that_is_only_slow_is_not(is_alive: bool | None, silent_s: float) -> None:
    """A long prompt may take a minute; its figures move meanwhile, and without a reader they are
    unknown.
    """
    _, watch = await hanging(is_alive, silent_s=silent_s)
    assert watch.opened == []


@pytest.mark.parametrize("operation", sorted(OF_OPENAI))
def test_a_probe_uses_an_endpoint_that_the_engine_has(operation: Operation) -> None:
    """An engine of embeddings cannot chat."""
    engine = factories.deployment(
        "engine", provider="vllm", is_self_hosted=True, operations=frozenset({operation})
    )
    call = at_once(build_providers(salt_key=b"")["vllm"].probe(engine, uuid4()))
    assert call.url.rpartition("/v1/")[2].startswith(
        {"chat": "chat/"}.get(operation.value, operation.value)
    )
    assert not call.is_streamed
