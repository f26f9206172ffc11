"""Issue 16: a caller that closed on receiving the upstream's error event turned `upstream_error`
into `client_gone`.
"""

from __future__ import annotations

import pytest

from gateway.domain.ledger.usage_event import Outcome
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import body, piece, stage
from tests.waiting import soon

ERROR = b'data: {"error":{"message":"gone","code":500}}\n\n'


@pytest.mark.parametrize("own", [True, False])
async def test_it_stays_an_upstream_error(own: bool) -> None:
    """docs/reference/outcomes.md states this outcome for any time at which the caller closes."""
    upstream = FakeUpstreamAnswer([piece("a", 1), ERROR, piece("b", 2)])
    on = stage(upstream)
    answer = await on.answer(
        body(stream=True), factories.deployment(provider="vllm", is_self_hosted=own)
    )
    assert answer.rest is not None
    assert b'"error"' in await anext(answer.rest)
    await answer.rest.aclose()
    await soon(lambda: on.journal.events, "the event")
    assert on.event.outcome is Outcome.UPSTREAM_ERROR
