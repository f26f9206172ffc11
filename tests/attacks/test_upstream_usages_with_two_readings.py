"""A usage that its names leave two readings was charged by the cheaper one, and one whose counts
cannot be read at all was taken for none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.tokens import TokenUsage, UsageSource, with_reasoning
from gateway.domain.providers.table import PROVIDERS
from gateway.wire.anthropic import usage as anthropic
from gateway.wire.anthropic.usage import StreamFigures
from gateway.wire.bedrock import usage as bedrock
from gateway.wire.foreign_json import MAX_USAGE_BYTES
from gateway.wire.gemini import usage as gemini
from gateway.wire.observed import Observed
from gateway.wire.ollama import answer as ollama
from gateway.wire.openai import usage as openai
from gateway.wire.openai.usage_names import PLACES
from gateway.wire.triton import answer as triton
from tests import factories
from tests.attacks.test_upstream_counts_under_other_names import at, together
from tests.factories import settled
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import body, once, rest_of

CHAT = {"prompt_tokens": 1000, "completion_tokens": 200}
RESPONSE = {"input_tokens": 1000, "output_tokens": 200}
THOUGHT = {"completion_tokens_details": {"reasoning_tokens": 150}}
ANTHROPICS = ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation")
ANTHROPICS += ("claude_cache_creation_5_m_tokens", "claude_cache_creation_1_h_tokens")


def read(*members: dict[str, Any]) -> TokenUsage:
    """Return the usage of these members."""
    usage = openai.usage_from_wire(json.dumps(together(*members)).encode())
    assert usage is not None
    return usage


@pytest.mark.parametrize("whole", [CHAT, RESPONSE], ids=["chat", "responses"])
@pytest.mark.parametrize(
    "place",
    [one for one in PLACES if one.name.startswith(("cached_input", "cache_write"))],
    ids=lambda one: ".".join(one.path),
)
def test_a_cache_under_anthropic_s_names_is_held_without_a_total(
    place: Any, whole: dict[str, int]
) -> None:
    """900 of 1,000 prompt tokens may be 900 beside 1,000. A total, a detail of the prompt or a
    name that its provider's page explains tells.
    """
    usage = read(whole, at(place, 900))
    is_unsure = place.path[0] in ANTHROPICS
    assert usage.unexplained_tokens == (900 if is_unsure else None)
    assert usage.is_plausible is not is_unsure
    assert read(whole, at(place, 900), {"total_tokens": 1200}).is_plausible
    if place.path[-1] in ANTHROPICS[:2]:
        assert read(whole, at(place, 900), {"total_tokens": 2100}).input_tokens == 1900
    assert read(whole, at(place, 0)).is_plausible


@pytest.mark.parametrize(
    ("top", "detail"),
    [
        ("cache_read_input_tokens", "cached_tokens"),
        ("cache_creation_input_tokens", "cache_creation_tokens"),
    ],
)
def test_a_detail_of_the_prompt_settles_it(top: str, detail: str) -> None:
    """litellm writes both: details are inside the prompt."""
    usage = read(CHAT, {top: 900, "prompt_tokens_details": {detail: 900}})
    assert (usage.is_plausible, usage.input_tokens) == (True, 1000)


@pytest.mark.parametrize(
    ("whole", "total", "unexplained"),
    [
        (CHAT, {}, 150),
        (CHAT, {"total_tokens": 1200}, None),
        (CHAT, {"total_tokens": 1350}, None),
        (RESPONSE, {}, None),
        (CHAT | RESPONSE, {}, None),
    ],
    ids=["no total", "inside", "beside", "responses", "both names"],
)
def test_reasoning_of_a_chat_is_held_without_a_total(
    whole: dict[str, int], total: dict[str, int], unexplained: int | None
) -> None:
    """xAI counts it beside `completion_tokens`, OpenAI inside; all inside `output_tokens`."""
    assert read(whole, THOUGHT, total).unexplained_tokens == unexplained
    assert read(whole, {"reasoning_tokens": 150}, total).unexplained_tokens == unexplained


@given(*(st.integers(0, 500) for _ in range(4)), st.booleans())
def test_no_usage_without_a_total_is_charged_below_its_dearer_reading(
    prompt: int, answer: int, cached: int, reasoning: int, is_response: bool
) -> None:
    """It is held, or all readings are one."""
    names = ("input_tokens", "output_tokens") if is_response else tuple(CHAT)
    usage = openai.usage_from_wire(
        json.dumps(
            {
                names[0]: prompt,
                names[1]: answer,
                "cache_read_input_tokens": cached,
                "reasoning_tokens": reasoning,
            }
        ).encode()
    )
    assert usage is not None
    thought = 0 if is_response and answer else reasoning
    assert usage.is_plausible == (not cached and not thought and reasoning <= answer)


STATED = {
    "xai": 4 * 350 + 1000,
    **{
        name: 4 * 200 + 1000
        for name, facts in PROVIDERS.items()
        if facts.reasoning_is_beside is False
    },
}


@pytest.mark.parametrize("name", sorted(PROVIDERS))
def test_a_provider_s_page_settles_its_reasoning(name: str) -> None:
    """It keeps its reading, unmarked; where no page says it, the attempt is held and marked."""
    usage = with_reasoning(read(CHAT, THOUGHT), is_beside=PROVIDERS[name].reasoning_is_beside)
    made = settled(usage, held_nusd=10**9)
    if name in STATED:
        assert (made.cost_nusd, made.source) == (STATED[name] * 1000, UsageSource.PROVIDER)
        assert not made.is_suspect
    else:
        assert (made.cost_nusd, made.source) == (None, UsageSource.UNKNOWN)
        assert made.is_suspect


@pytest.mark.parametrize("is_beside", [True, False])
def test_a_page_on_reasoning_settles_nothing_else(is_beside: bool) -> None:
    """A cache beside it stays unsure, and a total that no reading explains a contradiction."""
    unsure = read(CHAT, THOUGHT, {"cache_read_input_tokens": 900})
    lie = read(CHAT, THOUGHT, {"total_tokens": 5000})
    side = TokenUsage(output_tokens=9, reasoning_tokens=5, unexplained_tokens=5)
    for usage in (unsure, lie, side, read(CHAT), None):
        assert with_reasoning(usage, is_beside=is_beside) is usage


@pytest.mark.parametrize(
    ("provider", "nusd", "source"),
    [
        ("xai", STATED["xai"] * 1000, UsageSource.PROVIDER),
        ("openai", STATED["openai"] * 1000, UsageSource.PROVIDER),
        ("openai_compatible", None, UsageSource.UNKNOWN),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_an_attempt_is_booked_so(
    provider: str, nusd: int | None, source: UsageSource, stream: bool
) -> None:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "delta" if stream else "message": {"content": "ok"},
    }
    answer = json.dumps({"choices": [choice], "usage": CHAT | THOUGHT}).encode()
    sent = b"data: " + answer + b"\n\ndata: [DONE]\n\n" if stream else answer
    kind = {"content-type": "text/event-stream" if stream else "application/json"}
    on = once(FakeUpstreamAnswer([sent], headers=kind))
    asked = [{"role": "user", "content": "x" * 3000}]  # its hold is above the cost
    text = body(messages=asked, max_tokens=500, stream=stream)
    got = await on.answer(text, factories.deployment(provider=provider))
    if stream:
        await rest_of(got)
    assert (on.event.cost_nusd, on.event.usage_source) == (nusd, source)
    assert on.event.is_suspect is (nusd is None)


READERS: dict[str, tuple[Callable[[bytes], TokenUsage | None], tuple[str, ...]]] = {
    "chat": (openai.usage_from_wire, ("prompt_tokens", "completion_tokens", "total_tokens")),
    "responses": (openai.usage_from_wire, ("input_tokens", "output_tokens")),
    "running": (openai.usage_on_the_way, ("prompt_tokens", "completion_tokens")),
    "embeddings": (openai.usage_of_embeddings, ("prompt_tokens", "total_tokens")),
    "anthropic": (anthropic.usage_from_wire, ("input_tokens", "output_tokens")),
    "gemini": (gemini.usage_from_gemini, ("promptTokenCount", "candidatesTokenCount")),
    "gemini's total": (gemini.usage_from_gemini, ("totalTokenCount",)),
    "bedrock": (lambda raw: bedrock.usage_from_wire(json.loads(raw)), ("inputTokens",)),
    "ollama": (ollama.usage_in, ("prompt_eval_count", "eval_count")),
    "triton": (triton.usage_in, (triton.INPUT, triton.OUTPUT)),
}
ODD = st.one_of(
    st.booleans(),
    st.text(alphabet="abcxyz ,", min_size=1),
    st.floats(0.1, 0.9),
    st.lists(st.integers(), min_size=1, max_size=2),
)


@pytest.mark.parametrize("dialect", READERS)
@given(data=st.data())
def test_counts_of_which_none_can_be_read_hold_the_attempt(
    dialect: str, data: st.DataObject
) -> None:
    """They may be any number, so neither an estimate nor an earlier figure stands for them."""
    reader, names = READERS[dialect]
    usage = reader(json.dumps({name: data.draw(ODD) for name in names}).encode())
    assert usage is not None
    made = settled(usage, running=TokenUsage(input_tokens=1, output_tokens=1))
    assert (made.source, made.cost_nusd, made.is_suspect) == (UsageSource.UNKNOWN, None, True)


@pytest.mark.parametrize("dialect", READERS)
@pytest.mark.parametrize("usage", [b"{}", b'{"note":"x"}'])
def test_a_usage_without_counts_is_none(dialect: str, usage: bytes) -> None:
    """Nothing was counted, so the attempt is as one without a usage."""
    assert READERS[dialect][0](usage) is None


@pytest.mark.parametrize("reader", [openai.usage_from_wire, anthropic.usage_from_wire])
def test_a_usage_longer_than_any_holds_the_attempt(
    reader: Callable[[bytes], TokenUsage | None],
) -> None:
    """It is there, and is not read."""
    usage = reader(b'{"note":"' + b"x" * MAX_USAGE_BYTES + b'"}')
    assert usage is not None
    assert usage.has_unread


def test_the_end_of_a_message_with_such_a_usage_holds_it() -> None:
    """The prompt of its start is no final figure."""
    figures = StreamFigures(Observed())
    figures.begin(msgspec.Raw(b'{"input_tokens":5,"output_tokens":1}'))
    figures.finish(msgspec.Raw(b'{"note":"' + b"x" * MAX_USAGE_BYTES + b'"}'))
    final = figures.observed.final
    assert final is not None
    assert final.has_unread


@pytest.mark.parametrize("odd", ['"many"', "1.5", "true", "[1]"])
def test_the_end_of_an_answer_of_ollama_with_such_counts_holds_it(odd: str) -> None:
    """After content, counts that are left out are unknown; these are there."""
    line = f'{{"message":{{"content":"hi"}},"done":true,"eval_count":{odd}}}\n'
    reader = ollama.OllamaReader(Observed())
    reader.feed(line.encode())
    assert reader.observed.final is not None
    assert reader.observed.final.has_unread


def test_the_end_of_an_answer_of_triton_with_such_counts_holds_it() -> None:
    """Its counts are added up; one that cannot be read makes the sum no count."""
    reader = triton.TritonReader("a", most_tokens=None)
    for count in ("1", '"many"', "1"):
        piece = f'data: {{"text_output":"x","{triton.OUTPUT}":{count}}}\n\n'
        reader.feed(piece.encode())
    reader.end()
    assert reader.observed.final is not None
    assert reader.observed.final.has_unread
