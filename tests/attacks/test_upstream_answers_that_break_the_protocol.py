"""A 200 in malformed HTTP, or in a coding that is broken, was asked for three times: whatever
begins with a status line of success was bought.
"""

from __future__ import annotations

import gzip

import pytest

from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import UpstreamError
from gateway.providers.http1.errors import AnswerFailed, AnswerMalformed
from gateway.providers.transport import answer_error
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import WHOLE, Stage, body, piece, stage

TWO = (factories.deployment("one"), factories.deployment("two"))


def malformed(status: int = 200) -> UpstreamError:
    """Return the error of a malformed answer with a status."""
    failed: AnswerFailed = AnswerMalformed("It cannot be read: two lengths.", status=status)
    error = answer_error(failed)
    assert isinstance(error, UpstreamError)
    return error


async def refused(on: Stage, *, is_stream: bool) -> None:
    """Ask for a chat that has no answer."""
    with pytest.raises(UpstreamError):
        await on.answer(body(max_tokens=50, stream=is_stream), *TWO)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_head_that_cannot_be_read_is_bought_once(is_stream: bool) -> None:
    on = stage(*(FakeUpstreamAnswer(fails=malformed()) for _ in range(3)))
    await refused(on, is_stream=is_stream)
    assert len(on.transport.sent) == 1
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.UNKNOWN, None)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_body_that_cannot_be_read_is_bought_once(is_stream: bool) -> None:
    on = stage(*(FakeUpstreamAnswer(then=malformed()) for _ in range(3)))
    await refused(on, is_stream=is_stream)
    assert len(on.transport.sent) == 1
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.UNKNOWN, None)


async def test_the_usage_in_front_of_the_fault_counts() -> None:
    on = stage(FakeUpstreamAnswer([WHOLE], then=malformed()))
    await refused(on, is_stream=False)
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.PROVIDER, 30_000)


async def test_one_without_a_status_of_success_is_tried_elsewhere() -> None:
    on = stage(FakeUpstreamAnswer(fails=malformed(0)), FakeUpstreamAnswer([WHOLE]))
    assert (await on.answer(body(max_tokens=50), *TWO)).attempt.number == 2


async def test_a_stream_whose_coding_is_broken_is_bought_once() -> None:
    broken = gzip.compress(piece("a"))[:10] + b"\xff" * 20
    on = stage(*(FakeUpstreamAnswer([broken]) for _ in range(3)))
    await refused(on, is_stream=True)
    assert len(on.transport.sent) == 1
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.UNKNOWN, None)
