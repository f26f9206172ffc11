"""The order of the text in a translated prompt: as the page's table has it, and the same in each
later turn, so that a cached prefix stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.domain.operation import Operation
from gateway.errors import Untranslatable
from gateway.wire.anthropic.translation.upstream_request import write_messages_request
from gateway.wire.bedrock.request import write_converse_request
from gateway.wire.callers import conversation_of
from gateway.wire.gemini.request import write_gemini_request
from gateway.wire.ollama.request import write_ollama_request
from gateway.wire.openai.chat_translation.request_writer import write_chat_request
from gateway.wire.translation.conversation import Conversation
from gateway.wire.translation.losses import Losses
from tests import factories
from tests.oracles.requests.conversations import DIALECTS, draw

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "translations.md"
CALL, RESULT = "?", "!"  # in the table
_BLANK = re.compile(r"\s")
Texts = list[tuple[str, str]]


def _chat_request(conversation: Conversation, losses: Losses, *, model: str) -> msgspec.Raw:
    """Return a chat request."""
    return msgspec.Raw(write_chat_request(conversation, losses, model=model))


WRITERS: dict[str, Callable[[Conversation, Losses], Any]] = {
    "chat server": partial(_chat_request, model="m"),
    "Anthropic": partial(write_messages_request, model="claude-opus-4-6"),
    "Bedrock": partial(write_converse_request, model="amazon.nova-pro-v1:0"),
    "Gemini": partial(write_gemini_request, model="gemini-3-pro"),
    "Ollama": write_ollama_request,
}


def sent_to(
    target: str, body: dict[str, Any], operation: Operation = Operation.CHAT
) -> dict[str, Any]:
    """Return the translation of a request. Raises `Untranslatable` if a call of it has no result
    yet.
    """
    read = factories.read(json.dumps({"model": "m", **body}).encode(), operation)
    conversation, losses = conversation_of(read), Losses("one", drops=True)
    sent: dict[str, Any] = json.loads(msgspec.json.encode(WRITERS[target](conversation, losses)))
    if conversation.name_of("call_id") in losses.fields:
        raise Untranslatable("A call waits for its result.")
    return sent


def written(target: str, body: dict[str, Any], operation: Operation = Operation.CHAT) -> Texts:
    """Return the texts, calls and results of a translation in order, with their roles."""
    sent = sent_to(target, body, operation)
    found = [("system", text) for text in _texts(sent.get("system", []))]
    found += [("system", text) for text in _texts(sent.get("systemInstruction", {}))]
    for message in sent.get("messages") or sent["contents"]:
        role = {"model": "assistant"}.get(message["role"], message["role"])
        found += [(role, text) for text in _texts(message)]
    return found


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value, `CALL` for a call and `RESULT` for a result of a tool."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif value.get("role") == "tool" or not value.keys().isdisjoint(
        ("toolResult", "functionResponse", "tool_use_id")
    ):
        yield RESULT
    elif not value.keys().isdisjoint(("toolUse", "functionCall", "input", "function")):
        yield CALL
    else:
        for name in ("text", "parts", "content", "tool_calls"):
            if value.get(name):
                yield from _texts(value[name])


def _shown(texts: Texts) -> str:
    """Return texts as the page writes them: a role, then its texts; a blank is `_`."""
    roles: list[tuple[str, str]] = []
    for role, text in texts:
        if roles and roles[-1][0] == role:
            roles[-1] = (role, roles[-1][1] + text)
        else:
            roles.append((role, text))
    return " ".join(f"{role}:{_BLANK.sub('_', text)}" for role, text in roles)


def _chat(shown: str) -> dict[str, Any]:
    """Return the chat that the page writes in this form."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = []
    for one in shown.split():
        role, _, text = one.partition(":")
        if text == CALL:
            messages.append({"role": role, "tool_calls": [call]})
        else:
            own = {"tool_call_id": "a"} if role == "tool" else {}
            messages.append({"role": role, "content": text.replace("_", " "), **own})
    return {"messages": messages}


def _responses(shown: str) -> dict[str, Any]:
    """Return the request of responses that has the same text as the page's chat."""
    items: list[dict[str, Any]] = []
    for one in shown.split():
        role, _, text = one.partition(":")
        kind = "output_text" if role == "assistant" else "input_text"
        if text == CALL:
            call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
            items.append(call)
        elif role == "tool":
            items.append({"type": "function_call_output", "call_id": "a", "output": text})
        else:
            part = {"type": kind, "text": text.replace("_", " ")}
            items.append({"type": "message", "role": role, "content": [part]})
    return {"input": items}


def _messages(shown: str) -> dict[str, Any]:
    """Return the request of messages that has the same text as the page's chat."""
    body: dict[str, Any] = {"max_tokens": 9, "messages": []}
    for one in shown.split():
        role, _, text = one.partition(":")
        block: dict[str, Any] = {"type": "text", "text": text.replace("_", " ")}
        if text == CALL:
            block = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
        elif role == "tool":
            role, block = "user", {"type": "tool_result", "tool_use_id": "a", "content": text}
        if role == "system" and not body["messages"]:
            body["system"] = [block]
        else:
            body["messages"].append({"role": role, "content": [block]})
    return body


def _rows() -> tuple[list[str], list[list[str]]]:
    """Return the targets and the rows of the page's table."""
    section = PAGE.read_text().partition("## Order of the text")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return head[1:], rows


def test_the_page_and_the_translations_have_one_order() -> None:
    """The page is the promise that no text moves before a cached part."""
    targets, rows = _rows()
    assert targets == list(WRITERS)
    assert len(rows) >= 6
    for asked, *sent in rows:
        made = [_shown(written(target, _chat(asked))) for target in targets]
        assert made == sent, asked


@pytest.mark.parametrize(
    ("operation", "request_of"),
    [(Operation.RESPONSES, _responses), (Operation.MESSAGES, _messages)],
)
def test_each_callers_dialect_has_the_same_order(
    operation: Operation, request_of: Callable[[str], dict[str, Any]]
) -> None:
    """The page has chats alone, and speaks of all three. A message's system text needs a turn."""
    targets, rows = _rows()
    for asked, *sent in rows:
        body = request_of(asked)
        if operation is Operation.RESPONSES or body["messages"]:
            made = [_shown(written(target, body, operation)) for target in targets]
            assert made == sent, asked


@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.RESPONSES, Operation.MESSAGES])
@pytest.mark.parametrize("target", WRITERS)
def test_nothing_but_the_end_of_a_longer_conversation_differs(
    target: str, operation: Operation
) -> None:
    """Tools, ids, names and signatures stand in a cached prefix, too."""
    compared = 0
    for seed in range(tuple(DIALECTS).index(operation), 900, 3):
        body = json.loads(draw(seed)[1])
        name = "input" if operation is Operation.RESPONSES else "messages"
        turns = body[name] if isinstance(body[name], list) else []
        is_turn = [one.get("role") not in ("system", "developer") for one in turns]
        before: tuple[dict[str, Any], list[Any]] | None = None
        for end in range([*is_turn, True].index(True) + 1, len(turns) + 1):
            try:
                now = sent_to(target, {**body, name: turns[:end]}, operation)
            except Untranslatable:  # a call waits, or a name is too long
                continue
            sent = now.pop("contents" if "contents" in now else "messages")
            if not body.get("tools"):
                now.pop("toolConfig", None)  # the page: declared as calls come
            if before is not None:
                kept = before[1][:-2]  # the last turn grows, and `.` may stand behind it
                while kept and kept[-1]["role"] in ("user", "system"):
                    kept = kept[:-1]  # text behind a call waits for its result
                assert sent[: len(kept)] == kept, (seed, end)
                assert now == before[0], (seed, end)
                compared += bool(kept)
            before = now, sent
    assert compared > 10


@pytest.mark.parametrize("target", WRITERS)
def test_a_longer_conversation_begins_with_the_shorter_ones_text(target: str) -> None:
    """A provider's cache of the turns before serves the next one; the last turn may still grow."""
    compared = 0
    for seed in range(0, 600, 3):
        body = json.loads(draw(seed)[1])
        roles = [one["role"] for one in body["messages"]]
        at = next((n for n, one in enumerate(roles) if one not in ("system", "developer")), 0)
        before: Texts | None = None
        for end in range(at + 1, len(body["messages"]) + 1):
            try:
                now = written(target, {"messages": body["messages"][:end]})
            except Untranslatable:  # a call waits for its result
                continue
            if before is not None:
                kept = before
                while kept and kept[-1][0] == before[-1][0]:
                    kept = kept[:-1]
                assert now[: len(kept)] == kept, (seed, end)
                compared += 1
            before = now
    assert compared > 100
