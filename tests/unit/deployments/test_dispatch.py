"""Failover: which attempts are repeated, at which deployment, how often, and when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gateway.domain.deployments.breaker import SILENT_IN_A_ROW
from gateway.domain.deployments.retry_budget import FLOOR_PER_S, HELD_S
from gateway.domain.policy.policy import Route
from gateway.domain.request.request import Request
from gateway.domain.routing.decide import Decision, Ranking
from gateway.errors import (
    ContextLengthExceeded,
    JournalFull,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RequestError,
    UpstreamAuth,
    UpstreamError,
    UpstreamNotCalled,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.services.deployments.estimates import Estimates
from gateway.services.deployments.state import DeploymentHealth
from gateway.services.request.service import CallerAnswer, RequestService
from tests import factories
from tests.fakes import FakeTransport, FakeUpstreamAnswer
from tests.unit.request.test_request_service import DONE, TAIL, WHOLE, Stage, body, piece
from tests.waiting import soon

TOO_LONG = (
    b'{"error":{"message":"whatever it '
    b'says","type":"BadRequestError","code":"context_length_exceeded"}}'
)
QUOTA = (
    b'{"error":{"message":"whatever it '
    b'says","type":"insufficient_quota","code":"insufficient_quota"}}'
)
ERROR_EVENT = (
    b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}\n\n'
)


@dataclass
class Dispatch(Stage):
    """A stage that notes the pauses, during which its clock goes on."""

    pauses: list[float] = field(default_factory=list)
    opened: list[tuple[str, str]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    drawn: float = 0.5
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.health = DeploymentHealth(
            on_open=lambda name, why: self.opened.append((name, why)),
            on_close=self.closed.append,
            max_in_flight=50,
        )

    def service(self) -> RequestService:
        return replace(super().service(), draw=lambda: self.drawn, pause=self._pause)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(seconds)

    async def ask(self, *deployments: Any, stream: bool = False) -> CallerAnswer:
        read = factories.read(body(stream=stream))
        given = deployments or (factories.deployment(),)
        route = Route(
            name="assistant", deployments=tuple(one.name for one in given), timeout_s=self.timeout_s
        )
        snapshot = factories.snapshot(
            document=factories.policy(*given, routes={"assistant": route})
        )
        request = factories.request(read, request_id=factories.request_id(random=self._count()))
        return await self.service().answer(
            request,
            snapshot,
            terms=factories.terms(snapshot, request),
            received_s=self.clock.monotonic(),
        )

    def _count(self) -> int:
        return len(self.journal.intents)

    @property
    def places(self) -> list[str]:
        """The deployment of each attempt."""
        return [event.deployment for event in self.journal.events]


def dispatch(*answers: FakeUpstreamAnswer | RequestError, **how: Any) -> Dispatch:
    return Dispatch(FakeTransport(list(answers)), **how)


def says(status: int, text: bytes = b"{}", **headers: str) -> FakeUpstreamAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return FakeUpstreamAnswer([text], status=status, headers=named)


def ok() -> FakeUpstreamAnswer:
    return FakeUpstreamAnswer([WHOLE])


ONE, TWO = factories.deployment("one"), factories.deployment("two")


async def test_the_last_deployment_is_retried_after_a_random_pause() -> None:
    """A draw between nothing and twice as long each time: callers who failed together do not come
    back together.
    """
    on = dispatch(says(500), says(500), ok())
    answer = await on.ask()
    assert (answer.attempt.number, on.pauses) == (3, [0.05, 0.1])


async def test_another_deployment_comes_before_a_second_try_and_without_a_pause() -> None:
    """It has nothing to recover from."""
    on = dispatch(says(500), says(500), ok())
    await on.ask(ONE, TWO)
    assert (on.places, on.pauses) == (["one", "two", "one"], [0.1])


@pytest.mark.parametrize(
    ("headers", "pauses"),
    [
        ({"retry_after": "3"}, [3.0]),
        ({"retry_after": "0"}, []),
        ({"retry_after": "-7"}, []),
        ({"retry_after": "soon"}, [0.05]),
        ({"retry_after": "nan"}, [0.05]),
        (
            {
                "retry_after": "Fri, 20 Nov 2026 12:00:04 GMT",
                "date": "Fri, 20 Nov 2026 12:00:00 GMT",
            },
            [4.0],
        ),
        (
            {
                "retry_after": "Fri, 20 Nov 2026 11:00:00 GMT",
                "date": "Fri, 20 Nov 2026 12:00:00 GMT",
            },
            [],
        ),
        ({"retry_after": "Fri, 20 Nov 2026 12:00:04 GMT"}, [0.05]),
    ],
)
async def test_an_upstream_is_left_alone_as_long_as_it_asks(
    headers: dict[str, str], pauses: list[float]
) -> None:
    """Seconds or a date by its own clock; an unreadable value is ignored."""
    on = dispatch(says(429, **headers), ok())
    await on.ask()
    assert on.pauses == pauses


@pytest.mark.parametrize("asked", ["11", "9999", "inf"])
async def test_a_wait_that_is_too_long_is_refused_at_once(asked: str) -> None:
    """A request that sleeps holds a stream for nothing; the caller's own program waits better."""
    on = dispatch(says(429, retry_after=asked))
    with pytest.raises(RateLimited) as refused:
        await on.ask()
    assert (refused.value.attempts, on.pauses) == (1, [])
    assert refused.value.retry_after_s == min(float(asked), 120)


async def test_no_pause_ends_after_the_deadline() -> None:
    """The last second is not slept away to fail then."""
    on = dispatch(says(503, retry_after="5"), timeout_s=4)
    with pytest.raises(Overloaded):
        await on.ask()
    assert on.pauses == []


async def test_all_attempts_share_one_deadline() -> None:
    """`timeout_s` does not allow three attempts of ten minutes each."""
    on = dispatch(says(503, retry_after="5"), says(503, retry_after="4"), ok(), timeout_s=20)
    await on.ask()
    assert on.transport.given_s == [20, 15, 11]


async def test_a_request_past_its_deadline_is_not_sent() -> None:
    """It came with a body that took too long."""
    on = dispatch(ok(), timeout_s=0)
    with pytest.raises(UpstreamTimeout):
        await on.ask()
    assert on.transport.sent == []


async def test_a_timeout_is_repeated_once_and_elsewhere() -> None:
    """Each costs its caller a minute, and the upstream may have generated and billed a lost
    answer.
    """
    on = dispatch(*[FakeUpstreamAnswer(fails=UpstreamTimeout("x")) for _ in range(4)])
    with pytest.raises(UpstreamTimeout) as late:
        await on.ask(*map(factories.deployment, ("one", "two", "three")))
    assert (late.value.attempts, on.places) == (2, ["one", "two"])
    with pytest.raises(UpstreamTimeout) as late:
        await on.ask(factories.deployment())
    assert late.value.attempts == 1


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_credential_is_tried_elsewhere_only(status: int) -> None:
    """The same credential is not right the second time."""
    on = dispatch(says(status), says(500), ok())
    with pytest.raises(UpstreamAuth):
        await on.ask()


async def test_a_refused_credential_opens_the_breaker_at_once() -> None:
    """It spares the next caller that way.

    A 403 may be about one prompt: see test_security_f13_… in tests/attacks.
    """
    on = dispatch(says(401), ok(), ok())
    await on.ask(ONE, TWO)
    await on.ask(ONE, TWO)
    assert (on.places, on.opened) == (["one", "two", "two"], [("one", "upstream_auth")])


async def test_a_used_up_quota_shuts_a_deployment_off() -> None:
    """By its code, never by its words; an ordinary 429 does not."""
    on = dispatch(says(429, QUOTA), ok(), says(429), ok())
    await on.ask(ONE, TWO)
    await on.ask(TWO, ONE)
    assert on.opened == [("one", "rate_limited")]
    on = dispatch(says(429, QUOTA))
    with pytest.raises(QuotaExhausted):
        await on.ask()


@pytest.mark.parametrize("status", [302, 404])
async def test_a_permanent_refusal_is_tried_only_at_other_deployments(status: int) -> None:
    """A redirect and a model that is not there are no accidents."""
    unknown = b'{"error":{"param":"model"}}'
    on = dispatch(says(status, unknown), ok())
    await on.ask(ONE, TWO)
    assert on.places == ["one", "two"]
    on = dispatch(says(status, unknown), ok())
    with pytest.raises(UpstreamError):
        await on.ask()


async def test_a_prompt_that_is_too_long_goes_to_a_larger_window() -> None:
    """Not to one that is as small or whose size is unknown."""
    small = factories.deployment("small", context_window=1000)
    same = factories.deployment("same", context_window=1000)
    unknown = factories.deployment("unknown")
    large = factories.deployment("large", context_window=9000)
    on = dispatch(says(400, TOO_LONG), ok())
    await on.ask(small, same, unknown, large)
    assert on.places == ["small", "large"]
    on = dispatch(says(400, TOO_LONG))
    with pytest.raises(ContextLengthExceeded) as refused:
        await on.ask(small, same, unknown)
    assert refused.value.attempts == 1


async def test_an_error_as_the_first_thing_of_a_stream_is_tried_elsewhere() -> None:
    """vLLM that shuts down says 200, then this, then `[DONE]`: nothing has reached the caller
    yet.
    """
    on = dispatch(
        FakeUpstreamAnswer([ERROR_EVENT + DONE]), FakeUpstreamAnswer([piece("a"), TAIL, DONE])
    )
    answer = await on.ask(ONE, TWO, stream=True)
    assert b'"content":"a"' in answer.body.replace(b" ", b"")
    assert answer.attempt.number == 2
    assert (on.journal.events[0].outcome.value, on.places) == ("upstream_error", ["one"])


async def test_nothing_else_is_held_back() -> None:
    """A first chunk without content goes on at once: the caller sees that it has begun."""
    role = b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
    on = dispatch(FakeUpstreamAnswer([role, ERROR_EVENT, DONE]), ok())
    answer = await on.ask(ONE, TWO, stream=True)
    assert (answer.body, answer.attempt.number) == (role, 1)


async def test_the_first_token_is_noted_when_it_arrives() -> None:
    """Headers and a role are none: an engine answers 200 and then queues."""
    role = b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
    upstream = FakeUpstreamAnswer([role, piece("a"), TAIL, DONE])
    answer = await dispatch(upstream).ask(stream=True)
    assert not upstream.has_token
    assert answer.rest is not None
    await anext(answer.rest)
    assert upstream.has_token
    await answer.rest.aclose()


async def test_when_everything_fails_retries_are_a_tenth_and_a_floor() -> None:
    """The caller's SDK must not retry either, or its two retries would be the storm that ours
    avoid.
    """
    on = dispatch(*[says(429) for _ in range(5000)])
    useless = 0
    for _ in range(1000):
        with pytest.raises(RateLimited) as refused:
            await on.ask(ONE, TWO)
        useless += refused.value.is_retry_useless
    assert len(on.journal.events) <= 1000 * 1.1 + FLOOR_PER_S * HELD_S
    assert useless > 800


async def test_an_open_breaker_is_closed_by_one_successful_probe() -> None:
    """Callers do not pay for finding out, but for one of them when it may be back."""
    on = dispatch(
        *[
            UpstreamUnreachable("x") if turn % 2 == 0 else ok()
            for turn in range(SILENT_IN_A_ROW * 2)
        ]
    )
    for _ in range(SILENT_IN_A_ROW):
        await on.ask(ONE, TWO)
    assert on.opened == [("one", "upstream_unreachable")]
    on.transport.answers += [ok(), ok(), ok()]
    await on.ask(ONE, TWO)
    on.clock.advance(5)
    await on.ask(ONE, TWO)
    await on.ask(ONE, TWO)
    assert on.places[-3:] == ["two", "one", "one"]
    assert on.closed == ["one"]


async def test_a_probe_that_fails_is_the_only_one_for_a_while() -> None:
    """One caller finds out that it is not back, and then none for ten seconds."""
    on = dispatch(says(401), ok(), UpstreamUnreachable("x"), *[ok() for _ in range(9)])
    await on.ask(ONE, TWO)
    on.clock.advance(5)
    for _ in range(4):
        await on.ask(ONE, TWO)
    assert on.places == ["one", "two", "one", "two", "two", "two", "two"]
    on.clock.advance(9.5)
    await on.ask(ONE, TWO)
    assert on.closed == ["one"]


async def test_a_probe_whose_caller_leaves_gives_no_result() -> None:
    """The next one may be it."""
    on = dispatch(
        says(401),
        ok(),
        FakeUpstreamAnswer([piece("a"), TAIL, DONE], waits_for={0: asyncio.Event().wait}),
        ok(),
    )
    await on.ask(ONE, TWO)
    on.clock.advance(5)
    probe = asyncio.create_task(on.ask(ONE, TWO, stream=True))
    await soon(lambda: len(on.transport.sent) == 3, "the probe")
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    await on.abandoned.close()
    assert (await on.ask(ONE, TWO)).attempt.candidate.deployment.name == "one"


async def test_the_last_one_is_tried_whatever_its_breaker_says() -> None:
    """It may do; without it an error is certain."""
    on = dispatch(says(401), ok())
    with pytest.raises(UpstreamAuth):
        await on.ask()
    await on.ask()
    assert on.closed == ["one"]


async def test_an_open_breaker_allows_no_second_attempt() -> None:
    """One attempt finds out whether it is back; three would be two too many."""
    on = dispatch(*[UpstreamUnreachable("x") for _ in range(20)])
    attempts = []
    for _ in range(4):
        with pytest.raises(UpstreamUnreachable) as failed:
            await on.ask()
        attempts.append(failed.value.attempts)
    assert attempts == [3, 2, 1, 1]


async def test_errors_of_our_own_say_nothing_of_a_deployment() -> None:
    """No connection to spare is our lack, not its failure."""
    on = dispatch(*[UpstreamNotCalled("x") for _ in range(30)])
    for _ in range(10):
        with pytest.raises(UpstreamNotCalled):
            await on.ask()
    assert on.opened == []


async def test_a_deployment_at_a_new_address_has_a_new_breaker() -> None:
    """An admin who fixes the address does not wait for the old one's breaker."""
    on = dispatch(says(401), ok(), ok())
    await on.ask(ONE, TWO)
    await on.ask(factories.deployment("one", base_url="http://127.0.0.1:10/v1"), TWO)
    assert on.places == ["one", "two", "one"]


async def test_a_full_deployment_is_passed_over() -> None:
    """A hung deployment must not take every stream of this worker."""
    narrow = factories.deployment("one", max_in_flight=1)
    held = FakeUpstreamAnswer([piece("a"), TAIL, DONE])
    on = dispatch(held, ok(), ok())
    first = await on.ask(narrow, TWO, stream=True)
    await on.ask(narrow, TWO)
    with pytest.raises(Overloaded, match="one has as many requests under way here as it may"):
        await on.ask(narrow)
    assert first.rest is not None
    await first.rest.aclose()
    await on.abandoned.close()
    await on.ask(narrow, TWO)
    assert on.places.count("two") == 1
    assert on.places[-1] == "one"


async def test_no_place_is_lost_however_an_attempt_ends() -> None:
    """A leak would shut a deployment off for ever: failed, not written down, without credential."""
    narrow = factories.deployment("one", max_in_flight=1)
    on = dispatch(UpstreamError("x"), UpstreamError("x"), UpstreamError("x"), ok(), max_attempts=1)
    for _ in range(3):
        with pytest.raises(UpstreamError):
            await on.ask(narrow)
    on.journal.refuses = JournalFull("full")
    with pytest.raises(JournalFull):
        await on.ask(narrow)
    on.journal.refuses = None
    assert await on.ask(narrow)
    (standing,) = on.health.states()
    assert not standing.under_way


async def test_names_removed_from_the_policy_are_forgotten() -> None:
    """Names of deployments and teams come and go for years; memory does not grow with them."""
    on = dispatch(ok())
    await on.ask()
    on.health.forget_but(factories.policy(TWO, teams={}))
    assert on.health.states() == []


class Degrading(Estimates):
    """An outlook for which a request's own route is too slow."""

    def rank(
        self, request: Request, decision: Decision, *, degrade: Callable[[], Decision] | None = None
    ) -> Ranking:
        assert degrade is not None, "the route has one to degrade to"
        return Ranking(decision=decision, choices=degrade().as_listed.choices)


async def test_the_route_to_degrade_to_is_decided_for_the_same_request() -> None:
    """Though the team may not ask for it by name: the admin wrote it.

    Its attempts come with its own decision.
    """
    small = factories.deployment("small")
    routes = {
        "assistant": Route(name="assistant", deployments=("one",), degrade_to="small"),
        "small": Route(name="small", deployments=("small",)),
    }
    on = dispatch(ok())
    read = factories.read(body())
    snapshot = factories.snapshot(document=factories.policy(ONE, small, routes=routes))
    request = factories.request(read)
    await replace(on.service(), estimates=Degrading(on.clock)).answer(
        request, snapshot, terms=factories.terms(snapshot, request), received_s=on.clock.monotonic()
    )
    assert [(event.route, event.deployment) for event in on.journal.events] == [
        ("assistant", "small")
    ]
