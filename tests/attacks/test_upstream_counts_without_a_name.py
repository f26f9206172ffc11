"""Counts of names that no table has: they were booked as nothing, or as text, without a mark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CompletionUsage
from openai.types.responses import ResponseOutputItem, ResponseUsage
from pydantic import BaseModel

from gateway.domain.pricing.cache_writes import longest_kind
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.settlement import Counted, Settlement
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.domain.pricing.unknown_counts import MOST_VALUES, UNITS, unknown_counts
from gateway.wire.anthropic import usage as anthropic
from gateway.wire.anthropic.answer.messages import rewrite_message
from gateway.wire.bedrock import usage as bedrock
from gateway.wire.gemini import usage as gemini
from gateway.wire.observed import Observed
from gateway.wire.openai import usage as openai
from gateway.wire.openai.answer.responses import rewrite_response
from gateway.wire.openai.usage_names import KNOWN_NAMES
from tests.attacks.streamed import HELD_NUSD, last, read, settlement_of, text
from tests.factories import settled
from tests.oracles.recorded import recorded

GOLDEN = Path(__file__).parent.parent / "golden"
USD = {
    TokenKind.INPUT: 10,
    TokenKind.CACHE_WRITE: 12,
    TokenKind.CACHE_WRITE_1H: 20,
    TokenKind.OUTPUT: 50,
    TokenKind.IMAGE_INPUT: 40,
    TokenKind.AUDIO_OUTPUT: 90,
    TokenKind.CODE_INTERPRETER: 30_000,
    TokenKind.IMAGE_GENERATION: 40_000,
    TokenKind.WEB_SEARCH: 10_000,
}
PRICE = Price(
    provider="p",
    model="m",
    source="policy",
    rates=tuple(Rate(kind=kind, usd_per_mtok=Decimal(usd)) for kind, usd in USD.items()),
)
COUNTED = Counted(usage=TokenUsage(input_tokens=9, output_tokens=9), is_exact=False)
Reader = Callable[[Any], TokenUsage | None]
READERS: Mapping[str, Reader] = {
    "openai": lambda usage: openai.usage_from_wire(json.dumps(usage).encode()),
    "anthropic": lambda usage: anthropic.usage_from_wire(json.dumps(usage).encode()),
    "gemini": lambda usage: gemini.usage_from_gemini(json.dumps(usage).encode()),
    "bedrock": bedrock.usage_from_wire,
}
PLAIN: Mapping[str, dict[str, Any]] = {
    "openai": {"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000},
    "anthropic": {"input_tokens": 1000, "output_tokens": 1000},
    "gemini": {"promptTokenCount": 1000, "candidatesTokenCount": 1000, "totalTokenCount": 2000},
    "bedrock": {"inputTokens": 1000, "outputTokens": 1000, "totalTokens": 2000},
}
PLAIN_NUSD = (1000 * 10 + 1000 * 50) * 1000


def settlement(usage: TokenUsage | None, **known: Any) -> Settlement:
    """Return the settlement of a final usage; our own count of the text does not replace it."""
    assert usage is not None
    return settled(usage, price=PRICE, held_nusd=HELD_NUSD, counted=COUNTED, **known)


def is_held(made: Settlement) -> bool:
    """Return True if an attempt is held, is flagged and keeps the reported usage."""
    found = (made.cost_nusd, made.held_nusd, made.is_suspect, made.source)
    return found == (None, HELD_NUSD, True, UsageSource.UNKNOWN) and made.reported is not None


JUDGED = {"type": "judge_message", "input_tokens": 5000, "output_tokens": 300}
HELD: Mapping[str, tuple[str, dict[str, Any]]] = {
    "a sampling of an unknown type": ("anthropic", {"iterations": [JUDGED]}),
    "a sampling without a type": ("anthropic", {"iterations": [{"output_tokens": 300}]}),
    "an unknown tool": ("anthropic", {"server_tool_use": {"image_gen_requests": 2}}),
    "writes without their whole": ("anthropic", {"cache_creation": {"ephemeral_24h_tokens": 7}}),
    "citations": ("openai", {"citation_tokens": 20_016}),
    "searches of attachments": (
        "openai",
        {"server_side_tool_usage_details": {"document_search_calls": 4}},
    ),
    "searches of images": ("openai", {"server_side_tool_usage_details": {"image_searches": 2}}),
    "a tool without a word": ("openai", {"server_side_tool_usage_details": {"shell": 2}}),
    "calls of an agent": ("openai", {"tool_calls_details": {"search_web": {"invocation": 1}}}),
    "a plugin": ("openai", {"plugins": {"search": {"count": 1}}}),
    "characters": ("openai", {"prompt_tokens_details": {"character_count": 900}}),
    "pages": ("openai", {"pages_processed": 3}),
    "a text": ("openai", {"audio_seconds": "1.2e1"}),
    "a fraction": ("openai", {"audio_seconds": 0.2}),
    "less than none": ("openai", {"audio_seconds": -0.2}),
    "beyond every count": ("openai", {"audio_seconds": 1e60}),
    "more than the whole": ("openai", {"prompt_tokens_details": {"a_tokens": 1001}}),
    "less than nothing": ("openai", {"prompt_tokens_details": {"a_tokens": -1}}),
    "Gemini's": ("gemini", {"musicTokenCount": 7}),
    "Bedrock's": ("bedrock", {"guardrailUnits": 7}),
}


@pytest.mark.parametrize("name", HELD)
def test_unknown_units_and_tokens_beside_the_whole_are_held(name: str) -> None:
    dialect, members = HELD[name]
    usage = READERS[dialect](PLAIN[dialect] | members)
    if "whole" in name or "nothing" in name:  # a contradiction: our own count may stand for it
        assert usage is not None
        assert not usage.is_plausible or is_held(settlement(usage))
        return
    assert is_held(settlement(usage))


ESTIMATED: Mapping[str, tuple[str, dict[str, Any], int]] = {
    "documents and tools": (
        "openai",
        {"prompt_tokens_details": {"document_tokens": 50, "tool_tokens": 20}},
        70 * 30,
    ),
    "videos": ("openai", {"completion_tokens_details": {"video_tokens": 15}}, 15 * 40),
    "music": ("openai", {"completion_tokens_details": {"music_tokens": 15}}, 15 * 40),
    "a word without a unit": ("openai", {"completion_tokens_details": {"music": 15}}, 15 * 40),
    "deep inside": ("openai", {"prompt_tokens_details": {"a": {"b": [{"c": 9}]}}}, 9 * 30),
    "Anthropic's": ("anthropic", {"output_tokens_details": {"music_tokens": 15}}, 15 * 40),
}


@pytest.mark.parametrize("name", ESTIMATED)
def test_parts_of_an_unknown_name_cost_the_dearest_kind(name: str) -> None:
    dialect, members, more_usd_per_mtok = ESTIMATED[name]
    made = settlement(READERS[dialect](PLAIN[dialect] | members))
    assert made.cost_nusd == PLAIN_NUSD + more_usd_per_mtok * 1000
    assert made.source is UsageSource.ESTIMATED
    assert made.reported is not None


def openai_writes(written: int | None, lifetimes: dict[str, int]) -> TokenUsage | None:
    details: dict[str, Any] = {f"ttl_{name}_tokens": n for name, n in lifetimes.items()}
    prompt: dict[str, Any] = {"cache_write_tokens_details": details, "cache_write_tokens": written}
    return READERS["openai"](PLAIN["openai"] | {"prompt_tokens_details": prompt})


def anthropic_writes(written: int | None, lifetimes: dict[str, int]) -> TokenUsage | None:
    creation = {f"ephemeral_{name}_input_tokens": n for name, n in lifetimes.items()}
    usage = {"input_tokens": 1000 - (written or 0), "cache_creation_input_tokens": written}
    return READERS["anthropic"](PLAIN["anthropic"] | usage | {"cache_creation": creation})


def bedrock_writes(written: int | None, lifetimes: dict[str, int]) -> TokenUsage | None:
    usage: dict[str, Any] = {
        "inputTokens": 1000 - (written or 0),
        "cacheWriteInputTokens": written,
        "cacheDetails": [{"ttl": name, "inputTokens": n} for name, n in lifetimes.items()],
    }
    return READERS["bedrock"](PLAIN["bedrock"] | usage)


@pytest.mark.parametrize("reader", [openai_writes, anthropic_writes, bedrock_writes])
@pytest.mark.parametrize(
    ("asked", "lifetimes", "for_an_hour", "source"),
    [
        ("5m", {"24h": 400}, 400, UsageSource.ESTIMATED),
        ("1h", {"24h": 400}, 400, UsageSource.ESTIMATED),
        ("5m", {"5m": 0, "1h": 0, "24h": 400}, 400, UsageSource.ESTIMATED),
        ("5m", {"5m": 100, "1h": 200}, 300, UsageSource.ESTIMATED),
        ("5m", {"5m": 0, "1h": 0}, 400, UsageSource.ESTIMATED),
        ("5m", {"5m": 300, "45m": 100}, 100, UsageSource.ESTIMATED),
        ("1h", {"5m": 400, "1h": 0}, 0, UsageSource.PROVIDER),
        ("5m", {"5m": 100, "1h": 300}, 300, UsageSource.PROVIDER),
    ],
)
def test_writes_of_an_unknown_lifetime_cost_the_dearest_one(
    reader: Callable[[int, dict[str, int]], TokenUsage | None],
    asked: str,
    lifetimes: dict[str, int],
    for_an_hour: int,
    source: UsageSource,
) -> None:
    """They were billed at the rate of five minutes."""
    made = settlement(reader(400, lifetimes), asked_writes=longest_kind({asked}))
    expected = PLAIN_NUSD + (400 * (12 - 10) + for_an_hour * (20 - 12)) * 1000
    assert (made.cost_nusd, made.source) == (expected, source)


def done(**item: Any) -> dict[str, Any]:
    return {"id": "i", "status": "completed", **item}


VIDEO = done(type="video_generation_call")
IN_CONTAINER = done(type="shell_call", environment={"type": "container_reference"})
AT_THE_CALLER = done(type="shell_call", environment={"type": "local"})
IMAGES = {"image_gen": {"input_tokens": 500, "output_tokens": 4000, "total_tokens": 4500}}
# The items and the counts beside the usage, and the fee in USD per million; None if it is unknown.
RESPONSES: Mapping[str, tuple[list[dict[str, Any]], dict[str, Any], int | None]] = {
    "an unknown tool": ([VIDEO], {}, None),
    "one without the word": ([done(type="video")], {}, None),
    "a shell in a container": ([IN_CONTAINER], {}, 30_000),
    "a shell of the caller": ([AT_THE_CALLER, done(type="shell_call")], {}, 0),
    "tools without a fee": ([done(type="mcp_call"), done(type="function_call")], {}, 0),
    "tokens of images": ([], IMAGES, 40_000),
    "images and their tokens": ([done(type="image_generation_call")] * 2, IMAGES, 80_000),
    "searches beside the usage": ([], {"web_search": {"num_requests": 3}}, 30_000),
    "an unknown tool beside it": ([], {"video_gen": {"seconds": 3}}, None),
    "no object": ([], {"web_search": 3}, None),
    "nothing beside it": ([], {"image_gen": {"input_tokens": 0}, "video_gen": None}, 0),
}


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("name", RESPONSES)
def test_calls_of_tools_in_a_response_are_never_nothing(name: str, *, is_stream: bool) -> None:
    output, tools, fee = RESPONSES[name]
    (end,) = last("responses", 9, 9)
    assert not isinstance(end, bytes)
    response = {**end["response"], "output": output, "tool_usage": tools}
    if is_stream:
        items = [{"type": "response.output_item.done", "item": item} for item in output]
        seen = read("responses", [text("responses"), *items, {**end, "response": response}])
    else:
        seen = Observed(is_whole=True)
        rewrite_response(json.dumps(response).encode(), seen, model="m")
    made = settlement_of(seen, calls=seen.calls, price=PRICE)
    if fee is None:
        assert is_held(made)
    else:
        assert made.cost_nusd == (9 * 10 + 9 * 50 + fee) * 1000
        assert made.source is UsageSource.PROVIDER


@pytest.mark.parametrize(("name", "cost_is_known"), [("image_gen", False), ("web_fetch", True)])
@pytest.mark.parametrize("reader", ["messages", "translated", "whole"])
def test_blocks_of_an_unknown_tool_are_held(name: str, reader: str, *, cost_is_known: bool) -> None:
    """The block alone shows the call; the usage may not count it."""
    block = {"type": "server_tool_use", "id": "s", "name": name, "input": {}}
    if reader == "whole":
        seen = Observed(is_whole=True)
        usage = {"input_tokens": 9, "output_tokens": 9}
        content = [block, {"type": "text", "text": "a"}]
        body = {"id": "m", "type": "message", "content": content, "usage": usage}
        rewrite_message(json.dumps(body).encode(), seen, model="m")
    else:
        start = {"type": "content_block_start", "index": 0, "content_block": block}
        seen = read(reader, [start, text(reader), *last(reader, 9, 9)])
    made = settlement_of(seen, calls=seen.calls, price=PRICE)
    assert (made.cost_nusd is not None) is cost_is_known
    assert made.is_suspect is not cost_is_known


# A word of a count, with anything around it: no table has such a name, as good as surely.
NAMES = st.builds(
    "{}_{}{}".format,
    st.text("abcdefghijklmnopqrstuvwxyz", min_size=7, max_size=7),
    st.sampled_from(("tokens", "calls", "requests", "searches", "units", "seconds", "images")),
    st.sampled_from(("", "_count", "_used", "Total")),
)
PLACES: Mapping[str, tuple[str, ...]] = {
    "openai": (
        "",
        "prompt_tokens_details",
        "input_tokens_details",
        "output_token_details",
        "completion_tokens_details",
        "server_tool_use",
        "server_side_tool_usage_details",
        "server_tool_use_details",
    ),
    "anthropic": ("", "output_tokens_details", "server_tool_use", "anything"),
    "gemini": ("", "anything"),
    "bedrock": ("", "anything"),
}
NUMBERS = st.one_of(
    st.integers(1, 1000),
    st.floats(0.001, 1000),
    st.integers(1, 1000).map(str),
    st.integers(1, 1000).map(lambda n: [{"a": n}]),
    st.integers(1, 1000).map(lambda n: {"a": {"b": n}}),
)


@given(
    place=st.sampled_from([(one, at) for one, places in PLACES.items() for at in places]),
    name=NAMES,
    count=NUMBERS,
)
def test_a_count_of_an_invented_name_is_never_nothing(
    place: tuple[str, str], name: str, count: Any
) -> None:
    """It is held and flagged, or estimated at not less than without it."""
    dialect, at = place
    member = {at: {name: count}} if at else {name: count}
    usage = READERS[dialect](PLAIN[dialect] | member)
    assert usage is not None
    made = settlement(usage)
    if made.source is UsageSource.ESTIMATED:
        assert "details" in at
        assert made.cost_nusd is not None
        assert made.cost_nusd >= PLAIN_NUSD
    else:
        assert is_held(made)


ZEROS = (0, "0", 0.0, None, True, "", "many", "nan", "Infinity", [], {})


@given(name=NAMES, at=st.sampled_from([*PLACES["openai"], "a"]), count=st.sampled_from(ZEROS))
def test_nothing_under_an_invented_name_changes_nothing(name: str, at: str, count: Any) -> None:
    """Servers state zeros of tools that were not called."""
    member = {at: {name: count}} if at else {name: count}
    assert READERS["openai"](PLAIN["openai"] | member) == READERS["openai"](PLAIN["openai"])


def unknown_in(usage: TokenUsage | None) -> dict[str, int]:
    """Return the unknown counts of a usage."""
    known = {} if usage is None else msgspec.structs.asdict(usage)
    return {name: n for name, n in known.items() if name.startswith("unknown_") and n}


def test_recorded_usages_have_no_unknown_count() -> None:
    """1,577 answers of many providers: an ordinary one is booked as before."""
    assert [one for one in recorded() if unknown_in(one.ours)] == []


def usages_in(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the usages in the answer of an upstream, whole or a stream, with their dialects."""
    for line in [text, *text.splitlines()]:
        with suppress(ValueError):
            yield from usages_of(json.loads(line.removeprefix("data:")))


def usages_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the usages in a decoded answer, with their dialects."""
    if isinstance(value, dict):
        for name, member in value.items():
            if name == "usageMetadata":
                yield "gemini", member
            elif name == "usage" and isinstance(member, dict):
                is_bedrock = "inputTokens" in member
                yield "bedrock" if is_bedrock else "openai", member
            else:
                yield from usages_of(member)
    elif isinstance(value, list):
        for item in value:
            yield from usages_of(item)


def test_answers_that_the_tests_keep_have_no_unknown_count() -> None:
    """Golden answers of 22 providers and engines: seconds of sound, and xAI's searches of
    attachments, have no price.
    """
    found = [
        (str(path.relative_to(GOLDEN)), usage)
        for path in sorted(GOLDEN.glob("*/*/upstream.*"))
        for dialect, usage in usages_in(path.read_text(errors="replace"))
        if unknown_in(READERS["anthropic" if path.parts[-3] == "anthropic" else dialect](usage))
    ]
    assert {path for path, _ in found} == {
        "mistral/chat-audio/upstream.json",
        "xai/chat-search/upstream.json",
    }


def filled(kind: type[BaseModel]) -> dict[str, Any]:
    """Return a value of a type in which each count is 1."""
    found: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        inner = [one for one in (field.annotation, *get_args(field.annotation)) if is_model(one)]
        found[name] = filled(inner[0]) if inner else 1
    return found


def is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


@pytest.mark.parametrize("kind", [CompletionUsage, ResponseUsage])
def test_each_count_of_openais_types_has_a_name(kind: type[BaseModel]) -> None:
    """A release of the package with another count fails here."""
    assert unknown_counts(filled(kind), KNOWN_NAMES) == {}


def test_each_item_of_openais_types_has_a_name() -> None:
    """A release of the package with another tool fails here."""
    items = get_args(get_args(ResponseOutputItem)[0])
    kinds = {get_args(item.model_fields["type"].annotation)[0] for item in items}
    assert len(kinds) > 20
    for kind in kinds:
        calls = openai.calls_in(msgspec.Raw(json.dumps([{"type": kind}]).encode()))
        assert UNITS not in calls, kind


def test_xais_counts_have_names() -> None:
    """A recorded answer: `context_details` are the tokens of the last turn."""
    usage = {
        "input_tokens": 7583,
        "input_tokens_details": {"cached_tokens": 3072},
        "output_tokens": 3192,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10775,
        "num_sources_used": 0,
        "num_server_side_tools_used": 3,
        "cost_in_usd_ticks": 292331500,
        "server_side_tool_usage_details": {"x_search_calls": 3, "mcp_calls": 1},
        "context_details": {"input_tokens": 5993, "output_tokens": 2995},
    }
    assert unknown_in(READERS["openai"](usage)) == {}


TOOLS = {"web_search_calls": 1, "document_search_calls": 0, "x_posts_fetched": 40}


@pytest.mark.parametrize(
    ("used", "details", "unnamed"),
    [
        (4, {}, 4),
        (4, {"server_side_tool_usage_details": None}, 4),
        (4, {"server_side_tool_usage_details": TOOLS}, 3),
        (1, {"server_side_tool_usage_details": TOOLS}, 0),
        (0, {}, 0),
        (0, {"server_side_tool_usage_details": TOOLS}, 0),
        (None, {}, 0),
        ("4", {}, 4),
        (True, {}, 0),
    ],
)
@pytest.mark.parametrize("names", [("prompt", "completion"), ("input", "output")])
def test_xais_calls_that_no_detail_names_are_units(
    names: tuple[str, str], used: Any, details: dict[str, Any], unnamed: int
) -> None:
    """Four calls of a tool with a fee cost nothing: the table had the sum as one of known calls."""
    counts = {f"{names[0]}_tokens": 10, f"{names[1]}_tokens": 5, "total_tokens": 15}
    usage = {**counts, "num_server_side_tools_used": used, **details}
    read = READERS["openai"](usage)
    assert read is not None
    assert (read.unknown_units or 0) == unnamed
    assert (read.input_tokens, read.output_tokens) == (10, 5)


@pytest.mark.parametrize("depth", [10, 900, 100_000])
def test_a_count_at_any_depth_raises_nothing(depth: int) -> None:
    """A decoder stops at a depth, and so did the walk, by an error."""
    inner = b'{"a":' * depth + b"1" + b"}" * depth
    read = openai.usage_from_wire(
        b'{"prompt_tokens":9,"completion_tokens":9,"b_calls":' + inner + b"}"
    )
    if depth < 1000:
        assert read is not None
        assert read.unknown_units == 1


def test_a_usage_of_thousands_of_members_is_held() -> None:
    """Each takes some microseconds of the event loop; none is looked at."""
    members = {f"a{number}": 0 for number in range(MOST_VALUES)}
    assert unknown_in(READERS["openai"](PLAIN["openai"] | members)) == {"unknown_units": 1}


def test_rates_times_and_amounts_are_no_counts() -> None:
    """SambaNova's and Perplexity's figures beside the tokens."""
    usage = PLAIN["openai"] | {
        "completion_tokens_after_first_per_sec": 203.2,
        "time_to_first_token": 0.2,
        "total_latency": 0.4,
        "acceptance_rate": 4.2,
        "search_queries_cost": 0.1,
        "cost": {"input_tokens_cost": 0.1, "request_cost": 0.5},
        "is_last_response": True,
        "request_id": "r",
    }
    assert READERS["openai"](usage) == READERS["openai"](PLAIN["openai"])
