"""Ledger 1.2: an attempt is settled despite any failure on the way, and one odd figure stops
only its own notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from gateway.domain.ledger.records import Intent
from gateway.domain.ledger.usage_event import Key, Outcome, UsageEvent
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.services.request.meter import Meter
from tests import factories
from tests.attacks.settling import DONE, ask, policy
from tests.fakes import FakeJournal, FakeTransport, FakeUpstreamAnswer
from tests.gateway_process import StartGateway
from tests.integration.raw_upstream import STREAM, RawUpstream, event, raw_upstream, sends
from tests.storage.factories import event as an_event
from tests.unit.request.test_request_service import TAIL, WHOLE, Stage, body, piece, rest_of


def running(figure: bytes) -> bytes:
    return event(
        b'{"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"a"}}],"usage":'
        + figure
        + b"}"
    )


ODD = b'{"prompt_tokens":1e400}'
UPSTREAM = {
    "odd": sends(STREAM, running(ODD), running(ODD)),
    "good": sends(STREAM, running(ODD), DONE),
}


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    yield from raw_upstream(UPSTREAM)


def test_a_figure_out_of_range_is_settled_and_the_stream_ends(
    start_gateway: StartGateway, upstream: RawUpstream
) -> None:
    """There was no event, the hold remained, the key stayed in use, and the stream broke without
    an error.
    """
    limits = ", limits: {concurrent: 1}, budgets: [{period: month, limit_usd: 10, kind: hard}]"
    gateway = start_gateway(policy(upstream.url, {"odd": "vllm", "good": "vllm"}, extra=limits))
    # the key has one slot: a request that stays open refuses the next
    for model in ("odd", "odd", "good"):
        answer = ask(gateway, model, stream=True, headers={"idempotency-key": str(uuid4())})
        assert answer.status_code == 200, answer.text
        (row,) = gateway.events(answer.headers["x-request-id"])
        assert row["outcome"] == ("ok" if model == "good" else "upstream_cut")
        assert ('"code":"upstream_error"' in answer.text) == (model == "odd")
    assert not [line for line in gateway.log_lines() if line["event"] == "request_failed"]


def _broken() -> TokenUsage | None:
    """The usage of an attempt in flight that cannot be read."""
    raise RuntimeError("odd")


@dataclass
class _RefusesLongNumbers(FakeJournal):
    """A journal that cannot write an implausible figure."""

    def note_progress(self, running: Mapping[Key, TokenUsage]) -> None:
        if not all(usage.is_plausible for usage in running.values()):
            raise OverflowError("too long")
        super().note_progress(running)


def test_one_odd_figure_costs_the_other_streams_no_note() -> None:
    """The loop died, and after a `kill -9` healthy streams were unknown at their holds."""
    on = Stage(FakeTransport([]), journal=_RefusesLongNumbers())
    good, odd = TokenUsage(input_tokens=10, output_tokens=3), TokenUsage(input_tokens=10**30)
    keys: list[Key] = [(uuid4(), 1) for _ in range(3)]
    on.meter._live.update(zip(keys, (_broken, lambda: odd, lambda: good), strict=True))
    with capture_logs() as lines:
        on.meter._note_running_usage()
    assert on.journal.progress == [{keys[2]: good}]
    assert [line["event"] for line in lines] == ["usage_not_readable", "progress_not_noted"]


@dataclass
class _RefusesCosts(FakeJournal):
    """A journal that refuses an event with a cost, or every event if it `is_broken`."""

    is_broken: bool = False

    def settle(self, event: UsageEvent) -> bytes:
        if event.cost_nusd is not None or self.is_broken:
            raise OverflowError("no room")
        return super().settle(event)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_an_attempt_whose_settlement_fails_is_unknown_at_its_hold(is_stream: bool) -> None:
    """After any failure there is one event, and the caller keeps its answer."""
    sent = [piece("a"), TAIL, b"data: [DONE]\n\n"] if is_stream else [WHOLE]
    on = Stage(FakeTransport([FakeUpstreamAnswer(sent)]), journal=_RefusesCosts())
    answer = await on.answer(body(stream=is_stream))
    if is_stream:
        assert (await rest_of(answer)).endswith(b"data: [DONE]\n\n")
    assert (on.event.outcome, on.event.usage_source, on.event.is_suspect) == (
        Outcome.OK,
        UsageSource.UNKNOWN,
        True,
    )
    assert on.event.held_nusd == answer.attempt.bound.nusd
    assert not on.meter._live


async def test_an_unwritable_event_still_frees_hold_slot_and_key() -> None:
    """The intent stays in the journal for the next start; the hold, the slot and the key are
    freed now.
    """
    on = Stage(FakeTransport([FakeUpstreamAnswer([WHOLE])]), journal=_RefusesCosts(is_broken=True))
    answer = await on.answer(body())
    assert answer.attempt.event is not None
    assert (on.meter._live, on.journal.events) == ({}, [])
    assert not on.health.states()[0].under_way


async def test_a_count_that_fails_is_settled_all_the_same() -> None:
    """A counter is foreign code, but the attempt that it counts for must be settled."""

    class Fails:
        async def count(self, *_: object) -> object:
            raise RuntimeError("no tokenizer")

    on = Stage(
        FakeTransport([FakeUpstreamAnswer([piece("a"), b"data: [DONE]\n\n"])]), counter=Fails()
    )  # type: ignore[arg-type]
    await rest_of(await on.answer(body(stream=True)))
    assert (on.event.outcome, on.event.usage_source) == (Outcome.OK, UsageSource.ESTIMATED)


def test_a_meter_settles_even_if_its_listener_fails() -> None:
    """An event in the journal is settled; a failing metric must not make a second event of it."""

    def fail(_: UsageEvent) -> None:
        raise RuntimeError("no metric")

    on = Stage(FakeTransport([]))
    meter = Meter(on.journal, on_settled=(fail,), ejections=on.ejections)
    settled = an_event()
    on.journal.intents.append(Intent(event=settled, price=factories.price(), writes_output=True))
    meter.settle(settled)
    assert on.journal.events == [settled]
    assert meter.waiting_events == 1
