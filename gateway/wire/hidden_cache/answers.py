"""Rewrites the parts of an answer for a caller who may not see the work of the upstream's prompt
cache. All bytes outside its usage and its figures stay as they are.

Only members at their own places are looked at (the answer, its choices, the message or response in
an event), so a text or a tool's arguments with the same words pass unchanged. A part that cannot be
read is not sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import msgspec

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import MemberPlace
from gateway.wire.dialect import AnswerPart, UnpricedPart, UnreadableAnswer, written
from gateway.wire.foreign_json import MAX_USAGE_BYTES
from gateway.wire.hidden_cache.usages import NULL, anthropic_usage, openai_usage
from gateway.wire.members import MalformedJson, decode_members, locate, replace
from gateway.wire.openai.answer.last_event import DONE
from gateway.wire.openai.bounds import decode_few
from gateway.wire.sse import EventSplitter, data_of, with_data
from gateway.wire.surrogates import hidden

Written = Callable[[AnswerPart, Callable[[TokenUsage], str | None]], bytes]
Change = Callable[[bytes], bytes]

# Figures of servers beside the usage, by the words in their names, and the ones with other names:
# llama.cpp's `timings` and `prompt_progress`, vLLM's `metrics`, Fireworks' `perf_metrics`, Groq's
# and Cerebras' times, SGLang's `meta_info` and `sglext`, Dynamo's `nvext`, Anthropic's
# `diagnostics` of a cache miss.
_TELLS = re.compile(
    r"cach|cost|timing|metric|usage|progress|verbose|tokens_evaluated|time_info|meta_info|sglext"
    r"|nvext|diagnostics|kv_transfer",
    re.IGNORECASE,
)
# They repeat the request.
_REPEATED = frozenset({"prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"})
_UNREADABLE = (MalformedJson, msgspec.DecodeError, RecursionError)
_encode = msgspec.json.encode


class _Choice(msgspec.Struct):
    """The members of a choice that may tell of the cache."""

    usage: msgspec.Raw = msgspec.Raw()
    meta_info: msgspec.Raw = msgspec.Raw()
    metrics: msgspec.Raw = msgspec.Raw()
    timings: msgspec.Raw = msgspec.Raw()


def without_cache(operation: Operation, *, is_stream: bool) -> Written:
    """Return the function that writes the parts of one answer without any sign of the cache and
    without a cost, in place of `dialect.written`.

    For a plain answer it raises `UnreadableAnswer`; an unreadable event is left out.
    """
    rewrite = _events if is_stream else _body
    return partial(_written, rewrite=rewrite, operation=operation)


def _written(
    part: AnswerPart,
    _: Callable[[TokenUsage], str | None],
    *,
    rewrite: Callable[[bytes, Change], bytes],
    operation: Operation,
) -> bytes:
    """Return the final bytes of a part of an answer; `_` would return its cost."""
    content = written(part, _no_cost)
    if operation is not Operation.MESSAGES:
        is_response = operation is Operation.RESPONSES
        return rewrite(content, partial(openai_usage, is_response=is_response))
    prompt = part.usage.input_tokens if isinstance(part, UnpricedPart) else None
    return rewrite(content, partial(anthropic_usage, prompt=prompt))


def _no_cost(_: TokenUsage) -> None:
    """Return no cost: a cached token is cheaper."""


def _body(content: bytes, usage: Change) -> bytes:
    """Return a plain answer for the caller. Raises `UnreadableAnswer`."""
    rewritten = _readable(content, usage)
    if rewritten is None:
        raise UnreadableAnswer("no JSON")
    return rewritten


def _events(content: bytes, usage: Change) -> bytes:
    """Return the whole events of a part of a stream for the caller."""
    splitter = EventSplitter()
    events = splitter.feed(content)
    if rest := splitter.end():
        events.append(rest)
    return b"".join([_event(event, usage) for event in events])


def _event(event: bytes, usage: Change) -> bytes:
    """Return one event for the caller, empty if it cannot be read."""
    payload = data_of(event)
    if payload is None or payload == DONE:
        return event
    rewritten = _readable(payload, usage)
    if rewritten is None:
        return b""
    return event if rewritten == payload else with_data(event, rewritten)


def _readable(text: bytes, usage: Change) -> bytes | None:
    """Return an answer or an event's payload for the caller, None if it cannot be read."""
    try:
        return _answer(text, usage)
    except _UNREADABLE:
        shown = hidden(text)
    if shown is None:
        return None
    try:
        return shown.restored(_answer(shown.text, usage))
    except _UNREADABLE:
        return None


def _answer(body: bytes, usage: Change) -> bytes:
    """Return an answer, an event or the object in one for the caller."""

    def changed(name: str, value: bytes) -> bytes | None:
        """Return a member's value for the caller, None to leave it out."""
        if name == "usage":
            return usage(value)
        if name in ("message", "response"):  # in an event of messages and of responses
            return _answer(value, usage) if value.startswith(b"{") else value
        if name == "choices":
            return _choices(value, usage)
        if name in ("x_groq", "usage_breakdown"):
            return _groq(value, usage)
        return None if _TELLS.search(name) and name not in _REPEATED else value

    return _with_members(body, changed)


def _choices(value: bytes, usage: Change) -> bytes:
    """Return the choices of an answer for the caller: nearly none has figures of its own."""
    if not value.startswith(b"["):
        return value
    found = decode_few(msgspec.Raw(value), _Choice)
    if not any(any(map(bytes, msgspec.structs.astuple(choice))) for choice in found):
        return value

    def changed(name: str, member: bytes) -> bytes | None:
        """Return a member of a choice for the caller, None to leave it out."""
        if name == "usage":
            return usage(member)
        return None if name in _Choice.__struct_fields__ else member

    items = msgspec.json.decode(value, type=list[msgspec.Raw])
    return _encode([msgspec.Raw(_with_members(bytes(item), changed)) for item in items])


def _groq(value: bytes, usage: Change) -> bytes:
    """Return Groq's own figures for the caller: the usage of an answer and of each model in it;
    null if they are no object.
    """
    if not value.startswith(b"{") or len(value) > MAX_USAGE_BYTES:
        return NULL

    def changed(name: str, member: bytes) -> bytes | None:
        """Return a member for the caller, None to leave it out."""
        if name == "usage":
            return usage(member)
        if name == "usage_breakdown":
            return _groq(member, usage)
        if name == "models":
            models = msgspec.json.decode(member, type=list[msgspec.Raw])
            return _encode([msgspec.Raw(_groq(bytes(one), usage)) for one in models])
        return member if name in ("id", "model") else None

    return _with_members(value, changed)


def _with_members(body: bytes, changed: Callable[[str, bytes], bytes | None]) -> bytes:
    """Return an object with its members changed, and without those that `changed` returns None for.

    An object that names a member twice is written anew: two readers may take different ones.
    """
    members = decode_members(body)
    new = {name: changed(name, bytes(value)) for name, value in members.items()}
    try:
        places = locate(body, members)
    except MalformedJson:
        kept = {name: msgspec.Raw(value) for name, value in new.items() if value is not None}
        return _encode(kept)
    splices: list[tuple[MemberPlace | None, bytes, bytes]] = [
        (places[name], b"", value)
        for name, value in new.items()
        if value is not None and value != bytes(members[name])
    ]
    dropped = [places[name] for name, value in new.items() if value is None]
    return replace(body, splices, dropped) if splices or dropped else body
