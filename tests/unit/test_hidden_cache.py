"""After hiding, answers that differ only in how the prompt was cached are the same bytes, and every
byte outside the figures is as it came.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.dialect import UnpricedPart, UnreadableAnswer
from gateway.wire.hidden_cache.answers import without_cache
from gateway.wire.hidden_cache.usages import anthropic_usage, openai_usage
from gateway.wire.openai.usage_names import PLACES
from gateway.wire.sse import EventSplitter, data_of
from gateway.wire.surrogates import without_halves
from tests.unit.test_golden import CASES, GOLDEN

PROMPT, ANSWER = 1000, 7
OF_CACHE = [
    place for place in PLACES if place.name.startswith("cache") or place.name.startswith("cached")
]
PLAIN, STREAM = False, True
Usage = dict[str, Any]


def free(_: TokenUsage) -> str | None:
    """Return a cost that no caller may see."""
    return "0.5"


def sent(content: bytes, operation: Operation = Operation.CHAT, *, stream: bool = PLAIN) -> bytes:
    """Return a part of an answer for the caller."""
    return without_cache(operation, is_stream=stream)(content, free)


def event(payload: object) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def put(usage: Usage, path: tuple[str, ...], count: int) -> None:
    for name in path[:-1]:
        usage = usage.setdefault(name, {})
    usage[path[-1]] = count


splits = st.lists(
    st.tuples(st.sampled_from(OF_CACHE), st.integers(0, PROMPT // 2)), max_size=4
).map(dict)


def openai_form(split: dict[Any, int], *, inputs: str) -> Usage:
    """Return a usage with cached and written tokens inside its prompt, at these places."""
    usage: Usage = {inputs: PROMPT, "completion_tokens": ANSWER, "total_tokens": PROMPT + ANSWER}
    for place, count in split.items():
        put(usage, place.path, count)
    return usage


@given(splits, splits, st.sampled_from(["prompt_tokens", "input_tokens"]), st.booleans())
def test_an_openai_usage_is_the_same_for_every_split(
    one: dict[Any, int], other: dict[Any, int], inputs: str, is_response: bool
) -> None:
    """Under each published name, wherever it stands, or under none."""
    first, second = (
        openai_usage(
            json.dumps(openai_form(split, inputs=inputs)).encode(), is_response=is_response
        )
        for split in (one, other)
    )
    assert first == second
    shown = json.loads(first)
    assert (shown[inputs], shown["total_tokens"]) == (PROMPT, PROMPT + ANSWER)


@given(st.integers(0, PROMPT), st.integers(0, PROMPT))
def test_a_prompt_that_leaves_the_cache_out_is_completed(read: int, written: int) -> None:
    """Portkey counts the cache of Anthropic's models beside the prompt, and the total shows it."""
    written = min(written, PROMPT - read)
    usage = {
        "prompt_tokens": PROMPT - read - written,
        "completion_tokens": ANSWER,
        "total_tokens": PROMPT + ANSWER,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
    }
    shown = openai_usage(json.dumps(usage).encode(), is_response=False)
    assert json.loads(shown) == {
        "prompt_tokens": PROMPT,
        "completion_tokens": ANSWER,
        "total_tokens": PROMPT + ANSWER,
    }


@st.composite
def anthropic_form(draw: st.DrawFn) -> bytes:
    """Draw one of Anthropic's usages of the same prompt."""
    read = draw(st.integers(0, PROMPT))
    written = draw(st.integers(0, PROMPT - read))
    hour = draw(st.integers(0, written))
    usage: Usage = {"input_tokens": PROMPT - read - written, "output_tokens": ANSWER}
    if read or draw(st.booleans()):
        usage["cache_read_input_tokens"] = read
    if written or draw(st.booleans()):
        usage["cache_creation_input_tokens"] = written
        usage["cache_creation"] = {
            "ephemeral_5m_input_tokens": written - hour,
            "ephemeral_1h_input_tokens": hour,
        }
        if draw(st.booleans()):
            del usage["cache_creation_input_tokens"]
    iteration = {"type": "message", "model": "m", **usage}
    return json.dumps(usage | {"iterations": [iteration], "service_tier": "standard"}).encode()


@given(anthropic_form(), anthropic_form())
def test_an_anthropic_usage_is_the_same_for_every_split(one: bytes, other: bytes) -> None:
    """Its input leaves the cache out, so it gains the tokens read and written."""
    assert anthropic_usage(one) == anthropic_usage(other)
    shown = json.loads(anthropic_usage(one))
    assert shown["input_tokens"] == shown["iterations"][0]["input_tokens"] == PROMPT
    assert shown["cache_read_input_tokens"] == shown["cache_creation_input_tokens"] == 0
    assert shown["service_tier"] == "standard"


@pytest.mark.parametrize("cached", [0, 40])
@pytest.mark.parametrize(
    ("figures", "shown"),
    [
        ({"usage": {"cost": 1.5, "cost_details": {}, "prompt_cache_miss_tokens": 60}}, {}),
        ({"usage": {"prompt_time": 0.1, "total_time": 1, "cost_in_usd_ticks": 5}}, {}),
        ({"timings": {"cache_n": 40, "prompt_n": 60}, "prompt_progress": {"cache": 40}}, None),
        ({"metrics": {"time_to_first_token_ms": 5}, "sglext": {"cached_tokens_details": {}}}, None),
        ({"perf_metrics": {}, "time_info": {}, "__verbose": {"tokens_cached": 40}}, None),
    ],
)
def test_figures_beside_the_counts_are_left_out(
    cached: int, figures: dict[str, Any], shown: object
) -> None:
    """An upstream's cost and its time for the prompt tell of the cache as its counts do."""
    head = '{"id": "c",  "choices": [{"index":0, "message": {"content": "cached_tokens"}}]'
    more = json.dumps(figures).replace("40", str(cached))[1:]
    expected = head + ("" if shown is None else ', "usage": {}') + "}"
    assert sent(f"{head}, {more}".encode()) == expected.encode()


GROQ_USAGE = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 5}, "prompt_time": 1}


def test_the_usages_of_groq_and_moonshot_are_usages() -> None:
    """They stand in members of their own."""
    chunk = {
        "choices": [{"index": 0, "usage": GROQ_USAGE, "meta_info": {}}],
        "x_groq": {"id": "r", "seed": 5, "usage": GROQ_USAGE, "usage_breakdown": None},
        "usage_breakdown": {"models": [{"model": "m", "usage": GROQ_USAGE}]},
    }
    shown = json.loads(sent(event(chunk), stream=STREAM).removeprefix(b"data: "))
    usage = {"prompt_tokens": 9}
    assert shown == {
        "choices": [{"index": 0, "usage": usage}],
        "x_groq": {"id": "r", "usage": usage, "usage_breakdown": None},
        "usage_breakdown": {"models": [{"model": "m", "usage": usage}]},
    }


TOOL = {"usage": {"cached_tokens": 5}, "cost": 1, "timings": {"cache_n": 3}}


@pytest.mark.parametrize(
    ("operation", "payload"),
    [
        (
            Operation.CHAT,
            {"choices": [{"delta": {"tool_calls": [{"arguments": json.dumps(TOOL)}]}}]},
        ),
        (Operation.CHAT, {"choices": [{"delta": TOOL}], "model": 'x"usage"'}),
        (Operation.CHAT, {"choices": None, "usage": None}),
        (
            Operation.MESSAGES,
            {"type": "content_block_start", "content_block": {"type": "tool_use", "input": TOOL}},
        ),
        (Operation.RESPONSES, {"type": "response.output_item.done", "item": TOOL}),
        (
            Operation.RESPONSES,
            {
                "response": {
                    "output": [TOOL],
                    "metadata": TOOL,
                    "prompt_cache_key": "k",
                    "usage": None,
                }
            },
        ),
    ],
)
def test_the_words_of_a_model_or_a_caller_pass_unchanged(
    operation: Operation, payload: dict[str, Any]
) -> None:
    """Only the members at the places of figures are figures."""
    assert sent(event(payload), operation, stream=STREAM) == event(payload)
    body = json.dumps(payload, indent=3).encode()
    assert sent(body, operation) == body


def test_other_lines_and_framings_of_a_stream_pass_unchanged() -> None:
    """Comments keep a connection open, and clients read the names of events."""
    part = b": ping\n\nevent: a\r\ndata: {}\r\n\r\ndata: [DONE]\n\ndata: {}"
    assert sent(part, stream=STREAM) == part + b"\n\n"
    two = b'event: x\ndata: {"cost": 1}\n\n' * 2
    assert sent(two, stream=STREAM) == b"event: x\ndata: {}\n\n" * 2


def test_a_usage_that_cannot_be_read_is_not_shown() -> None:
    """Too long, of another type, cut, or without a readable count."""
    for raw in (b'"cached 5"', b"[5]", b'{"a": %s}' % (b"1" * 70_000), b'{"a": "\xff"}'):
        assert openai_usage(raw, is_response=False) == b"null"
        assert anthropic_usage(raw) == b"null"
    assert anthropic_usage(b'{"iterations": 5, "input_tokens": null}') == (
        b'{"input_tokens":null,"cache_creation":null,"cache_creation_input_tokens":0,'
        b'"cache_read_input_tokens":0,"iterations":null}'
    )
    assert openai_usage(b'{"prompt_tokens":null}', is_response=False) == b'{"prompt_tokens":null}'
    assert json.loads(openai_usage(b"{}", is_response=True)) == {}


@pytest.mark.parametrize(
    "broken", [b"no JSON", b"[1]", b'{"choices": [5], "a": 1}', b'{"a":"\xff"}']
)
def test_a_part_that_cannot_be_read_is_not_sent(broken: bytes) -> None:
    """It may have a usage that a caller's reader finds."""
    with pytest.raises(UnreadableAnswer):
        sent(broken)
    assert sent(b"data: " + broken + b"\n\n", stream=STREAM) == b""


def test_half_a_surrogate_pair_stays() -> None:
    """A maximum may cut an emoji; the answer around it is complete."""
    text = b'{"choices":[{"text":"\\ud83d"}],"usage":{"prompt_tokens":3,"cached_tokens":2}}'
    assert sent(text) == text.replace(b',"cached_tokens":2', b"")
    with pytest.raises(UnreadableAnswer):
        sent(b'{"a":"\\ud83d",}')


def test_a_member_that_stands_twice_is_written_once() -> None:
    """Two readers may take different ones."""
    twice = b'{"usage":{"cached_tokens":5}, "cost": 1, "id":"a", "usage":null}'
    assert sent(twice) == b'{"usage":null,"id":"a"}'


def test_odd_members_of_groq_are_null() -> None:
    """Their figures cannot be told from others."""
    assert sent(b'{"x_groq":5,"usage_breakdown":[]}') == b'{"x_groq":null,"usage_breakdown":null}'


@pytest.mark.parametrize("fresh", [1000, 3])
def test_the_last_usage_of_messages_has_the_prompt_of_the_first(fresh: int) -> None:
    """Some servers state the cached tokens in `message_start` alone; the meter joins both."""
    usage = b'{"input_tokens":%d,"output_tokens":7}' % fresh
    content = b'event: message_delta\ndata: {"type":"message_delta","usage":%s}\n\n' % usage
    place = content.index(b"}}")
    metered = TokenUsage(input_tokens=1000, output_tokens=7)
    part = UnpricedPart(metered, content, place, place, b',"cost_usd":')
    shown = without_cache(Operation.MESSAGES, is_stream=True)(part, free)
    found = msgspec.json.decode(shown.partition(b"data: ")[2])["usage"]
    assert (found["input_tokens"], "cost_usd" in found) == (1000, False)


def test_the_start_of_messages_shows_the_whole_prompt() -> None:
    """Its usage stands in the message."""
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 3}}}
    start["message"]["usage"]["cache_read_input_tokens"] = 97  # type: ignore[index]
    shown = sent(event(start), Operation.MESSAGES, stream=STREAM)
    assert json.loads(shown[6:])["message"]["usage"]["input_tokens"] == 100
    odd = event({"type": "error", "message": "text"})
    assert sent(odd, Operation.MESSAGES, stream=STREAM) == odd


def test_parts_of_the_prompt_without_a_cache_stay() -> None:
    """Audio and images have rates of their own."""
    usage = b'{"input_tokens":9,"input_tokens_details":{"audio_tokens":4,"cached_tokens":2}}'
    assert json.loads(openai_usage(usage, is_response=True)) == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0, "audio_tokens": 4},
    }
    assert json.loads(openai_usage(usage, is_response=False)) == {
        "input_tokens": 9,
        "prompt_tokens_details": {"audio_tokens": 4},
    }


def telling(value: Any, place: str = "") -> list[str]:
    """Return the places of members that tell of a cache or a cost, outside texts."""
    found = []
    if isinstance(value, dict):
        for name, member in value.items():
            tells = "cach" in name or "cost" in name or "timing" in name
            if tells and member and name != "prompt_cache_key":
                found.append(f"{place}.{name}")
            found += telling(member, f"{place}.{name}")
    elif isinstance(value, list):
        found = [one for part in value for one in telling(part, place)]
    return found


@pytest.mark.parametrize("case", CASES)
def test_no_recorded_answer_tells_of_the_cache(case: str) -> None:
    """Every provider's answers, translated ones too; the content stays."""
    folder = GOLDEN / case
    operation = Operation(json.loads((folder / "case.json").read_text())["operation"])
    for path in (*folder.glob("answer.json"), *folder.glob("answer.sse")):
        content, is_stream = path.read_bytes(), path.suffix == ".sse"
        shown = sent(content, operation, stream=is_stream)
        before, after = (list(payloads(one, is_stream)) for one in (content, shown))
        assert len(before) == len(after) > 0
        assert telling(after) == []
        for old, new in zip(before, after, strict=True):
            for name in ("choices", "content", "delta", "content_block", "item", "output"):
                assert telling(old.get(name)) or old.get(name) == new.get(name)


def payloads(content: bytes, is_stream: bool) -> Iterator[dict[str, Any]]:
    """Yield the objects of an answer or of its events."""
    parts = map(data_of, EventSplitter().feed(content)) if is_stream else [content]
    for payload in parts:
        if payload is not None and payload.startswith(b"{"):
            yield msgspec.json.decode(without_halves(payload))


def test_an_event_of_several_lines_stays_one() -> None:
    """Servers may split the data of an event."""
    part = b'data: {"cost":1,\ndata: "usage":{"cached_tokens":5}}\n\n'
    assert sent(part, stream=STREAM) == b'data: {\ndata: "usage":{}}\n\n'
