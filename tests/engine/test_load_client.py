"""The load client measures what the server really did: each figure is checked against the ledger
of a server that keeps its own clock.
"""

import asyncio
import statistics
from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Any

import pytest
from sse_server import SseServer, prompt_tokens, running

from engine.errors import UsageError
from engine.load.client import LoadClient, server_url
from engine.load.event_stream import StreamEvent, StreamSplitter
from engine.load.loops import LoadSettings, run_load
from engine.load.measured import LoadRun
from engine.load.prompts import PromptWriter, prompt_writer
from engine.load.workload import LoadRequest, Workload, arrival_times
from engine.plan.demand import Demand


def load(server: SseServer, *, prompt: int = 20, answer: int = 4, **settings: Any) -> LoadRun:
    writer = prompt_writer(server.url, model=None, key=None, seed=1)
    workload = Workload(prompt_tokens=prompt, answer_tokens=answer, seed=1)
    client = LoadClient(url=server.url, silence_s=20)
    return run_load(client, LoadSettings(**settings), workload, writer)


def test_no_time_is_shorter_than_the_servers_own() -> None:
    """The client starts its clock before the server's and stops it after; on one stream the sum of
    all latencies fits into the run, which bounds them from above.
    """
    with running(first_s=0.05, gap_s=0.02) as server:
        run = load(server, concurrency=1, requests=4)
    assert len(run.requests) == len(server.ledger) == 4
    for measured, served in zip(run.requests, server.ledger, strict=True):
        assert served.finished is not None
        assert measured.ttft_s is not None
        assert measured.ttft_s >= served.tokens[0] - served.received
        assert measured.e2e_s >= served.tokens[-1] - served.received
        assert run.began + measured.sent_s <= served.received
        assert len(measured.gaps_s) == len(served.tokens) - 1
        assert measured.tpot_s == pytest.approx(sum(measured.gaps_s) / 3)
    assert sum(one.e2e_s for one in run.requests) <= run.duration_s
    gaps = [after - before for one in server.ledger for before, after in pairwise(one.tokens)]
    measured_gaps = [gap for one in run.requests for gap in one.gaps_s]
    assert 0.1 < statistics.median(measured_gaps) / statistics.median(gaps) < 10


def test_a_stall_is_seen_by_every_request_that_was_due_in_it() -> None:
    """Coordinated omission: a client that waits for the stalled server would record one slow
    request instead of a second's worth.
    """
    drawn = list(islice(arrival_times(50, 1), 60))
    with running(faults={10: "stall"}, stall_s=2.0) as server:
        run = load(server, rate_per_s=50, requests=60)
    ((_, end),) = server.stalls
    assert drawn[-1] < 2.0  # so that all of them were due before the stall's end
    assert sorted(one.scheduled_s for one in run.requests) == drawn
    late = [one for one in server.ledger if one.tokens[0] >= end]
    seen = [
        one
        for one in run.requests
        if one.ttft_s is not None and one.ttft_s >= end - (run.began + one.scheduled_s)
    ]
    assert len(seen) >= len(late) >= 50
    assert all(one.failure is None for one in run.requests)


def test_a_closed_loop_holds_its_streams_full_and_no_more() -> None:
    """The concurrency of a run is its meaning: the server counts it."""
    with running(first_s=0.02, gap_s=0.005) as server:
        run = load(server, concurrency=5, requests=23, warmup=2)
    assert len(server.ledger) == 25
    measured = server.ledger[2:]
    moments = [(one.received, 1) for one in measured]
    moments += [(one.finished or 0.0, -1) for one in measured]
    at_once = most = 0
    for _, change in sorted(moments):
        at_once += change
        most = max(most, at_once)
    assert most == 5
    assert len(run.requests) == 23
    assert len({one.connection for one in server.ledger}) < 25  # they are used again


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("refuse", "HTTP 503"),
        ("error", "EngineCore died"),
        ("no-finish", "without finish_reason"),
        ("cut", "Error"),
        ("plain-body", "without finish_reason"),
    ],
)
def test_a_broken_answer_is_failed_and_the_others_are_not(fault: str, reason: str) -> None:
    """A status of 200 and a `[DONE]` prove nothing: an engine that dies sends both."""
    with running(faults={1: fault}) as server:
        run = load(server, concurrency=1, requests=4)
    failures = [one.failure for one in run.requests]
    assert [failure is None for failure in failures] == [True, False, True, True]
    assert reason in str(failures[1])
    assert run.output_tokens == 3 * 4


def test_silence_fails_a_request_at_the_limit() -> None:
    """A hung engine must not hang its benchmark."""
    with running(first_s=30) as server:
        writer = PromptWriter(model="fake")
        request = next(Workload(prompt_tokens=5, answer_tokens=2).requests())
        client = LoadClient(url=server.url, silence_s=0.2)
        measured = asyncio.run(client.measure(writer.body(request), began=0, scheduled_s=None))
    assert measured.failure == "no byte within 0.2 s"


def test_the_role_alone_is_no_token() -> None:
    """Servers send it before the prefill; counted as a token it would hide the whole TTFT."""
    with running(opening_s=0.0, first_s=0.2) as server:
        (measured,) = load(server, concurrency=1, requests=1).requests
    (served,) = server.ledger
    assert len(measured.token_times_s) == 4
    assert measured.ttft_s is not None
    assert measured.ttft_s >= served.tokens[0] - served.received >= 0.2


@pytest.mark.parametrize("prompt", [9, 60, 300])
def test_prompts_have_the_asked_tokens_by_the_servers_own_count(prompt: int) -> None:
    """Lengths in words would be off by the template and by words of several tokens."""
    with running(cached_tokens=3) as server:
        run = load(server, prompt=prompt, concurrency=2, requests=3)
    assert {one.prompt_tokens for one in run.requests} == {prompt}
    assert {one.cached_tokens for one in run.requests} == {3}
    texts = [served.body["messages"][0]["content"] for served in server.ledger]
    assert len(set(texts)) == 3


def test_a_shared_prefix_is_the_same_text_in_all_requests() -> None:
    """Only equal tokens from the first on are found in a prefix cache."""
    with running() as server:
        writer = prompt_writer(server.url, model=None, key=None, seed=1)
    workload = Workload(kind="shared-prefix", prompt_tokens=100, answer_tokens=1)
    bodies = [writer.body(one) for one in islice(workload.requests(), 3)]
    assert {prompt_tokens(body["messages"]) for body in bodies} == {100}
    assert len({body["messages"][0]["content"] for body in bodies}) == 1
    assert len({body["messages"][1]["content"] for body in bodies}) == 3


def test_a_second_run_draws_the_same_lengths_and_other_texts() -> None:
    """The same texts would be read from the cache that the first run filled."""
    workload = Workload(kind="mixed", prompt_tokens=100, answer_tokens=20, seed=7)
    first, second = (list(islice(workload.requests(), 50)) for _ in range(2))
    assert first == second
    writers = PromptWriter(model="m"), PromptWriter(model="m")
    one, other = (writer.messages(first[0]) for writer in writers)
    assert one != other
    assert PromptWriter(model="m", salt="s").messages(first[0]) == PromptWriter(
        model="m", salt="s"
    ).messages(first[0])


def shares_below(lengths: Sequence[int], bound: float) -> float:
    return sum(length <= bound for length in lengths) / len(lengths)


def test_workloads_have_the_stated_quantiles() -> None:
    """The ledger's p50 and p95 come back out of 4,000 drawn lengths."""
    demand = Demand(
        requests_per_day=1000,
        prompt_p50=400,
        prompt_p95=2000,
        answer_p50=100,
        answer_p95=300,
        cached_share=0.25,
        growth_per_month=0,
        peak_to_mean=1,
        year=2027,
        month=1,
        ttft_s=1,
        tpot_s=1,
    )
    ledger = Workload(kind="ledger", prompt_tokens=0, answer_tokens=0, demand=demand)
    drawn = list(islice(ledger.requests(), 4000))
    assert {one.shared_tokens for one in drawn} == {100}
    prompts, answers = ([one.prompt_tokens for one in drawn], [one.answer_tokens for one in drawn])
    assert shares_below(prompts, 400) == pytest.approx(0.5, abs=0.03)
    assert shares_below(prompts, 2000) == pytest.approx(0.95, abs=0.02)
    assert shares_below(answers, 100) == pytest.approx(0.5, abs=0.03)
    assert shares_below(answers, 300) == pytest.approx(0.95, abs=0.02)
    mixed = Workload(kind="mixed", prompt_tokens=100, answer_tokens=100)
    lengths = [one.prompt_tokens for one in islice(mixed.requests(), 4000)]
    assert (min(lengths), max(lengths)) == (25, 400)
    assert shares_below(lengths, 100) == pytest.approx(0.5, abs=0.03)


def test_arrivals_are_a_poisson_process() -> None:
    """Its gaps have a mean and a standard deviation of 1 / rate; even gaps would hide queues."""
    times = list(islice(arrival_times(20, 3), 5000))
    gaps = [after - before for before, after in pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.05, rel=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(0.05, rel=0.08)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_stream_split_anywhere_gives_the_same_events(size: int) -> None:
    """TCP cuts where it likes."""
    text = b': ping\r\n\r\ndata: {"a": 1}\n\nevent: error\ndata: x\ndata: y\n\n\ndata: [DONE]\n\n'
    splitter = StreamSplitter()
    found: list[StreamEvent] = []
    for begin in range(0, len(text), size):
        found += splitter.feed(text[begin : begin + size])
    assert found == [
        StreamEvent("", b'{"a": 1}'),
        StreamEvent("error", b"x\ny"),
        StreamEvent("", b"[DONE]"),
    ]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:1"),
        ("http://127.0.0.1:1/v1/", "http://127.0.0.1:1"),
        ("https://host/prefix/v1", "https://host/prefix"),
    ],
)
def test_an_address_is_taken_with_or_without_v1(given: str, url: str) -> None:
    """Users paste the base URL of either form."""
    assert server_url(given) == url


def test_no_address_is_refused() -> None:
    """An address without a scheme is a typing error, not a dead server."""
    with pytest.raises(UsageError, match="no HTTP address"):
        server_url("localhost:8000")


def test_a_server_without_tokenize_gets_a_word_for_a_token() -> None:
    """Not every server is vLLM; the usage of each answer gives the true length."""
    with running(is_vllm=False) as server:
        writer = prompt_writer(server.url, model=None, key=None, seed=1)
    request = LoadRequest(number=0, prompt_tokens=50, shared_tokens=0, answer_tokens=1)
    assert not writer.is_exact
    assert len(writer.messages(request)[0]["content"].split()) == 51
