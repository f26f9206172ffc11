"""Upstreams whose plain answer breaks off on its way: it was bought up to three times, though its
bytes had arrived, even its whole usage.
"""

from __future__ import annotations

import pytest

from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import RequestError, UpstreamError, UpstreamTimeout
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import WHOLE, body, stage

TWO = (factories.deployment("one"), factories.deployment("two"))


@pytest.mark.parametrize("then", [UpstreamError("it is cut"), UpstreamTimeout("it stalls")])
@pytest.mark.parametrize(
    ("part", "cost_nusd"),
    [(WHOLE, 30_000), (WHOLE[:1], None), (b"\x1f\x8b", None), (b"<html>", None)],
)
async def test_an_answer_of_which_a_part_came_is_bought_once(
    then: RequestError, part: bytes, cost_nusd: int | None
) -> None:
    on = stage(FakeUpstreamAnswer([part], then=then), FakeUpstreamAnswer([WHOLE]))
    with pytest.raises(type(then)):
        await on.answer(body(max_tokens=50), *TWO)
    (event,) = on.journal.events
    is_known = cost_nusd is not None
    assert (event.cost_nusd, event.is_suspect) == (cost_nusd, False)
    assert event.usage_source is (UsageSource.PROVIDER if is_known else UsageSource.UNKNOWN)


@pytest.mark.parametrize("pieces", [[], [b"\n", b"  "]])
async def test_an_answer_of_which_nothing_came_is_tried_elsewhere(pieces: list[bytes]) -> None:
    """A proxy may send blanks while it waits for the upstream."""
    on = stage(FakeUpstreamAnswer(pieces, then=UpstreamError("cut")), FakeUpstreamAnswer([WHOLE]))
    answer = await on.answer(body(max_tokens=50), *TWO)
    assert answer.attempt.number == 2
    assert [event.cost_nusd for event in on.journal.events] == [None, 30_000]
