"""Converts the usage of Anthropic's messages to the normal form of `domain.pricing.tokens`; a
malformed one yields None.

`input_tokens` leaves cached tokens out, both read and written ones, so the prompt is the sum of the
three. Thinking is a part of `output_tokens`. A `compaction` in `iterations` is charged and is not
in the top-level figures, so it is added (anthropic 2.13.0, types/beta/beta_usage.py, 2026-11-24).

An `advisor_message` is not in them either, and a `fallback_message` is. Both were sampled by
another model at its own rates, which this price does not have. They are counted as calls, so the
cost is unknown unless a price of such calls is declared
(types/beta/beta_advisor_message_iteration_usage.py and beta_fallback_message_iteration_usage.py;
platform.claude.com/docs, "Advisor tool", 2026-11-25).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec.structs import asdict, replace

from gateway.domain.pricing.pricing import tier_name
from gateway.domain.pricing.tokens import MOST_TOKENS, UNREADABLE, UNREADABLE_USAGE, TokenUsage
from gateway.domain.pricing.unknown_counts import (
    OUTPUT,
    UNITS,
    WRITES,
    known_names,
    unknown_counts,
    with_unknown,
)
from gateway.domain.request.served_tier import UNKNOWN_TIER, agreed_tier
from gateway.wire.foreign_json import (
    MAX_USAGE_BYTES,
    count_from_json,
    first_reading,
    has_figure,
    is_nothing,
    note_first_reading,
    only_object,
    value_of,
)
from gateway.wire.observed import Observed, stated_word
from gateway.wire.surrogates import without_halves

MAX_ITERATIONS = 1000  # a request samples a few times
_LEAST, _MOST = -(2**63), 2**63 - 1  # a longer number is not a count and fits in no column
_Count = Annotated[int, msgspec.Meta(ge=_LEAST, le=_MOST)]
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


# Members that cost nothing beside the counts are fields too: one of another name may.
_UNREAD = msgspec.Raw()


class _Writes(msgspec.Struct, forbid_unknown_fields=True):
    """The cache lifetimes of written tokens."""

    ephemeral_5m_input_tokens: _Count | None = None
    ephemeral_1h_input_tokens: _Count | None = None


class _Calls(msgspec.Struct, forbid_unknown_fields=True):
    web_search_requests: _Count | None = None
    # Without a fee (platform.claude.com/docs, "Web fetch tool", 2026-11-29).
    web_fetch_requests: msgspec.Raw = _UNREAD


class _OutputDetails(msgspec.Struct, forbid_unknown_fields=True):
    thinking_tokens: _Count | None = None


class _Iteration(msgspec.Struct, forbid_unknown_fields=True):
    """One sampling of a request: `message` ones are in the top-level figures, others are not."""

    type: str = ""
    input_tokens: _Count | None = None
    cache_read_input_tokens: _Count | None = None
    cache_creation_input_tokens: _Count | None = None
    cache_creation: _Writes | None = None
    output_tokens: _Count | None = None
    model: msgspec.Raw = _UNREAD


class _Usage(msgspec.Struct, forbid_unknown_fields=True):
    input_tokens: _Count | None = None
    cache_read_input_tokens: _Count | None = None
    cache_creation_input_tokens: _Count | None = None
    cache_creation: _Writes | None = None
    output_tokens: _Count | None = None
    output_tokens_details: _OutputDetails | None = None
    server_tool_use: _Calls | None = None
    iterations: list[_Iteration] | None = None
    total_tokens: _Count | None = None  # Anthropic has none; it is in the usage of some others
    service_tier: msgspec.Raw = _UNREAD
    speed: msgspec.Raw = _UNREAD
    inference_geo: msgspec.Raw = _UNREAD
    # OpenRouter's (openrouter 1.3.84, components/chatusage.py)
    cost: msgspec.Raw = _UNREAD
    cost_details: msgspec.Raw = _UNREAD
    is_byok: msgspec.Raw = _UNREAD


class _Words(msgspec.Struct):
    """The members of a usage that are no counts."""

    service_tier: Any = None
    speed: Any = None
    inference_geo: Any = None


_COMPACTION = "compaction"
_MESSAGE = "message"
_OF_OTHER_MODELS = frozenset({"advisor_message", "fallback_message"})
_KINDS = _OF_OTHER_MODELS | {_COMPACTION, _MESSAGE}
_NO_WRITES, _NO_CALLS, _NO_DETAILS = _Writes(), _Calls(), _OutputDetails()
_NO_WORDS = _Words()
_EMPTY_USAGE = TokenUsage()
Members = Mapping[str, msgspec.Raw]
_NUMBER_0 = rb'(?:"?0{1,40}(?:\.0{1,40})?"?|null)'
_ZERO = re.compile(_NUMBER_0)
_OBJECT_OF_ZEROS = re.compile(
    rb'\{\s*(?:"[A-Za-z0-9_]{1,64}"\s*:\s*%b\s*(?:,\s*|(?=\})))*\}' % _NUMBER_0
)
_OF_PROMPT = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "cache_creation",
)
_OF_OUTPUT = ("output_tokens", "output_tokens_details", "total_tokens")
# The counts of each object; those of a usage and of an iteration are the same.
_COUNTS_IN: Mapping[str, tuple[str, ...]] = {
    "cache_creation": _Writes.__struct_fields__,
    "server_tool_use": ("web_search_requests",),
    "output_tokens_details": _OutputDetails.__struct_fields__,
}
_TOP_COUNTS = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
    "total_tokens",
)
_OBJECTS: Mapping[str, type[msgspec.Struct]] = {
    "cache_creation": _Writes,
    "server_tool_use": _Calls,
    "output_tokens_details": _OutputDetails,
    "iterations": _Iteration,
}
_decode = msgspec.json.Decoder(_Usage).decode
_decode_words = msgspec.json.Decoder(_Words).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def usage_from_wire(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the token counts that a usage object reports; None if it reports none.

    Never raises, whatever the bytes are: settling depends on it. A member that is missing or null
    stays None: missing is never 0. One that is no whole number of 64 bits marks the usage as
    `UNREADABLE`, also if no other can be read; so does a value longer than any real usage.
    """
    if memoryview(raw).nbytes > MAX_USAGE_BYTES:
        return UNREADABLE_USAGE
    try:
        return _usage_of(_decode(raw))
    except _UNREADABLE:
        raw = only_object(raw)
        if has_figure(raw):
            return with_unknown(None, {UNITS: 1})
        found, has_unread = _counts(raw)
        usage = _usage_of(msgspec.convert(found, _Usage), has_unread=has_unread)
        return with_unknown(usage, unknown_counts(value_of(raw), _NAMES))


def _usage_of(wire: _Usage, *, has_unread: bool = False) -> TokenUsage | None:
    """Return the token counts of a usage whose members have names in the table."""
    usage = top = _normal(wire)
    others = units = 0
    turns = _EMPTY_USAGE
    for iteration in (wire.iterations or ())[:MAX_ITERATIONS]:
        others += iteration.type in _OF_OTHER_MODELS
        units += iteration.type not in _KINDS and any(asdict(_normal(iteration)).values())
        if iteration.type == _COMPACTION:
            usage = _sum_of(usage, _normal(iteration))
        elif iteration.type == _MESSAGE:
            turns = _sum_of(turns, _normal(iteration))
    calls = wire.server_tool_use or _NO_CALLS
    details = wire.output_tokens_details or _NO_DETAILS
    usage = replace(
        usage,
        reasoning_tokens=details.thinking_tokens,
        web_search_calls=calls.web_search_requests,
        other_model_calls=others or None,
        unknown_units=units or None,
    )
    if has_unread:
        return replace(usage, unexplained_tokens=UNREADABLE)
    if usage == _EMPTY_USAGE:
        return None
    if usage.unexplained_tokens or (wire.total_tokens is None and not wire.iterations):
        return usage
    gap = _contradiction(wire, top, turns)
    return replace(usage, unexplained_tokens=gap) if gap else usage


def _contradiction(wire: _Usage, top: TokenUsage, turns: TokenUsage) -> int | None:
    """Return the tokens by which a usage contradicts its total or the sum of its turns, None if it
    does not. The total has or leaves out the tokens of the cache.
    """
    for name in ("input_tokens", "output_tokens"):
        of_turns, on_top = getattr(turns, name) or 0, getattr(top, name) or 0
        if of_turns > on_top:
            return max(on_top - of_turns, 1 - MOST_TOKENS)
    answer = wire.output_tokens or 0
    whole, fresh = (top.input_tokens or 0) + answer, (wire.input_tokens or 0) + answer
    return None if wire.total_tokens in (None, whole, fresh) else wire.total_tokens - whole


class StreamFigures:
    """The usage figures of one stream of messages, in the order in which they come.

    They are cumulative, so the last one counts. The prompt's parts stand in `message_start` alone
    with many servers, and its output is the first token: no part of a final usage.
    """

    __slots__ = ("_first", "_known", "_most", "observed")

    def __init__(self, observed: Observed) -> None:
        """Start before the first event."""
        self.observed = observed
        self._first: Members = {}  # of `message_start`, without its output
        self._known: Members = {}  # together, since the last piece of content
        self._most: Members = {}  # the highest so far

    def begin(self, raw: msgspec.Raw) -> msgspec.Raw | None:
        """Record the usage of `message_start`, and return its prompt; None if it has none."""
        first = usage_members(raw)
        if not first:
            return None
        self._first = self._known = _without(first, _OF_OUTPUT)
        for members in (usage_members(first_reading(raw) or b""), first):
            self._most = highest(
                self._most, {name: members[name] for name in _OF_PROMPT if name in members}
            )
        prompt = _joined(self._first, self._most)
        self.observed.note_running(_joined(first, self._most), usage_from_wire)
        self.observed.note_uncounted()  # all that follows
        note_words(self.observed, prompt)
        return prompt

    def note_content(self) -> None:
        """Record that content came, which no figure so far counts."""
        observed = self.observed
        observed.note_more()
        if not observed.has_content and self._first:
            # From now on the output of `message_start` is too small; its prompt stays true.
            observed.note_running(_joined(self._first, self._most), usage_from_wire)
        observed.note_uncounted()
        self._known = self._first

    def note_odd(self) -> None:
        """Record a piece of content of an unknown form, which no figure so far counts."""
        self.observed.note_more()
        self.observed.note_odd()
        self._known = self._first

    def finish(self, raw: msgspec.Raw) -> TokenUsage | None:
        """Record the usage of `message_delta`, and return that of the whole answer; None if it
        reports none.
        """
        last = usage_members(raw)
        if not last:
            unknown = usage_from_wire(raw)  # too large, or figures in another form than an object
            if unknown is not None:
                self.observed.note_final(unknown)
            return unknown
        before = self._known
        self._known = dict(before) | {
            name: value for name, value in last.items() if not _yields(name, value, before)
        }
        whole = _joined(self._known)
        usage = usage_from_wire(whole)
        if usage is not None:
            self.observed.note_final(usage)
            note_first_reading(
                self.observed,
                raw,
                lambda first: usage_from_wire(_joined(before, usage_members(first))),
            )
            self._most = highest(self._most, self._known)
            self.observed.note_running(_joined(self._most), usage_from_wire)
            note_words(self.observed, whole)
        return usage


def _yields(name: str, value: msgspec.Raw, known: Members) -> bool:
    """Return True if a figure of the prompt is 0 and there was an earlier one: some servers send a
    prompt of 0 in one of the two events.
    """
    zero = _OBJECT_OF_ZEROS if name in _COUNTS_IN else _ZERO
    return name in _OF_PROMPT and name in known and zero.fullmatch(bytes(value)) is not None


def _without(members: Members, names: tuple[str, ...]) -> Members:
    """Return the members of a usage without those of these names."""
    return {name: value for name, value in members.items() if name not in names}


def _joined(*usages: Members) -> msgspec.Raw:
    """Return one usage object of the members of some; later ones replace earlier ones."""
    joined: dict[str, msgspec.Raw] = {}
    for members in usages:
        joined |= members
    return msgspec.Raw(msgspec.json.encode(joined))


def highest(before: Members, now: Members) -> Members:
    """Return the members of a usage, with those of the one before for a side that has fallen.

    All figures of a stream are cumulative, so one that falls is no truth. So are writes that were
    for an hour: of two lifetimes of the same writes the longer is kept. An earlier one that is
    no truth either (negative, or beyond every count) is not kept.
    """
    found = dict(now)
    earlier, later = _read_members(before), _read_members(now)
    if earlier is None or not earlier.is_plausible:
        return found
    if later is not None and later.has_unread:
        return found  # the earlier one cannot stand for what is not known
    for names, count in ((_OF_PROMPT, "input_tokens"), (_OF_OUTPUT, "output_tokens")):
        known = getattr(earlier, count)
        if known is None or known <= (getattr(later, count, None) or 0):
            continue
        for name in names:
            found.pop(name, None)
        found |= {name: before[name] for name in names if name in before}
    if later is not None and (earlier.cache_write_1h_tokens or 0) > (
        later.cache_write_1h_tokens or 0
    ):
        found["cache_creation"] = before.get("cache_creation", msgspec.Raw(b"null"))
    return found


def _read_members(members: Members) -> TokenUsage | None:
    """Return the token counts of the members of a usage."""
    return usage_from_wire(msgspec.json.encode(dict(members))) if members else None


def usage_members(raw: msgspec.Raw | bytes) -> Members:
    """Return the members of a usage object that have a value; empty if it cannot be read."""
    if memoryview(raw).nbytes > MAX_USAGE_BYTES:
        return {}
    try:
        members = _decode_members(without_halves(only_object(raw)))
    except _UNREADABLE:
        return {}
    return {name: value for name, value in members.items() if bytes(value) != b"null"}


def note_words(observed: Observed, raw: msgspec.Raw | bytes) -> None:
    """Record the words of a usage: its tier, its place, and the detail that the ledger keeps.

    Fast mode has prices of its own, as a tier has, so it stands for the tier; `inference_geo` is
    the provider's statement of the place that made the answer. Source: anthropic 2.13.0,
    types/usage.py and types/beta/beta_usage.py, 2026-11-24.
    """
    words = _words(raw)
    speed, geo = stated_word(words.speed), stated_word(words.inference_geo)
    tier = stated_word(words.service_tier)
    if tier_name(speed) is None:
        observed.note_tier(tier or speed)
    else:  # fast mode has the standard tier
        observed.note_tier(speed if tier_name(tier) is None else agreed_tier(speed, tier))
    observed.note_geo(geo)
    found = {"speed": speed, "inference_geo": geo}
    observed.note_detail(
        {name: word for name, word in found.items() if word not in (None, UNKNOWN_TIER)}
    )


def _words(raw: msgspec.Raw | bytes) -> _Words:
    """Return the members of a usage that are no counts; empty if it cannot be read."""
    if memoryview(raw).nbytes > MAX_USAGE_BYTES:
        return _NO_WORDS
    try:
        return _decode_words(without_halves(only_object(raw)))
    except _UNREADABLE:
        return _NO_WORDS


def _normal(wire: _Usage | _Iteration) -> TokenUsage:
    """Return the counts of one sampling in normal form."""
    writes = wire.cache_creation or _NO_WRITES
    written = wire.cache_creation_input_tokens
    lifetimes = (writes.ephemeral_5m_input_tokens, writes.ephemeral_1h_input_tokens)
    for_a_time = _sum(lifetimes)
    if written is None:
        written = for_a_time
    prompt = wire.input_tokens
    if prompt is not None:
        prompt += (wire.cache_read_input_tokens or 0) + (written or 0)
    return TokenUsage(
        input_tokens=prompt,
        cached_input_tokens=wire.cache_read_input_tokens,
        cache_write_tokens=written,
        # A lifetime that is left out beside the whole of the writes is 0.
        cache_write_1h_tokens=writes.ephemeral_1h_input_tokens
        if for_a_time is None or for_a_time != written or not written
        else writes.ephemeral_1h_input_tokens or 0,
        output_tokens=wire.output_tokens,
        unexplained_tokens=min((written or 0) - (for_a_time or 0), 0) or None,
        unknown_cache_write_tokens=None
        if for_a_time is None
        else max((written or 0) - for_a_time, 0) or None,
    )


def _sum_of(usage: TokenUsage, more: TokenUsage) -> TokenUsage:
    """Return the counts of two samplings together."""
    added = asdict(more)
    return TokenUsage(**{name: _sum((count, added[name])) for name, count in asdict(usage).items()})


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the known counts, None if there is none: unknown is never 0."""
    known = [count for count in counts if count is not None]
    if known and min(known) < 0:
        return min(known)  # no truth, and it must not hide in a sum
    return sum(known) if known else None


def _counts(
    raw: msgspec.Raw | bytes, names: tuple[str, ...] = _TOP_COUNTS
) -> tuple[dict[str, Any], bool]:
    """Return the readable counts of a usage that cannot be decoded as a whole, and whether another
    count is there and cannot be read.

    `500.0`, `5e2` and `"500"` are 500 as well; `true` is not a number.
    """
    found: dict[str, Any] = {}
    has_unread = False
    for name, member in usage_members(raw).items():
        value = bytes(member)
        if name in names:
            number = count_from_json(value)
            found |= {} if number is None else {name: number}
            has_unread |= number is None
        elif names is _TOP_COUNTS and name in _COUNTS_IN and value.startswith(b"{"):
            found[name], is_inner_unread = _counts(value, _COUNTS_IN[name])
            has_unread |= is_inner_unread
        elif names is _TOP_COUNTS and name == "iterations" and value.startswith(b"["):
            found[name], is_inner_unread = _iterations(value)
            has_unread |= is_inner_unread
        elif names is _TOP_COUNTS and (name in _COUNTS_IN or name == "iterations"):
            has_unread |= not is_nothing(value)
    return found, has_unread


def _iterations(value: bytes) -> tuple[list[dict[str, Any]], bool]:
    """Return the readable counts of each sampling, and whether one of them cannot be read.

    `value` is a list of a usage whose members were read, so it is valid JSON.
    """
    found = []
    has_unread = False
    for item in msgspec.json.decode(value, type=list[msgspec.Raw])[:MAX_ITERATIONS]:
        kind = (
            bytes(usage_members(item).get("type", msgspec.Raw(b""))).strip(b'"').decode("latin-1")
        )
        counts, is_unread = _counts(item)
        known = {name: n for name, n in counts.items() if name in _Iteration.__struct_fields__}
        found.append({**known, "type": kind})
        has_unread |= is_unread
    return found, has_unread


def _paths_in(kind: type[msgspec.Struct]) -> Iterator[str]:
    """Yield the paths of the members of a usage or of a sampling, written with dots."""
    for name in kind.__struct_fields__:
        if name in _OBJECTS:
            yield from (f"{name}.{path}" for path in _paths_in(_OBJECTS[name]))
        else:
            yield name


_NAMES = known_names(_paths_in(_Usage), {"output_tokens_details": OUTPUT, "cache_creation": WRITES})
