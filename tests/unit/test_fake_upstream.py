"""The fake upstream on a test's own loop. Its ledger must be right: all else is judged by it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.fake_upstream.faults import Fault
from tests.fake_upstream.ledger import MemoryLedger
from tests.fake_upstream.plans import MIX, DrawnRun, shape
from tests.fake_upstream.script import scripted
from tests.fake_upstream.server import Upstream, serving

SCRIPT = "in=9,cached=4,out=6,think=2"
SEED = 7


@pytest.fixture
def upstream() -> Upstream:
    """Return an upstream that requests script."""
    return Upstream(
        lambda request, asked: scripted(request.path, asked, request.header("x-fake")),
        MemoryLedger(),
    )


@pytest.fixture
async def http(upstream: Upstream) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        serving(upstream) as url,
        httpx2.AsyncClient(verify=plain_http.NO_CERTIFICATES, base_url=url) as client,
    ):
        yield client


def words_in(value: Any) -> int:
    """Count the words of an answer's texts: each is one token."""
    if isinstance(value, list):
        return sum(map(words_in, value))
    if not isinstance(value, dict):
        return 0
    texts = [value.get(name) for name in ("content", "reasoning", "text", "delta")]
    return sum(len(text.split()) for text in texts if isinstance(text, str)) + sum(
        words_in(inner) for inner in value.values()
    )


def events_in(text: str) -> list[Any]:
    """Return the events of a stream."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_its_ledger_has_the_tokens_that_it_sent(
    http: httpx2.AsyncClient, upstream: Upstream, path: str
) -> None:
    """The words on the wire, the reported usage and the ledger are three counts of one answer."""
    body = {"stream": True, "stream_options": {"include_usage": True}, "fake": SCRIPT}
    events = events_in((await http.post(path, json={"model": "m", **body})).text)
    *deltas, last = events
    usage = last.get("usage") or last["response"]["usage"]
    (entry,) = upstream.ledger.entries
    made = (entry.input_tokens, entry.cached_tokens, entry.generated, entry.reasoning)
    assert made == (9, 4, 6, 2)
    assert words_in(deltas) == entry.generated
    assert usage.get("completion_tokens", usage.get("output_tokens")) == entry.generated
    assert (entry.ending, entry.is_usage_final) == ("complete", True)


@pytest.mark.parametrize(
    ("fault", "ending"), [("cut@3", "cut"), ("reset@3", "reset"), ("end@3", "end")]
)
async def test_a_break_comes_after_its_tokens(
    http: httpx2.AsyncClient, upstream: Upstream, fault: str, ending: str
) -> None:
    """A test that cuts after three tokens would prove nothing if the fake had made four."""
    body = {"model": "m", "stream": True, "fake": fault}
    text = ""
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for piece in answer.aiter_text():
                text += piece
        is_whole = True
    except (httpx2.RemoteProtocolError, httpx2.ReadError):
        is_whole = False
    (entry,) = upstream.ledger.entries
    assert (is_whole, "[DONE]" in text) == (ending == "end", False)
    assert (words_in(events_in(text)), entry.generated, entry.ending) == (3, 3, ending)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_caller_who_leaves_stops_the_count(
    http: httpx2.AsyncClient, upstream: Upstream, is_stream: bool
) -> None:
    """The ledger has the tokens up to then, not those that were planned."""
    body = {"model": "m", "stream": is_stream, "fake": "out=500,tps=50"}
    with pytest.raises(httpx2.ReadTimeout):
        await http.post("/v1/chat/completions", json={**body, "fake": "hang"}, timeout=0.05)
    async with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        await anext(aiter(answer.aiter_bytes()))
    hung, left = upstream.ledger.entries
    async with asyncio.timeout(20):
        while left.ending == "open":
            await http.get("/stats")
    assert (hung.ending, hung.generated, left.ending) == ("hang", 0, "client_gone")
    assert 0 <= left.generated < 500


def test_a_seed_draws_each_attempt_again() -> None:
    """The upstream draws what the callers drew; otherwise the books of a chaos run cannot agree."""
    run = DrawnRun(seed=SEED, mix=MIX)
    seen = set()
    for index in range(500):
        wanted = shape(SEED, index)
        asked = json.loads(wanted.body("vllm-a"))
        drawn = run.behaviour(wanted.path, asked)
        assert drawn == run.behaviour(wanted.path, asked)
        assert (drawn.index, drawn.work.input_tokens) == (index, wanted.input_tokens)
        assert drawn.work.output_tokens == wanted.output_tokens
        seen.add(drawn.fault)
    assert {Fault.NONE, Fault.CUT, Fault.BROKEN, Fault.SPLIT} <= seen
