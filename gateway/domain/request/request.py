"""Declares one request's values before any decision: its caller, the facts read from its body, and
the positions of the body's members.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from msgspec import Struct

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import DataClass, Priority
from gateway.domain.providers.table import TextForms
from gateway.domain.request.text_forms import PromptSize


class Caller(Struct, frozen=True, kw_only=True, gc=False):
    """An authenticated key. Having one is the proof that the key was checked."""

    key_id: str
    team: str
    project: str | None


class HostedTool(Struct, frozen=True, kw_only=True, gc=False):
    """A tool in a request that its caller may not run itself.

    `name` is its type or member, folded as `request_fields.folded_tool` does, and `where` its place
    for messages. `index` is its place in the list `tools`; None for a member of the request's own
    and a tool inside a namespace. `most_uses` is its own bound of calls, None if the caller set
    none. `arguments` are those that may change the fee of its calls, as `TYPE.NAME=VALUE`.
    """

    name: str
    where: str
    index: int | None = None
    member: str | None = None
    most_uses: int | None = None
    arguments: tuple[str, ...] = ()

    @property
    def listed_as(self) -> str:
        """Return the name by which a deployment may list it as free: its type, or its member."""
        return self.where.rpartition(": ")[2]

    @property
    def can_leave_out(self) -> bool:
        """Return True if the tool can be left out without a change to another one."""
        return self.index is not None or self.member is not None


class ThinkingBudget(Struct, frozen=True, gc=False):
    """The most tokens of thinking that a request states, and the place of the member."""

    tokens: int
    where: str


class RequestFacts(Struct, frozen=True, kw_only=True, gc=False):
    """The fields of a request body that the gateway reads; all others pass through unchanged.

    `capabilities` are required abilities of a deployment (`tools`, `json_schema`, `vision`);
    `features` need its permission (`request_fields`). `output_bound_tokens` is the operation's own
    maximum of one answer, None if the caller set none (0 is none). `choices` are the answers to
    each of the `prompts`; None if their number cannot be read. `expansion_tokens` is the most that
    a chat template adds to the body's bytes, None if unbounded. `predicted_bytes` is the size of a
    predicted answer; `grown` has these three for each form of the text that is longer than the text
    that was sent. `cache_key` is the body's `prompt_cache_key`. `named` gives for each feature
    the place of its field. `previous_response` is the id of the stored response that it continues.
    `hosted` are the tools that the provider may run, and `round_limits` the request's own members
    that bound or release their rounds.
    `cache_lifetimes` are the times for which the provider's cache is asked to keep parts of it.
    `has_files` is True for files in its prompt. `stored` are the members that name a thing which is
    stored at the provider and brings its own tools, model or maximum. `sound` is the place of a
    part that is a sound by its type, beside those with the feature `audio`, and `maybe_sound` of
    one that may be. `unbounded` are the places of all members with a feature of
    `request_fields.WITHOUT_BOUND`.
    `unlisted_parts` are members and values below the top level that no schema lists, as
    `stream_options.x`. `calls_undeclared`: earlier turns call tools, and the request declares none.
    `thinking` is its largest budget of thinking.
    """

    operation: Operation
    model: str
    is_stream: bool
    wants_usage: bool
    wants_running_usage: bool
    output_bound_tokens: int | None
    choices: int
    capabilities: frozenset[str]
    features: frozenset[str]
    end_user: str | None
    body_bytes: int
    prompts: int | None = 1
    expansion_tokens: int | None = 0
    predicted_bytes: int = 0
    grown: Mapping[TextForms, PromptSize] | None = None
    cache_key: str | None = None
    named: tuple[tuple[str, str], ...] = ()
    previous_response: str | None = None
    hosted: tuple[HostedTool, ...] = ()
    round_limits: tuple[tuple[str, int], ...] = ()
    unlisted_parts: frozenset[str] = frozenset()
    cache_lifetimes: frozenset[str] = frozenset()
    has_files: bool = False
    stored: frozenset[str] = frozenset()
    sound: str = ""
    maybe_sound: str = ""
    unbounded: frozenset[str] = frozenset()
    calls_undeclared: bool = False
    thinking: ThinkingBudget | None = None

    @property
    def answers(self) -> int:
        """Return the number of answers that the request asks for: its choices for each prompt; an
        unreadable number of prompts counts as one.
        """
        return self.choices * (self.prompts or 1)

    def as_read(self, forms: TextForms) -> PromptSize | RequestFacts:
        """Return the size of the prompts for a tokenizer that reads the text in these forms."""
        return self if self.grown is None else self.grown.get(forms, self)


def unsent(
    operation: Operation,
    model: str,
    *,
    capabilities: frozenset[str] = frozenset(),
    features: frozenset[str] = frozenset(),
    output_bound_tokens: int | None = None,
    choices: int = 1,
    body_bytes: int = 0,
    prompts: int = 1,
) -> RequestFacts:
    """Return the facts of a request that is only decided about: an imagined one, or a past one."""
    return RequestFacts(
        operation=operation,
        model=model,
        is_stream=False,
        wants_usage=False,
        wants_running_usage=False,
        output_bound_tokens=output_bound_tokens,
        choices=choices,
        capabilities=capabilities,
        features=features,
        end_user=None,
        body_bytes=body_bytes,
        prompts=prompts,
    )


class MemberPlace(Struct, frozen=True, gc=False):
    """Half-open byte ranges in a body: the whole member starts at `name_start`, its value is
    `[start, end)`.
    """

    name_start: int
    start: int
    end: int


class RequestBody(Struct, frozen=True, gc=False):
    """A request body with its facts and the positions of its members."""

    facts: RequestFacts
    body: bytes
    members: Mapping[str, MemberPlace]


class Request(Struct, frozen=True, kw_only=True, gc=False):
    """One call of a team, before any decision.

    It was received at the millisecond inside `request_id`.
    """

    request_id: UUID
    caller: Caller
    body: RequestBody
    data_class: DataClass
    data_class_source: str  # "team", "header", or "response" of the stored one that it continues
    end_user: str | None  # as it is recorded: a keyed hash, unless the team keeps the name
    project: str | None
    tags: tuple[tuple[str, str], ...]
    client_request_id: str | None
    traceparent: str | None
    idempotency_key: str | None = None
    data_tags: frozenset[str] = frozenset()  # its team's and those of its header
    priority: Priority = Priority.NORMAL  # its team's
    session: str | None = None  # as its caller names it: only `affinity.session_of` may be shown
    # Of its caller's dialect, for upstreams that speak the same: headers, and `?beta=true`.
    dialect_headers: tuple[tuple[str, str], ...] = ()
    is_beta: bool = False
