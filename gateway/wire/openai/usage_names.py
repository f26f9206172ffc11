"""Lists the places of each count in a usage of OpenAI's dialect, as its servers write them, and the
members that cost nothing beside those; makes the decoder of such a usage from the lists; judges no
usage.

`openai_compatible` is every server without a row of its own, so the names of other gateways count
too. The places of one count must agree. If they do not, the dearer reading counts: fewer cached
tokens, and more of anything else. A 0 beside another number of these is a default
(the usage of QuantumNous/new-api has both `prompt_tokens` and `input_tokens`, one of them 0).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import msgspec

from gateway.domain.pricing.repeated_usage import dearer_count
from gateway.domain.pricing.unknown_counts import INPUT, OUTPUT, WRITES, known_names

# The range of 64 bits; a longer number is not a count and fits in no column.
LEAST, MOST = -(2**63), 2**63 - 1
Count = Annotated[int, msgspec.Meta(ge=LEAST, le=MOST)]

Path = tuple[str, ...]
# Counts that only help to read others: they are no members of `TokenUsage`.
TOTAL, WRITES_5M = "total_tokens", "cache_write_5m_tokens"
INPUT_TEXT, INPUT_VIDEO, OUTPUT_TEXT, UNCACHED = (
    "text_input_tokens",
    "video_input_tokens",
    "text_output_tokens",
    "uncached_input_tokens",
)
_INPUT = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_OUTPUT = ("completion_tokens_details", "output_tokens_details", "output_token_details")
DETAILS = {"input": _INPUT, "output": _OUTPUT}


class CountPlace(NamedTuple):
    """One place of a count: the names from the usage down, and who writes it there."""

    name: str
    path: Path
    source: str


_OPENAI = "OpenAI's API reference: the usage of chats and of responses"
_VLLM = "vLLM 0.32"
_LITELLM = "litellm 1.110.2, types/utils.py, Usage and PromptTokensDetailsWrapper"
_NEW_API = "QuantumNous/new-api, dto/openai_response.go, Usage"
_BIFROST = "maximhq/bifrost, core/schemas/chatcompletions.go, ChatPromptTokensDetails"
_PORTKEY = "Portkey-AI/gateway, src/providers/anthropic/chatComplete.ts"
_REQUESTY = "Requesty's answers, by the type that Roo Code reads them with"
_OPENROUTER = "openrouter 1.3.84, components/chatusage.py and servertoolusedetails.py"
_QWEN = "Alibaba's Model Studio, explicit cache; the names were not found on its page"
_DEEPSEEK = "api-docs.deepseek.com, Context Caching"
_MOONSHOT = "Moonshot's answers: promptfoo pull request 10132, QuantumNous/new-api issue 2493"
_SGLANG = "sglang 0.5.23"
_XAI = "docs.x.ai/developers/pricing and .../tools/tool-usage-details"
_PERPLEXITY = "Perplexity's answers of sonar-deep-research"
_GROQ = "groq 1.7.0, types/completion_usage.py"
_MISTRAL = "recorded answers of Mistral"
_CEREBRAS = "Cerebras' API reference: usage of chats"
_SAMBANOVA = "SambaNova's answers, as several clients read them"
_VOYAGE = "Voyage AI's API reference: usage of multimodal embeddings"
_SPELLING = "no server's type has it; it follows the names that some have"
# One line a name: the count, the place ("input." and "output." are details under each of their
# names), and its source. Looked up on 2026-11-24 and 2026-11-28.
_NAMES: tuple[tuple[str, str, str], ...] = (
    ("input_tokens", "prompt_tokens", _OPENAI),
    ("input_tokens", "input_tokens", _OPENAI),
    ("output_tokens", "completion_tokens", _OPENAI),
    ("output_tokens", "output_tokens", _OPENAI),
    (TOTAL, "total_tokens", _OPENAI),
    ("cached_input_tokens", "input.cached_tokens", _OPENAI),
    ("cached_input_tokens", "input.cached_read_tokens", _BIFROST),
    ("cached_input_tokens", "input.cache_read_input_tokens", _SPELLING),
    ("cached_input_tokens", "prompt_cache_hit_tokens", _DEEPSEEK),
    (UNCACHED, "prompt_cache_miss_tokens", _DEEPSEEK),
    ("cached_input_tokens", "cache_read_input_tokens", _LITELLM),
    ("cached_input_tokens", "cached_tokens", _MOONSHOT),
    ("cached_input_tokens", "cached_input_tokens", _SPELLING),
    ("cache_write_tokens", "input.cache_write_tokens", _OPENROUTER),
    ("cache_write_tokens", "input.created_cache_tokens", _VLLM),
    ("cache_write_tokens", "input.cache_creation_tokens", _LITELLM),
    ("cache_write_tokens", "input.cached_creation_tokens", _NEW_API),
    ("cache_write_tokens", "input.cached_write_tokens", _BIFROST),
    ("cache_write_tokens", "input.caching_tokens", _REQUESTY),
    ("cache_write_tokens", "input.cache_creation_input_tokens", _QWEN),
    ("cache_write_tokens", "cache_creation_input_tokens", _PORTKEY),
    ("cache_write_tokens", "cache_write_tokens", _SPELLING),
    (WRITES_5M, "input.cache_write_tokens_details.ttl_5m_tokens", _SPELLING),
    (WRITES_5M, "input.cache_write_tokens_details.ephemeral_5m_input_tokens", _LITELLM),
    (WRITES_5M, "input.cache_creation_token_details.ephemeral_5m_input_tokens", _LITELLM),
    (WRITES_5M, "input.cache_creation.ephemeral_5m_input_tokens", _QWEN),
    (WRITES_5M, "input.cached_write_token_details.cached_write_tokens_5m", _BIFROST),
    (WRITES_5M, "cache_write_tokens_details.ttl_5m_tokens", _SPELLING),
    (WRITES_5M, "cache_write_tokens_details.ephemeral_5m_input_tokens", _SPELLING),
    (WRITES_5M, "cache_creation.ephemeral_5m_input_tokens", _PORTKEY),
    (WRITES_5M, "claude_cache_creation_5_m_tokens", _NEW_API),
    ("cache_write_30m_tokens", "input.cache_write_tokens_details.ttl_30m_tokens", _OPENAI),
    ("cache_write_30m_tokens", "cache_write_tokens_details.ttl_30m_tokens", _SPELLING),
    ("cache_write_1h_tokens", "input.cache_write_tokens_details.ttl_1h_tokens", _SPELLING),
    (
        "cache_write_1h_tokens",
        "input.cache_write_tokens_details.ephemeral_1h_input_tokens",
        _LITELLM,
    ),
    (
        "cache_write_1h_tokens",
        "input.cache_creation_token_details.ephemeral_1h_input_tokens",
        _LITELLM,
    ),
    ("cache_write_1h_tokens", "input.cache_creation.ephemeral_1h_input_tokens", _QWEN),
    (
        "cache_write_1h_tokens",
        "input.cached_write_token_details.cached_write_tokens_1h",
        _BIFROST,
    ),
    ("cache_write_1h_tokens", "cache_write_tokens_details.ttl_1h_tokens", _SPELLING),
    ("cache_write_1h_tokens", "cache_write_tokens_details.ephemeral_1h_input_tokens", _SPELLING),
    ("cache_write_1h_tokens", "cache_creation.ephemeral_1h_input_tokens", _PORTKEY),
    ("cache_write_1h_tokens", "claude_cache_creation_1_h_tokens", _NEW_API),
    ("cache_write_12h_tokens", "input.cache_write_tokens_details.ttl_12h_tokens", _OPENAI),
    ("cache_write_12h_tokens", "cache_write_tokens_details.ttl_12h_tokens", _SPELLING),
    ("audio_input_tokens", "input.audio_tokens", _OPENAI),
    ("image_input_tokens", "input.image_tokens", _OPENAI),
    (INPUT_TEXT, "input.text_tokens", _LITELLM),
    (INPUT_VIDEO, "input.video_tokens", _OPENROUTER),
    ("cached_audio_input_tokens", "input.cached_tokens_details.audio_tokens", _NEW_API),
    ("reasoning_tokens", "output.reasoning_tokens", _OPENAI),
    ("reasoning_tokens", "reasoning_tokens", _SGLANG),
    ("audio_output_tokens", "output.audio_tokens", _OPENAI),
    ("image_output_tokens", "output.image_tokens", _OPENROUTER),
    (OUTPUT_TEXT, "output.text_tokens", _LITELLM),
    # xAI counts the successful calls, which are billed; `num_sources_used` is not (it was the bill
    # of Live Search, which ended in January 2026).
    ("web_search_calls", "server_side_tool_usage_details.web_search_calls", _XAI),
    ("web_search_calls", "server_tool_use_details.web_search_requests", _OPENROUTER),
    ("web_search_calls", "server_tool_use.web_search_requests", _LITELLM),
    ("web_search_calls", "input.web_search_requests", _LITELLM),
    ("web_search_calls", "num_search_queries", _PERPLEXITY),
    ("x_search_calls", "server_side_tool_usage_details.x_search_calls", _XAI),
    ("code_interpreter_calls", "server_side_tool_usage_details.code_interpreter_calls", _XAI),
    ("file_search_calls", "server_side_tool_usage_details.file_search_calls", _XAI),
    ("image_generation_calls", "server_side_tool_usage_details.image_generation_calls", _XAI),
)
# xAI's sum of the calls of its own tools, and the calls of each. The sum costs nothing beside them;
# calls that they do not name are of an unknown kind (docs.x.ai/developers/tools/tool-usage-details,
# 2026-11-29).
TOOLS_USED, TOOLS_DETAILS = b"num_server_side_tools_used", "server_side_tool_usage_details"
# Members that cost nothing beside the counts above: a part of one of them whose kind has its price,
# the whole of some, a time, or an amount of money. xAI bills calls of MCP by their tokens, and its
# `x_posts_fetched` are in no price list (docs/lab/providers.tsv). Looked up on 2026-11-29.
_HARMLESS: tuple[tuple[str, str], ...] = (
    ("output.accepted_prediction_tokens", _OPENAI),
    ("output.rejected_prediction_tokens", _OPENAI),
    ("input.cached_tokens_details.text_tokens", _OPENAI),
    ("input.cached_tokens_details.image_tokens", _OPENAI),
    ("input.multimodal_tokens", _VLLM),
    ("output.tool_output_tokens", _VLLM),
    ("num_cached_tokens", _MISTRAL),
    ("image_tokens", _CEREBRAS),
    ("text_tokens", _VOYAGE),
    ("server_tool_use.web_fetch_requests", _LITELLM),
    ("server_tool_use.tool_search_requests", _LITELLM),
    ("server_tool_use_details.tool_calls_requested", _OPENROUTER),
    ("server_tool_use_details.tool_calls_executed", _OPENROUTER),
    ("server_side_tool_usage_details.mcp_calls", _XAI),
    ("server_side_tool_usage_details.x_posts_fetched", _XAI),
    ("server_side_tool_usage_details.x_users_fetched", _XAI),
    ("num_server_side_tools_used", _XAI),
    ("num_sources_used", _XAI),
    ("context_details", _XAI),  # the tokens of the last turn
    ("cost_in_usd_ticks", _XAI),
    ("cost", _OPENROUTER),
    ("cost_details", _OPENROUTER),
    ("is_byok", _OPENROUTER),
    ("queue_time", _GROQ),
    ("prompt_time", _GROQ),
    ("completion_time", _GROQ),
    ("total_time", _GROQ),
    ("time_to_first_token", _SAMBANOVA),
    ("search_context_size", _PERPLEXITY),
    ("service_tier", _MISTRAL),
    ("inference_geo", _LITELLM),
    ("speed", _LITELLM),
)


def _paths(name: str) -> Iterator[Path]:
    """Yield the paths of a name, details under each of theirs."""
    head, *rest = name.split(".")
    for details in DETAILS.get(head, (head,)):
        yield details, *rest


PLACES: tuple[CountPlace, ...] = tuple(
    CountPlace(count, path, source) for count, name, source in _NAMES for path in _paths(name)
)
HARMLESS_PATHS = frozenset(path for name, _ in _HARMLESS for path in _paths(name))
_LIFETIME = re.compile(r"cache_write_\d+[mh]_tokens")
KNOWN_NAMES = known_names(
    map(".".join, {place.path for place in PLACES} | HARMLESS_PATHS),
    dict.fromkeys(_INPUT, INPUT)
    | dict.fromkeys(_OUTPUT, OUTPUT)
    | {
        ".".join(place.path[:-1]): WRITES
        for place in PLACES
        if _LIFETIME.fullmatch(place.name) and len(place.path) > 1
    },
)
COUNT_PATHS = frozenset(place.path for place in PLACES)
# The paths of the objects that hold counts.
HOLDER_PATHS = frozenset(
    place.path[:depth] for place in PLACES for depth in range(1, len(place.path))
)
# Anthropic's names of the cache's reads and writes, at the top of a usage.
_ANTHROPICS = frozenset(
    {
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "cache_creation",
        "claude_cache_creation_5_m_tokens",
        "claude_cache_creation_1_h_tokens",
    }
)
# Of each count of the cache its places inside the prompt's details, and those under these names.
_CACHE_PLACES: Mapping[str, tuple[tuple[Path, ...], tuple[Path, ...]]] = {
    count: (
        tuple(place.path for place in PLACES if place.name in names and place.path[0] in _INPUT),
        tuple(
            place.path for place in PLACES if place.name in names and place.path[0] in _ANTHROPICS
        ),
    )
    for count, names in {
        "cached_input_tokens": ("cached_input_tokens",),
        "cache_write_tokens": ("cache_write_tokens", WRITES_5M, "cache_write_1h_tokens"),
    }.items()
}
_DIGITS = b"0123456789"
MOST_SHAPE_BYTES = 1024  # of a usage whose shape is remembered


@cache  # the details have several names and one type
def _struct_of(
    counts: frozenset[Path], others: frozenset[Path], name: str, *, is_strict: bool
) -> type[msgspec.Struct]:
    """Return a struct type for the members at these paths, each of which may be absent; the others
    stay undecoded. If it is strict, a member of another name cannot be decoded.
    """
    below: Mapping[str, tuple[set[Path], set[Path]]] = defaultdict(lambda: (set(), set()))
    leaves: dict[str, tuple[Any, Any]] = {}
    for which, paths in enumerate((counts, others)):
        for head, *rest in paths:
            if rest:
                below[head][which].add(tuple(rest))
            else:
                leaves[head] = (msgspec.Raw, msgspec.Raw()) if which else (Count | None, None)
    fields: list[tuple[str, Any, Any]] = [(head, *leaf) for head, leaf in leaves.items()]
    for head, (inner, more) in below.items():
        kind = _struct_of(frozenset(inner), frozenset(more), "Details", is_strict=is_strict)
        fields.append((head, kind | None, None))
    return msgspec.defstruct(name, fields, gc=False, forbid_unknown_fields=is_strict)


@cache  # takes 10 ms to create, and most processes never need it
def usage_type(*, is_strict: bool = False) -> type[msgspec.Struct]:
    """Return the struct type of a usage with all counts of the table; if it is strict, with all
    other members of the table too, and with none beside these.
    """
    others = HARMLESS_PATHS if is_strict else frozenset()
    return _struct_of(COUNT_PATHS, others, "Usage", is_strict=is_strict)


@cache
def usage_decoder(*, is_strict: bool = False) -> Callable[[msgspec.Raw | bytes], msgspec.Struct]:
    """Return the function that decodes such a usage."""
    return msgspec.json.Decoder(usage_type(is_strict=is_strict)).decode


class Lookup(NamedTuple):
    """The places to look at in a usage; `get` reads all of them at once. `is_usual` if all of them
    are counts that most usages have, and `is_plain` if each count has one place.
    """

    names: tuple[str, ...]
    paths: tuple[Path, ...]
    get: Callable[[msgspec.Struct], tuple[int | None, ...]]
    is_usual: bool
    is_plain: bool


def lookup_in(usage: bytes) -> Lookup:
    """Return the places of a usage whose names stand in it.

    The usages of one upstream differ in their digits alone, so the places of a shape are found
    once.
    """
    return _lookup(usage.translate(None, _DIGITS)) if len(usage) < MOST_SHAPE_BYTES else ALL


def counts_of(usage: msgspec.Struct, lookup: Lookup) -> tuple[dict[str, int], dict[str, int]]:
    """Return the counts of a decoded usage that are reported, and the cheaper readings of those
    whose places contradict each other.
    """
    try:
        values = lookup.get(usage)
    except AttributeError:  # an object is null
        values = tuple(_value_at(usage, path) for path in lookup.paths)
    found = zip(lookup.names, values, strict=True)
    if lookup.is_plain and None not in values:
        return dict(found), {}  # type: ignore[arg-type]  # none is None
    if lookup.is_plain:
        return {name: value for name, value in found if value is not None}, {}
    counts: dict[str, int] = {}
    cheaper: dict[str, int] = {}
    for name, value in found:
        if value is not None and (known := counts.setdefault(name, value)) != value:
            low = min(known, value)
            # A negative count must not hide.
            counts[name] = kept = low if low < 0 else dearer_count(name, known, value)
            if low or kept == low:
                cheaper[name] = value if kept == known else known
    return counts, cheaper


def tokens_beside(usage: msgspec.Struct, counts: Mapping[str, int]) -> int:
    """Return the tokens of a decoded usage without a total that may stand beside its prompt or its
    answer: its names say neither.

    Anthropic counts the cache beside `input_tokens`; gateways that take its names differ. Details
    of the prompt are inside it. xAI's chat counts reasoning beside `completion_tokens`, OpenAI's
    inside; all count it inside `output_tokens`.
    """
    found = 0
    if counts.get("input_tokens") is not None:
        for count, (inside, unsure) in _CACHE_PLACES.items():
            is_unsure = any(_value_at(usage, path) for path in unsure)
            if is_unsure and all(_value_at(usage, path) is None for path in inside):
                found += max(counts.get(count, 0), 0)
    if counts.get("output_tokens") and not _value_at(usage, ("output_tokens",)):
        found += max(counts.get("reasoning_tokens", 0), 0)
    return found


def _value_at(usage: Any, path: Path) -> int | None:
    """Return the count at one place."""
    for name in path:
        usage = getattr(usage, name, None)  # None has no members
    found: int | None = usage
    return found


@lru_cache(maxsize=256)
def _lookup(shape: bytes) -> Lookup:
    """Return the places whose names stand in a usage without its digits."""
    if b"\\" in shape:  # an escape may spell a name
        return ALL

    def is_quoted(name: str) -> bool:
        """Return True if a name, without its digits, stands in the shape."""
        return b'"%b"' % name.encode().translate(None, _DIGITS) in shape

    return _lookup_of(place for place in PLACES if all(map(is_quoted, place.path)))


def _lookup_of(places: Iterable[CountPlace]) -> Lookup:
    """Return the lookup of these places and of the two at the top, which most usages have."""
    found = dict.fromkeys((*reversed(tuple(places)), *_USUAL))
    return Lookup(
        tuple(place.name for place in found),
        tuple(place.path for place in found),
        attrgetter(*(".".join(place.path) for place in found)),
        _USUAL_COUNTS.issuperset(place.name for place in found),
        len({place.name for place in found}) == len(found),
    )


# Counts that stand in the normal form as they are reported.
_USUAL_COUNTS = frozenset(
    {
        "input_tokens",
        "output_tokens",
        TOTAL,
        "cached_input_tokens",
        "cache_write_tokens",
        "audio_input_tokens",
        "image_input_tokens",
        "reasoning_tokens",
        "audio_output_tokens",
        "image_output_tokens",
    }
)
_USUAL = tuple(place for place in PLACES if place.path in (("prompt_tokens",), (TOTAL,)))
ALL = _lookup_of(PLACES)
