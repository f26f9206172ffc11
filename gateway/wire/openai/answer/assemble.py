"""Assembles a vLLM stream into the one body that a plain call would have returned, and decides
which requests may be sent that way.

A plain request to a self-hosted engine is sent as a stream, so that it can be charged if its caller
disconnects. The caller must not notice. So only requests with fields that are known to give the
same body both ways are converted; tests/engine/test_assembled_real.py compares both ways on a real
engine. Members that are null in a plain answer and absent from a stream are filled in as vLLM 0.32
writes them.

Not converted: tools (parsers split calls differently in a whole text and in a growing one), `echo`,
prompt log-probabilities, token ids and all fields outside the lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.domain.operation import Operation
from gateway.domain.request.request import RequestBody
from gateway.errors import UpstreamError
from gateway.wire.foreign_json import is_quick, is_raw_error
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.last_event import DONE, DONE_EVENT
from gateway.wire.openai.answer.legal_words import is_end
from gateway.wire.openai.answer.shapes import usage_in
from gateway.wire.openai.bounds import MAX_CHOICES
from gateway.wire.openai.error import read_error
from gateway.wire.openai.usage import usage_from_wire
from gateway.wire.sse import EventSplitter, data_of
from gateway.wire.surrogates import without_halves

_SAMPLING = frozenset(
    {
        "model",
        "stream",
        "max_tokens",
        "n",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "logprobs",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
        "min_tokens",
        "ignore_eos",
        "stop_token_ids",
        "skip_special_tokens",
        "include_stop_str_in_output",
        "response_format",
        "user",
    }
)
CONVERTIBLE: Mapping[Operation, frozenset[str]] = {
    Operation.CHAT: _SAMPLING
    | {
        "messages",
        "max_completion_tokens",
        "top_logprobs",
        "reasoning_effort",
        "chat_template_kwargs",
        "safety_identifier",
        "metadata",
    },
    Operation.COMPLETIONS: _SAMPLING | {"prompt"},
}
_UNREADABLE = "The upstream's answer could not be read."
_NULL = msgspec.Raw(b"null")


class _Call(msgspec.Struct):
    """A piece of one tool call."""

    index: int = 0
    id: str | None = None
    type: str | None = None
    function: dict[str, str | None] | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Logprobs(msgspec.Struct):
    """The log-probability lists by name: chat has `content`, completions has four parallel
    lists.
    """

    content: list[msgspec.Raw] | None = None
    text_offset: list[msgspec.Raw] | None = None
    token_logprobs: list[msgspec.Raw] | None = None
    tokens: list[msgspec.Raw] | None = None
    top_logprobs: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: msgspec.Raw = _NULL


class _Chunk(msgspec.Struct):
    id: str | None = None
    created: int | None = None
    model: str | None = None
    choices: list[_Choice] = []
    usage: msgspec.Raw = _NULL
    system_fingerprint: msgspec.Raw = _NULL
    metrics: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode

_USAGE = (
    "prompt_tokens",
    "total_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
)
_INPUT_DETAILS = ("cached_tokens", "created_cache_tokens", "multimodal_tokens")
_METRICS = (
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
    "speculative_decoding",
)


def is_convertible(read: RequestBody) -> bool:
    """Return True if a request for a plain answer may be sent as a stream: the conversion is known
    for each of its fields.
    """
    known = CONVERTIBLE.get(read.facts.operation)
    return known is not None and not read.facts.is_stream and known.issuperset(read.members)


@dataclass(slots=True)
class _Answer:
    """The content of one choice so far."""

    role: str = "assistant"
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    logprobs: dict[str, list[msgspec.Raw]] = field(default_factory=dict)
    finish_reason: str | None = None
    stop_reason: msgspec.Raw | None = None
    has_begun: bool = False

    def add_choice(self, choice: _Choice) -> None:
        """Add one chunk's part of this choice to the answer."""
        if choice.delta is not None:
            self._add_delta(choice.delta)
        if choice.text is not None:
            self.content.append(choice.text)
        if choice.logprobs is not None:
            self._add_logprobs(choice.logprobs)
        self.finish_reason = choice.finish_reason or self.finish_reason
        if bytes(choice.stop_reason) != b"null":
            self.stop_reason = choice.stop_reason

    def _add_delta(self, delta: _Delta) -> None:
        """Add a chat chunk's delta to the answer: its role, text, reasoning and tool calls."""
        # The first delta: the role and an empty content.
        if delta.role is not None and not self.has_begun:
            self.role, self.has_begun = delta.role, True
        elif delta.content is not None:
            self.content.append(delta.content)
        if delta.reasoning is not None:
            self.reasoning.append(delta.reasoning)
        for call in delta.tool_calls or ():
            self._add_tool_call(call)

    def _add_tool_call(self, call: _Call) -> None:
        """Add a piece of a tool call to the call with its index."""
        found = self.calls.setdefault(
            call.index, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        found["id"] = call.id or found["id"]
        function = call.function or {}
        found["function"]["name"] += function.get("name") or ""
        found["function"]["arguments"] += function.get("arguments") or ""

    def _add_logprobs(self, logprobs: _Logprobs) -> None:
        """Add a chunk's log probabilities to the lists of the same names."""
        for name in _Logprobs.__struct_fields__:
            more = getattr(logprobs, name)
            if more is not None:
                self.logprobs.setdefault(name, []).extend(more)

    def message(self) -> dict[str, Any]:
        """Return the chat message that the choice's pieces make, in vLLM's order of members."""
        calls = [call for _, call in sorted(self.calls.items())]
        return {
            "role": self.role,
            "content": _joined(self.content),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            **({"tool_calls": calls} if calls else {}),
            "reasoning": _joined(self.reasoning),
        }


@dataclass(slots=True, kw_only=True)
class Assembler:
    """An assembler of one streamed answer.

    Feed it the received bytes; `body` is the answer once `observed.is_done`.
    """

    operation: Operation
    choices: int  # requested per prompt
    limit_bytes: int
    observed: Observed = field(default_factory=lambda: Observed(end_mark=DONE_EVENT))
    _splitter: EventSplitter = field(default_factory=EventSplitter)
    size_bytes: int = 0  # of all received bytes
    _answers: dict[int, _Answer] = field(default_factory=dict, repr=False)
    _head: _Chunk | None = field(default=None, repr=False)
    _last: _Chunk | None = field(default=None, repr=False)  # the chunk with the usage
    _error: bytes | None = None

    def feed(self, data: bytes) -> None:
        """Add the events in the next bytes of the upstream's stream to the plain answer. Returns
        nothing for the caller yet.

        Raises `UpstreamError` if the stream is too large or unreadable, and `sse.EventTooLarge`.
        """
        self.size_bytes += len(data)
        if self.size_bytes > self.limit_bytes:
            raise _final_error(f"The upstream's answer is larger than {self.limit_bytes:,} bytes.")
        for event in self._splitter.feed(data):
            payload = data_of(event)
            if payload is None:
                continue
            is_mark = payload[:1] == b"[" and payload.strip() == DONE
            if is_mark and self.observed.is_done:
                continue
            if self.observed.is_done:
                if (usage := usage_in(payload)) is not None:
                    self.observed.note_final(usage)
                continue
            if is_mark:
                # VLLM ends a failed stream with `[DONE]` too.
                self.observed.is_done = not self.observed.is_error
            else:
                self._add_event(payload)

    def body(self) -> bytes:
        """Return the whole body that a plain call would have returned, after the stream's end.

        Raises `UpstreamError` if the stream contained an error.
        """
        if self._error is not None:
            raise UpstreamError(read_error(self._error).message)
        assert self.observed.is_done, "a stream that was cut has no body"
        if self._head is None:  # only the end arrived
            raise _final_error(_UNREADABLE)
        write = _completion_body if self.operation is Operation.COMPLETIONS else _chat_body
        last = self._last or self._head
        answers = [self._answers[index] for index in sorted(self._answers)]
        try:
            return _encode(write(self._head, last, answers))
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise _final_error(_UNREADABLE) from None

    def end(self) -> None:
        """Add the last event of a stream that has ended, if only the event's blank line is
        missing.
        """
        self.feed(self._splitter.end())

    def _add_event(self, payload: bytes) -> None:
        """Add one stream event to the answer; raise `UpstreamError` if it cannot be read."""
        if not is_quick(payload):
            raise _final_error(_UNREADABLE)
        try:
            chunk = _decode_chunk(without_halves(payload))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise _final_error(_UNREADABLE) from None
        if is_raw_error(chunk.error):
            self.observed.is_error, self._error = True, self._error or payload
            if (usage := usage_in(payload)) is not None:
                self.observed.note_final(usage)
        self._head = self._head or chunk
        self._note_chunk(chunk)
        for choice in chunk.choices:
            self._answers.setdefault(choice.index, _Answer()).add_choice(choice)
        if len(self._answers) > MAX_CHOICES:
            raise _final_error(_UNREADABLE)

    def _note_chunk(self, chunk: _Chunk) -> None:
        """Record a chunk's id, finish reason and usage."""
        observed = self.observed
        observed.upstream_id = observed.upstream_id or chunk.id
        for choice in chunk.choices:
            if choice.finish_reason is not None and not is_end(choice.finish_reason):
                choice.finish_reason = None
            if observed.final is not None and _has_token(choice):
                observed.note_more()
            observed.note_finish(choice.finish_reason)
            if choice.finish_reason:
                observed.note_ended(choice.index)
            observed.has_content = observed.has_content or _has_token(choice)
        observed.pieces += bool(chunk.choices) and observed.has_content
        if bytes(chunk.usage) == b"null":
            for choice in chunk.choices:
                if observed.has_running and _has_token(choice):
                    observed.note_uncounted(choice.index)
            return
        if chunk.choices:
            observed.note_running(
                chunk.usage,
                usage_from_wire,
                choice=chunk.choices[0].index,
                choices_per_prompt=self.choices,
            )
        elif (usage := usage_from_wire(chunk.usage)) is not None:
            self._last = chunk
            observed.note_final(usage)


def _final_error(message: str) -> UpstreamError:
    """Return the error for an answer that was generated but cannot be passed on: a retry would
    pay for it again.
    """
    error = UpstreamError(message + " It is not asked again.")
    error.is_final = True
    return error


def _has_token(choice: _Choice) -> bool:
    """Return True if a chunk's choice contains generated text, reasoning or a tool call."""
    delta = choice.delta or _Delta()
    return bool(choice.text or delta.content or delta.reasoning or delta.tool_calls)


def _joined(parts: list[str]) -> str | None:
    """Return the joined text, or None if there were no parts: an empty text is different."""
    return "".join(parts) if parts else None


def _chat_body(head: _Chunk, last: _Chunk, answers: list[_Answer]) -> dict[str, Any]:
    """Return the chat completion body that a plain call returns."""
    choices = [
        {
            "index": index,
            "message": answer.message(),
            "logprobs": answer.logprobs or None,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "token_ids": None,
            "routed_experts": None,
        }
        for index, answer in enumerate(answers)
    ]
    return {
        **_first_members(head, "chat.completion", choices, last),
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        **_last_members(last),
    }


def _completion_body(head: _Chunk, last: _Chunk, answers: list[_Answer]) -> dict[str, Any]:
    """Return the text completion body that a plain call returns."""
    choices = [
        {
            "index": index,
            "text": "".join(answer.content),
            "logprobs": answer.logprobs or None,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }
        for index, answer in enumerate(answers)
    ]
    return {**_first_members(head, "text_completion", choices, last), **_last_members(last)}


def _first_members(
    head: _Chunk, kind: str, choices: list[dict[str, Any]], last: _Chunk
) -> dict[str, Any]:
    """Return the first members of a plain answer's body, in vLLM's order."""
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": last.system_fingerprint,
        "usage": _usage(last.usage),
    }


def _last_members(last: _Chunk) -> dict[str, Any]:
    """Return the last members of a plain answer's body, in vLLM's order."""
    return {
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": _with_nulls(last.metrics, _METRICS),
    }


def _usage(raw: msgspec.Raw) -> Any:
    """Return a stream's usage as a plain answer has it: with the null members that a stream leaves
    out.
    """
    usage = _with_nulls(raw, _USAGE)
    if isinstance(usage, dict):
        usage["prompt_tokens_details"] = _with_nulls(usage["prompt_tokens_details"], _INPUT_DETAILS)
    return usage


def _with_nulls(raw: msgspec.Raw, names: Iterable[str]) -> Any:
    """Return an object with those of `names` that it lacks set to null, as a plain answer has them;
    null stays null.
    """
    if bytes(raw) == b"null":
        return raw
    return {**dict.fromkeys(names, _NULL), **_decode_members(raw)}
