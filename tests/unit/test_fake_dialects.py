"""The fake upstream in the dialects beside OpenAI's: what it sends is what its ledger says."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests import plain_http
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
    async with (
        serving(upstream) as url,
        httpx2.AsyncClient(verify=plain_http.NO_CERTIFICATES, base_url=url) as client,
    ):
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
    said = "retryDelay" if dialect == "gemini" else "retry-after"
    assert (busy.status_code, said in busy.text + str(busy.headers)) == (429, True)


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


TALKING = ("openai", "responses", "anthropic", "gemini", "bedrock", "ollama")
ALL_PATHS = {
    **PATHS,
    "openai": ("/v1/chat/completions", "/v1/chat/completions"),
    "responses": ("/v1/responses", "/v1/responses"),
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("dialect", TALKING)
async def test_a_tool_is_called_in_each_dialects_own_words(
    http: httpx2.AsyncClient, upstream: Upstream, dialect: str, is_stream: bool
) -> None:
    """The arguments that were streamed in pieces are one JSON object of the generated words."""
    body = {"model": "m", "stream": is_stream}
    path = ALL_PATHS[dialect][is_stream]
    answer = await http.post(path, json=body, headers={"x-fake": "out=6,think=2,call"})
    text = answer.content.decode("latin-1")
    pieces = {
        "openai": r'"arguments": ("(?:[^"\\]|\\.)*")',
        "responses": r'arguments.delta".*"delta": ("(?:[^"\\]|\\.)*")',
        "anthropic": r'"partial_json": ("(?:[^"\\]|\\.)*")',
        "bedrock": r'"input": ?("(?:[^"\\]|\\.)*")',
    }
    found = re.findall(pieces.get(dialect, "no pieces"), text)
    if found:
        assert len(found) == (4 if is_stream else 1)
        arguments = json.loads("".join(map(json.loads, found)))
    else:
        whole = re.findall(r'"(?:args|arguments|input)": (\{[^{}]*\}|"(?:[^"\\]|\\.)*")', text)
        arguments = json.loads(whole[-1])
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert arguments == {"q": "t2 t3 t4 t5 "}
    assert '"look"' in text
    assert re.search(r"tool_calls|function_call|tool_use|functionCall|toolUse", text)
    assert upstream.ledger.entries[0].generated == 6


@pytest.mark.parametrize("is_stream", [False, True])
async def test_gemini_answers_as_often_as_it_is_asked_to(
    http: httpx2.AsyncClient, upstream: Upstream, is_stream: bool
) -> None:
    answer = await ask(http, "gemini", "out=6,n=2", is_stream=is_stream)
    texts = re.findall(r'"text": "([^"]*)"[^[]*"index": (\d)', answer.text)
    spoken = ["".join(text for text, at in texts if at == str(index)) for index in (0, 1)]
    assert [len(one.split()) for one in spoken] == [3, 3]
    assert {at for _, at in texts} == {"0", "1"}
    assert answer.text.count("finishReason") == 2
    assert upstream.ledger.entries[0].generated == last_count(answer.text, "candidatesTokenCount")


RARER = {
    "anthropic": {"write=20,1h=7": {"cache_write_1h_tokens": 7}},
    "bedrock": {"write=20,1h=7": {"cache_write_1h_tokens": 7}},
    "gemini": {
        "image_in=9": {"image_input_tokens": 9},
        "audio_in=9,audio_out=2": {"audio_input_tokens": 9, "audio_output_tokens": 2},
        "image_out=3": {"image_output_tokens": 3},
        "of_tools=5": {},
    },
    "openai": {
        "write=20,30m=4,12h=5": {"cache_write_30m_tokens": 4, "cache_write_12h_tokens": 5},
        "audio_in=9,image_in=8": {"audio_input_tokens": 9, "image_input_tokens": 8},
        "audio_out=2,image_out=1": {"audio_output_tokens": 2, "image_output_tokens": 1},
    },
    "responses": {
        "write=20,30m=4,12h=5": {"cache_write_30m_tokens": 4, "cache_write_12h_tokens": 5},
        "searches=2": {"web_search_calls": 2},
    },
}
SAID = {
    "cache_write_1h_tokens": r'ephemeral_1h_input_tokens": (\d+)|1h", ?"inputTokens": ?(\d+)',
    "cache_write_30m_tokens": r'ttl_30m_tokens": (\d+)',
    "cache_write_12h_tokens": r'ttl_12h_tokens": (\d+)',
    **{
        f"{kind}_{side}_tokens": rf'(?:{wholes})\w+?_?[dD]etails".*?(?:{kind}_tokens"|'
        rf'{kind.upper()}", "tokenCount"): (\d+)'
        for kind in ("audio", "image")
        for side, wholes in (("input", "prompt"), ("output", "completion|candidates"))
    },
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("dialect", "script"), [(name, one) for name, its in RARER.items() for one in its]
)
async def test_rarer_counts_are_said_and_kept(
    http: httpx2.AsyncClient, upstream: Upstream, dialect: str, script: str, is_stream: bool
) -> None:
    body = {"model": "m", "stream": is_stream, "stream_options": {"include_usage": True}}
    words = {"x-fake": f"in=90,out=6,{script}"}
    answer = await http.post(ALL_PATHS[dialect][is_stream], json=body, headers=words)
    text, expected = answer.content.decode("latin-1"), RARER[dialect][script]
    (entry,) = upstream.ledger.entries
    assert entry.parts == expected
    for name, count in expected.items():
        if name == "web_search_calls":
            assert text.count("web_search_call") == count
            continue
        said = re.findall(SAID[name], text)
        last = said[-1] if isinstance(said[-1], str) else "".join(said[-1])
        assert int(last) == count, name
    if script == "of_tools=5":
        assert last_count(text, "promptTokenCount") == entry.input_tokens - 5
        assert last_count(text, "toolUsePromptTokenCount") == 5


async def test_a_count_of_tokens_is_an_entry_that_generated_nothing(
    http: httpx2.AsyncClient, upstream: Upstream
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    answer = await http.post(
        "/v1/messages/count_tokens?beta=true", json=body, headers={"x-fake": "in=77"}
    )
    assert (answer.status_code, answer.json()) == (200, {"input_tokens": 77})
    (entry,) = upstream.ledger.entries
    assert (entry.kind, entry.generated, entry.ending) == ("count of tokens", 0, "complete")


STYLED = {
    "groq": (r'"x_groq": \{"usage": \{"prompt_tokens": 90', r'"total_time"'),
    "openrouter": (r'"cost": 0.092374', r'"cost_details"'),
    "xai": (r'"completion_tokens": 4', r'"total_tokens": 96'),
    "deepseek": (r'"prompt_cache_hit_tokens": 40', r'"prompt_cache_miss_tokens": 50'),
    "mistral": (r'"cached_tokens": 40', r'"prompt_audio_seconds"'),
    "engine": (r'"prompt_tokens_details": \{"cached_tokens": 40\}\}',),
    "llamacpp": (r'"cache_n": 40, "prompt_n": 50', r'"predicted_n": 6'),
}


@pytest.mark.parametrize("style", STYLED)
async def test_a_style_spells_usage_as_its_provider_does(
    http: httpx2.AsyncClient, style: str
) -> None:
    body = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    script = f"in=90,cached=40,out=6,think=2,style={style}"
    answer = await http.post("/v1/chat/completions", json=body, headers={"x-fake": script})
    for said in STYLED[style]:
        assert re.search(said, answer.text), said
