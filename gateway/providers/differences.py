"""Adapts a request of OpenAI's dialect to the differences that the table of providers states: the
members for the maximum, usage and tools, and those that a provider refuses.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment
from gateway.domain.providers.table import OutputLimit, ProviderFacts, RunningUsage
from gateway.domain.request.request import RequestBody
from gateway.providers.translated_dialect import losses_at
from gateway.wire.dialect import Translation
from gateway.wire.openai.chat_translation.long_call_ids import with_short_ids
from gateway.wire.openai.request.read import prepare, read_request, stream_options
from gateway.wire.openai.request.size import MAXIMUM_MEMBERS
from gateway.wire.translation.losses import Losses

API_VERSION = "api-version"
STREAM_OPTIONS, STORE, TOOLS, TOOL_CHOICE = "stream_options", "store", "tools", "tool_choice"
# A quote inside a string is escaped, so this never matches within a text of the caller.
_DEVELOPER = re.compile(rb'("role"\s*:\s*)"developer"')
_REFUSABLE = frozenset({Operation.CHAT, Operation.COMPLETIONS})


def endpoint_of(deployment: Deployment, path: str, query: str = "") -> str:
    """Return the address of an endpoint, with the version of its API if the policy names one.
    `query` begins with `?` or is empty.
    """
    url = deployment.address + path + query
    if deployment.api_version is None:
        return url
    return f"{url}{'&' if query else '?'}{API_VERSION}={deployment.api_version}"


def without_refused(
    deployment: Deployment, read: RequestBody, losses: Losses | None = None
) -> Translation | None:
    """Return a request without the members that its provider refuses; None if it has none of them.

    One that says no more than its absence is left out; any other is lost. Raises `Untranslatable`
    if the deployment does not drop those.
    """
    refuses, operation = deployment.provider_facts.refuses, read.facts.operation
    if not refuses or operation not in _REFUSABLE or refuses.isdisjoint(read.members):
        return None
    lost = losses_at(deployment, operation) if losses is None else losses
    refused = [name for name in read.members if name in refuses]
    for name in refused:
        if not _says_nothing(read, name):
            lost.lose(name)
    body = read_request(operation, prepare(read, {}, dropped=refused))
    return Translation(sent_as=operation, body=body, dropped_fields=tuple(lost.fields))


def with_known_messages(deployment: Deployment, read: RequestBody) -> RequestBody:
    """Return a chat with ids of tool calls no longer than its provider takes, and with the roles
    that it knows; the same object if it has them.
    """
    facts = deployment.provider_facts
    has_results, has_role = facts.may_shorten_ids(read.body), facts.may_lack_role(read.body)
    if not (has_results or has_role) or read.facts.operation is not Operation.CHAT:
        return read
    place = read.members.get("messages")
    if place is None:
        return read
    messages = known = read.body[place.start : place.end]
    if has_results and facts.most_call_id_chars is not None:
        known = with_short_ids(known, facts.most_call_id_chars, is_exact=facts.exact_call_ids)
    if has_role:
        known = _DEVELOPER.sub(rb'\1"system"', known)
    if known == messages:
        return read
    return read_request(Operation.CHAT, prepare(read, {"messages": msgspec.Raw(known)}))


def usage_members(provider: ProviderFacts, read: RequestBody) -> dict[str, Any]:
    """Return the members that ask a provider for the usage of a stream, at its end and on the
    way.
    """
    found: dict[str, Any] = {}
    if provider.takes_stream_options:
        on_the_way = provider.running_usage is RunningUsage.USAGE
        asks_each = {RunningUsage.USAGE: True} if on_the_way else {}
        found[STREAM_OPTIONS] = stream_options(read, include_usage=True, **asks_each)
    if provider.running_usage is RunningUsage.TIMINGS:
        found[RunningUsage.TIMINGS] = True
    return found


def asks_timings(read: RequestBody) -> bool:
    """Return True if the caller itself asks for llama.cpp's timings."""
    return _value(read, RunningUsage.TIMINGS) == b"true"


def tool_members(provider: ProviderFacts, read: RequestBody) -> dict[str, Any]:
    """Return the choice of tools for a request with some, if its provider would choose none by
    default.
    """
    is_open = read.facts.operation is Operation.CHAT and TOOL_CHOICE not in read.members
    return {TOOL_CHOICE: "auto"} if provider.needs_tool_choice and is_open else {}


def maximum_members(
    deployment: Deployment, read: RequestBody, cap_tokens: int | None
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the members for the maximum of the answer to set, and those to leave out.

    `cap_tokens` is the maximum to send, None to keep the caller's own. That one moves if the
    deployment takes only `max_tokens`: Ollama ignores the other one and writes without end.
    """
    if cap_tokens is None and deployment.output_limit is not OutputLimit.MAX_TOKENS:
        return {}, ()
    known = MAXIMUM_MEMBERS[read.facts.operation]
    sent = deployment.output_limit.members if len(known) > 1 else known
    others = tuple(name for name in known if name not in sent and name in read.members)
    if cap_tokens is None and others:
        cap_tokens = read.facts.output_bound_tokens
    return ({} if cap_tokens is None else dict.fromkeys(sent, cap_tokens)), others


def unwanted_members(read: RequestBody) -> tuple[str, ...]:
    """Return the caller's members that a provider refuses which reports usage unasked."""
    return (STREAM_OPTIONS,) if STREAM_OPTIONS in read.members else ()


def _says_nothing(read: RequestBody, name: str) -> bool:
    """Return True if a member says no more than its absence."""
    value = _value(read, name)
    return value == b"null" or (name == STORE and value == b"false")


def _value(read: RequestBody, name: str) -> bytes | None:
    """Return the bytes of a member's value, None if it is absent."""
    place = read.members.get(name)
    return None if place is None else read.body[place.start : place.end]
