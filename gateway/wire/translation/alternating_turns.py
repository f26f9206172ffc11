"""Puts the turns of a conversation in the forms that upstreams require. At chat servers, Anthropic,
Bedrock and Gemini each call's result follows at once; at the latter three, turns of the user and of
the model alternate from the user's on.

Only text that no model can read is left out, and only `FILLER` is added. The same turns always
become the same ones, so that a cached prefix of the prompt stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec.structs import replace

from gateway.wire.translation.conversation import (
    Conversation,
    ConversationTurn,
    Part,
    Role,
    TextPart,
    Thought,
    ToolCall,
    ToolResult,
)
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.unused_names import UnusedNames

FILLER = "."  # stands in a place that must have a text and has none


def alternating(
    conversation: Conversation,
    losses: Losses,
    *,
    legal_id: Callable[[str], str],
    takes_unsigned: bool = False,
    takes_prefill: bool = True,
) -> list[ConversationTurn]:
    """Return the turns in alternation, those of one role joined; results of tools come first.

    A conversation without turns has the system's text as the user's: use `system_of`, too.
    `takes_unsigned`: a thought without a signature is sent. `takes_prefill`: the model continues a
    last turn of its own; else that wish is lost. Raises `Untranslatable`.
    """
    runs: list[tuple[Role, list[Part]]] = []
    for turn in answered(conversation, losses, legal_id=legal_id):
        if turn.name:
            losses.lose(conversation.name_of("name"))
        parts = [part for part in turn.parts if _is_sent(part, takes_unsigned=takes_unsigned)]
        if parts and runs and runs[-1][0] is turn.role:
            runs[-1][1].extend(parts)
        elif parts:
            runs.append((turn.role, parts))
    if not runs or runs[0][0] is not Role.USER:
        alone = () if conversation.turns else _readable(conversation.system)
        runs.insert(0, (Role.USER, [*alone] or [TextPart(text=FILLER)]))
    role, parts = runs[-1]
    if role is Role.ASSISTANT and not takes_prefill:
        name = f"{conversation.name_of('turns')}.prefill"
        losses.lose(name, why="the model continues no turn of its own; end with one of the user")
        runs.append((Role.USER, [TextPart(text=FILLER)]))
    elif role is Role.ASSISTANT and isinstance(last := parts[-1], TextPart):
        parts[-1] = replace(last, text=last.text.rstrip())  # a blank at its end is refused
    return [ConversationTurn(role=role, parts=tuple(parts)) for role, parts in runs]


def system_of(conversation: Conversation) -> Sequence[TextPart]:
    """Return the system's text, none if it is sent as the user's."""
    return _readable(conversation.system) if conversation.turns else ()


def answered(
    conversation: Conversation, losses: Losses, *, legal_id: Callable[[str], str]
) -> Iterator[ConversationTurn]:
    """Yield the turns; behind each with calls a turn of their results, in the order of the calls.

    A call without a result, a second one and a result without a call are lost: the dialects of
    messages and responses refuse them, too.
    """
    turns = tuple(paired(conversation, losses, legal_id=legal_id))
    results = _results(turns, conversation, losses)
    for turn in turns:
        own = [part for part in turn.parts if not isinstance(part, ToolResult)]
        parts = [one for one in own if not isinstance(one, ToolCall) or one.call_id in results]
        if parts or not turn.parts:
            yield replace(turn, parts=tuple(parts))
        if calls := [part for part in parts if isinstance(part, ToolCall)]:
            found = tuple(results[call.call_id] for call in calls)
            yield ConversationTurn(role=Role.USER, parts=found)


def paired(
    conversation: Conversation, losses: Losses, *, legal_id: Callable[[str], str]
) -> Iterator[ConversationTurn]:
    """Yield the turns with an id for each call that no other has, and the id and name of its call
    for each result. Neighbouring turns of the model are one. A result without a call before it is
    lost.

    Servers that give no id, or count in each turn from 0, send one id several times: a result
    belongs to the first call before it that has its id and no result, else to the last with one.
    """
    ids = UnusedNames(mark="_", kept_chars=48)
    waiting: dict[str, deque[tuple[str, str]]] = {}
    known: dict[str, tuple[str, str]] = {}
    for turn in _joined(conversation.turns):
        parts: list[Part] = []
        for part in turn.parts:
            if isinstance(part, ToolCall):
                own = ids.unused(legal_id(part.call_id))
                waiting.setdefault(part.call_id, deque()).append((own, part.name))
                parts.append(replace(part, call_id=own))
            elif not isinstance(part, ToolResult):
                parts.append(part)
            else:
                if calls := waiting.get(part.call_id):
                    known[part.call_id] = calls.popleft()
                if part.call_id in known:
                    call_id, name = known[part.call_id]
                    parts.append(replace(part, call_id=call_id, name=part.name or name))
                else:
                    why = f"a result names the call {part.call_id[:64]!r}, which no turn before has"
                    losses.lose(conversation.name_of("call_id"), why=why)
        yield replace(turn, parts=tuple(parts))


def _joined(turns: Iterable[ConversationTurn]) -> Iterator[ConversationTurn]:
    """Yield the turns; neighbours of the model with one name are one, as Anthropic reads them."""
    for (role, name), run in groupby(turns, key=lambda turn: (turn.role, turn.name)):
        if role is Role.ASSISTANT:
            parts = tuple(part for turn in run for part in turn.parts)
            yield ConversationTurn(role=role, parts=parts, name=name)
        else:
            yield from run


def _results(
    turns: Sequence[ConversationTurn], conversation: Conversation, losses: Losses
) -> Mapping[str, ToolResult]:
    """Return the results by the ids of their calls. Lose a second one of a call, and a call without
    any.
    """
    found: dict[str, ToolResult] = {}
    miscounted: list[tuple[ToolCall | ToolResult, str]] = []
    parts = [part for turn in turns for part in turn.parts]
    for part in parts:
        if isinstance(part, ToolResult) and found.setdefault(part.call_id, part) is not part:
            miscounted.append((part, "two results"))
    for part in parts:
        if isinstance(part, ToolCall) and part.call_id not in found:
            miscounted.append((part, "no result"))
    for part, count in miscounted:
        why = f"the call {part.call_id[:64]!r} of {part.name[:64]!r} has {count}: send one for each"
        losses.lose(conversation.name_of("call_id"), why=why)
    return found


def _is_sent(part: Part, *, takes_unsigned: bool) -> bool:
    """Return True for a part that has content: a blank text is refused, and so are thoughts without
    a signature.
    """
    if isinstance(part, TextPart):
        return bool(part.text.strip())
    if isinstance(part, Thought):
        return bool(part.signature or part.sealed or (takes_unsigned and part.text))
    return True


def _readable(texts: Iterable[TextPart]) -> tuple[TextPart, ...]:
    """Return the texts that are not blank."""
    return tuple(text for text in texts if text.text.strip())
