"""The fake upstream in the dialects beside OpenAI's: what it sends is what its ledger says."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.fake_upstream.faults import Fault
from tests.fake_upstream.ledger import MemoryLedger
from tests.fake_upstream.plans import MIX, DrawnRun, Kind, shape
from tests.fake_upstream.script import scripted
from tests.fake_upstream.server import Upstream, serving

SCRIPT = "in=90,cached=40,write=20,out=6,think=2"
PATHS = {
    "anthropic": ("/v1/messages", "/v1/messages"),
    "gemini": (
        "/v1beta/models/m:generateContent",
        "/v1beta/models/m:streamGenerateContent?alt=sse",
    ),
    "bedrock": ("/model/m%3A0/converse", "/model/m%3A0/converse-stream"),
    "ollama": ("/api/chat", "/api/chat"),
    "triton": ("/v2/models/m/generate", "/v2/models/m/generate_stream"),
}
# The members of a last usage, and what they add up to: input, output.
USAGES = {
    "anthropic": (
        ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
        ("output_tokens",),
    ),
    "gemini": (("promptTokenCount",), ("candidatesTokenCount", "thoughtsTokenCount")),
    "bedrock": (
        ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens"),
        ("outputTokens",),
    ),
    "ollama": (("prompt_eval_count",), ("eval_count",)),
    "triton": (("num_input_tokens",), ("num_output_tokens",)),
}
BOTH = [(dialect, is_stream) for dialect in PATHS for is_stream in (False, True)]


@pytest.fixture
def upstream() -> Upstream:
    """Return an upstream that requests script."""
    return Upstream(
        lambda request, asked: scripted(request.path, asked, request.header("x-fake")),
        MemoryLedger(),
    )


@pytest.fixture
async def http(upstream: Upstream) -> AsyncIterator[httpx2.AsyncClient]:
    async with serving(upstream) as url, httpx2.AsyncClient(base_url=url) as client:
        yield client


async def ask(
    http: httpx2.AsyncClient, dialect: str, script: str, *, is_stream: bool
) -> httpx2.Response:
    """Return an answer to a request of this dialect."""
    body: dict[str, Any] = {"model": "m", "stream": is_stream}
    path = PATHS[dialect][is_stream]
    return await http.post(path, json=body, headers={"x-fake": script})


def last_count(text: str, name: str) -> int:
    """Return the last figure of this name in an answer, 0 without one."""
    found = re.findall(rf'"{name}": ?(-?\d+)', text)
    return int(found[-1]) if found else 0


@pytest.mark.parametrize(("dialect", "is_stream"), BOTH)
async def test_words_usage_and_ledger_are_three_equal_counts(
    http: httpx2.AsyncClient, upstream: Upstream, dialect: str, is_stream: bool
) -> None:
    answer = await ask(http, dialect, SCRIPT, is_stream=is_stream)
    text = answer.content.decode("latin-1")
    (entry,) = upstream.ledger.entries
    assert len(set(re.findall(r"\bt[1-5]\b", text))) == entry.generated - 1 == 5
    read, written = (sum(last_count(text, name) for name in names) for names in USAGES[dialect])
    if dialect == "triton" and is_stream:  # each event has its own count
        written = sum(map(int, re.findall(r'"num_output_tokens": (\d+)', text)))
    assert (read, written) == (entry.input_tokens, entry.generated) == (90, 6)
    assert (entry.is_stream, entry.ending, entry.is_usage_final) == (is_stream, "complete", True)
    assert entry.reasoning == 2
    assert entry.model == ("m:0" if dialect == "bedrock" else "m")


@pytest.mark.parametrize(("dialect", "is_stream"), BOTH)
async def test_an_answer_without_usage_names_no_count(
    http: httpx2.AsyncClient, upstream: Upstream, dialect: str, is_stream: bool
) -> None:
    answer = await ask(http, dialect, f"{SCRIPT},nousage", is_stream=is_stream)
    text = answer.content.decode("latin-1")
    names = [name for sides in USAGES[dialect] for name in sides]
    assert not [name for name in names if f'"{name}"' in text]
    assert not upstream.ledger.entries[0].usage_s


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("fault", ["cut@3", "reset@3", "miderr@3", "badjson"])
async def test_faults_come_in_the_middle_of_a_stream(
    http: httpx2.AsyncClient, upstream: Upstream, dialect: str, fault: str
) -> None:
    """A break ends the connection; an error comes in the dialect's own words after some tokens."""
    seen = b""
    try:
        path = PATHS[dialect][1]
        async with http.stream(
            "POST", path, json={"model": "m", "stream": True}, headers={"x-fake": "out=6," + fault}
        ) as answer:
            async for data in answer.aiter_raw():
                seen += data
    except httpx2.TransportError:
        assert fault.startswith(("cut", "reset"))
    else:
        assert fault in ("miderr@3", "badjson")
        assert (b"{not json" if fault == "badjson" else b"rror") in seen
    (entry,) = upstream.ledger.entries
    kinds = {"cut@3": Fault.CUT, "reset@3": Fault.RESET, "miderr@3": Fault.IN_BAND}
    assert entry.ending == kinds.get(fault, Fault.BAD_JSON).name.lower()
    assert entry.generated == (6 if fault == "badjson" else 3)
    assert (b"t4" in seen) is (fault == "badjson")
    # A reset may take back what had not been read.
    assert b"t2" in seen or fault.startswith("reset")


@pytest.mark.parametrize("dialect", PATHS)
async def test_errors_have_the_dialects_own_status_and_shape(
    http: httpx2.AsyncClient, dialect: str
) -> None:
    answer = await ask(http, dialect, "503", is_stream=True)
    assert answer.status_code == (529 if dialect == "anthropic" else 503)
    body = answer.json()
    assert body.get("error") or body["message"]
    assert ("x-amzn-errortype" in answer.headers) is (dialect == "bedrock")
    busy = await ask(http, dialect, "429,ra=3", is_stream=False)
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "3")


def test_a_drawn_request_has_the_same_content_in_each_dialect() -> None:
    """The index travels in the prompt, because not each dialect has a member for it."""
    run = DrawnRun(seed=7, mix=MIX)
    wanted = shape(7, 41, kind=Kind.MESSAGES)
    asked = json.loads(wanted.body("r"))
    text = asked["messages"][0]["content"]
    for dialect in PATHS:
        found = run.behaviour("", {"model": "m", "dialect": dialect, "text": text})
        assert found.index == 41
        assert found.work.input_tokens == wanted.input_tokens
        assert found.work.output_tokens == wanted.output_tokens
