"""A stream cut at every byte of recorded transcripts, on the upstream's side: the relayed part,
the charge.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.pricing.settlement import Counted, Settlement
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.domain.providers.table import PROVIDERS
from gateway.providers.registry import build_providers
from gateway.wire.dialect import UpstreamRequest
from gateway.wire.observed import Observed
from gateway.wire.sse import EventSplitter
from tests import factories
from tests.answers import PricedStream

GOLDEN = Path(__file__).parents[2] / "golden"
TRANSCRIPTS = [
    "vllm/chat-stream",
    "openai/chat-stream",
    "openai/chat-stream-tools",
    "openai/chat-stream-usage-not-asked",
    "openai/responses-stream",
    "groq/chat-stream",
    "mistral/chat-stream",
    "deepseek/chat-stream",
    "sglang/chat-stream",
    "llamacpp/chat-stream",
    "trtllm/chat-stream",
    "ollama/chat-stream",
    "triton/chat-stream",
]
# Their upstreams report running usage, so the gateway keeps no text.
RUNNING = {f"{name}/chat-stream" for name in ("vllm", "sglang", "llamacpp", "trtllm")}
HELD_NUSD = 10**9
LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")


def transcript(case: str) -> tuple[PricedStream, bytes, bool]:
    """Return a fresh rewriter, the upstream's bytes, and whether it reports running usage."""
    folder = GOLDEN / case
    described = json.loads((folder / "case.json").read_text())
    read = factories.read((folder / "request.json").read_bytes(), Operation(described["operation"]))
    provider = build_providers(salt_key=b"golden")[described["provider"]]
    says_running = PROVIDERS[described["provider"]].running_usage is not None
    call = UpstreamRequest(url="", headers={}, body=b"", asks_running_usage=says_running)
    stream = PricedStream(provider.stream(read, call), lambda usage: "0.1")
    return stream, (folder / "upstream.sse").read_bytes(), says_running


def oracle(sent: bytes, says_running: bool) -> tuple[int, int, int]:
    """Read by hand: the offsets at which the first content, the final usage and the dialect's end
    are complete.
    """
    content = final = end = len(sent) + 1
    offset = 0
    for event in sent.split(b"\n\n"):
        offset += len(event) + 2
        payload = event.partition(b"data: ")[2]
        if payload == b"[DONE]":
            end = min(end, offset)
        elif payload:
            value = json.loads(payload)
            if says_something(value):
                content = min(content, offset)
            if value.get("type") in LAST_EVENTS:
                final, end = min(final, offset), min(end, offset)
            elif has_last_word(value, says_running):
                final = min(final, offset)
    return content, final, end


def says_something(value: dict[str, Any]) -> bool:
    deltas = [choice["delta"] for choice in value.get("choices", [])]
    return ".delta" in value.get("type", "") or any(
        each.get(name) for each in deltas for name in each if name != "role"
    )


def has_last_word(value: dict[str, Any], says_running: bool) -> bool:
    if (value.get("x_groq") or {}).get("usage"):
        return True
    choices = value.get("choices", [])
    ends = not choices or (
        not says_running and any(choice.get("finish_reason") for choice in choices)
    )
    return bool(value.get("usage")) and ends


def rest_of(passed_on: bytes) -> bytes:
    splitter = EventSplitter()
    splitter.feed(passed_on)
    return splitter.rest


def settled(observed: Observed, counted: Counted | None = None) -> Settlement:
    return factories.settled(
        observed.final,
        running=observed.running,
        counted=counted,
        held_nusd=HELD_NUSD,
        least_output_tokens=observed.least_output_tokens,
        service_tier=observed.service_tier,
    )


@pytest.mark.parametrize("case", TRANSCRIPTS)
def test_a_stream_cut_at_every_byte_is_never_free_and_never_looks_whole(case: str) -> None:
    """Official SDKs take a clean close for success; LiteLLM billed such streams at zero."""
    whole, sent, says_running = transcript(case)
    expected = whole.feed(sent)
    first_content, final, end = oracle(sent, says_running)
    assert 0 < first_content < final <= end <= len(sent)
    stream, passed_on, charged = transcript(case)[0], b"", 0
    for cut in range(1, len(sent) + 1):
        passed_on += stream.feed(sent[cut - 1 : cut])
        observed, found = stream.observed, settled(stream.observed)
        assert expected.startswith(passed_on)
        assert rest_of(passed_on) == b""
        assert (b"[DONE]" in passed_on) <= (cut >= end)
        assert (observed.has_content, observed.is_final, observed.is_done) == (
            cut >= first_content,
            cut >= final,
            cut >= end,
        )
        if observed.is_final:
            assert (found.source, found.is_suspect, found.reported) == (
                UsageSource.PROVIDER,
                False,
                None,
            )
        elif observed.running is not None:
            assert says_running
            assert found.source is UsageSource.DERIVED
        else:
            assert (found.source, found.held_nusd) == (UsageSource.UNKNOWN, HELD_NUSD)
        if found.cost_nusd is not None:
            assert charged <= found.cost_nusd  # the generated part only grows
            charged = found.cost_nusd
            assert charged > 0 or not observed.has_content
    assert passed_on == expected


@pytest.mark.parametrize("case", [case for case in TRANSCRIPTS if case not in RUNNING])
def test_an_external_stream_cut_anywhere_can_be_counted(case: str) -> None:
    """Its text is available for counting until its upstream reports usage."""
    stream, sent, says_running = transcript(case)
    first_content, final, _ = oracle(sent, says_running)
    for cut in range(1, final):
        stream.feed(sent[cut - 1 : cut])
        text = "".join(stream.observed.texts)
        assert (stream.observed.output_bytes > 0) <= (cut >= first_content)
        counted = Counted(usage=TokenUsage(input_tokens=9, output_tokens=len(text)), is_exact=False)
        found = settled(stream.observed, counted)
        if len(text) >= stream.observed.least_output_tokens:
            assert (found.source, found.usage.output_tokens) == (UsageSource.ESTIMATED, len(text))
    assert stream.observed.has_all_text
    assert stream.observed.output_bytes > 0


@pytest.mark.parametrize("case", TRANSCRIPTS)
def test_collected_text_equals_the_streamed_deltas(case: str) -> None:
    """Compared with the deltas read by hand; an upstream that counts on the way keeps none."""
    stream, sent, says_running = transcript(case)
    stream.feed(sent)
    streamed = ""
    for event in sent.split(b"\n\n"):
        payload = event.partition(b"data: ")[2]
        if payload and payload != b"[DONE]":
            streamed += text_of(json.loads(payload))
    collected = "".join(stream.observed.texts)
    assert collected == ("" if says_running and "responses" not in case else streamed)


def text_of(value: dict[str, Any]) -> str:
    if ".delta" in value.get("type", ""):
        return str(value["delta"])
    found = ""
    for choice in value.get("choices", []):
        for name, part in choice["delta"].items():
            if name == "tool_calls":
                found += "".join(text for call in part for text in call["function"].values())
            elif name != "role":
                found += part or ""
    return found
