"""Converts the usage that upstreams report in the OpenAI dialect to the normal form of
`domain.pricing.tokens`; a malformed one yields None.

Field names: chat and completions use `prompt_tokens`/`completion_tokens`, responses use
`input_tokens`/`output_tokens`. DeepSeek names cached tokens `prompt_cache_hit_tokens`, and Groq may
put its usage into its own member. All of them count as the normal form does: cached, cache-write,
audio and image tokens are parts of the prompt; reasoning, audio and image tokens are parts of the
answer; rejected predictions are already included. vLLM's `multimodal_tokens` are not read: on a
self-hosted engine every token costs the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.openai.bounds import MAX_USAGE_BYTES, decode_few
from gateway.wire.surrogates import without_halves

# The range of 64 bits; a longer number is not a count and fits in no column.
_LEAST, _MOST = -(2**63), 2**63 - 1
_Count = Annotated[int, msgspec.Meta(ge=_LEAST, le=_MOST)]
# Whatever bytes an upstream sends, reading them returns a value or nothing.
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class _Writes(msgspec.Struct):
    """The cache lifetimes of written tokens.

    OpenAI reports `ttl_30m_tokens`, Anthropic `ephemeral_1h_input_tokens`.
    """

    ttl_5m_tokens: _Count | None = None
    ttl_30m_tokens: _Count | None = None
    ttl_1h_tokens: _Count | None = None
    ttl_12h_tokens: _Count | None = None
    ephemeral_5m_input_tokens: _Count | None = None
    ephemeral_1h_input_tokens: _Count | None = None


class _InputDetails(msgspec.Struct):
    cached_tokens: _Count | None = None
    cache_write_tokens: _Count | None = None
    created_cache_tokens: _Count | None = None
    cache_write_tokens_details: _Writes | None = None
    audio_tokens: _Count | None = None
    image_tokens: _Count | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: _Count | None = None
    audio_tokens: _Count | None = None
    image_tokens: _Count | None = None


class _XaiCalls(msgspec.Struct):
    """xAI's successful calls of its own tools, which are billed; `num_sources_used` is not (it was
    the bill of Live Search, which ended in January 2026).

    Sources: docs.x.ai/developers/pricing and .../tools/tool-usage-details, 2026-11-25.
    """

    web_search_calls: _Count | None = None
    x_search_calls: _Count | None = None
    code_interpreter_calls: _Count | None = None
    file_search_calls: _Count | None = None


class _OpenRouterCalls(msgspec.Struct):
    """OpenRouter's own web searches, which are billed beside the tokens: its web search and pricing
    pages, and openrouter 1.3.84, components/servertoolusedetails.py, 2026-11-25.
    """

    web_search_requests: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    input_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    output_tokens: _Count | None = None
    total_tokens: _Count | None = None
    prompt_cache_hit_tokens: _Count | None = None
    prompt_tokens_details: _InputDetails | None = None
    input_tokens_details: _InputDetails | None = None
    input_token_details: _InputDetails | None = None  # transcriptions
    cache_write_tokens_details: _Writes | None = None
    completion_tokens_details: _OutputDetails | None = None
    output_tokens_details: _OutputDetails | None = None
    server_side_tool_usage_details: _XaiCalls | None = None
    server_tool_use_details: _OpenRouterCalls | None = None


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


class _Metrics(msgspec.Struct):
    """vLLM's timings of one request (`--enable-per-request-metrics`)."""

    queue_time_ms: Any = None


class _Timings(msgspec.Struct):
    """llama.cpp's counts: new tokens of the prompt, reused ones, and those of the answer."""

    prompt_n: _Count | None = None
    cache_n: _Count | None = None
    predicted_n: _Count | None = None


class _Item(msgspec.Struct):
    type: msgspec.Raw = msgspec.Raw()
    action: msgspec.Raw = msgspec.Raw()


class _Action(msgspec.Struct):
    type: Any = None


class _Tier(msgspec.Struct):
    service_tier: Any = None


class _Place(msgspec.Struct):
    inference_geo: Any = None


MAX_WORD_CHARS = 64  # of a service tier
MOST_QUEUE_MS = 24 * 3600 * 1000  # no request waits longer than a day
_NO_INPUT_DETAILS, _NO_WRITES, _NO_OUTPUT_DETAILS = _InputDetails(), _Writes(), _OutputDetails()
_NO_CALLS, _NO_SEARCHES = _XaiCalls(), _OpenRouterCalls()
_EMPTY_USAGE = TokenUsage()
_PARTS = "_details"  # the end of every member name whose value is an object
_decode = msgspec.json.Decoder(_Usage).decode
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
_WHOLE_NUMBER = re.compile(rb'("?)(-?(?:0|[1-9][0-9]{0,18}))(?:\.0{1,9})?\1')

# Output items of `/v1/responses` for tools that the provider runs and charges per call. The other
# tools cost tokens.
_CALLS = {
    b'"web_search_call"': "web_search_calls",
    b'"file_search_call"': "file_search_calls",
    b'"code_interpreter_call"': "code_interpreter_calls",
    b'"image_generation_call"': "image_generation_calls",
}
_SEARCH = b'"web_search_call"'
# Actions of a web search that read a page that was found. "Search actions incur a tool call cost"
# (developers.openai.com/api/docs/guides/tools-web-search, 2026-11-28), and the page names no cost
# of these. An action that is not stated counts as a search.
_FREE_ACTIONS = frozenset({"open_page", "find_in_page"})
_decode_action = msgspec.json.Decoder(_Action).decode


def usage_from_wire(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the token counts that a usage object reports; None if there is none or it cannot be
    read.

    Never raises, whatever the bytes are: settling depends on it. A member that is missing, null or
    not a whole number of 64 bits stays None: missing is never 0. A value longer than any real usage
    is not read.
    """
    if memoryview(raw).nbytes > MAX_USAGE_BYTES:
        return None
    try:
        wire = _decode(raw)
    except _UNREADABLE:
        wire = msgspec.convert(_counts(raw), _Usage)
    details = (
        wire.prompt_tokens_details
        or wire.input_tokens_details
        or wire.input_token_details
        or _NO_INPUT_DETAILS
    )
    writes = details.cache_write_tokens_details or wire.cache_write_tokens_details or _NO_WRITES
    output_details = (
        wire.completion_tokens_details or wire.output_tokens_details or _NO_OUTPUT_DETAILS
    )
    prompt = _first(wire.prompt_tokens, wire.input_tokens)
    answer = _first(wire.completion_tokens, wire.output_tokens)
    reasoning = output_details.reasoning_tokens
    usage = TokenUsage(
        input_tokens=prompt,
        cached_input_tokens=_first(details.cached_tokens, wire.prompt_cache_hit_tokens),
        cache_write_tokens=_written(details, writes),
        audio_input_tokens=details.audio_tokens,
        image_input_tokens=details.image_tokens,
        output_tokens=_output(prompt, answer, reasoning, wire.total_tokens),
        reasoning_tokens=reasoning,
        audio_output_tokens=output_details.audio_tokens,
        image_output_tokens=output_details.image_tokens,
    )
    if writes is not _NO_WRITES:
        usage = msgspec.structs.replace(
            usage,
            cache_write_30m_tokens=writes.ttl_30m_tokens,
            cache_write_1h_tokens=_first(writes.ttl_1h_tokens, writes.ephemeral_1h_input_tokens),
            cache_write_12h_tokens=writes.ttl_12h_tokens,
        )
    if wire.server_side_tool_usage_details or wire.server_tool_use_details:
        calls = wire.server_side_tool_usage_details or _NO_CALLS
        searches = wire.server_tool_use_details or _NO_SEARCHES
        usage = msgspec.structs.replace(
            usage,
            web_search_calls=calls.web_search_calls or searches.web_search_requests or None,
            file_search_calls=calls.file_search_calls or None,
            code_interpreter_calls=calls.code_interpreter_calls or None,
            x_search_calls=calls.x_search_calls or None,
        )
    return None if usage == _EMPTY_USAGE else usage


def usage_of_embeddings(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the usage of an embeddings answer; `total_tokens` counts as the input if nothing else
    is reported.

    Some servers report 0 for every answer, but a text with a vector has at least one token, so 0
    means unknown. Voyage AI reports only `total_tokens` (its API reference, "Text embedding
    models").
    """
    usage = usage_from_wire(raw)
    if usage is not None and usage.input_tokens != 0:
        return usage
    total = _counts(raw).get("total_tokens")
    return TokenUsage(input_tokens=total) if total else None


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
        return usage
    others = 0 if found is None else sum(one.model != model for one in found.models)
    return msgspec.structs.replace(usage, other_model_calls=others) if others else usage


def usage_on_the_way(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the running usage in a chunk's `usage`, or in llama.cpp's `timings`; None if it cannot
    be read.

    The whole prompt is `prompt_n + cache_n` (llama.cpp, tools/server/README.md, commit
    00dc8057ab28). Older builds do not send `cache_n`, and then the prompt is unknown.
    """
    usage = usage_from_wire(raw)
    if usage is not None and usage.input_tokens == 0 and not usage.output_tokens:
        return None  # Ollama's completions have a usage of zeros on every chunk
    if usage is not None or memoryview(raw).nbytes > MAX_USAGE_BYTES:
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
    tier = _word_in(raw, "service_tier")
    return tier if tier is not None and 0 < len(tier) <= MAX_WORD_CHARS else None


def _word_in(raw: msgspec.Raw | bytes, name: str) -> str | None:
    """Return a text among the members of a usage; None if there is none or it cannot be read."""
    if name.encode() not in bytes(raw):
        return None
    try:
        word = getattr(_decode_word[name](raw), name)
    except _UNREADABLE:
        return None
    return word if isinstance(word, str) else None


def with_tool_calls(usage: TokenUsage, output: msgspec.Raw) -> TokenUsage:
    """Return the usage plus the calls of the provider's own tools in a response's `output` items.

    Tools that were not called stay None; items of unknown shapes are ignored. Calls that the usage
    itself reports stand: xAI's output also lists calls that failed, which are not billed.
    """
    if bytes(output).find(b"_call") < 0:
        return usage
    try:
        items = decode_few(output, _Item)
    except _UNREADABLE:
        return usage
    kinds = [bytes(item.type) for item in items if not _is_free(item)]
    calls: dict[str, Any] = Counter(_CALLS[kind] for kind in kinds if kind in _CALLS)
    listed = {name: n for name, n in calls.items() if getattr(usage, name) is None}
    return msgspec.structs.replace(usage, **listed)


def _is_free(item: _Item) -> bool:
    """Return True if an output item is a web search's action that costs nothing beside tokens."""
    if bytes(item.type) != _SEARCH:
        return False
    try:
        action = _decode_action(item.action).type
    except _UNREADABLE:
        return False
    return isinstance(action, str) and action in _FREE_ACTIONS


def _written(details: _InputDetails, writes: _Writes) -> int | None:
    """Return all tokens written to the prompt cache: the total if present, else the sum of the
    reported parts.
    """
    total = _first(details.cache_write_tokens, details.created_cache_tokens)
    if total is not None or writes is _NO_WRITES:
        return total
    parts = [
        _first(writes.ttl_5m_tokens, writes.ephemeral_5m_input_tokens),
        writes.ttl_30m_tokens,
        _first(writes.ttl_1h_tokens, writes.ephemeral_1h_input_tokens),
        writes.ttl_12h_tokens,
    ]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _output(
    prompt: int | None, answer: int | None, reasoning: int | None, total: int | None
) -> int | None:
    """Return the tokens of the whole answer, reasoning included.

    xAI's chat counts reasoning beside `completion_tokens`, and Gemini's OpenAI endpoint did: there
    the total is the sum of all three (docs.x.ai/developers/cost-tracking, looked up 2026-11-24).
    """
    if not reasoning or answer is None or prompt is None:
        return answer
    return answer + reasoning if total == prompt + answer + reasoning else answer


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum of counts, None if one of them is unknown."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _first(count: int | None, other: int | None) -> int | None:
    """Return a count under its usual name, or the same count under its other name if the first is
    absent.
    """
    return count if count is not None else other


def _counts(raw: msgspec.Raw | bytes, levels: int = 3) -> dict[str, Any]:
    """Return the readable counts of a usage that cannot be decoded as a whole, without its
    malformed members.

    Returns the whole numbers (`500.0` and `"500"` are 500 as well), and the objects with their
    details; `true` is not a number.
    """
    found: dict[str, Any] = {}
    try:
        members = _decode_members(without_halves(bytes(raw)))
    except _UNREADABLE:
        return found
    for name, member in members.items():
        value = bytes(member)
        if not name.endswith(_PARTS):
            number = _WHOLE_NUMBER.fullmatch(value)
            if number is not None and _LEAST <= (count := int(number[2])) <= _MOST:
                found[name] = count
        elif levels and value.startswith(b"{"):
            found[name] = _counts(value, levels - 1)
    return found
