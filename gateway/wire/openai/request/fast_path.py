"""Reads the most common requests in one decoding: only known members, and a prompt that is text;
`read` handles all others.

One decoding proves all of it at once. No name in such a body can be mistaken for another one. Only
the prompt is nested, and it holds no pictures, files or addresses to fetch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec

from gateway.domain.operation import Operation
from gateway.domain.policy.known_members import SCORED_TEXTS


class Fields(msgspec.Struct):
    """The members whose types matter on every endpoint; `size` reads the maxima."""

    model: str
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = None
    best_of: int | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    modalities: list[str] | None = None


class _Plain(Fields, forbid_unknown_fields=True):
    """The members that a plain request of any endpoint may have.

    Each of these is a scalar, or is bounded here.
    """

    stream_options: dict[str, bool] | None = None
    service_tier: None = None
    store: None = None
    modalities: None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None


class Text(msgspec.Struct, forbid_unknown_fields=True):
    """A text part of a message."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    function: _Function
    type: Literal["function"]


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A message of a chat, or an item of responses, with text alone."""

    role: str
    content: str | list[Text] | None = None
    name: str | None = None
    type: Literal["message"] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class _Chat(_Plain):
    messages: list[Message] | None = None


class _Completion(_Plain):
    prompt: str | list[str] | None = None
    suffix: str | None = None
    echo: bool | None = None


class _Response(_Plain):
    input: str | list[Message] | None = None
    instructions: str | None = None


class _Embedding(_Plain):
    input: str | list[str] | None = None
    encoding_format: str | None = None
    dimensions: int | None = None


class _Scoring(_Plain):
    documents: str | list[str] | None = None
    instruction: str | None = None
    max_tokens_per_query: int | None = None
    max_tokens_per_doc: int | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    use_activation: bool | None = None


class _Rerank(_Scoring):
    query: str | None = None
    top_n: int | None = None
    return_documents: bool | None = None


class _Score(_Scoring):
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    items: str | list[str] | None = None


# The members of each operation that contain the prompt.
PROMPTS: Mapping[Operation, tuple[str, ...]] = {
    Operation.CHAT: ("messages",),
    Operation.COMPLETIONS: ("prompt",),
    Operation.RESPONSES: ("input",),
    Operation.EMBEDDINGS: ("input",),
    Operation.RERANK: SCORED_TEXTS,
    Operation.SCORE: SCORED_TEXTS,
}
# As libraries write it; another form may name a member twice.
_USUAL_OPTIONS = frozenset({b'{"include_usage":true}', b'{"include_usage": true}'})

PLAIN: Mapping[Operation, type[_Plain]] = {
    Operation.CHAT: _Chat,
    Operation.COMPLETIONS: _Completion,
    Operation.RESPONSES: _Response,
    Operation.EMBEDDINGS: _Embedding,
    Operation.RERANK: _Rerank,
    Operation.SCORE: _Score,
}
_DECODE = {operation: msgspec.json.Decoder(kind).decode for operation, kind in PLAIN.items()}
_DECODE_TEXT = (msgspec.json.Decoder(list[Message]).decode, msgspec.json.Decoder(list[str]).decode)


def read_plain(
    operation: Operation, body: bytes, members: Mapping[str, msgspec.Raw]
) -> Fields | None:
    """Return the fields of a plain request; None for any other request, valid or not."""
    try:
        fields = _DECODE[operation](body)
    except msgspec.DecodeError:
        return None
    if fields.stream_options is not None and bytes(members["stream_options"]) not in _USUAL_OPTIONS:
        return None
    return fields


def is_text(prompt: msgspec.Raw) -> bool:
    """Return True if a prompt's list contains only text, in messages or directly: then none of its
    names matters.
    """
    for decode in _DECODE_TEXT:
        with suppress(msgspec.DecodeError):
            decode(prompt)
            return True
    return False
