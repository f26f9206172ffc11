"""The times of an attempt: its waits here and in its engine, its longest silence, and our own
share.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.pricing import Price
from gateway.domain.routing.decide import Choice, Ranking, decide
from gateway.services.deployments.ejections import Ejections
from gateway.services.deployments.state import DeploymentHealth
from gateway.services.request.admission import NOTHING_TAKEN
from gateway.services.request.attempt import AdmittedRequest, Attempt, Attempts
from gateway.services.request.meter import Meter
from gateway.storage.ledger.documents import decode_event, encode_event
from gateway.wire.openai.answer.assemble import Assembler
from gateway.wire.openai.usage import engine_queue_s
from tests import factories
from tests.answers import PricedStream, chat_stream, response_stream, rewrite_chat
from tests.fakes import FakeClock, FakeEjections, FakeJournal

USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
METRICS = {
    "time_to_first_token_ms": 15.2,
    "generation_time_ms": 3739.6,
    "queue_time_ms": 250.5,
    "mean_itl_ms": 4.68,
    "tokens_per_second": 213.0,
    "speculative_decoding": None,
}
COMMENT, DONE = b": keep-alive\n\n", b"data: [DONE]\n\n"


def chunk(text: str | None, **more: object) -> bytes:
    delta = {"role": "assistant", "content": ""} if text is None else {"content": text}
    chunk_body = {
        "id": "c",
        "model": "m-1",
        "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
        **more,
    }
    return b"data: " + json.dumps(chunk_body, separators=(",", ":")).encode() + b"\n\n"


TAIL = (
    b"data: "
    + json.dumps({"model": "m-1", "choices": [], "usage": USAGE, "metrics": METRICS}).encode()
    + b"\n\n"
)


class Running:
    """One attempt under way, and time."""

    def __init__(
        self,
        *,
        waited_s: float | None = None,
        degraded: str | None = None,
        left: str | None = None,
        asked: str = "assistant",
        received_s: float = 999.0,
    ) -> None:
        self.clock, self.journal = FakeClock(), FakeJournal()
        ejections = Ejections(FakeEjections(), self.clock, on_ejected=lambda _: None)
        meter = Meter(self.journal, on_settled=(), ejections=ejections)
        document, request, price = factories.policy(), factories.request(), factories.price()
        assert isinstance(price, Price)
        decision = decide(
            factories.version(document),
            team=document.teams["payments"],
            route=document.routes["assistant"],
            data_class=request.data_class,
            facts=request.body.facts,
            prices={"one": price},
            day=factories.NOW.date(),
        )
        (candidate,) = decision.eligible
        choice, of_asked = Choice(decision=decision, candidate=candidate), decision
        if asked != decision.route.name:
            of_asked = replace(decision, route=replace(decision.route, name=asked))
        now_s = self.clock.monotonic()
        ranking = Ranking(decision=of_asked, choices=(choice,), degraded=degraded, preferred=left)
        admitted = AdmittedRequest(
            request, ranking, (), needs_bound=False, received_s=received_s, deadline_s=9999.0
        )
        health = DeploymentHealth()
        self.attempt: Attempt = Attempts(meter, self.clock).begin(
            admitted,
            choice,
            NOTHING_TAKEN,
            health.take_slot(health.of(candidate.deployment)),
            number=1,
            wanted_s=None if waited_s is None else now_s - waited_s,
        )
        self.stream: PricedStream = chat_stream(
            model="assistant",
            cost=lambda _: None,
            wants_usage=True,
            wants_running_usage=False,
            asked_running_usage=False,
        )

    async def play(self, *pieces: tuple[float, bytes]) -> UsageEvent:
        """Let pieces arrive, each that many seconds after the one before; return the settled
        event.
        """
        await self.attempt.intend()
        self.attempt.note_head(200, {})
        self.attempt.observed = self.stream.observed
        for after_s, data in pieces:
            self.clock.advance(after_s)
            self.stream.feed(data)
            self.attempt.note_progress()
        return self.attempt.settle(Outcome.OK)


async def test_the_longest_silence_is_between_two_pieces_of_content() -> None:
    """A reader's longest pause: not the wait for the first token, which is the TTFT, nor the end
    of the stream.
    """
    event = await Running().play(
        (1, chunk(None)),
        (5, chunk("a")),
        (0.5, chunk("b")),
        (2, chunk("c")),
        (0.25, chunk("d")),
        (9, TAIL + DONE),
    )
    assert (event.ttft_s, event.max_gap_s) == (6, 2)
    assert event.tpot_s == pytest.approx(2.75 / 2)


async def test_keep_alive_comments_count_as_silence() -> None:
    """A comment every second would hide a minute without a word, and make every token look slow."""
    event = await Running().play(
        (1, chunk("a")), (3, COMMENT), (3, COMMENT), (3, chunk("b")), (4, COMMENT), (1, DONE)
    )
    assert (event.ttft_s, event.max_gap_s) == (1, 9)


async def test_one_piece_has_no_gap() -> None:
    """Nothing came between: unknown, and not zero."""
    event = await Running().play((1, chunk("a")), (5, TAIL + DONE))
    assert (event.ttft_s, event.max_gap_s) == (1, None)
    assert (await Running().play((1, DONE))).max_gap_s is None


@given(st.lists(st.integers(1, 50), min_size=2, max_size=12))
async def test_the_longest_of_all_silences_is_kept(silences: list[int]) -> None:
    """At any place, even among events that are compared with the one before."""
    event = await Running().play(*((after_s, chunk("word")) for after_s in silences))
    assert event.max_gap_s == max(silences[1:])


async def test_pieces_of_other_streams_are_counted_too() -> None:
    """A response's deltas and an engine's stream that is put together have silences as a chat's
    chunks have.
    """
    responses = response_stream(model="assistant", cost=lambda _: None)
    delta = (
        b"event: response.output_text.delta\ndata: "
        b'{"type":"response.output_text.delta","delta":"a"}\n\n'
    )
    responses.feed(delta + COMMENT + b'data: {"type":"response.in_progress"}\n\n' + delta)
    assert responses.observed.pieces == 2
    assembler = Assembler(operation=factories.facts().operation, choices=1, limit_bytes=10_000)
    assembler.feed(chunk(None) + COMMENT + chunk("a") + chunk("b") + TAIL + DONE)
    assert assembler.observed.pieces == 2


async def test_the_queue_time_reported_by_the_engine_is_recorded() -> None:
    """Its queue and its model are two reasons for a late first token, and two remedies."""
    event = await Running().play((1, chunk("a")), (1, TAIL + DONE))
    assert event.engine_queue_s == 0.2505
    running = Running()
    whole = {"id": "c", "model": "m-1", "choices": [], "usage": USAGE, "metrics": METRICS}
    rewrite_chat(
        json.dumps(whole).encode(), running.attempt.observed, model="assistant", cost=lambda _: None
    )
    await running.attempt.intend()
    assert running.attempt.settle(Outcome.OK).engine_queue_s == 0.2505


@pytest.mark.parametrize(
    "metrics",
    [
        "null",
        "{}",
        "7",
        "[]",
        '{"queue_time_ms": null}',
        '{"queue_time_ms": -1}',
        '{"queue_time_ms": true}',
        '{"queue_time_ms": "3"}',
        '{"queue_time_ms": 1e300}',
        "{",
    ],
)
def test_a_wait_that_cannot_be_is_unknown(metrics: str) -> None:
    """Others have a member of that name as well; it must neither end an answer nor bend a
    percentile.
    """
    assert engine_queue_s(metrics.encode()) is None


async def test_waiting_at_the_gateway_is_no_overhead() -> None:
    """Who waits for budget or for a pause waits, but not for this gateway's work."""
    event = await Running(waited_s=0.75, received_s=999.0).play((1, chunk("a")))
    assert (event.queue_s, event.overhead_s) == (0.75, 0.25)
    at_once = await Running(waited_s=0.0005, received_s=999.0).play((1, chunk("a")))
    assert (at_once.queue_s, at_once.overhead_s) == (0, 1)
    unknown = await Running(received_s=999.0).play((1, chunk("a")))
    assert (unknown.queue_s, unknown.overhead_s) == (None, 1)


async def test_an_interrupted_attempt_keeps_its_waiting_time() -> None:
    """Recovery settles from the intent: that is all there is after a crash."""
    running = Running(waited_s=0.5, degraded="spill", left="two")
    await running.attempt.intend()
    (intent,) = running.journal.intents
    assert (intent.event.queue_s, intent.event.degraded) == (0.5, "spill")


@pytest.mark.parametrize(
    ("asked", "kind", "left", "kept"),
    [
        ("assistant", "spill", "two", "spill"),
        ("assistant", "spill", "one", None),
        ("assistant", "route:small", "one", None),
        ("large", "route:assistant", "two", "route:assistant"),
    ],
)
async def test_a_degraded_attempt_says_so(
    asked: str, kind: str, left: str, kept: str | None
) -> None:
    """Never silent: a year later the record explains why an answer was worse, and no other attempt
    is marked.

    The attempt goes to `one` of the route `assistant`: that may be the preferred one, after the
    others have failed.
    """
    event = await Running(degraded=kind, left=left, asked=asked).play((1, chunk("a")))
    assert (event.degraded, event.route) == (kept, asked)
    assert (await Running().play((1, chunk("a")))).degraded is None


async def test_new_times_pass_through_the_journal() -> None:
    """A value that is not in the document is not in Postgres; an unknown one takes no room in
    it.
    """
    running = Running(waited_s=0.5, degraded="spill", left="two")
    event = await running.play((1, chunk("a")), (2, chunk("b")), (1, TAIL + DONE))
    again = decode_event(encode_event(event))
    assert (again.queue_s, again.max_gap_s, again.engine_queue_s, again.degraded) == (
        0.5,
        2,
        0.2505,
        "spill",
    )
    plain = encode_event(await Running().play((1, DONE)))
    assert not any(name in plain for name in (b"queue_s", b"max_gap_s", b"degraded"))
