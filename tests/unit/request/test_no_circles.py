"""A finished request leaves nothing for the garbage collector: its objects go with the last
reference.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.errors import Unavailable, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from gateway.services.deployments.state import DeploymentHealth, Slot
from gateway.services.request.attempt import Attempt
from gateway.wire.observed import Observed
from tests import factories
from tests.fakes import FakeTransport, FakeUpstreamAnswer
from tests.unit.request.test_idempotency import FakeClaims
from tests.unit.request.test_idempotency import Stage as KeyedStage
from tests.unit.request.test_request_service import TAIL, WHOLE, Stage, body, piece, rest_of

ENGINE = factories.deployment("engine", provider="vllm", is_self_hosted=True)
OTHER = factories.deployment("other")


async def whole(on: Stage) -> None:
    on.transport.answers[:] = [FakeUpstreamAnswer([WHOLE])]
    await on.answer(body(), ENGINE, OTHER)


async def streamed(on: Stage) -> None:
    on.transport.answers[:] = [FakeUpstreamAnswer([piece("a"), TAIL])]
    await rest_of(await on.answer(body(stream=True), ENGINE, OTHER))


async def left(on: Stage) -> None:
    on.transport.answers[:] = [FakeUpstreamAnswer([piece("a"), piece("b"), TAIL])]
    answer = await on.answer(body(stream=True), ENGINE, OTHER)
    assert answer.rest is not None
    await answer.rest.aclose()
    await on.abandoned.close()


async def tried_elsewhere(on: Stage) -> None:
    on.transport.answers[:] = [UpstreamUnreachable("x"), FakeUpstreamAnswer([WHOLE])]
    await on.answer(body(), ENGINE, OTHER)


async def failed(on: Stage) -> None:
    on.transport.answers[:] = [FakeUpstreamAnswer(fails=UpstreamTimeout("x")) for _ in range(3)]
    try:
        await on.answer(body(), ENGINE, OTHER)
    except UpstreamTimeout as error:
        error.with_traceback(None)  # as the edge does
    else:
        pytest.fail("all fail")


async def cut(on: Stage) -> None:
    on.transport.answers[:] = [FakeUpstreamAnswer([piece("a")], then=UpstreamError("x"))]
    await rest_of(await on.answer(body(stream=True), ENGINE, OTHER))


@pytest.fixture
def collector() -> Iterator[None]:
    """Return a collector that runs on demand and shows its findings; it leaves out the objects of
    earlier tests, which would take it a second each time.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.parametrize("happens", [whole, streamed, left, tried_elsewhere, failed, cut])
async def test_a_request_leaves_no_circle(
    collector: None, happens: Callable[[Stage], Awaitable[None]]
) -> None:
    """Else each keeps its body and its event in memory until the collector comes by, and then all
    wait for that.
    """
    on = Stage(FakeTransport([]), health=DeploymentHealth())
    for _ in range(3):
        gc.collect()
        gc.garbage.clear()  # the first of its kind also makes cached objects
        await happens(on)
        on.journal.events.clear()  # the requests here have one id
    gc.collect()
    found = Counter(
        type(one) for one in gc.garbage if isinstance(one, (Attempt, Slot, Observed, UsageEvent))
    )
    assert not found


BODIES = [b"keyed body %d" % number for number in range(3)]


async def test_a_claim_that_fails_leaves_no_circle(collector: None) -> None:
    """While Postgres is away each keyed request would keep its body, of megabytes, in memory."""
    on = KeyedStage(FakeClaims(is_away=True))
    for number in range(3):
        gc.collect()
        gc.garbage.clear()
        try:
            await on.claim(number + 1, body=BODIES[number])
        except Unavailable as error:
            error.with_traceback(None)  # as the edge does
        else:
            pytest.fail("Postgres is away")
        await asyncio.sleep(0)  # the release of a late claim runs as a callback
    gc.collect()
    bodies = [
        one
        for owner in gc.garbage
        for one in gc.get_referents(owner)
        if type(one) is bytes and one in BODIES
    ]
    assert bodies == []
    await on.claims.close()
