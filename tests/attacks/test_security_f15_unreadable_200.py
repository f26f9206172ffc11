"""Security F15: an unreadable 200 was tried three times and billed three times."""

from __future__ import annotations

import gzip

import pytest

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import UpstreamError
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import WHOLE, body, stage
from tests.waiting import soon

EMBEDDINGS = b'{"model":"assistant","input":["a","b"]}'


UNREADABLE = (
    gzip.compress(b"<html>", mtime=0),
    *(b"<html>", b"[]", b"\xff\xfe", b"", WHOLE[:-1]),
)


@pytest.mark.parametrize("whole", UNREADABLE)
async def test_it_is_asked_once_and_booked(whole: bytes) -> None:
    """An upstream that answered with success did the work."""
    on = stage(*(FakeUpstreamAnswer([whole]) for _ in range(3)))
    with pytest.raises(UpstreamError, match="not asked again"):
        await on.answer(body(), factories.deployment("one"), factories.deployment("two"))
    await soon(lambda: on.journal.events, "the event")
    assert len(on.transport.sent) == 1
    assert on.event.usage_source is UsageSource.UNKNOWN


@pytest.mark.parametrize("whole", [b"<html>", b"[]", b'{"data":[{"embedding":[1,', b""])
async def test_embeddings_that_cannot_be_read_are_estimated_by_their_input(whole: bytes) -> None:
    """Embeddings have no output; when the answer's size was counted as output, they stood at
    their hold.
    """
    on = stage(FakeUpstreamAnswer([whole]))
    deployment = factories.deployment(operations=frozenset(Operation))
    with pytest.raises(UpstreamError, match="not asked again"):
        await on.answer(EMBEDDINGS, deployment, operation=Operation.EMBEDDINGS)
    await soon(lambda: on.journal.events, "the event")
    assert on.event.usage_source is UsageSource.ESTIMATED


async def test_an_answer_that_is_too_large_is_asked_for_once() -> None:
    """Three times 64 MiB were read and dropped."""
    error = UpstreamError("larger than")
    error.is_final = True
    on = stage(*(FakeUpstreamAnswer([b"{"], then=error) for _ in range(3)))
    with pytest.raises(UpstreamError):
        await on.answer(body(), factories.deployment("one"), factories.deployment("two"))
    assert len(on.transport.sent) == 1
