"""Puts the turns of a conversation in the form that Anthropic, Bedrock and Gemini require: those of
the user and of the model alternate from the user's on, and each call's result follows at once.

Only text that no model can read is left out, and only `FILLER` is added. The same turns always
become the same ones, so that a cached prefix of the prompt stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from gateway.errors import Untranslatable
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
_ONE_TURN = "The results of a turn's calls have to stand in the next turn, one for each call."


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
    for turn in paired(conversation.turns, legal_id=legal_id):
        if turn.name:
            losses.lose(conversation.name_of("name"))
        parts = [part for part in turn.parts if _is_sent(part, takes_unsigned=takes_unsigned)]
        if parts and runs and runs[-1][0] is turn.role:
            runs[-1][1].extend(parts)
        elif parts:
            runs.append((turn.role, parts))
    _require_results(runs)
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
    return [_arranged(role, parts) for role, parts in runs]


def system_of(conversation: Conversation) -> Sequence[TextPart]:
    """Return the system's text, none if it is sent as the user's."""
    return _readable(conversation.system) if conversation.turns else ()


def paired(
    turns: Iterable[ConversationTurn],
    *,
    legal_id: Callable[[str], str],
    takes_unknown: bool = False,
) -> Iterable[ConversationTurn]:
    """Yield the turns with an id for each call that no other has, and the id and name of its call
    for each result.

    `takes_unknown`: a result of no call stays as it is; else it raises `Untranslatable`.

    Servers that give no id, or count in each turn from 0, send one id several times: a result
    belongs to the first call before it that has its id and no result, else to the last with one.
    """
    ids = UnusedNames(mark="_", kept_chars=48)
    waiting: dict[str, deque[tuple[str, str]]] = {}
    answered: dict[str, tuple[str, str]] = {}
    for turn in turns:
        parts: list[Part] = []
        for part in turn.parts:
            if isinstance(part, ToolCall):
                own = ids.unused(legal_id(part.call_id))
                waiting.setdefault(part.call_id, deque()).append((own, part.name))
                parts.append(replace(part, call_id=own))
            elif isinstance(part, ToolResult):
                is_known = part.call_id in waiting or not takes_unknown
                parts.append(_of_its_call(part, waiting, answered) if is_known else part)
            else:
                parts.append(part)
        yield replace(turn, parts=tuple(parts))


def _of_its_call(
    result: ToolResult,
    waiting: Mapping[str, deque[tuple[str, str]]],
    answered: dict[str, tuple[str, str]],
) -> ToolResult:
    """Return a result with its call's id and name. Raises `Untranslatable` if there is no call."""
    if calls := waiting.get(result.call_id):
        answered[result.call_id] = calls.popleft()
    elif result.call_id not in answered:
        raise Untranslatable(
            f"A tool's result names the call {result.call_id[:64]!r}, which no turn before has. "
            "Nothing was sent. Send the whole conversation.",
            param="tool_call_id",
        )
    call_id, name = answered[result.call_id]
    return replace(result, call_id=call_id, name=result.name or name)


def _is_sent(part: Part, *, takes_unsigned: bool) -> bool:
    """Return True for a part that has content: a blank text is refused, and so are thoughts without
    a signature.
    """
    if isinstance(part, TextPart):
        return bool(part.text.strip())
    if isinstance(part, Thought):
        return bool(part.signature or part.sealed or (takes_unsigned and part.text))
    return True


def _require_results(runs: Sequence[tuple[Role, Sequence[Part]]]) -> None:
    """Raise `Untranslatable` unless each turn has the results of the calls before it, and no other
    ones.
    """
    waiting: dict[str, str] = {}
    for _, parts in runs:
        results = [part.call_id for part in parts if isinstance(part, ToolResult)]
        found = set(results)
        if found - waiting.keys() or len(found) < len(results):
            raise Untranslatable(f"{_ONE_TURN} Nothing was sent.", param="tool_call_id")
        _require_none({one: name for one, name in waiting.items() if one not in found})
        waiting = {part.call_id: part.name for part in parts if isinstance(part, ToolCall)}
    _require_none(waiting)


def _require_none(unanswered: dict[str, str]) -> None:
    """Raise `Untranslatable` for a call without its result."""
    for call_id, name in unanswered.items():
        raise Untranslatable(
            f"The call {call_id[:64]!r} of {name[:64]!r} has no result in the turn after it. "
            f"{_ONE_TURN} Nothing was sent.",
            param="tool_call_id",
        )


def _readable(texts: Iterable[TextPart]) -> tuple[TextPart, ...]:
    """Return the texts that are not blank."""
    return tuple(text for text in texts if text.text.strip())


def _arranged(role: Role, parts: Iterable[Part]) -> ConversationTurn:
    """Return a turn with its results of tools first."""
    ordered = sorted(parts, key=lambda part: not isinstance(part, ToolResult))
    return ConversationTurn(role=role, parts=tuple(ordered))
