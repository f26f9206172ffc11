"""Upstreams whose usage has a count that is no plain number, or two different numbers for one
count: the first was 0, and the second was booked by the name that the table lists first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.tokens import CALL_KINDS, TokenKind, TokenUsage, UsageSource
from gateway.wire.anthropic import usage as anthropic
from gateway.wire.bedrock import usage as bedrock
from gateway.wire.foreign_json import count_from_json, object_of
from gateway.wire.gemini import usage as gemini
from gateway.wire.observed import Observed
from gateway.wire.ollama import answer as ollama
from gateway.wire.openai import usage as openai
from gateway.wire.openai.chat_translation.usage_members import chat_usage
from gateway.wire.openai.usage_names import PLACES, CountPlace
from tests.factories import facts, settled

Read = Callable[[bytes], TokenUsage | None]
HELD_NUSD = 10**15
# Each kind has a rate, in the order of what providers charge.
_USD_PER_MTOK = {
    TokenKind.CACHED_INPUT: "1",
    TokenKind.CACHED_AUDIO_INPUT: "2",
    TokenKind.INPUT: "10",
    TokenKind.CACHE_WRITE: "12.5",
    TokenKind.CACHE_WRITE_30M: "15",
    TokenKind.CACHE_WRITE_1H: "20",
    TokenKind.CACHE_WRITE_12H: "25",
    TokenKind.OUTPUT: "50",
}
PRICE = Price(
    provider="openai_compatible",
    model="m-1",
    source="policy",
    rates=tuple(
        Rate(kind=kind, usd_per_mtok=Decimal(_USD_PER_MTOK.get(kind, "60")))
        if kind not in CALL_KINDS
        else Rate(kind=kind, usd_per_mtok=Decimal(10_000))
        for kind in TokenKind
    ),
)


def _bedrock(raw: bytes) -> TokenUsage | None:
    members = object_of(raw)
    return None if members is None else bedrock.usage_from_wire(members)


READERS: dict[str, Read] = {
    "openai": openai.usage_from_wire,
    "anthropic": anthropic.usage_from_wire,
    "bedrock": _bedrock,
    "gemini": gemini.usage_from_gemini,
    "ollama": ollama.usage_in,
}
WHOLE: dict[str, dict[str, Any]] = {
    "openai": {"prompt_tokens": 1000, "completion_tokens": 1000},
    "anthropic": {"input_tokens": 1000, "output_tokens": 1000},
    "bedrock": {"inputTokens": 1000, "outputTokens": 1000},
    "gemini": {"promptTokenCount": 1000, "candidatesTokenCount": 1000},
    "ollama": {"prompt_eval_count": 1000, "eval_count": 1000},
}
_OF_ANTHROPIC = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
    "total_tokens",
    "cache_creation.ephemeral_5m_input_tokens",
    "cache_creation.ephemeral_1h_input_tokens",
    "output_tokens_details.thinking_tokens",
    "server_tool_use.web_search_requests",
)
# Each count that a dialect's reader knows, by its names from the usage down.
COUNTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    *(("openai", place.path) for place in PLACES),
    *(("anthropic", tuple(name.split("."))) for name in _OF_ANTHROPIC),
    *(("bedrock", (name,)) for name in bedrock._COUNTS),
    *(("gemini", (name,)) for name in gemini._ALL_COUNTS),
    *(("ollama", (name,)) for name in ("prompt_eval_count", "eval_count")),
)


def with_value(usage: dict[str, Any], path: tuple[str, ...], value: bytes) -> bytes:
    """Return a usage as JSON with these bytes as the value at one place."""
    name, *rest = path
    inner = with_value(usage.get(name, {}), tuple(rest), value) if rest else value
    raw = {one: msgspec.Raw(json.dumps(kept).encode()) for one, kept in usage.items()}
    return msgspec.json.encode(raw | {name: msgspec.Raw(inner)})


def cost_nusd(usage: TokenUsage | None) -> int | None:
    """Return the booked cost, None for an attempt that is held."""
    found = settled(usage, price=PRICE, held_nusd=HELD_NUSD)
    assert found.cost_nusd is None or found.source is UsageSource.PROVIDER
    return found.cost_nusd


def _spellings(count: int) -> Iterator[bytes]:
    """Yield other notations of a count."""
    tens = len(str(count)) - len(str(count).rstrip("0"))
    for text in (f"{count}.0", f"{count // 10**tens}e{tens}", f"{count / 1000}E+3"):
        yield text.encode()
        yield f'"{text}"'.encode()
    yield f'"{count}"'.encode()


UNREADABLE = (
    b'"1,000"',
    b'"three"',
    b'"1 000"',
    b'""',
    b"1000.5",
    b'"1e3.5"',
    b"1e400",
    b"9223372036854775808",
    b'"1_000"',
    b"true",
    b"[1000]",
    b'{"value":1000}',
    b'"NaN"',
    '"١٢"'.encode(),
)


@pytest.mark.parametrize(("dialect", "path"), COUNTS, ids=lambda one: str(one))
@settings(max_examples=5)
@given(count=st.integers(0, 100).map(lambda n: n * 10) | st.integers(0, 1000))
def test_a_count_in_any_notation_is_the_same(
    dialect: str, path: tuple[str, ...], count: int
) -> None:
    """`1e5` is a number of JSON as well as `100000`."""
    read, whole = READERS[dialect], WHOLE[dialect]
    plain = read(with_value(whole, path, b"%d" % count))
    for spelling in _spellings(count):
        assert count_from_json(spelling) == count
        assert read(with_value(whole, path, spelling)) == plain


@pytest.mark.parametrize("spelling", UNREADABLE, ids=ascii)
@pytest.mark.parametrize(("dialect", "path"), COUNTS, ids=lambda one: str(one))
def test_a_count_that_cannot_be_read_is_never_left_out(
    dialect: str, path: tuple[str, ...], spelling: bytes
) -> None:
    """The attempt is held and flagged: the number may be any."""
    usage = READERS[dialect](with_value(WHOLE[dialect], path, spelling))
    found = settled(
        usage, price=PRICE, held_nusd=HELD_NUSD, running=TokenUsage(input_tokens=1, output_tokens=1)
    )
    if spelling == b"1e400" and usage is None:  # no JSON of a small reader: nothing is read
        return
    assert (found.cost_nusd, found.held_nusd, found.is_suspect) == (None, HELD_NUSD, True)
    assert found.reported == usage


@pytest.mark.parametrize(("dialect", "path"), COUNTS, ids=lambda one: str(one))
def test_a_null_count_is_none(dialect: str, path: tuple[str, ...]) -> None:
    """It is absent, as before, and marks nothing."""
    read, whole = READERS[dialect], WHOLE[dialect]
    assert read(with_value(whole, path, b"null")) == read(
        json.dumps({name: n for name, n in whole.items() if name != path[0]}).encode()
    )


def _pairs() -> Iterator[tuple[CountPlace, CountPlace]]:
    """Yield each two places of one count."""
    for place in PLACES:
        for other in PLACES:
            if other.name == place.name and other.path < place.path:
                yield place, other


@pytest.mark.parametrize(("place", "other"), list(_pairs()), ids=lambda one: ".".join(one.path))
@settings(max_examples=8)
@given(counts=st.tuples(st.integers(0, 400), st.integers(0, 400)))
def test_two_places_that_disagree_book_the_dearer_number_or_hold(
    place: CountPlace, other: CountPlace, counts: tuple[int, int]
) -> None:
    """A usage with two numbers of one count is not booked by the cheaper one."""
    whole = dict(WHOLE["openai"])
    if place.name in ("input_tokens", "output_tokens"):
        whole.pop("prompt_tokens" if place.name == "input_tokens" else "completion_tokens")

    def booked(at_place: int, at_other: int) -> int | None:
        first = with_value(whole, place.path, b"%d" % at_place)
        both = with_value(json.loads(first), other.path, b"%d" % at_other)
        return cost_nusd(openai.usage_from_wire(both))

    found = booked(*counts)
    alone = [booked(count, count) for count in counts]
    assert found is None or all(cost is None or cost <= found for cost in alone)


ATTACKS: tuple[tuple[str, bytes, int | None], ...] = (
    (
        "anthropic",
        b'{"input_tokens":10,"cache_read_input_tokens":1e5,"cache_creation_input_tokens":2.5e4,'
        b'"output_tokens":5}',
        412_850_000,
    ),
    (
        "anthropic",
        b'{"input_tokens":10,"cache_creation_input_tokens":"100,000","output_tokens":5}',
        None,
    ),
    (
        "anthropic",
        b'{"input_tokens":10,"output_tokens":5,"server_tool_use":{"web_search_requests":"three"}}',
        None,
    ),
    (
        "anthropic",
        b'{"input_tokens":10,"output_tokens":5,"iterations":[{"type":"compaction",'
        b'"input_tokens":"x","output_tokens":1.5}]}',
        None,
    ),
    (
        "bedrock",
        b'{"inputTokens":10,"outputTokens":5,"totalTokens":15,"cacheReadInputTokens":"9e3",'
        b'"cacheWriteInputTokens":1000.5}',
        None,
    ),
    (
        "gemini",
        b'{"promptTokenCount":1000,"candidatesTokenCount":5,"thoughtsTokenCount":"5,000"}',
        None,
    ),
    (
        "gemini",
        b'{"promptTokenCount":1000,"candidatesTokenCount":5,"candidatesTokensDetails":'
        b'[{"modality":"AUDIO","tokenCount":"5,000"}]}',
        None,
    ),
    ("gemini", b'{"promptTokenCount":1000,"candidatesTokenCount":5,"promptTokensDetails":7}', None),
    (
        "bedrock",
        b'{"inputTokens":10,"outputTokens":5,"cacheWriteInputTokens":9,"cacheDetails":"1h"}',
        None,
    ),
    ("openai", b'{"prompt_tokens":1000,"completion_tokens":500,"total_tokens":1.5e4}', None),
    (
        "openai",
        b'{"prompt_tokens":1000,"completion_tokens":500,"total_tokens":1500,'
        b'"completion_tokens_details":{"audio_tokens":4e2}}',
        39_000_000,
    ),
    (
        "openai",
        b'{"prompt_tokens":10,"completion_tokens":5,"input_tokens":1000,"output_tokens":500}',
        None,
    ),
    (
        "openai",
        b'{"prompt_tokens":10,"completion_tokens":5,"input_tokens":1000,"output_tokens":500,'
        b'"total_tokens":1500}',
        35_000_000,
    ),
    (
        "openai",
        b'{"prompt_tokens":1000,"completion_tokens":500,"total_tokens":1500,'
        b'"prompt_tokens_details":{"cached_tokens":900},"prompt_cache_hit_tokens":0,'
        b'"prompt_cache_miss_tokens":1000}',
        None,
    ),
    (
        "openai",
        b'{"prompt_tokens":1000,"completion_tokens":500,"total_tokens":1500,'
        b'"server_tool_use_details":{"web_search_requests":0},'
        b'"server_tool_use":{"web_search_requests":5}}',
        85_000_000,
    ),
    ("openai", b'{"prompt_tokens":10,"completion_tokens":5,"total_tokens":1500}', None),
    ("openai", b'{"prompt_tokens":10,"completion_tokens":5,"text_tokens":1,"a":1.5}', 350_000),
    (
        "openai",
        b'{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"text_tokens":-5}}',
        None,
    ),
    (
        "anthropic",
        b'{"input_tokens":10,"output_tokens":5,"iterations":['
        b'{"type":"message","input_tokens":1000,"output_tokens":500}]}',
        None,
    ),
    ("anthropic", b'{"input_tokens":10,"output_tokens":5,"total_tokens":1500}', None),
    ("anthropic", b'{"input_tokens":10,"output_tokens":5,"total_tokens":15}', 350_000),
)


@pytest.mark.parametrize(("dialect", "raw", "booked"), ATTACKS)
def test_an_attackers_usage_is_booked_in_full_or_held(
    dialect: str, raw: bytes, booked: int | None
) -> None:
    """None: the hold stands, and the attempt is flagged."""
    usage = READERS[dialect](raw)
    assert cost_nusd(usage) == booked
    assert settled(usage, price=PRICE, held_nusd=HELD_NUSD).is_suspect == (booked is None)


@pytest.mark.parametrize("empty", [b"[]", b"[ ]", b'""', b"0", b"false", b"null"])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_an_object_without_counts_marks_nothing(dialect: str, empty: bytes) -> None:
    """Some servers write an empty object as a list."""
    name = {"openai": "prompt_tokens_details", "anthropic": "cache_creation"}[dialect]
    usage = READERS[dialect](with_value(WHOLE[dialect], (name,), empty))
    assert usage == TokenUsage(input_tokens=1000, output_tokens=1000)


def test_an_unreadable_list_of_models_is_another_model() -> None:
    """Groq's compound systems name the models there."""
    usage = TokenUsage(input_tokens=10, output_tokens=5)
    raw = b'{"models":[{"model":"m"},"llama-big"]}'
    assert openai.with_other_models(usage, raw, model="m").other_model_calls == 1


def test_an_unreadable_total_of_embeddings_is_not_left_out() -> None:
    """With the prompt unreadable, the total does not stand for it."""
    marked = openai.usage_of_embeddings(b'{"prompt_tokens":1.5,"input_tokens":3,"total_tokens":3}')
    assert marked is not None
    assert marked.has_unread
    alone = openai.usage_of_embeddings(b'{"prompt_tokens":"x","total_tokens":3}')
    assert alone is not None
    assert alone.has_unread
    assert openai.usage_of_embeddings(b'{"total_tokens":3}') == TokenUsage(input_tokens=3)


def test_a_caller_gets_the_readable_counts_and_their_sum() -> None:
    """The mark is no number of tokens."""
    usage = openai.usage_from_wire(
        b'{"prompt_tokens":10,"completion_tokens":5,"cached_tokens":"many"}'
    )
    assert usage is not None
    shown = chat_usage(usage, facts(), text_bytes=1)
    assert shown == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def test_a_running_usage_that_is_behind_stays_marked() -> None:
    """Its prompt alone would look like the truth."""
    observed = Observed()
    raw = msgspec.Raw(b'{"prompt_tokens":10,"completion_tokens":5,"cached_tokens":"many"}')
    observed.note_running(raw, openai.usage_from_wire)
    observed.note_uncounted()
    assert observed.usage is not None
    assert observed.usage.has_unread


@pytest.mark.parametrize("odd", [b'"many"', b'"1,000"', b"{}"])
def test_an_unreadable_prompt_at_the_end_replaces_the_one_of_the_start(odd: bytes) -> None:
    """An earlier figure does not stand for one that is unknown; one of 0 yields to it."""
    observed = Observed()
    figures = anthropic.StreamFigures(observed)
    figures.begin(msgspec.Raw(b'{"input_tokens":1000,"cache_read_input_tokens":0}'))
    figures.finish(
        msgspec.Raw(b'{"input_tokens":10,"cache_read_input_tokens":%s,"output_tokens":5}' % odd)
    )
    assert observed.final is not None
    found = settled(observed.final, running=observed.running, price=PRICE, held_nusd=HELD_NUSD)
    assert found.cost_nusd is None


@pytest.mark.parametrize(
    ("name", "value", "yields"),
    [
        ("input_tokens", b"0", True),
        ("input_tokens", b'"0.0"', True),
        ("input_tokens", b"{}", False),
        (
            "cache_creation",
            b'{"ephemeral_5m_input_tokens":0, "ephemeral_1h_input_tokens":null}',
            True,
        ),
        ("cache_creation", b"{}", True),
        ("cache_creation", b'{"ephemeral_5m_input_tokens":1}', False),
        ("input_tokens", b'"many"', False),
        ("input_tokens", b"7", False),
    ],
)
def test_a_prompt_of_zero_yields_to_an_earlier_one(name: str, value: bytes, yields: bool) -> None:
    """Some servers send a prompt of 0 in one of the two events."""
    assert anthropic._yields(name, msgspec.Raw(value), {name: msgspec.Raw(b"5")}) is yields
