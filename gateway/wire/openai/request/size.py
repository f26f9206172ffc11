"""Computes the bounds of a request's size (its own maximum, its prompts, tokens that its bytes do
not show), and refuses a maximum too large.

Reads nothing that decides the request's destination. All scans take one pass over the bytes, so
that a body of millions of prompts costs little.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from itertools import chain

import msgspec

from gateway.domain.operation import PAIRING, Operation
from gateway.domain.providers.table import TextForms
from gateway.domain.request.bound import TOOL_PREFACE_TOKENS
from gateway.domain.request.text_forms import PromptSize
from gateway.errors import InvalidRequest
from gateway.wire.members import decode_members
from gateway.wire.openai.request.prompt_lists import NULL, size_of_value, strings_in
from gateway.wire.openai.request.scoring import count_texts, repeated_bytes
from gateway.wire.openai.tool_call_ids import MARK
from gateway.wire.widened_text import grown_sizes

MAX_CHOICES = 128  # OpenAI's own bound on `n`
OTHER_CHOICES = "n_cmpl"  # llama.cpp's name of `n`
# More than any engine generates for one request. Larger figures would only overflow a budget's
# column.
MAX_OUTPUT_TOKENS = 2**24
# The members that bound an answer. An endpoint does not know the members of the others, and
# upstreams ignore them.
MAXIMUM_MEMBERS: Mapping[Operation, tuple[str, ...]] = {
    Operation.CHAT: ("max_tokens", "max_completion_tokens"),
    Operation.COMPLETIONS: ("max_tokens",),
    Operation.RESPONSES: ("max_output_tokens",),
    Operation.EMBEDDINGS: (),
    Operation.RERANK: (),
    Operation.SCORE: (),
}
# Templates indent a schema (a token for the end of a line, one for the blanks) or escape it: at
# most four tokens per byte.
EXPANDED_TOKENS_PER_BYTE = 4

# The members of each operation that are a prompt or a list of prompts, in any published schema: a
# server may answer each of them. `inputs` is Mistral's, `content` llama.cpp's and `messages` one
# conversation of vLLM's.
PROMPTS_IN: Mapping[Operation, tuple[str, ...]] = {
    Operation.COMPLETIONS: ("prompt",),
    Operation.RESPONSES: ("input",),
    Operation.EMBEDDINGS: ("input", "inputs", "content", "messages"),
}
_CONVERSATION = "messages"
_TURNS_IN: Mapping[Operation, str] = {
    Operation.CHAT: "messages",
    Operation.RESPONSES: "input",
    Operation.EMBEDDINGS: "messages",
}
# Members that a chat template writes into the prompt in its own form.
_EXPANDED = ("tools", "functions", "response_format", "text", "documents", "chat_template_kwargs")
_RESIZING = frozenset({*_EXPANDED, "prediction", "chat_template", "padding"})
_LOOK_AHEAD = 65  # the bytes in which a list's first item begins, unless it is padded with blanks
_DIGITS = frozenset(b"%d" % digit for digit in range(10))
_ABSENT = msgspec.Raw()
# Parts and calls that the prompt shows in another form; an escape could spell any of them.
_RESHAPED = (b"\\u", b'"file_data', b'_embeds"', b'"tool_calls', b'"function_call')
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")  # seldom in a text, and able to hide a name
# Another provider's sealed thoughts, which a translation hands on: its model reads the text inside.
_SEALED = (b'"thinking_blocks', b'"tollgate.')
# Gemini's sealed thoughts of tool calls: inside the calls' ids, or in Google's own member.
_SIGNED = (b"\\u", MARK.encode(), b'"extra_content')


class Size(msgspec.Struct, frozen=True, gc=False):
    """The bounds of a request's size. `most_tokens` is 0 if its caller set no maximum; see
    `RequestFacts`.
    """

    most_tokens: int
    prompts: int | None
    expansion_tokens: int | None
    predicted_bytes: int


class _Function(msgspec.Struct):
    name: msgspec.Raw = _ABSENT


class _Call(msgspec.Struct):
    """A call of a tool in an earlier answer."""

    id: msgspec.Raw = _ABSENT
    function: _Function | None = None
    extra_content: msgspec.Raw = _ABSENT


class _Turn(msgspec.Struct):
    """The parts of a message, or of an item of a response, that a template writes differently.

    `name` is the tool's in a call of a response, and `call_id` the call's. `tool_call_id`, or an
    `output`, shows a result.
    """

    name: msgspec.Raw = _ABSENT
    call_id: msgspec.Raw = _ABSENT
    tool_call_id: msgspec.Raw = _ABSENT
    content: msgspec.Raw = _ABSENT
    output: msgspec.Raw = _ABSENT
    tool_calls: msgspec.Raw = _ABSENT
    function_call: msgspec.Raw = _ABSENT
    arguments: msgspec.Raw = _ABSENT
    thinking_blocks: msgspec.Raw = _ABSENT
    encrypted_content: msgspec.Raw = _ABSENT


class _Part(msgspec.Struct):
    """A part of a message whose bytes do not bound its tokens.

    A page of a document is charged as a picture, and encoded tensors are not text.
    """

    file: msgspec.Raw = _ABSENT
    file_data: msgspec.Raw = _ABSENT
    image_embeds: msgspec.Raw = _ABSENT
    audio_embeds: msgspec.Raw = _ABSENT


_decode_count = msgspec.json.Decoder(int | None).decode
_decode_turns = msgspec.json.Decoder(list[_Turn]).decode
_decode_parts = msgspec.json.Decoder(list[_Part]).decode
_decode_calls = msgspec.json.Decoder(list[_Call]).decode


def size_of(operation: Operation, members: Mapping[str, msgspec.Raw], *, choices: int) -> Size:
    """Return the bounds of a request's size. Raises `InvalidRequest` if its own maximum is too
    large.
    """
    most_tokens, param = _own_maximum(operation, members)
    prompts = count_prompts(operation, members)
    if most_tokens * choices * (prompts or 1) > MAX_OUTPUT_TOKENS:
        raise _too_much(param, most_tokens, choices=choices, prompts=prompts or 1)
    return Size(most_tokens, prompts, *_beyond_bytes(operation, members, prompts))


def grown_size(
    operation: Operation, body: bytes, sent: Size, *, is_sized: bool
) -> Mapping[TextForms, PromptSize] | None:
    """Return the sizes of a body whose text a tokenizer may read in longer forms, as
    `grown_sizes`. `is_sized` is False if nothing bounds the prompts.
    """
    return grown_sizes(
        body, partial(_size_of_body, operation, prompts=sent.prompts, is_sized=is_sized)
    )


def _size_of_body(
    operation: Operation, body: bytes, *, prompts: int | None, is_sized: bool
) -> PromptSize:
    """Return the size of a body that was read before, but for the length of its characters."""
    tokens, predicted_bytes = _beyond_bytes(operation, decode_members(body), prompts)
    return PromptSize(len(body), tokens if is_sized else None, predicted_bytes)


def _beyond_bytes(
    operation: Operation, members: Mapping[str, msgspec.Raw], prompts: int | None
) -> tuple[int | None, int]:
    """Return the most tokens beyond the body's bytes, None if nothing bounds them, and the bytes of
    a predicted answer.
    """
    if operation in PAIRING:
        return _scoring_expansion(operation, members, prompts), 0
    if _RESIZING.isdisjoint(members):
        return _turns_expansion(operation, members), 0
    return _expansion(operation, members), size_of_value(members.get("prediction"))


def choices_of(n: int | None, best_of: int | None, other: msgspec.Raw | None = None) -> int:
    """Return the number of answers per prompt. Raises `InvalidRequest` if a number is out of
    range.

    `other` is the value of `OTHER_CHOICES`: llama.cpp obeys it before `n`, and other servers may
    know `n` alone, so the largest one counts.
    """
    if n is None and best_of is None and other is None:
        return 1  # nearly every request
    n_cmpl = None if other is None else _count_in(OTHER_CHOICES, other)
    for name, choices, least in (("n", n, 1), ("best_of", best_of, 0), (OTHER_CHOICES, n_cmpl, 1)):
        if choices is not None and not least <= choices <= MAX_CHOICES:
            raise InvalidRequest(
                f"'{name}' is {choices}; write a number from {least} to {MAX_CHOICES}.", param=name
            )
    return max(n or 1, best_of or 1, n_cmpl or 1)


def count_prompts(operation: Operation, members: Mapping[str, msgspec.Raw]) -> int | None:
    """Return the number of prompts that are answered one by one, None if it cannot be read.

    A list is several prompts, unless it is a list of token ids. A list of objects is a conversation
    in responses, and unknown elsewhere.
    """
    if operation is Operation.CHAT:
        return 1
    if operation in PAIRING:
        return count_texts(operation, members)
    if operation is Operation.COMPLETIONS and size_of_value(members.get("prompt_embeds")):
        return None  # vLLM's encoded tensors; each is a prompt
    names = PROMPTS_IN[operation]
    first = members.get(names[0])
    if len(names) == 1 or members.keys().isdisjoint(names[1:]):  # nearly every request
        return 1 if first is None else _prompts_in(operation, first)
    total = 0
    for name in names:
        if size_of_value(raw := members.get(name)):
            assert raw is not None, "it has a size"
            count = 1 if name == _CONVERSATION else _prompts_in(operation, raw)
            if count is None:
                return None
            total += count
    return total or 1


def _prompts_in(operation: Operation, raw: msgspec.Raw) -> int | None:
    """Return the number of prompts in the value of one member, None if it cannot be read."""
    value = bytes(raw)
    if value[:1] != b"[":
        return 1 if value[:1] == b'"' or value == NULL else None
    first = value[1:_LOOK_AHEAD].lstrip()[:1]
    if first == b'"':
        return strings_in(value)
    if first == b"]" or (first == b"{" and operation is Operation.RESPONSES):
        return 1
    if b'"' in value or b"{" in value:
        return None
    lists = value.count(b"[") - 1
    if first == b"[":
        return lists
    return 1 if first in _DIGITS and lists == 0 else None


def _own_maximum(operation: Operation, members: Mapping[str, msgspec.Raw]) -> tuple[int, str]:
    """Return the largest maximum of output tokens that a request sets, 0 for none, and the member's
    name.
    """
    most_tokens, param = 0, ""
    for name in MAXIMUM_MEMBERS[operation]:
        raw = members.get(name)
        if raw is None:
            continue
        tokens = _count_in(name, raw) or 0
        if tokens < 0:
            raise InvalidRequest(
                f"'{name}' is {tokens}; write a number of tokens from 1.", param=name
            )
        if tokens > most_tokens:
            most_tokens, param = tokens, name
    return most_tokens, param


def _count_in(name: str, raw: msgspec.Raw) -> int | None:
    """Return the whole number in a member, None for null. Raises `InvalidRequest` for any other
    value.
    """
    try:
        count: int | None = _decode_count(raw)
    except msgspec.DecodeError as broken:
        reason = str(broken).replace("`", "")
        raise InvalidRequest(
            f"'{name}' has the wrong type: {reason}. Nothing was sent.", param=name
        ) from None
    return count


def _too_much(param: str, most: int, *, choices: int, prompts: int) -> InvalidRequest:
    """Return the error for a request whose answers may have too many tokens, with the arithmetic
    and the fix.
    """
    is_one = choices * prompts == 1
    of_each = f": a maximum of {most:,} × {choices:,} answers × {prompts:,} prompts"
    fewer = ", ask for fewer answers or send fewer prompts"
    return InvalidRequest(
        f"The request may write {most * choices * prompts:,} tokens{'' if is_one else of_each}. At "
        f"most {MAX_OUTPUT_TOKENS:,} are allowed. Set a smaller "
        f"'{param}'{'' if is_one else fewer}. Nothing was sent.",
        param=param,
    )


def _scoring_expansion(
    operation: Operation, members: Mapping[str, msgspec.Raw], prompts: int | None
) -> int | None:
    """Return the most tokens of a rerank or score request beyond its body's bytes, None if nothing
    bounds them: a query and its template's arguments are read with each document.
    """
    if prompts is None or _is_padded(members) or size_of_value(members.get("chat_template")):
        return None
    arguments = size_of_value(members.get("chat_template_kwargs"))
    again = repeated_bytes(operation, members) * (prompts - 1)
    return again + arguments * (EXPANDED_TOKENS_PER_BYTE - 1) * prompts


def _is_padded(members: Mapping[str, msgspec.Raw]) -> bool:
    """Return True if vLLM fills each prompt of a pooling model up to the context window, and counts
    the filling.
    """
    return bytes(members.get("padding", NULL)) not in (NULL, b'"do_not_pad"')


def _expansion(operation: Operation, members: Mapping[str, msgspec.Raw]) -> int | None:
    """Return the most tokens that a chat template adds to the body's bytes, None if nothing bounds
    it.
    """
    if size_of_value(members.get("chat_template")) or _is_padded(members):
        return None  # the caller's own template may repeat anything
    tokens = _turns_expansion(operation, members)
    if tokens is None:
        return None
    if _has_tools(members):
        tokens += TOOL_PREFACE_TOKENS
    rendered = sum(size_of_value(members.get(name)) for name in _EXPANDED)
    return tokens + rendered * (EXPANDED_TOKENS_PER_BYTE - 1)


def _has_tools(members: Mapping[str, msgspec.Raw]) -> bool:
    """Return True if a request declares tools."""
    return bool(size_of_value(members.get("tools")) or size_of_value(members.get("functions")))


def calls_undeclared(operation: Operation, members: Mapping[str, msgspec.Raw]) -> bool:
    """Return True if earlier turns call tools, and the request declares none. Of an unknown shape
    either nothing is known to be a call, or nothing bounds the prompt.
    """
    raw = members.get(_TURNS_IN.get(operation, ""))
    if raw is None or _has_tools(members):
        return False
    try:
        turns = _decode_turns(raw)
    except msgspec.DecodeError:
        return False
    return any(map(_calls_tools, turns)) or _may_name_calls_twice(bytes(raw), turns)


def _turns_expansion(operation: Operation, members: Mapping[str, msgspec.Raw]) -> int | None:
    """Return the most tokens that a chat template adds to the bytes of the messages alone, None if
    nothing bounds it.

    A template writes a tool call again, with blanks after its commas and colons.
    """
    raw = members.get(_TURNS_IN.get(operation, ""))
    if raw is None:
        return 0
    encoded = bytes(raw)
    # Searching for one byte takes a tenth of the time of searching for a word; nearly every request
    # ends here.
    if encoded[:1] != b"[" or (encoded.find(b"_") < 0 and encoded.find(b"\\") < 0):
        return 0
    if not any(word in encoded for word in (*_RESHAPED, *_SEALED)):
        return 0
    try:
        turns = _decode_turns(encoded)
        if any(_has_unsized(turn.content) or _has_unsized(turn.output) for turn in turns):
            return None
        results = sum(size_of_value(turn.tool_call_id or turn.output) > 0 for turn in turns)
        is_signed = any(word in encoded for word in _SIGNED)
        calls = [_calls_of(turn) for turn in turns] if results or is_signed else []
    except msgspec.DecodeError:
        return None  # an unknown shape
    # A translation to Gemini or Ollama writes a tool's name again beside each result.
    more_tokens = results * _longest_name(turns, calls) if results else 0
    if is_signed:
        signed = sum(map(_signature_bytes, turns, calls))
        more_tokens += signed * (EXPANDED_TOKENS_PER_BYTE - 1)
    if _may_name_calls_twice(encoded, turns):
        more_tokens += len(encoded)
    return more_tokens + sum(
        size_of_value(turn.tool_calls)
        + size_of_value(turn.function_call)
        + size_of_value(turn.arguments)
        + _sealed_bytes(turn) * (EXPANDED_TOKENS_PER_BYTE - 1)
        for turn in turns
    )


def _may_name_calls_twice(encoded: bytes, turns: list[_Turn]) -> bool:
    """Return True if a message may have more calls than were decoded: the last of two members that
    have one name. In messages of text alone they pass.
    """
    named = sum(turn.tool_calls is not _ABSENT for turn in turns)
    return encoded.count(b'"tool_calls"') > named or (
        encoded.find(b"\\u00") >= 0 and _ESCAPED_LETTER.search(encoded) is not None
    )


def _calls_tools(turn: _Turn) -> bool:
    """Return True if a turn has a call of a tool."""
    return any(map(size_of_value, (turn.tool_calls, turn.function_call, turn.arguments)))


def _calls_of(turn: _Turn) -> list[_Call]:
    """Return the tool calls of a turn. Raises `msgspec.DecodeError`."""
    return _decode_calls(turn.tool_calls) if size_of_value(turn.tool_calls) else []


def _longest_name(turns: list[_Turn], calls: list[list[_Call]]) -> int:
    """Return the bytes of the longest name of a tool in these turns; `calls` are those of each."""
    of_calls = (call.function.name for one in calls for call in one if call.function)
    return max(map(size_of_value, chain((turn.name for turn in turns), of_calls)))


def _signature_bytes(turn: _Turn, calls: list[_Call]) -> int:
    """Return the bytes of a turn's calls that may hold Gemini's thoughts, which its translation
    takes out of them.
    """
    signed = [turn.call_id] if size_of_value(turn.arguments) else []
    for call in calls:
        signed += [call.id, call.extra_content]
    return sum(map(size_of_value, signed))


def _sealed_bytes(turn: _Turn) -> int:
    """Return the bytes of the sealed thoughts of a turn that a translation hands on."""
    encrypted = bytes(turn.encrypted_content)
    is_ours = encrypted.startswith(_SEALED[1]) or encrypted.find(b"\\") >= 0
    return size_of_value(turn.thinking_blocks) + (len(encrypted) if is_ours else 0)


def _has_unsized(content: msgspec.Raw) -> bool:
    """Return True if a message has a part whose bytes do not bound its tokens: a file or
    embeddings.
    """
    if bytes(content)[:1] != b"[":
        return False
    return any(
        size_of_value(one)
        for part in _decode_parts(content)
        for one in (part.file, part.file_data, part.image_embeds, part.audio_embeds)
    )
