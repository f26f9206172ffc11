"""Ledger 4: the settlement that an answer shows is the one that is booked, unless the answer says
more afterwards.

When the code for this was removed, all other tests still passed.
"""

from __future__ import annotations

import json

import pytest

from gateway.domain.money import plain_usd
from gateway.domain.pricing.tokens import UsageSource
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import DONE, body, piece, rest_of, stage

USAGE = (
    b'data: {"model":"m-1","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":%d}}\n\n'
)
LATE_TIER = b'data: {"model":"m-1","choices":[],"service_tier":"batch"}\n\n'
WITH_USAGE = {"stream_options": {"include_usage": True}}


async def test_the_cost_shown_to_the_caller_is_booked() -> None:
    """The caller has seen a cost, and its receipt must match."""
    on = stage(FakeUpstreamAnswer([piece("a"), USAGE % 1, DONE]))
    sent = await rest_of(await on.answer(body(stream=True, **WITH_USAGE)))
    shown_cost = json.loads(sent.split(b"\n\n")[1].removeprefix(b"data: "))["usage"]["cost_usd"]
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.PROVIDER, 14_000)
    assert plain_usd(14_000) == f"{shown_cost:.6f}"
    assert not on.event.is_suspect


@pytest.mark.parametrize("options", [WITH_USAGE, {}])
async def test_a_stream_that_says_more_after_its_cost_is_flagged(
    options: dict[str, object],
) -> None:
    """A tier without a price is named after the usage. The provider bills by it, and whether the
    caller was shown a cost may not decide the booking.
    """
    on = stage(FakeUpstreamAnswer([piece("a"), USAGE % 1, LATE_TIER, DONE]))
    await rest_of(await on.answer(body(stream=True, **options)))
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.UNKNOWN, None)
    assert (on.event.service_tier, on.event.is_suspect) == ("batch", True)


@pytest.mark.parametrize("options", [WITH_USAGE, {}])
async def test_a_figure_that_content_follows_is_not_booked(options: dict[str, object]) -> None:
    """Such a figure does not cover the whole answer. When the gateway believed a zero there,
    every stream was free.
    """
    on = stage(FakeUpstreamAnswer([USAGE % 0, piece("late"), DONE]))
    await rest_of(await on.answer(body(stream=True, **options)))
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.ESTIMATED, 14_000)
