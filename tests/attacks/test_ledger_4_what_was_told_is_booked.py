"""Ledger 4: the settlement that an answer was told is the one that is booked. Without it, all tests passed."""

from __future__ import annotations

import json

from gateway.domain.money import plain_usd
from gateway.domain.tokens import UsageSource
from tests.fakes import FakeUpstreamAnswer
from tests.unit.test_request_service import DONE, body, piece, rest_of, stage

USAGE = b'data: {"model":"m-1","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":0}}\n\n'


async def test_a_cost_that_the_caller_was_told_is_booked() -> None:
    """Text behind the usage contradicts it; the caller has seen the figure, and its receipt must not differ."""
    on = stage(FakeUpstreamAnswer([USAGE, piece("late"), DONE]))
    sent = await rest_of(await on.answer(body(stream=True, stream_options={"include_usage": True})))
    told = json.loads(sent.split(b"\n\n")[0].removeprefix(b"data: "))["usage"]["cost_usd"]
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.PROVIDER, 10_000)
    assert plain_usd(10_000) == f"{told:.5f}"


async def test_what_no_caller_was_told_is_settled_by_all_that_is_known() -> None:
    """The same stream for a caller who did not ask for usage: a zero beside text cannot be true."""
    on = stage(FakeUpstreamAnswer([USAGE, piece("late"), DONE]))
    await rest_of(await on.answer(body(stream=True)))
    assert (on.event.usage_source, on.event.is_suspect) == (UsageSource.UNKNOWN, True)
