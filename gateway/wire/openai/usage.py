"""Converts the usage that upstreams report in the OpenAI dialect to the normal form of
`domain.pricing.tokens`; a malformed one yields None.

The names of each count stand in `usage_names`; Groq may put its usage into its own member. All of
them count as the normal form does: cached, cache-write, audio and image tokens are parts of the
prompt; reasoning, audio and image tokens are parts of the answer; rejected predictions are already
included. A total that shows otherwise decides; without one, counts that may be beside the whole by
their names make the usage implausible (`usage_names.tokens_beside`). So does a count that is there
and cannot be read, or stands in two places with two numbers.
vLLM's `multimodal_tokens` are not read: on a self-hosted engine every token costs the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gateway.domain.pricing.repeated_usage import dearer
from gateway.domain.pricing.tokens import MOST_TOKENS, UNREADABLE, UNREADABLE_USAGE, TokenUsage
from gateway.domain.pricing.unknown_counts import (
    UNITS,
    WRITES,
    known_names,
    unknown_counts,
    with_unknown,
)
from gateway.wire.foreign_json import (
    MAX_USAGE_BYTES,
    count_from_json,
    count_in,
    has_figure,
    is_nothing,
    names_in,
    object_in,
    only_object,
    value_of,
)
from gateway.wire.observed import stated_word
from gateway.wire.openai.bounds import decode_few
from gateway.wire.openai.usage_detail import states_cost
from gateway.wire.openai.usage_names import (
    ALL,
    COUNT_PATHS,
    HOLDER_PATHS,
    INPUT_TEXT,
    INPUT_VIDEO,
    KNOWN_NAMES,
    OUTPUT_TEXT,
    TOOLS_DETAILS,
    TOOLS_USED,
    TOTAL,
    UNCACHED,
    WRITES_5M,
    Count,
    Path,
    counts_of,
    lookup_in,
    tokens_beside,
    usage_decoder,
    usage_type,
)
from gateway.wire.surrogates import without_halves

# Whatever bytes an upstream sends, reading them returns a value or nothing.
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class _UsualInput(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    cached_tokens: Count | None = None
    audio_tokens: Count | None = None


class _UsualOutput(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    reasoning_tokens: Count | None = None
    audio_tokens: Count | None = None
    accepted_prediction_tokens: Count | None = None
    rejected_prediction_tokens: Count | None = None


class _Usual(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """OpenAI's own usage of a chat and no member more: it is read in half of the time."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: _UsualInput | None = None
    completion_tokens_details: _UsualOutput | None = None


class _Groq(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw()  # an optional Raw cannot be decoded
    usage_breakdown: msgspec.Raw = msgspec.Raw()


class _ModelUsage(msgspec.Struct):
    model: str | None = None


class _Breakdown(msgspec.Struct):
    """The models of one answer of Groq's compound systems (groq 1.7.0, types/chat/
    chat_completion.py). Groq's page of models has no price for these systems (2026-11-25).
    """

    models: list[_ModelUsage] = []


class _Meta(msgspec.Struct):
    """Cohere's figures of an answer."""

    billed_units: msgspec.Raw = msgspec.Raw()
    tokens: msgspec.Raw = msgspec.Raw()


class _Metrics(msgspec.Struct):
    """vLLM's timings of one request (`--enable-per-request-metrics`)."""

    queue_time_ms: Any = None


class _Timings(msgspec.Struct):
    """llama.cpp's counts: new tokens of the prompt, reused ones, and those of the answer."""

    prompt_n: Count | None = None
    cache_n: Count | None = None
    predicted_n: Count | None = None


class _Item(msgspec.Struct):
    type: msgspec.Raw = msgspec.Raw()
    action: msgspec.Raw = msgspec.Raw()
    status: msgspec.Raw = msgspec.Raw()
    environment: msgspec.Raw = msgspec.Raw()
    container_id: msgspec.Raw = msgspec.Raw()


class _Requests(msgspec.Struct):
    num_requests: Count | None = None


class _ToolUsage(msgspec.Struct):
    """Counts of tools beside a response's usage (openai 3.57.0, types/beta/beta_response.py)."""

    web_search: _Requests | None = None


class _Action(msgspec.Struct):
    type: Any = None


class _Tier(msgspec.Struct):
    service_tier: Any = None


class _Place(msgspec.Struct):
    inference_geo: Any = None


MOST_QUEUE_MS = 24 * 3600 * 1000  # no request waits longer than a day
_NO_INPUT_DETAILS, _NO_OUTPUT_DETAILS = _UsualInput(), _UsualOutput()
_decode_usual = msgspec.json.Decoder(_Usual).decode
_CALLS_OF_TOOLS = frozenset(
    name for name in TokenUsage.__struct_fields__ if name.endswith("_calls")
)
_READ_PATHS = COUNT_PATHS | HOLDER_PATHS
_WHOLES = ("input_tokens", "output_tokens")
_ONLY_READ = frozenset({WRITES_5M, INPUT_TEXT, INPUT_VIDEO, OUTPUT_TEXT, UNCACHED})
_LIFETIMES = (
    WRITES_5M,
    "cache_write_30m_tokens",
    "cache_write_1h_tokens",
    "cache_write_12h_tokens",
)
_PARTS = {
    "input_tokens": (INPUT_TEXT, "audio_input_tokens", "image_input_tokens", INPUT_VIDEO),
    "output_tokens": (OUTPUT_TEXT, "audio_output_tokens", "image_output_tokens"),
    "cache_write_tokens": _LIFETIMES,
}
# Of members beside a usage: those of TGI's `details`, Fireworks' `perf_metrics` and others.
_SIDES = {
    "input_tokens": re.compile("prompt|input|evaluated|prefill", re.I),
    "output_tokens": re.compile("completion|output|generated|generation|predicted|answer", re.I),
}
_LIMIT = re.compile("max|min|limit|remaining|budget|reserved|allowed|per[_-]|window", re.I)
_decode_meta = msgspec.json.Decoder(_Meta).decode
_decode_groq = msgspec.json.Decoder(_Groq).decode
_decode_breakdown = msgspec.json.Decoder(_Breakdown | None).decode
# One decoder for each word: an odd member costs itself alone.
_decode_word = {
    "service_tier": msgspec.json.Decoder(_Tier).decode,
    "inference_geo": msgspec.json.Decoder(_Place).decode,
}
_decode_metrics = msgspec.json.Decoder(_Metrics | None).decode
_decode_timings = msgspec.json.Decoder(_Timings).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

CODE_CALLS = "code_interpreter_calls"
# Output items of `/v1/responses` for tools that the provider runs and charges per call.
_CALLS = {
    b'"web_search_call"': "web_search_calls",
    b'"file_search_call"': "file_search_calls",
    b'"code_interpreter_call"': CODE_CALLS,
    b'"image_generation_call"': "image_generation_calls",
}
# Items that cost their tokens alone: of the model, of tools that the caller runs, and of tools
# without a fee (openai 3.57.0, types/responses/response_output_item.py; OpenRouter's clock, and its
# searches, which its usage counts). Those of any other type are calls of a tool that has no price
# here.
_OF_TOKENS = frozenset(
    f'"{name}"'.encode()
    for name in names_in(
        "message reasoning compaction program program_output additional_tools function_call "
        "function_call_output custom_tool_call custom_tool_call_output computer_call "
        "computer_call_output tool_search_call tool_search_output local_shell_call "
        "local_shell_call_output shell_call_output apply_patch_call apply_patch_call_output "
        "mcp_call mcp_list_tools mcp_approval_request mcp_approval_response openrouter:datetime "
        "openrouter:web_search"
    )
)
# A shell in a container of OpenAI's is billed as its code interpreter is, by the container; one
# of the caller's has another environment, or none (developers.openai.com/api/docs/pricing,
# "Containers", 2026-11-29; types/responses/response_function_shell_tool_call.py).
_SHELL, _CONTAINER = b'"shell_call"', b'"container'
_SEARCH = b'"web_search_call"'
_COMPLETED, _FAILED = b'"completed"', frozenset({b'"failed"', b'"incomplete"'})
# Actions of a web search that read a page that was found. "Search actions incur a tool call cost"
# (developers.openai.com/api/docs/guides/tools-web-search, 2026-11-28), and the page names no cost
# of these. An action that is not stated counts as a search.
_FREE_ACTIONS = frozenset({"open_page", "find_in_page"})
_IMAGES = "image_generation_calls"
_TOOL_NAMES = known_names({"web_search.num_requests"}, {"image_gen": _IMAGES})
_decode_tool_usage = msgspec.json.Decoder(_ToolUsage).decode
_decode_action = msgspec.json.Decoder(_Action).decode


def usage_from_wire(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the token counts that a usage object reports; None if it reports none.

    Never raises, whatever the bytes are: settling depends on it. A member that is missing or null
    stays None: missing is never 0. One that is no whole number of 64 bits marks the usage as
    `UNREADABLE`, also if no other can be read; so does a value longer than any real usage.
    """
    try:
        usual = _decode_usual(raw)
    except _UNREADABLE:
        return _any_usage(raw)
    prompt, answer = usual.prompt_tokens, usual.completion_tokens
    if usual.total_tokens != prompt + answer:
        return _any_usage(raw)
    read = usual.prompt_tokens_details or _NO_INPUT_DETAILS
    written = usual.completion_tokens_details or _NO_OUTPUT_DETAILS
    return TokenUsage(
        input_tokens=prompt,
        cached_input_tokens=read.cached_tokens,
        audio_input_tokens=read.audio_tokens,
        output_tokens=answer,
        reasoning_tokens=written.reasoning_tokens,
        audio_output_tokens=written.audio_tokens,
    )


def _any_usage(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the token counts of a usage of any server. A cost above zero beside no count above
    zero is that of a unit without a name.
    """
    usage = _named_usage(raw)
    if usage is not None and any(msgspec.structs.astuple(usage)):
        return usage
    has_cost = bytes(raw).find(b"cost") >= 0 and states_cost(only_object(raw))
    return with_unknown(usage, {UNITS: 1}) if has_cost else usage


def _named_usage(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the token counts of a usage of any server, with the counts that the table of names
    does not have.
    """
    if memoryview(raw).nbytes > MAX_USAGE_BYTES:
        return UNREADABLE_USAGE
    raw = only_object(raw)
    if has_figure(raw):
        return with_unknown(None, {UNITS: 1})
    if raw.find(TOOLS_USED) >= 0:
        return _with_tools_used(raw)
    try:
        return _listed_usage(raw, usage_decoder(is_strict=True)(raw))
    except _UNREADABLE:
        return _with_unknown_counts(raw, value_of(raw))


def _with_unknown_counts(raw: msgspec.Raw | bytes, decoded: Any) -> TokenUsage | None:
    """Return the token counts of a usage with names that the table does not have."""
    return with_unknown(_listed_usage(raw, None), unknown_counts(decoded, KNOWN_NAMES))


def _with_tools_used(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the token counts of xAI's usage with the sum of its own tool calls. Calls in the sum
    that its details do not name are of an unknown kind, and so of an unknown price.
    """
    decoded = value_of(bytes(raw))
    usage = _with_unknown_counts(raw, decoded)
    details = object_in(decoded, TOOLS_DETAILS)
    named = sum(count_in(details, name) or 0 for name in details if name.endswith("_calls"))
    unnamed = (count_in(decoded, TOOLS_USED.decode()) or 0) - named
    return with_unknown(usage, {UNITS: unnamed}) if unnamed > 0 else usage


def _listed_usage(raw: msgspec.Raw | bytes, decoded: msgspec.Struct | None) -> TokenUsage | None:
    """Return the token counts of a usage of any server, by the table of names. `decoded` is the
    usage if it has no other ones.
    """
    has_unread = False
    try:
        usage, lookup = decoded or usage_decoder()(raw), lookup_in(bytes(raw))
    except _UNREADABLE:
        found, has_unread = _counts(raw)
        usage, lookup = msgspec.convert(found, usage_type()), ALL
    counts, cheaper = counts_of(usage, lookup)
    if has_unread or (not lookup.is_usual and any(counts.get(one, 0) < 0 for one in _ONLY_READ)):
        return _unread(counts)
    if not lookup.is_usual:
        _settle_rare(counts)
    total = counts.pop(TOTAL, None)
    if total is not None:
        gap = total - counts.get("input_tokens", 0) - counts.get("output_tokens", 0)
        if gap and (gap := _unexplained(counts, gap)):
            counts["unexplained_tokens"] = gap
        else:  # the total confirms the dearer reading of the two wholes
            cheaper = {name: low for name, low in cheaper.items() if name not in _WHOLES}
    elif beside := tokens_beside(usage, counts):
        counts.setdefault("unexplained_tokens", beside)
    for name, low in cheaper.items():
        contradiction = min(max(abs(counts.get(name, 0) - low), 1), MOST_TOKENS - 1)
        counts.setdefault("unexplained_tokens", -contradiction)
    return TokenUsage(**counts) if counts else None


def _unread(counts: dict[str, int]) -> TokenUsage:
    """Return the readable counts of a usage that has others, marked."""
    known = {name: n for name, n in counts.items() if name not in _ONLY_READ and name != TOTAL}
    return TokenUsage(**known, unexplained_tokens=UNREADABLE)


def with_billed_units(usage: TokenUsage | None, meta: msgspec.Raw) -> TokenUsage | None:
    """Return the usage of an answer whose `meta.billed_units` states what its provider bills, as
    Cohere's does (cohere 5, types/api_meta_billed_units.py): tokens, or other units, for which no
    price is known. Without them its `tokens` count.
    """
    try:
        stated = _decode_meta(meta)
        units = stated.billed_units
        found = _decode_members(units) if bytes(units).startswith(b"{") else {}
    except _UNREADABLE:
        return usage
    billed = {name: value for name, value in found.items() if not _is_zero(bytes(value))}
    if not billed:
        return usage or usage_from_wire(stated.tokens)
    if others := billed.keys() - set(_WHOLES):
        return with_unknown(usage, {UNITS: len(others)})
    bill = usage_from_wire(units)
    return usage if bill is None else bill if usage is None else dearer(usage, bill)


def counts_in(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the counts of an object of any name, if it has tokens of a prompt or an answer. Its
    other members may be anything.
    """
    usage = _listed_usage(raw, None)
    has_tokens = usage is not None and (usage.input_tokens, usage.output_tokens) != (None, None)
    return usage if has_tokens else _tokens_by_side(value_of(bytes(raw)))


def _tokens_by_side(members: Any) -> TokenUsage | None:
    """Return the highest count of tokens of each side among members whose names say that they are
    tokens, and of which side (`generated_tokens`, `prompt-tokens`); None if there is none. A limit
    is no count.
    """
    found: dict[str, int] = {}
    for name in members if isinstance(members, dict) else ():
        count = count_in(members, name)
        if count is None or count <= 0 or _LIMIT.search(name) or "token" not in name.lower():
            continue
        for side, words in _SIDES.items():
            if words.search(name):
                found[side] = max(count, found.get(side, 0))
    return TokenUsage(**found) if found else None


def _is_zero(value: bytes) -> bool:
    """Return True if a figure is 0 or is not there."""
    return value in (b"null", b"{}") or is_nothing(value) or count_from_json(value) == 0


def usage_of_embeddings(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the usage of an embeddings answer; `total_tokens` counts as the input if nothing else
    is reported.

    Some servers report 0 for every answer, but a text with a vector has at least one token, so 0
    means unknown. Voyage AI reports only `total_tokens` (its API reference, "Text embedding
    models").
    """
    usage = usage_from_wire(raw)
    if usage is not None and (usage.input_tokens or usage.has_unread):
        return usage
    found, has_unread = _counts(only_object(raw))
    total = None if has_unread else found.get(TOTAL)
    units = None if usage is None else usage.unknown_units
    return TokenUsage(input_tokens=total, unknown_units=units) if total or units else None


def usage_from_groq(raw: msgspec.Raw | bytes, *, model: str | None) -> TokenUsage | None:
    """Return the usage in a chunk's `x_groq` member: Groq sends it there whether or not it was
    requested. `model` is the answer's.
    """
    try:
        groq = _decode_groq(raw)
    except _UNREADABLE:
        return None
    usage = usage_from_wire(groq.usage)
    return None if usage is None else with_other_models(usage, groq.usage_breakdown, model=model)


def with_other_models(
    usage: TokenUsage, breakdown: msgspec.Raw | bytes, *, model: str | None
) -> TokenUsage:
    """Return the usage plus the calls of other models than `model` that Groq's `usage_breakdown`
    names: their tokens have prices of their own, so the total is not one model's.
    """
    size = memoryview(breakdown).nbytes
    if not size:
        return usage
    if size > MAX_USAGE_BYTES:
        return msgspec.structs.replace(usage, other_model_calls=1)
    try:
        found = _decode_breakdown(breakdown)
    except _UNREADABLE:
        return msgspec.structs.replace(usage, other_model_calls=1)
    others = 0 if found is None else sum(one.model != model for one in found.models)
    return msgspec.structs.replace(usage, other_model_calls=others) if others else usage


def usage_on_the_way(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the running usage in a chunk's `usage`, or in llama.cpp's `timings`; None if it cannot
    be read.

    The whole prompt is `prompt_n + cache_n` (llama.cpp, tools/server/README.md, commit
    00dc8057ab28). Older builds do not send `cache_n`, and then the prompt is unknown.
    """
    if memoryview(raw).nbytes > MAX_USAGE_BYTES:
        return None
    usage = usage_from_wire(raw)
    if usage is not None and usage.input_tokens == 0 and not usage.output_tokens:
        return None  # Ollama's completions have a usage of zeros on every chunk
    if usage is not None:
        return usage
    try:
        timings = _decode_timings(raw)
    except _UNREADABLE:
        return None
    new, cached, output = timings.prompt_n, timings.cache_n, timings.predicted_n
    prompt = None if new is None or cached is None else new + cached
    if prompt is None and output is None:
        return None
    return TokenUsage(input_tokens=prompt, cached_input_tokens=cached, output_tokens=output)


def usage_of_choices(ended: Sequence[TokenUsage], *, choices: int) -> TokenUsage:
    """Return the usage of a whole answer from that of each of its choices; each has its own answer
    and the whole prompt, which `choices` of them share.
    """
    if len(ended) == 1:
        return ended[0]
    prompts = _total(usage.input_tokens for usage in ended)
    cached = _total(usage.cached_input_tokens for usage in ended)
    return TokenUsage(
        input_tokens=None if prompts is None else prompts // choices,
        cached_input_tokens=None if cached is None else cached // choices,
        output_tokens=_total(usage.output_tokens for usage in ended),
        unexplained_tokens=sum(usage.unexplained_tokens or 0 for usage in ended) or None,
        unknown_input_tokens=max(usage.unknown_input_tokens or 0 for usage in ended) or None,
        unknown_output_tokens=sum(usage.unknown_output_tokens or 0 for usage in ended) or None,
        unknown_units=sum(usage.unknown_units or 0 for usage in ended) or None,
    )


def engine_queue_s(metrics: msgspec.Raw | bytes) -> float | None:
    """Return the seconds that a request waited in the engine, from the `metrics` member of a vLLM
    answer; None if absent or implausible.
    """
    if memoryview(metrics).nbytes > MAX_USAGE_BYTES:
        return None
    try:
        decoded = _decode_metrics(metrics)
    except _UNREADABLE:
        return None
    queue_ms: Any = None if decoded is None else decoded.queue_time_ms
    return (
        queue_ms / 1000
        if type(queue_ms) in (int, float) and 0 <= queue_ms < MOST_QUEUE_MS
        else None
    )


def stated_geo(raw: msgspec.Raw | bytes) -> str | None:
    """Return the `inference_geo` of a usage: the provider's statement of the place that made the
    answer.
    """
    return _word_in(raw, "inference_geo")


def stated_tier(raw: msgspec.Raw | bytes) -> str | None:
    """Return the `service_tier` of a usage: Mistral states it there (mistralai 3.7.0,
    models/usageinfo.py: `standard` or `priority`).
    """
    return _word_in(raw, "service_tier")


def names_tier(raw: msgspec.Raw | bytes) -> bool:
    """Return True if a usage may state a service tier."""
    text = bytes(raw)
    return b"service_tier" in text or b"\\" in text  # an escape may spell the name


def _word_in(raw: msgspec.Raw | bytes, name: str) -> str | None:
    """Return a word among the members of a usage, as `stated_word`; None if the usage cannot be
    read.
    """
    text = bytes(raw)
    if name.encode() not in text and b"\\" not in text:  # an escape may spell the name
        return None
    try:
        return stated_word(getattr(_decode_word[name](raw), name))
    except _UNREADABLE:
        return None


def with_tool_calls(usage: TokenUsage, output: msgspec.Raw) -> TokenUsage:
    """Return the usage plus the calls of the provider's own tools in a response's `output` items.

    Tools that were not called stay None; items without a type are ignored. Calls that the usage
    itself reports stand: xAI's output also lists calls that failed, which are not billed.
    """
    calls: dict[str, Any] = calls_in(output)
    listed = {name: n for name, n in calls.items() if getattr(usage, name) is None}
    return msgspec.structs.replace(usage, **listed) if listed else usage


def calls_in(output: msgspec.Raw, *, containers: set[bytes] | None = None) -> dict[str, int]:
    """Return the calls of the provider's own tools in a response's `output` items that may cost a
    fee, by their counts' names: code costs by its container, however many calls run in it.
    `containers` are those of earlier items, to which these are added.
    """
    known = set[bytes]() if containers is None else containers
    calls: Counter[str] = Counter()
    for item, name in _calls(output):
        container = bytes(item.container_id) or bytes(item.environment)
        if bytes(item.status) in _FAILED or container in known:
            continue
        if name == CODE_CALLS and container:
            known.add(container)
        calls[name] += 1
    return calls


def completed_calls_in(output: msgspec.Raw) -> dict[str, int]:
    """Return the calls of the provider's own tools whose status says that they are complete, each
    of them.
    """
    return Counter(name for item, name in _calls(output) if bytes(item.status) == _COMPLETED)


def _calls(output: msgspec.Raw) -> list[tuple[_Item, str]]:
    """Return the items of an output that are calls of the provider's own tools, with the names of
    their counts.
    """
    try:
        items = decode_few(output, _Item)
    except _UNREADABLE:
        return []
    return [(item, name) for item in items if (name := _call_of(item)) is not None]


def calls_of_tool_usage(raw: msgspec.Raw) -> dict[str, int]:
    """Return the calls in a response's `tool_usage`, by their counts' names; the tokens of images
    stand for one call. OpenAI leaves out calls there, so it may be fewer than the output lists.
    """
    calls: dict[str, int] = dict(unknown_counts(value_of(bytes(raw)), _TOOL_NAMES))
    if calls.get(_IMAGES):
        calls[_IMAGES] = 1
    try:
        searches = _decode_tool_usage(raw).web_search
    except _UNREADABLE:
        return calls
    if searches is not None and (n := searches.num_requests or 0) > 0:
        calls["web_search_calls"] = n
    return calls


def _call_of(item: _Item) -> str | None:
    """Return the count of the call that an output item is; None if it costs its tokens alone."""
    kind = bytes(item.type)
    if kind in _OF_TOKENS or not kind.startswith(b'"') or _is_free(item):
        return None
    if kind == _SHELL:
        return CODE_CALLS if _CONTAINER in bytes(item.environment) else None
    return _CALLS.get(kind, UNITS)


def _is_free(item: _Item) -> bool:
    """Return True if an output item is a web search's action that costs nothing beside tokens."""
    if bytes(item.type) != _SEARCH:
        return False
    try:
        action = _decode_action(item.action).type
    except _UNREADABLE:
        return False
    return isinstance(action, str) and action in _FREE_ACTIONS


def _settle_rare(counts: dict[str, int]) -> None:
    """Bring the counts into the normal form that only few usages have.

    The writes to the cache are their total if it is reported, else the sum of their parts. Calls of
    a tool that was not called are left out. Parts of another count that this form does not keep
    show only whether the report contradicts itself.
    """
    lifetimes = [counts[name] for name in _LIFETIMES if name in counts]
    if lifetimes:
        written = counts.setdefault("cache_write_tokens", sum(lifetimes))
        if written == sum(lifetimes) and counts.get(WRITES_5M):
            counts.setdefault("cache_write_1h_tokens", 0)
        if written > sum(lifetimes):
            counts[WRITES] = written - sum(lifetimes)
    for whole, names in _PARTS.items():
        excess = sum(counts.get(name, 0) for name in names) - counts.get(whole, 0)
        if excess > 0 and whole in counts:
            counts["unexplained_tokens"] = -excess
    # A discount is believed only if both parts are the prompt. A 0 beside another is a default.
    cached, uncached = counts.get("cached_input_tokens", 0), counts.get(UNCACHED, 0)
    if cached and uncached and (gap := counts.get("input_tokens", 0) - cached - uncached):
        counts["unexplained_tokens"] = gap
    for name in _ONLY_READ & counts.keys():
        del counts[name]
    for name in _CALLS_OF_TOOLS & counts.keys():
        if not counts[name]:
            del counts[name]


def _unexplained(counts: dict[str, int], gap: int) -> int:
    """Return the tokens of the total that no reading explains, negative if its parts are more than
    it; add the parts that it shows to stand beside the prompt and the answer to these. `gap` is the
    total without prompt and answer.

    xAI's chat counts reasoning beside `completion_tokens`, and Gemini's OpenAI endpoint did
    (docs.x.ai/developers/cost-tracking, looked up 2026-11-24). Portkey counted the cache of
    Anthropic's models beside `prompt_tokens` (src/providers/anthropic/chatComplete.ts).
    """
    prompt, answer = counts.get("input_tokens"), counts.get("output_tokens")
    if prompt is None or answer is None:
        return gap
    reasoning = counts.get("reasoning_tokens", 0)
    cache = counts.get("cached_input_tokens", 0) + counts.get("cache_write_tokens", 0)
    for beside, thought in ((0, reasoning), (cache, 0), (cache, reasoning)):
        if gap == beside + thought and min(beside, thought) >= 0:
            counts["input_tokens"], counts["output_tokens"] = prompt + beside, answer + thought
            return 0
    return gap


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum of counts, None if one of them is unknown."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _counts(raw: msgspec.Raw | bytes, at: Path = ()) -> tuple[dict[str, Any], bool]:
    """Return the readable counts of a usage that cannot be decoded as a whole, and whether another
    count is there and cannot be read.

    Returns the whole numbers (`500.0`, `5e2` and `"500"` are 500 as well), and the objects with
    their details; `true` is not a number.
    """
    found: dict[str, Any] = {}
    has_unread = False
    try:
        members = _decode_members(without_halves(bytes(raw)))
    except _UNREADABLE:
        return found, has_unread
    for name, member in members.items():
        path, value = (*at, name), bytes(member)
        if value == b"null" or path not in _READ_PATHS:
            continue
        if path in COUNT_PATHS:
            number = count_from_json(value)
            found |= {} if number is None else {name: number}
            has_unread |= number is None
        elif value.startswith(b"{"):
            found[name], is_inner_unread = _counts(value, path)
            has_unread |= is_inner_unread
        else:
            has_unread |= not is_nothing(value)
    return found, has_unread
