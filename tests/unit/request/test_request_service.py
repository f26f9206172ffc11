"""The story of a request with every ending: exactly one event an attempt, and the right one."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.operation import Operation
from gateway.domain.pricing.settlement import Counted
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.domain.request.bound import UNBOUNDED_OUTPUT_TOKENS
from gateway.domain.request.request import RequestBody
from gateway.errors import (
    InvalidRequest,
    JournalFull,
    Overloaded,
    RateLimited,
    RequestError,
    ResidencyDenied,
    UpstreamAuth,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.providers.registry import build_providers
from gateway.services.budgets.leases import BudgetLeases
from gateway.services.deployments.ejections import FORGOTTEN_AFTER_S, Ejections
from gateway.services.deployments.estimates import Estimates
from gateway.services.deployments.state import DeploymentHealth
from gateway.services.limits.limiter import Limiter
from gateway.services.request.abandoned import AbandonedAnswers, DrainLimits
from gateway.services.request.admission import Admission
from gateway.services.request.attempt import Attempts
from gateway.services.request.idempotency import Claims
from gateway.services.request.meter import Meter
from gateway.services.request.refusals import Refusals
from gateway.services.request.service import CallerAnswer, RequestService
from gateway.storage.budgets.idempotency import ClaimTable
from gateway.storage.budgets.limits import LimitWindows
from gateway.storage.postgres.database import Database
from gateway.wire.openai.dialect import OpenAIDialect
from gateway.wire.sse import MAX_EVENT_BYTES, EventSplitter
from tests import factories
from tests.fakes import (
    FakeClock,
    FakeCounter,
    FakeEjections,
    FakeJournal,
    FakeLeases,
    FakeRefusals,
    FakeTransport,
    FakeUpstreamAnswer,
)
from tests.waiting import soon

WHOLE = json.dumps(
    {
        "id": "c-1",
        "model": "m-1",
        "choices": [{"finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
    }
).encode()
DONE = b"data: [DONE]\n\n"
GOLDEN = Path(__file__).parents[2] / "golden"
A_NUSD_A_LINE = 20  # each line of a receipt is rounded once, and a hold is above all of them


def piece(text: str, made: int | None = None) -> bytes:
    """One chunk with a token; `made` is vLLM's running count."""
    chunk: dict[str, Any] = {
        "model": "m-1",
        "choices": [{"delta": {"content": text}, "finish_reason": None}],
    }
    if made is not None:
        chunk["usage"] = {"prompt_tokens": 10, "completion_tokens": made}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


TAIL = b'data: {"model":"m-1","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":2}}\n\n'


@dataclass
class Stage:
    """A service over fakes."""

    transport: FakeTransport
    journal: FakeJournal = field(default_factory=FakeJournal)
    clock: FakeClock = field(default_factory=FakeClock)
    leases: FakeLeases = field(default_factory=FakeLeases)
    counter: FakeCounter = field(default_factory=FakeCounter)
    limits: DrainLimits = field(
        default_factory=lambda: DrainLimits(answers=2, seconds=60, events=100)
    )
    is_stopping: bool = False
    max_attempts: int = 3
    health: DeploymentHealth = field(default_factory=DeploymentHealth)

    def __post_init__(self) -> None:
        self.abandoned = AbandonedAnswers(
            self.counter, self.limits, is_stopping=lambda: self.is_stopping
        )
        self.budget_leases = BudgetLeases(
            self.leases, self.clock, worker=uuid4(), lease_s=900, wait_s=5.0
        )
        # Opened by the first limit or key.
        database = Database("postgresql://nobody@localhost/none")
        self.limiter = Limiter(LimitWindows(database), self.clock, worker=uuid4())
        self.claims = Claims(ClaimTable(database), self.clock, secret=b"secret", journal_id=uuid4())
        self.counted = FakeRefusals()
        self.refusals = Refusals(self.counted, self.clock, journal_id=uuid4(), files=self.counted)
        self.admission = Admission(
            budget_leases=self.budget_leases,
            limiter=self.limiter,
            claims=self.claims,
            refusals=self.refusals,
            clock=self.clock,
        )
        self.ejection_store = FakeEjections()
        self.ejections = Ejections(self.ejection_store, self.clock, on_ejected=lambda _: None)
        self.meter = Meter(self.journal, on_settled=(), ejections=self.ejections)

    def service(self) -> RequestService:
        return RequestService(
            transport=self.transport,
            providers=build_providers(salt_key=b"salt"),
            admission=self.admission,
            attempts=Attempts(self.meter, self.clock),
            abandoned=self.abandoned,
            clock=self.clock,
            max_attempts=self.max_attempts,
            refusals=self.refusals,
            ejections=self.ejections,
            estimates=Estimates(self.clock),
            health=self.health,
            draw=lambda: 0.0,
        )

    async def answer(
        self, body: bytes, *deployments: Any, operation: Operation = Operation.CHAT
    ) -> CallerAnswer:
        read = factories.read(body, operation)
        snapshot = factories.snapshot(document=factories.policy(*deployments))
        request = factories.request(read)
        return await self.service().answer(
            request,
            snapshot,
            terms=factories.terms(snapshot, request),
            received_s=self.clock.monotonic(),
        )

    @property
    def event(self) -> UsageEvent:
        (found,) = self.journal.events
        return found


def stage(*answers: FakeUpstreamAnswer | RequestError) -> Stage:
    return Stage(FakeTransport(list(answers)))


def once(*answers: FakeUpstreamAnswer | RequestError) -> Stage:
    """A stage on which nothing is tried a second time."""
    return Stage(FakeTransport(list(answers)), max_attempts=1)


def body(**members: Any) -> bytes:
    return json.dumps({"model": "assistant", "messages": [], **members}).encode()


async def rest_of(answer: CallerAnswer) -> bytes:
    """All of a streamed answer; returns when its attempt is settled, which may take a count."""
    sent = await pieces_of(answer)
    await soon(lambda: answer.attempt.event, "the event")
    return sent


async def pieces_of(answer: CallerAnswer) -> bytes:
    """All of a streamed answer as the edge sends it: an error becomes its last event."""
    assert answer.rest is not None
    sent = answer.body
    try:
        async for piece in answer.rest:
            sent += piece
    except RequestError as error:
        operation = answer.attempt.request.body.facts.operation
        sent += OpenAIDialect().error_event(operation, error.code, error.message)
        error.with_traceback(None)  # as the edge does
    return sent


async def test_a_whole_answer_makes_one_event() -> None:
    """The ordinary case, every column that matters."""
    on = stage(FakeUpstreamAnswer([WHOLE[:20], WHOLE[20:]]))
    answer = await on.answer(body(user="u-1"))
    assert json.loads(answer.body)["usage"]["cost_usd"] == 0.00003
    event = on.event
    assert (event.outcome, event.http_status, event.usage_source) == (
        Outcome.OK,
        200,
        UsageSource.PROVIDER,
    )
    assert (event.usage.input_tokens, event.usage.output_tokens, event.cost_nusd) == (10, 5, 30_000)
    assert (event.team, event.cost_centre, event.route, event.deployment) == (
        "payments",
        "CC-1",
        "assistant",
        "one",
    )
    assert (event.attempt, event.end_user, event.upstream_request_id, event.streamed) == (
        1,
        "u-1",
        "c-1",
        False,
    )
    assert (event.finish_reason, event.occurred_at) == ("stop", factories.NOW)
    assert event.decision["ranked"] == ["one"]
    assert event.decision["candidates"] == [
        {"deployment": "one", "region": "eu-de", "host": "127.0.0.1", "obstacles": []}
    ]


async def test_a_stream_passes_as_it_comes_and_is_settled_at_its_end() -> None:
    """Bytes first, money after: the event is made when the last byte was passed on."""
    on = stage(FakeUpstreamAnswer([piece("a"), piece("b"), TAIL, DONE]))
    answer = await on.answer(body(stream=True))
    assert on.journal.events == []
    sent = await rest_of(answer)
    assert sent.count(b"data: ") == 3
    assert sent.endswith(DONE)
    assert (on.event.outcome, on.event.usage_source, on.event.cost_nusd) == (
        Outcome.OK,
        UsageSource.PROVIDER,
        18_000,
    )


async def test_times_are_measured_from_the_start_of_the_attempt() -> None:
    """TTFT ends at the first token, not at the first chunk; TPOT spreads the rest over the tokens
    after it.
    """
    role = b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
    on = stage()

    async def second(count: int) -> None:
        on.clock.advance(count)

    waits = {0: lambda: second(1), 1: lambda: second(1), 2: lambda: second(3)}
    on.transport.answers.append(
        FakeUpstreamAnswer([role, piece("a"), piece("b") + TAIL + DONE], waits_for=waits)
    )
    await rest_of(await on.answer(body(stream=True)))
    assert (on.event.ttft_s, on.event.tpot_s, on.event.duration_s) == (2, 3, 5)


async def test_a_figure_that_cannot_be_true_is_kept_beside_the_hold() -> None:
    """The reported figure, its tier, the disbelief and our own time: finance asks for each of
    them.
    """
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 11},
    }
    whole = json.dumps(
        {"model": "m-1", "choices": [], "service_tier": "default", "usage": usage}
    ).encode()
    on = stage(FakeUpstreamAnswer([whole]))
    on.clock = FakeClock(step_s=1)
    await on.answer(body())
    event = on.event
    assert event.reported == TokenUsage(input_tokens=10, output_tokens=5, cached_input_tokens=11)
    assert (event.is_suspect, event.usage_source, event.cost_nusd) == (
        True,
        UsageSource.UNKNOWN,
        None,
    )
    assert event.held_nusd == on.journal.intents[0].event.held_nusd
    assert (event.service_tier, event.overhead_s) == ("default", 1)


REFUSALS = [
    (429, RateLimited),
    (500, UpstreamError),
    (503, Overloaded),
    (529, Overloaded),
    (401, UpstreamAuth),
    (403, UpstreamAuth),
    (302, UpstreamError),
    (304, UpstreamError),
]


@pytest.mark.parametrize(("status", "expected"), REFUSALS)
async def test_a_refusal_costs_zero_and_says_so(status: int, expected: type[RequestError]) -> None:
    """An error status without usage served nothing: zero is known here, not assumed."""
    on = once(FakeUpstreamAnswer([b"{}"], status=status))
    with pytest.raises(expected):
        await on.answer(body())
    assert (on.event.http_status, on.event.usage_source, on.event.cost_nusd) == (
        status,
        UsageSource.NONE,
        0,
    )


@pytest.mark.parametrize(("status", "expected"), REFUSALS)
async def test_before_the_first_byte_another_deployment_is_tried(
    status: int, expected: type[RequestError]
) -> None:
    """The caller sees one answer; the ledger sees both attempts."""
    on = stage(FakeUpstreamAnswer([b"{}"], status=status), FakeUpstreamAnswer([WHOLE]))
    answer = await on.answer(body(), factories.deployment("one"), factories.deployment("two"))
    assert answer.attempt.number == 2
    assert [(e.deployment, e.attempt, e.cost_nusd) for e in on.journal.events] == [
        ("one", 1, 0),
        ("two", 2, 30_000),
    ]
    assert {event.request_id for event in on.journal.events} == {factories.REQUEST_ID}


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_a_mistake_of_the_caller_is_not_tried_elsewhere(status: int) -> None:
    """Another deployment would refuse it too, and a second refusal hides the first."""
    on = stage(
        FakeUpstreamAnswer([b'{"error":{"message":"no"}}'], status=status),
        FakeUpstreamAnswer([WHOLE]),
    )
    with pytest.raises(RequestError) as caught:
        await on.answer(body(), factories.deployment("one"), factories.deployment("two"))
    assert caught.value.attempts == 1
    assert len(on.journal.events) == 1


@pytest.mark.parametrize(
    ("failure", "outcome", "source"),
    [
        (UpstreamUnreachable("x"), Outcome.UPSTREAM_UNREACHABLE, UsageSource.NONE),
        (UpstreamTimeout("x"), Outcome.UPSTREAM_TIMEOUT, UsageSource.UNKNOWN),
        (UpstreamError("x"), Outcome.UPSTREAM_ERROR, UsageSource.UNKNOWN),
        (ResidencyDenied("x"), Outcome.GATEWAY_ERROR, UsageSource.NONE),
    ],
)
async def test_a_failure_before_headers(
    failure: RequestError, outcome: Outcome, source: UsageSource
) -> None:
    """No connection: nothing was served.

    A timeout: the upstream may be working, so its cost is unknown.
    """
    was_sent = isinstance(failure, (UpstreamTimeout, UpstreamError))
    on = once(FakeUpstreamAnswer(fails=failure) if was_sent else failure)
    with pytest.raises(type(failure)):
        await on.answer(body())
    assert (on.event.outcome, on.event.usage_source) == (outcome, source)
    assert (on.event.held_nusd is None) == (source is UsageSource.NONE)


async def test_a_broken_plain_answer_is_unknown() -> None:
    """Half an answer was generated without reported usage."""
    on = once(FakeUpstreamAnswer([WHOLE[:20]], then=UpstreamError("broke")))
    with pytest.raises(UpstreamError):
        await on.answer(body())
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.UNKNOWN, None)


async def test_a_plain_answer_that_is_no_json_is_an_error_and_bought_once() -> None:
    """It came whole under a status of success: whoever made it may bill it, and would bill a second
    one too.
    """
    on = stage(FakeUpstreamAnswer([b"<html>"]), FakeUpstreamAnswer([WHOLE]))
    with pytest.raises(UpstreamError, match="no JSON"):
        await on.answer(body(), factories.deployment("one"), factories.deployment("two"))
    assert len(on.transport.sent) == 1
    await soon(lambda: on.journal.events, "the event")
    assert (on.event.outcome, on.event.usage_source) == (
        Outcome.UPSTREAM_ERROR,
        UsageSource.UNKNOWN,
    )


async def test_a_cut_stream_ends_with_an_error_and_charges_the_output() -> None:
    """A clean close looks like success to official SDKs; vLLM's running usage determines the
    charge.
    """
    on = stage(FakeUpstreamAnswer([piece("a", 1), piece("b", 2)], then=UpstreamError("broke")))
    one = factories.deployment(provider="vllm", is_self_hosted=True)
    sent = await rest_of(await on.answer(body(stream=True), one))
    assert b"[DONE]" not in sent
    assert json.loads(sent.split(b"data: ")[-1])["error"]["code"] == "upstream_error"
    assert (on.event.outcome, on.event.usage_source) == (Outcome.UPSTREAM_CUT, UsageSource.DERIVED)
    assert (on.event.usage.output_tokens, on.event.cost_nusd) == (2, 18_000)


async def test_a_stream_without_done_is_cut() -> None:
    """The connection ended cleanly and the answer did not."""
    on = stage(FakeUpstreamAnswer([piece("a")]))
    sent = await rest_of(await on.answer(body(stream=True)))
    assert b'"code":"upstream_error"' in sent
    assert (on.event.outcome, on.event.usage_source) == (
        Outcome.UPSTREAM_CUT,
        UsageSource.ESTIMATED,
    )


async def test_a_connection_that_breaks_after_done_is_no_error() -> None:
    """The answer was complete; the end of its connection does not matter."""
    on = stage(FakeUpstreamAnswer([piece("a"), TAIL, DONE], then=UpstreamError("late")))
    sent = await rest_of(await on.answer(body(stream=True)))
    assert sent.endswith(DONE)
    assert on.event.outcome is Outcome.OK


async def test_a_stalled_stream_is_a_timeout() -> None:
    """The wait between two bytes is bounded; the usage so far is charged."""
    on = stage(FakeUpstreamAnswer([piece("a", 1)], then=UpstreamTimeout("stalled")))
    one = factories.deployment(provider="vllm", is_self_hosted=True)
    sent = await rest_of(await on.answer(body(stream=True), one))
    assert b'"code":"upstream_timeout"' in sent
    assert (on.event.outcome, on.event.usage_source) == (
        Outcome.UPSTREAM_TIMEOUT,
        UsageSource.DERIVED,
    )


async def test_a_stream_that_dies_before_its_first_byte_is_tried_elsewhere() -> None:
    """Nothing reached the caller yet; the first attempt stays in the ledger as unknown."""
    on = stage(
        FakeUpstreamAnswer([], then=UpstreamError("died")),
        FakeUpstreamAnswer([piece("a"), TAIL, DONE]),
    )
    answer = await on.answer(
        body(stream=True), factories.deployment("one"), factories.deployment("two")
    )
    await rest_of(answer)
    assert [(e.deployment, e.usage_source) for e in on.journal.events] == [
        ("one", UsageSource.UNKNOWN),
        ("two", UsageSource.PROVIDER),
    ]


async def test_after_the_first_byte_nothing_is_tried_elsewhere() -> None:
    """Half an answer from each of two models is not an answer."""
    on = stage(
        FakeUpstreamAnswer([piece("a")], then=UpstreamError("broke")),
        FakeUpstreamAnswer([piece("b"), DONE]),
    )
    await rest_of(
        await on.answer(body(stream=True), factories.deployment("one"), factories.deployment("two"))
    )
    assert [event.deployment for event in on.journal.events] == ["one"]


async def test_an_error_event_in_a_stream_is_no_success() -> None:
    """vLLM's error and then `[DONE]`, under HTTP 200."""
    on = stage(FakeUpstreamAnswer([piece("a"), b'data: {"error":{"message":"died"}}\n\n', DONE]))
    sent = await rest_of(await on.answer(body(stream=True)))
    assert b"[DONE]" not in sent
    assert sent.count(b'"error"') == 1
    assert on.event.outcome is Outcome.UPSTREAM_ERROR


async def test_an_endless_event_ends_the_stream() -> None:
    """One event has a bound: the caller gets an error event and the upstream is closed."""
    upstream = FakeUpstreamAnswer([piece("a"), b"x" * (MAX_EVENT_BYTES + 1)])
    on = stage(upstream)
    assert b'"code":"upstream_error"' in await rest_of(await on.answer(body(stream=True)))
    assert (on.event.outcome, upstream.closed) == (Outcome.UPSTREAM_CUT, 1)


async def test_a_disconnect_mid_stream_charges_the_output_so_far() -> None:
    """Closing the answer settles it: the last running figure, marked as derived, and the upstream
    is closed.
    """
    upstream = FakeUpstreamAnswer([piece("a", 1), piece("b", 2), TAIL, DONE])
    on = stage(upstream)
    answer = await on.answer(
        body(stream=True), factories.deployment(provider="vllm", is_self_hosted=True)
    )
    assert answer.rest is not None
    await answer.rest.aclose()
    assert (on.event.outcome, on.event.usage_source) == (Outcome.CLIENT_GONE, UsageSource.DERIVED)
    assert (on.event.usage.output_tokens, upstream.closed) == (1, 1)


@pytest.mark.parametrize("provider", ["sglang", "llamacpp"])
async def test_an_engine_that_reports_running_usage_is_stopped_when_its_caller_leaves(
    provider: str,
) -> None:
    """The team is charged for exactly the tokens that were reported by then, as with vLLM."""
    recorded = (GOLDEN / provider / "chat-stream" / "upstream.sse").read_bytes()
    reported = {"sglang": (80, 64, 6), "llamacpp": (237, 236, 1)}[provider]
    upstream = FakeUpstreamAnswer(list(EventSplitter().feed(recorded)))
    on = stage(upstream)
    one = factories.deployment(provider=provider, is_self_hosted=True)
    answer = await on.answer(body(stream=True), one)
    assert answer.rest is not None
    await anext(answer.rest)
    await answer.rest.aclose()
    event = on.event
    assert (event.outcome, event.usage_source) == (Outcome.CLIENT_GONE, UsageSource.DERIVED)
    usage = event.usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == reported
    assert upstream.closed == 1


async def leaves(
    on: Stage, sent: bytes, *deployments: Any, at: int = 0, stalls: bool = False
) -> None:
    """Cancel the request while it waits for piece `at` of its answer, which never comes if it
    `stalls`.
    """
    waits, never = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        waits.set()
        await never.wait()

    upstream = on.transport.answers[0]
    assert isinstance(upstream, FakeUpstreamAnswer)
    upstream.waits_for = {at: wait}

    async def request() -> None:
        answer = await on.answer(sent, *deployments)
        if answer.rest is not None:
            async with aclosing(answer.rest) as rest:
                async for _ in rest:
                    pass

    task = asyncio.create_task(request())
    await waits.wait()
    upstream.waits_for = {at: never.wait} if stalls else {}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


VLLM = {"provider": "vllm", "is_self_hosted": True}


async def test_a_disconnect_before_an_engines_first_byte_settles_at_once() -> None:
    """The cancellation arrives while the engine is silent: it is stopped, and the event still made,
    with its hold.
    """
    upstream = FakeUpstreamAnswer([piece("a", 1), TAIL, DONE])
    on = stage(upstream)
    await leaves(on, body(stream=True), factories.deployment(**VLLM))
    assert (on.event.outcome, on.event.usage_source, on.event.cost_nusd) == (
        Outcome.CLIENT_GONE,
        UsageSource.UNKNOWN,
        None,
    )
    assert on.event.held_nusd
    assert upstream.closed == 1


async def test_a_plain_answer_of_an_engine_is_known_though_its_caller_left() -> None:
    """It is streamed from the engine, so running usage shows the tokens until then."""
    upstream = FakeUpstreamAnswer([piece("a", 1), piece("b", 2), TAIL, DONE])
    on = stage(upstream)
    await leaves(on, body(), factories.deployment(**VLLM, capabilities=frozenset()), at=2)
    assert (on.event.outcome, on.event.usage_source, on.event.usage.output_tokens) == (
        Outcome.CLIENT_GONE,
        UsageSource.DERIVED,
        2,
    )
    assert upstream.closed == 1


@pytest.mark.parametrize(("streams", "at"), [(True, 0), (True, 1), (False, 0)])
async def test_an_abandoned_answer_that_is_billed_anyway_is_read_to_its_end(
    streams: bool, at: int
) -> None:
    """A paid provider continues and bills the answer: its final figure is the team's charge."""
    pieces = [piece("a"), piece("b"), TAIL, DONE] if streams else [WHOLE[:20], WHOLE[20:]]
    upstream = FakeUpstreamAnswer(pieces)
    on = stage(upstream)
    await leaves(on, body(stream=streams), at=at)
    await soon(lambda: on.journal.events, "the event")
    assert (on.event.outcome, on.event.usage_source) == (Outcome.CLIENT_GONE, UsageSource.PROVIDER)
    assert (on.event.cost_nusd, upstream.closed, on.counter.asked) == (
        18_000 if streams else 30_000,
        1,
        0,
    )


@pytest.mark.parametrize(
    ("limits", "provider", "expected"),
    [
        ({"events": 0}, "openai", (UsageSource.UNKNOWN, None)),
        ({"seconds": 0.01}, "openai", (UsageSource.UNKNOWN, None)),
        ({"events": 0}, "llamacpp", (UsageSource.ESTIMATED, 14_000)),
    ],
)
async def test_an_abandoned_answer_that_is_not_read_to_its_end(
    limits: dict[str, float], provider: str, expected: tuple[UsageSource, int | None]
) -> None:
    """Its provider goes on and bills the rest: unknown, at its hold. An engine of our own stops,
    and our count of the seen part is the only one, marked so.
    """
    counted = Counted(usage=TokenUsage(input_tokens=10, output_tokens=1), is_exact=False)
    on = Stage(
        FakeTransport([FakeUpstreamAnswer([piece("a"), piece("b"), TAIL, DONE])]),
        counter=FakeCounter(counted),
        limits=DrainLimits(**({"answers": 5, "seconds": 60, "events": 99} | limits)),
    )
    deployment = factories.deployment(provider=provider)
    await leaves(on, body(stream=True), deployment, at=1, stalls="seconds" in limits)
    await soon(lambda: on.journal.events, "the event")
    assert on.event.outcome == Outcome.CLIENT_GONE
    assert (on.event.usage_source, on.event.cost_nusd) == expected


async def test_a_stopping_replica_settles_at_once_and_says_why() -> None:
    """There is no caller to read on for, and the caller did not leave."""
    on = stage(FakeUpstreamAnswer([piece("a", 1), piece("b", 2), TAIL, DONE]))
    on.is_stopping = True
    await leaves(on, body(stream=True), factories.deployment(**VLLM), at=2)
    assert (on.event.outcome, on.event.usage_source) == (
        Outcome.GATEWAY_STOPPED,
        UsageSource.DERIVED,
    )


async def test_closing_settles_running_drains() -> None:
    """A shutdown ends a drain at once: settled, once, by the observed usage."""
    upstream = FakeUpstreamAnswer([piece("a"), piece("b"), TAIL, DONE])
    on = stage(upstream)
    await leaves(on, body(stream=True), at=1, stalls=True)
    assert (on.journal.events, upstream.closed) == ([], 0)
    await on.abandoned.close()
    assert (on.event.outcome, on.event.usage_source) == (Outcome.CLIENT_GONE, UsageSource.ESTIMATED)
    assert upstream.closed
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nobody reads on"


async def test_closing_settles_counts_that_have_not_started() -> None:
    """A task that is cancelled before its first step runs nothing, not even its cleanup."""
    on = stage(FakeUpstreamAnswer([piece("a")]))
    answer = await on.answer(body(stream=True))
    await pieces_of(answer)
    assert on.journal.events == []
    await on.abandoned.close()
    assert (on.event.outcome, on.event.usage_source) == (
        Outcome.UPSTREAM_CUT,
        UsageSource.ESTIMATED,
    )


async def test_an_intent_is_durable_before_anything_is_sent() -> None:
    """A crash after the first byte must find the attempt and its maximum cost."""
    on = stage(FakeUpstreamAnswer([WHOLE]))
    on.journal.admission = asyncio.Event()
    task = asyncio.create_task(on.answer(body()))
    await soon(lambda: on.journal.intents, "the intent")
    (intent,) = on.journal.intents
    assert on.transport.sent == []
    on.journal.admission.set()
    await task
    assert len(on.transport.sent) == 1
    event = intent.event
    assert (event.outcome, event.usage_source, event.cost_nusd) == (
        Outcome.INTERRUPTED,
        UsageSource.UNKNOWN,
        None,
    )
    assert event.key == on.event.key
    assert (event.held_nusd or 0) >= (on.event.cost_nusd or 0) > 0


async def test_a_disconnect_before_the_intent_is_durable_sends_nothing() -> None:
    """Its attempt is closed at zero: the record of it may have reached the disk."""
    on = stage(FakeUpstreamAnswer([WHOLE]))
    on.journal.admission = asyncio.Event()
    task = asyncio.create_task(on.answer(body()))
    await soon(lambda: on.journal.intents, "the intent")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (on.event.outcome, on.event.cost_nusd, on.transport.sent) == (Outcome.CLIENT_GONE, 0, [])


async def test_a_full_journal_admits_nothing() -> None:
    """An attempt that cannot be recorded is not sent, and no other deployment is tried."""
    on = stage(FakeUpstreamAnswer([WHOLE]))
    on.journal.refuses = JournalFull("full")
    with pytest.raises(JournalFull):
        await on.answer(body(), factories.deployment("one"), factories.deployment("two"))
    assert (on.journal.events, on.transport.sent) == ([], [])


async def test_running_usage_is_noted_for_a_crash() -> None:
    """A stream's tokens so far are on disk before it ends, and no longer once it is settled."""
    on = stage(FakeUpstreamAnswer([piece("a", 1), piece("b", 2), TAIL, DONE]))
    answer = await on.answer(body(stream=True), factories.deployment(**VLLM))
    await soon(lambda: on.journal.progress, "progress")
    (running,) = on.journal.progress[0].values()
    assert (running.input_tokens, running.output_tokens) == (10, 1)
    await rest_of(answer)


async def test_an_unforeseen_error_is_settled_too() -> None:
    """Every way out of an attempt leaves an event, our own mistakes included."""
    on = stage(FakeUpstreamAnswer([], then=ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        await on.answer(body())
    assert (on.event.outcome, on.event.usage_source) == (Outcome.GATEWAY_ERROR, UsageSource.UNKNOWN)


async def test_an_unforeseen_error_in_a_stream_is_settled_too() -> None:
    """Part of the answer is with the caller already: its attempt must not stay open until the
    process ends.
    """
    upstream = FakeUpstreamAnswer([piece("a", 1)], then=ZeroDivisionError())
    on = stage(upstream)
    answer = await on.answer(body(stream=True), factories.deployment(**VLLM))
    with pytest.raises(ZeroDivisionError):
        await rest_of(answer)
    assert (on.event.outcome, on.event.usage_source) == (Outcome.GATEWAY_ERROR, UsageSource.DERIVED)
    assert upstream.closed


@pytest.mark.parametrize("refusal", [InvalidRequest("too long"), OSError("the disk broke")])
async def test_an_attempt_without_an_intent_is_neither_sent_nor_settled(
    refusal: Exception,
) -> None:
    """Without an intent there is no room for a settlement, and nothing that one could be about."""
    on = stage(FakeUpstreamAnswer([WHOLE]))
    on.journal.refuses = refusal
    with pytest.raises(type(refusal)):
        await on.answer(body())
    assert (on.journal.events, on.transport.sent) == ([], [])


async def test_a_missing_credential_sends_nothing() -> None:
    """The next deployment may have its own."""
    on = stage(FakeUpstreamAnswer([WHOLE]))
    one = factories.deployment("one", api_key="env:TOLLGATE_TEST_NOT_SET")
    await on.answer(body(), one, factories.deployment("two"))
    assert [(e.deployment, e.usage_source) for e in on.journal.events] == [
        ("one", UsageSource.NONE),
        ("two", UsageSource.PROVIDER),
    ]
    assert len(on.transport.sent) == 1


async def test_at_most_so_many_attempts() -> None:
    """Every loop has a bound."""
    on = stage(*[FakeUpstreamAnswer([b"{}"], status=500) for _ in range(5)])
    with pytest.raises(UpstreamError) as caught:
        await on.answer(body(), *[factories.deployment(f"d{i}") for i in range(5)])
    assert (len(on.journal.events), caught.value.attempts) == (3, 3)


async def test_a_refused_decision_sends_nothing_and_makes_no_event() -> None:
    """No attempt, no event: nothing could have been consumed."""
    on = stage()
    with pytest.raises(InvalidRequest):
        await on.answer(body(priority=1))
    assert on.journal.events == []


async def test_settling_twice_charges_once() -> None:
    """The relay's end and an exception handler may both settle; the second changes nothing."""
    on = stage(FakeUpstreamAnswer([WHOLE]))
    answer = await on.answer(body())
    assert answer.attempt.settle(Outcome.GATEWAY_ERROR) is on.event
    assert on.event.outcome is Outcome.OK


@pytest.mark.parametrize(
    ("members", "changes", "output_bound"),
    [
        ({"max_tokens": 7}, {"max_output_tokens": 9, "context_window": 11}, 7),
        ({"max_tokens": 7, "n": 3}, {}, 21),
        ({}, {"max_output_tokens": 9, "context_window": 11}, 9),
        ({}, {"context_window": 11}, 11),
        ({}, {}, UNBOUNDED_OUTPUT_TOKENS),
    ],
)
async def test_a_hold_is_the_upper_bound_of_the_attempt(
    members: dict[str, Any], changes: dict[str, Any], output_bound: int
) -> None:
    """Input in bytes plus the template's tokens, output as the first that bounds it, times the
    choices.
    """
    on = once(FakeUpstreamAnswer(fails=UpstreamTimeout("x")))
    sent = body(**members)
    with pytest.raises(UpstreamTimeout):
        await on.answer(sent, factories.deployment(**changes))
    input_bound = min(len(sent) + 64, changes.get("context_window", 10**6))
    assert (
        0 <= (on.event.held_nusd or 0) - (input_bound * 1000 + output_bound * 4000) <= A_NUSD_A_LINE
    )
    assert on.event.features["input_bound_tokens"] == input_bound


async def test_embeddings_hold_no_output() -> None:
    """They write nothing."""
    on = once(FakeUpstreamAnswer(fails=UpstreamTimeout("x")))
    sent = b'{"model":"assistant","input":"x"}'
    with pytest.raises(UpstreamTimeout):
        await on.answer(sent, operation=Operation.EMBEDDINGS)
    assert 0 <= (on.event.held_nusd or 0) - (len(sent) + 64) * 1000 <= A_NUSD_A_LINE


async def test_every_attempt_has_its_own_permit() -> None:
    """A retry needs leave as the first try did."""
    on = stage(FakeUpstreamAnswer([b"{}"], status=500), FakeUpstreamAnswer([WHOLE]))
    await on.answer(
        body(),
        factories.deployment("one"),
        factories.deployment("two", base_url="http://127.0.0.1:10/v1"),
    )
    assert [(permit.attempt, permit.origin) for permit, _ in on.transport.sent] == [
        (1, "http://127.0.0.1:9"),
        (2, "http://127.0.0.1:10"),
    ]


def test_the_fake_read_body_is_a_real_one() -> None:
    """The factory understands bodies as the edge does."""
    assert isinstance(factories.read(), RequestBody)


# ---- the place that the upstream reports


GEO = json.dumps(
    {
        "id": "c-1",
        "model": "m-1",
        "choices": [{"finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "inference_geo": "us"},
    }
).encode()


@pytest.mark.parametrize(
    "answered",
    [
        FakeUpstreamAnswer([GEO]),
        FakeUpstreamAnswer(
            [WHOLE], headers={"content-type": "application/json", "x-ms-region": "East US"}
        ),
    ],
    ids=["usage", "header"],
)
async def test_an_answer_from_elsewhere_is_flagged_and_its_deployment_not_used_again(
    answered: FakeUpstreamAnswer,
) -> None:
    """Its bytes have left already: the gateway can only report it, raise an alarm, and never
    send there again.
    """
    on = stage(answered, FakeUpstreamAnswer([WHOLE]))
    here = [factories.deployment("liar", region="eu"), factories.deployment("honest", region="eu")]
    await on.answer(body(), *here)
    assert on.event.deployment == "liar"
    assert on.event.is_suspect
    assert on.event.decision["stated"] == "us"
    assert on.ejections.out({}) == {"liar": "us"}
    on.journal.events.clear()
    await on.answer(body(), *here)
    assert on.event.deployment == "honest"
    with pytest.raises(ResidencyDenied, match="policy readmit"):
        await on.answer(body(), here[0])


async def test_an_answer_from_the_promised_region_is_no_contradiction() -> None:
    """Sweden is in the Union: that is no contradiction, and most answers say nothing at all."""
    headers = {"content-type": "application/json", "x-ms-region": "Sweden Central"}
    on = stage(FakeUpstreamAnswer([WHOLE], headers=headers))
    await on.answer(body(), factories.deployment(region="eu"))
    assert not on.event.is_suspect
    assert "stated" not in on.event.decision
    assert on.ejections.out({}) == {}


async def test_a_shadow_route_is_ranked_and_never_followed() -> None:
    """The hypothetical first one is in the event; the request goes to its usual deployment."""
    on = stage(FakeUpstreamAnswer([WHOLE]), FakeUpstreamAnswer([WHOLE]))
    used, other = factories.deployment("used"), factories.deployment("other", is_self_hosted=True)
    document = factories.policy(used, other)
    route = replace(
        document.routes["assistant"], deployments=("used",), shadow_deployments=("other", "used")
    )
    read = factories.read(body())
    snapshot = factories.snapshot(document=replace(document, routes={"assistant": route}))
    request = factories.request(read)
    await on.service().answer(
        request, snapshot, terms=factories.terms(snapshot, request), received_s=on.clock.monotonic()
    )
    assert on.event.deployment == "used"
    assert on.event.decision["shadow_ranked"] == ["other", "used"]
    assert on.event.decision["ranked"] == ["used"]


async def test_a_readmission_takes_effect_without_another_policy() -> None:
    """Reported, and readmitted before a snapshot had it: nothing else changes, so the decision
    itself must be made again.
    """
    headers = {"content-type": "application/json", "x-ms-region": "East US"}
    on = stage(FakeUpstreamAnswer([WHOLE], headers=headers), FakeUpstreamAnswer([WHOLE]))
    read = factories.read(body())
    snapshot = factories.snapshot(
        document=factories.policy(factories.deployment("liar", region="eu"))
    )
    request, service = factories.request(read), on.service()

    async def answer() -> CallerAnswer:
        on.journal.events.clear()
        terms = factories.terms(snapshot, request)
        return await service.answer(request, snapshot, terms=terms, received_s=on.clock.monotonic())

    await answer()
    running = asyncio.create_task(on.ejections.run())
    await soon(lambda: bool(on.ejection_store.ejected), "told")
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(ResidencyDenied, match="out of use"):
        await answer()
    on.clock.advance(FORGOTTEN_AFTER_S + 1)
    assert (await answer()).attempt.event is not None
