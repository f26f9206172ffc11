"""What the gateway understands of a request: the little that decides, bounds and attributes it."""

from __future__ import annotations

from uuid import UUID

from msgspec import Struct

from gateway.domain.policy import DataClass, Operation, Priority


class Caller(Struct, frozen=True, kw_only=True, gc=False):
    """An authenticated key. Having one is the proof that the key was checked."""

    key_id: str
    team: str
    project: str | None


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """The fields of a request body that the gateway reads; all others pass through as they came.

    `capabilities` are what a deployment must be able to do (`tools`, `json_schema`, `vision`);
    `features` are what it must allow (`request_fields`). `output_bound_tokens` is None where the caller
    set no maximum. `cache_key` is the body's `prompt_cache_key`.
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
    cache_key: str | None = None


def unsent(
    operation: Operation, model: str, *, capabilities: frozenset[str] = frozenset(),
    features: frozenset[str] = frozenset(), output_bound_tokens: int | None = None, choices: int = 1,
    body_bytes: int = 0,
) -> Ask:  # fmt: skip
    """What a request asks that is only decided about: one that somebody imagines, or one of the past."""
    return Ask(
        operation=operation, model=model, is_stream=False, wants_usage=False, wants_running_usage=False,
        output_bound_tokens=output_bound_tokens, choices=choices, capabilities=capabilities, features=features,
        end_user=None, body_bytes=body_bytes,
    )  # fmt: skip


class Request(Struct, frozen=True, kw_only=True, gc=False):
    """One call of a team, before anything was decided. When it came is the millisecond inside `request_id`."""

    request_id: UUID
    caller: Caller
    ask: Ask
    data_class: DataClass
    data_class_source: str  # "team" or "header"
    end_user: str | None  # as it is recorded: a keyed hash, unless the team keeps the name
    project: str | None
    tags: tuple[tuple[str, str], ...]
    client_request_id: str | None
    traceparent: str | None
    idempotency_key: str | None = None
    data_tags: frozenset[str] = frozenset()  # its team's and those of its header
    priority: Priority = Priority.NORMAL  # its team's
    session: str | None = None  # as its caller names it: only `affinity.session_of` may be shown
