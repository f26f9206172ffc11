"""Generates requests that a caller's dialect allows, with its oddities: any order of roles, blank
texts, no turn of the user, histories of calls without tools, one id twice, odd ids and schemas.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from gateway.domain.operation import Operation

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
PDF = "JVBERi0xLjQK"
TEXTS = ("Hi", "Go on.", "", " ", "\n\n\t", "\u00a0", "naïve 😀", "e\u0301\u200b", "\u0000", "0")
# The ids of several providers: OpenAI's, Anthropic's, Kimi's, Mistral's, none, and this gateway's.
IDS = ("call_1", "toolu_01A", "functions.ls:0", "abcDEF123", "", "é/ü", "x" * 200, "a b")
NAMES = ("ls", "get_weather-2", "A" * 64, "0", "_")
LONG_NAME = "B" * 128  # of messages alone: OpenAI's tools have at most 64 letters
SCHEMAS: tuple[Any, ...] = (
    None,
    {},
    {"type": "object"},
    {"type": "object", "properties": {}},
    {"properties": {"path": {"type": "string"}}, "required": ["path"]},
    {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/b"}]}},
        "$defs": {"b": {"type": "integer"}},
        "additionalProperties": False,
    },
    {"anyOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"required": ["b"]}]},
    {"type": "object", "properties": {"a": True, "b": {"anyOf": [False, {"type": ["null"]}]}}},
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"type": "string", "minLength": 2}, "minItems": 3},
            "at": {"type": "string", "format": "date-time", "pattern": "Z$"},
            "kind": {"allOf": [{"$ref": "#/$defs/kind"}], "default": "a"},
            "who": {"oneOf": [{"$ref": "#/$defs/who", "description": "A person"}, {"const": 1}]},
            "more": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
        "$defs": {
            "kind": {"enum": ["a", "b"], "type": "string"},
            "who": {"properties": {"name": {"type": ["string", "null"], "maxLength": 9}}},
        },
    },
)
ARGUMENTS = (
    "{}",
    "",
    " ",
    '{"path": "/\\ud83d\\ude00"}',
    '{"path": "\\\\ud83d \\ud83d"}',  # the second is half an emoji
    '{"a": {"b": [1, 2.5e3, null]}}',
)
MARK = {"type": "ephemeral"}


class Drawn:
    """One drawn request of a dialect: its history, then its wishes."""

    def __init__(self, random: Random, *, names: tuple[str, ...] = NAMES) -> None:
        """Draw the tools; their calls come with the turns."""
        self.random, self.names = random, names
        self.tools = random.sample(names, random.choice((0, 0, 1, 2)))

    def text(self) -> str:
        """Return a text."""
        return self.random.choice(TEXTS)

    def is_rare(self) -> bool:
        """Return True in one of six draws."""
        return self.random.random() < 1 / 6

    def calls(self) -> list[tuple[str, str, str]]:
        """Return one or more calls of one turn: id, name and arguments. Tools of an earlier turn
        may be gone from the request. Ids come back in later turns, and within one turn if a server
        gave none.
        """
        number = self.random.choice((1, 1, 2, 3))
        ids = self.random.sample(IDS, number)
        if self.is_rare():
            ids = [""] * number
        return [(one, self.random.choice(self.names), self.random.choice(ARGUMENTS)) for one in ids]

    def kinds(self, *kinds: str) -> list[str]:
        """Return the kinds of the turns, in any order."""
        return self.random.choices(kinds, k=self.random.choice((0, 1, 1, 2, 3, 5)))

    def sampling(self) -> dict[str, Any]:
        """Return members of sampling that all dialects have; many clients send both at once."""
        members: dict[str, Any] = {}
        if self.is_rare():
            members["temperature"] = self.random.choice((0, 0.5, 1))
        if self.is_rare() or (members and self.random.random() < 0.5):
            members["top_p"] = self.random.choice((0.1, 1))
        return members


def chat(random: Random) -> dict[str, Any]:
    """Return a chat request."""
    drawn = Drawn(random)
    messages: list[dict[str, Any]] = []
    for kind in ["system"] * random.choice((0, 1, 1, 2)) + drawn.kinds(
        "user", "user", "assistant", "system", "developer", "calls", "picture"
    ):
        messages += _chat_turn(drawn, kind)
    if not messages:
        messages = [{"role": random.choice(("user", "system", "assistant")), "content": "Hi"}]
    body: dict[str, Any] = {"model": "assistant", "messages": messages, **drawn.sampling()}
    if drawn.tools or drawn.is_rare():
        body["tools"] = [_chat_tool(drawn, name) for name in drawn.tools]
    if drawn.tools and drawn.is_rare():
        named = {"type": "function", "function": {"name": drawn.tools[0]}}
        body["tool_choice"] = random.choice(("auto", "none", "required", named))
    if drawn.is_rare():
        body["stop"] = random.choice(("END", ["\n"], ["", "a"], ["\n\n", "User:"]))
    if drawn.is_rare():
        body["reasoning_effort"] = random.choice(("none", "minimal", "low", "medium", "high"))
    if drawn.is_rare():
        schema = {"name": "answer", "schema": random.choice(SCHEMAS[2:])}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if drawn.is_rare():
        body["max_completion_tokens"] = random.choice((1, 16, 4000))
    return body


def _chat_turn(drawn: Drawn, kind: str) -> list[dict[str, Any]]:
    """Return the messages of one turn of a chat."""
    if kind == "calls":
        calls = drawn.calls()
        made = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
        message = {"role": "assistant", "content": drawn.random.choice((None, drawn.text()))}
        if drawn.is_rare():
            message["reasoning_content"] = drawn.text()
        drawn.random.shuffle(calls)
        results = [
            {"role": "tool", "tool_call_id": call_id, "content": drawn.text()}
            for call_id, _, _ in calls
        ]
        return [{**message, "tool_calls": made}, *results]
    if kind == "picture":
        url = {"url": f"data:image/png;base64,{PIXEL}"}
        file = {"file_data": f"data:application/pdf;base64,{PDF}", "filename": drawn.text()}
        parts = [{"type": "image_url", "image_url": url}, {"type": "file", "file": file}]
        text = {"type": "text", "text": drawn.text()}
        content = [text, *drawn.random.choices(parts, k=drawn.random.choice((1, 2)))]
        drawn.random.shuffle(content)
        return [{"role": "user", "content": content}]
    content = drawn.text()
    if drawn.is_rare():
        return [{"role": kind, "content": [{"type": "text", "text": content}] * 2}]
    return [{"role": kind, "content": content}]


def _chat_tool(drawn: Drawn, name: str) -> dict[str, Any]:
    """Return a tool of a chat."""
    return {"type": "function", "function": _function(drawn, name, schema="parameters")}


def _function(drawn: Drawn, name: str, *, schema: str) -> dict[str, Any]:
    """Return a function, its schema in the member `schema` if it has one."""
    function: dict[str, Any] = {"name": name}
    if drawn.is_rare():
        function["description"] = drawn.text()
    if (drawn_schema := drawn.random.choice(SCHEMAS)) is not None:
        function[schema] = drawn_schema
    if drawn.is_rare():
        function["strict"] = True
    return function


def responses(random: Random) -> dict[str, Any]:
    """Return a request of responses."""
    drawn = Drawn(random)
    items: list[dict[str, Any]] = []
    for kind in drawn.kinds("user", "user", "assistant", "system", "developer", "calls", "thought"):
        items += _items(drawn, kind)
    body: dict[str, Any] = {"model": "assistant", "input": items or drawn.text()}
    body |= drawn.sampling()
    if drawn.is_rare():
        body["instructions"] = drawn.text()
    if drawn.tools:
        body["tools"] = [
            {"type": "function", **_function(drawn, name, schema="parameters")}
            for name in drawn.tools
        ]
    if drawn.is_rare():
        body["reasoning"] = {"effort": random.choice(("none", "low", "high"))}
    if drawn.tools and drawn.is_rare():
        body["tool_choice"] = random.choice(
            ("required", {"type": "function", "name": drawn.tools[0]})
        )
    if drawn.is_rare():
        form = {"type": "json_schema", "name": "answer", "schema": random.choice(SCHEMAS[2:])}
        body["text"] = {"format": form}
    return body


def _items(drawn: Drawn, kind: str) -> list[dict[str, Any]]:
    """Return the items of one turn of responses. Turns may stand between a call and its output."""
    if kind == "calls":
        calls = drawn.calls()
        made = [
            {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
            for call_id, name, arguments in calls
        ]
        picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}
        outputs = [
            {
                "type": "function_call_output",
                "call_id": call_id,
                "output": drawn.random.choice((drawn.text(), [picture], [])),
            }
            for call_id, _, _ in calls
        ]
        kinds = ("developer", "user", "assistant", "thought") if drawn.is_rare() else ()
        return [*made, *(item for one in kinds for item in _items(drawn, one)), *outputs]
    if kind == "thought":
        summary = [{"type": "summary_text", "text": drawn.text()}]
        return [{"type": "reasoning", "id": "rs_1", "summary": summary}]
    part = "output_text" if kind == "assistant" else "input_text"
    return [{"type": "message", "role": kind, "content": [{"type": part, "text": drawn.text()}]}]


def messages(random: Random) -> dict[str, Any]:
    """Return a request of messages. The dialect refuses blank texts, and ids are unique in it;
    servers that copy it take both.
    """
    drawn = Drawn(random, names=(*NAMES, LONG_NAME))
    turns: list[dict[str, Any]] = []
    for kind in drawn.kinds("user", "user", "assistant", "system", "calls", "picture", "thought"):
        turns += _message_turn(drawn, kind)
    if not turns:
        turns = [{"role": "user", "content": "Hi"}]
    body: dict[str, Any] = {"model": "assistant", "max_tokens": 2000, "messages": turns}
    body |= drawn.sampling()
    if drawn.is_rare():
        text = {"type": "text", "text": drawn.text(), "cache_control": MARK}
        body["system"] = random.choice((drawn.text(), [text]))
    if drawn.tools:
        body["tools"] = [
            {"input_schema": {"type": "object"}, **_function(drawn, name, schema="input_schema")}
            for name in drawn.tools
        ]
    if drawn.is_rare():
        body["stop_sequences"] = random.choice(
            (["END"], ["\n", "x"], ["1", "2", "3", "4", "5", "6"])
        )
    if drawn.is_rare():
        enabled = {"type": "enabled", "budget_tokens": 1024}
        body["thinking"] = random.choice(({"type": "disabled"}, enabled, {"type": "adaptive"}))
    if drawn.tools and drawn.is_rare():
        body["tool_choice"] = random.choice(({"type": "any"}, {"type": "auto"}))
    if drawn.is_rare():
        form = {"type": "json_schema", "schema": random.choice(SCHEMAS[2:])}
        body["output_config"] = {"format": form}
    return body


def _message_turn(drawn: Drawn, kind: str) -> list[dict[str, Any]]:
    """Return the messages of one turn of messages."""
    if kind == "calls":
        calls = drawn.calls()
        uses = [
            {
                "type": "tool_use",
                "id": call_id,
                "name": name,
                "input": json.loads(arguments.replace(' \\ud83d"', '"').strip() or "{}"),
            }
            for call_id, name, arguments in calls
        ]
        results = [
            {"type": "tool_result", "tool_use_id": call_id, **_result(drawn)}
            for call_id, _, _ in calls
        ]
        drawn.random.shuffle(results)
        text = [{"type": "text", "text": drawn.text()}] if drawn.is_rare() else []
        if drawn.is_rare():  # neighbours of one role are one turn
            said, asked = [*uses, {"type": "text", "text": "And more."}], [*results, *text]
            return [
                *({"role": "assistant", "content": [block]} for block in said),
                *({"role": "user", "content": [block]} for block in asked),
            ]
        return [
            {"role": "assistant", "content": [*text, *uses]},
            {"role": "user", "content": [*results, *text]},
        ]
    if kind == "picture":
        source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
        pdf = {"type": "base64", "media_type": "application/pdf", "data": PDF}
        document = {"type": "document", "source": pdf, "title": drawn.text()}
        picture = {"type": "image", "source": source}
        content = drawn.random.choices((picture, document), k=drawn.random.choice((1, 2)))
        return [{"role": "user", "content": content}]
    if kind == "thought":
        thought = {"type": "thinking", "thinking": drawn.text(), "signature": "c2ln"}
        sealed = {"type": "redacted_thinking", "data": "c2VhbGVk"}
        text = {"type": "text", "text": drawn.text()}
        return [{"role": "assistant", "content": [drawn.random.choice((thought, sealed)), text]}]
    marked = {"type": "text", "text": drawn.text(), "cache_control": MARK}
    return [{"role": kind, "content": drawn.random.choice((drawn.text(), [marked]))}]


def _result(drawn: Drawn) -> dict[str, Any]:
    """Return the content of a tool's result, and its mark of an error."""
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    picture = {"type": "image", "source": source}
    content = drawn.random.choice((None, drawn.text(), [], [picture]))
    members: dict[str, Any] = {} if content is None else {"content": content}
    return members | ({"is_error": True} if drawn.is_rare() else {})


DIALECTS = {Operation.CHAT: chat, Operation.RESPONSES: responses, Operation.MESSAGES: messages}


def draw(seed: int) -> tuple[Operation, bytes]:
    """Return a request by its number: the dialects in turn, the same one for the same number."""
    operation = tuple(DIALECTS)[seed % len(DIALECTS)]
    return operation, json.dumps(DIALECTS[operation](Random(seed))).encode()
