"""Fields of many providers, sent through a gateway under a residency rule and without one.

Under a rule every denied member, every unknown one and every part with an address is refused, and
the endpoint that is allowed sees no byte of it. Every ordinary member of the official clients
passes. The conversations are sent once more to upstreams of other dialects: a translation hands on
no trace of such a field, whether it refuses or drops.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gateway.domain.policy.request_fields import FEATURES
from tests.residency.cases import REFERENCE, ROUTE, TEAM, TODAY, Ask
from tests.residency.lane import PATHS, Lane, Reply

FIELDS = Path(__file__).with_name("fields.yaml")
URL = "https://elsewhere.example/x.png"
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": ROUTE, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
    "completions": {"model": ROUTE, "prompt": "hi", "max_tokens": 8},
    "responses": {"model": ROUTE, "input": "hi", "max_output_tokens": 8},
    "messages": {"model": ROUTE, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
    "embeddings": {"model": ROUTE, "input": "hi"},
    "rerank": {"model": ROUTE, "query": "hi", "documents": ["a", "b"]},
    "score": {"model": ROUTE, "text_1": "hi", "text_2": "a"},
}
# Values for the members whose type the gateway reads; all others are sent a text.
VALUES: dict[str, Any] = {
    "best_of": 1,
    "max_completion_tokens": 8,
    "max_output_tokens": 8,
    "max_tokens": 8,
    "modalities": ["text"],
    "n": 1,
    "service_tier": "auto",
    "store": False,
    "stream": False,
    "stream_options": {"include_usage": True},
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {"Type": 1, "type": "object"}}}
    ],
    "functions": [{"name": "f", "parameters": {"type": "object"}}],
    "metadata": {"Model": "x", "MODEL": "y", "link": URL},
    "response_format": {"type": "json_object"},
    "text": {"format": {"type": "text"}},
    "prompt": {"id": "pmpt_1"},
    "chat_template_kwargs": {"enable_thinking": False},
    "logit_bias": {"50256": -100},
    "stop": ["\n", "https:"],
    "prediction": {"type": "content", "content": "https://elsewhere.example"},
    "reasoning": {"effort": "low"},
    "include": ["reasoning.encrypted_content"],
    "background": True,
    "deferred": True,
}
# Those that have another type in Anthropic's messages.
MESSAGES_VALUES: dict[str, Any] = {
    "cache_control": {"type": "ephemeral"},
    "compaction": {"type": "auto"},
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "diagnostics": {"previous_message_id": "msg_1"},
    "metadata": {"user_id": "u"},
    "output_config": {"effort": "low"},
    "output_format": {"type": "json_schema", "schema": {"type": "object"}},
    "speed": "standard",
    "stop_sequences": [URL],
    "system": URL,
    "temperature": 0.5,
    "thinking": {"type": "disabled"},
    "tool_choice": {"type": "auto"},
    "tools": [{"name": "f", "description": URL, "input_schema": {"type": "object"}}],
    "top_k": 3,
    "top_p": 0.5,
}
NEVER = "never"  # in place of a feature: no permission helps
HOSTED_TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "browser_search"},
    {"type": "web-search"},
    {"type": "web_search_2025_08_26"},
    {"type": "googleSearch"},
    {"googleSearch": {}},
    {"google_search": {}},
    {"url_context": {}},
    {"type": "shell", "environment": {"type": "container_auto"}},
    {"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]},
    {"type": "openrouter:web_search"},
    {"type": "function", "function": {"name": "f"}, "web_search": {}},
)
UNKNOWN_TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "tomorrow"},
    {"name": "f"},
    {"type": None},
    {"type": "namespace", "name": "n", "tools": [{"type": "tomorrow"}]},
    {"type": "namespace", "name": "n", "tools": [{"type": "namespace", "tools": []}]},
    {"type": "function", "tomorrow": {}},
)
MESSAGES_TOOLS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"type": "web_search_20250305", "name": "web_search"}, "hosted_tools"),
    ({"type": "web_fetch_20250910", "name": "web_fetch"}, "hosted_tools"),
    ({"type": "code_execution_20250825", "name": "code_execution"}, "hosted_tools"),
    ({"type": "mcp_toolset", "mcp_server_name": "m"}, "hosted_tools"),
    ({"type": "advisor_20260301", "name": "advisor", "model": "other"}, "rerouting"),
)
OWN_TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "function", "function": {"name": "f"}},
    {"type": "function", "name": "f", "parameters": {}, "strict": True},
    {"type": "custom", "name": "c", "format": {"type": "text"}},
    {
        "type": "namespace",
        "name": "n",
        "description": "d",
        "tools": [{"type": "function", "name": "f"}],
    },
)
PARTS: tuple[dict[str, Any], ...] = (
    {"type": "image_url", "image_url": {"url": URL}},
    {"type": "image_url", "image_url": [{"url": URL}]},
    {"type": "image_url", "imageUrl": URL},
    {"type": "image", "image": URL},
    {"type": "image", "source": {"type": "url", "url": URL}},
    {"type": "file", "file": {"file_data": URL}},
    {"type": "file", "file": {"file_data": " \tHTTPS://elsewhere.example"}},
    {"type": "document", "anything": {"at": ["gs://bucket/x"]}},
    {"type": "text", "text": "hi", "picture": "s3://bucket/x"},
    {"type": "video", "video": "file:///etc/passwd"},
    {"type": "video", "video": "ftp://elsewhere.example/x"},
    {"type": "image", "text": URL},
    {"kind": "image", "at": "http:elsewhere"},
)
STORED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ("responses", {"input": [{"id": "msg_1"}]}),
    ("responses", {"input": [{"type": "image_generation_call", "id": "ig_1"}]}),
    ("chat", {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}),
    (
        "chat",
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
    ),
    ("chat", {"prompt": {"id": "pmpt_1"}}),
)
# Sources of Anthropic's blocks that the provider would fetch, or has kept.
SOURCES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"type": "image", "source": {"type": "url", "url": URL}}, "remote_media"),
    ({"type": "document", "source": {"type": "url", "url": URL}}, "remote_media"),
    ({"type": "image", "source": {"type": "file", "file_id": "file_1"}}, "stored_state"),
    ({"type": "document", "source": {"type": "file", "file_id": "file_1"}}, "stored_state"),
    ({"type": "container_upload", "file_id": "file_1"}, "stored_state"),
)
CONTROLS: tuple[dict[str, Any], ...] = (
    {"chat_template": "x"},
    {"tokenize": True},
    {"any": ["x"]},
    {"any": {}},
)
ORDINARY_PROMPTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("chat", {"messages": [{"role": "user", "content": URL}]}),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": URL}]}]}),
    ("chat", {"messages": [{"role": "tool", "tool_call_id": "c", "content": URL}]}),
    ("responses", {"input": [{"type": "function_call_output", "call_id": "c", "output": URL}]}),
    ("responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": URL}]}]}),
    ("responses", {"instructions": URL}),
    ("messages", {"messages": [{"role": "user", "content": URL}]}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": URL}]}]}),
    ("messages", {"system": [{"type": "text", "text": URL}]}),
    ("completions", {"prompt": [URL, "b"]}),
    ("completions", {"prompt": [[1, 2], [3]]}),
    ("embeddings", {"input": [URL, "b"]}),
    ("embeddings", {"input": [[1, 2, 3], [4]]}),
    ("rerank", {"query": URL, "documents": [URL, "b"]}),
    ("score", {"text_1": [URL, "a"], "text_2": [URL, "b"]}),
    ("score", {"queries": URL, "items": [URL, "b"]}),
)


@dataclass(frozen=True)
class Sent:
    """One body of the corpus. `feature` is its need under a rule, None for an ordinary one."""

    what: str
    operation: str
    members: dict[str, Any]
    feature: str | None
    needs_rule: bool = False  # only a residency rule makes it needed

    @property
    def body(self) -> bytes:
        return json.dumps({**BODIES[self.operation], **self.members}).encode()


def entries() -> list[dict[str, Any]]:
    """The dialects of the data file."""
    return list(yaml.safe_load(FIELDS.read_text(encoding="utf-8")))


def corpus() -> Iterator[Sent]:
    """Every body."""
    for entry in entries():
        for name in entry.get("ordinary", ()):
            yield _member(entry, name, None)
        for name, feature in entry.get("denied", {}).items():
            yield _member(entry, name, feature)
        for name in entry.get("refused", ()):
            yield _member(entry, name, NEVER)
        for name in entry.get("unknown", ()):
            yield _member(entry, name, "unknown_fields", needs_rule=True)
    for operation in PATHS:
        for name in ("tomorrow", "x_new_field", "guided_decoding_backend"):
            yield Sent(
                f"unknown {name}",
                operation,
                {name: {"a": "tomorrow"}},
                "unknown_fields",
                needs_rule=True,
            )
    for tool in HOSTED_TOOLS:
        yield Sent(f"tool {tool}", "responses", {"tools": [tool]}, "hosted_tools")
    yield Sent(
        "tools in the input",
        "responses",
        {
            "input": [
                {"type": "additional_tools", "role": "developer", "tools": [{"type": "web_search"}]}
            ]
        },
        "hosted_tools",
    )
    for tool, feature in MESSAGES_TOOLS:
        added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}}
        turn = {"role": "system", "content": [added]}
        yield Sent(f"tool {tool} in a message", "messages", {"messages": [turn]}, feature)
    for tool in UNKNOWN_TOOLS:
        yield Sent(f"tool {tool}", "responses", {"tools": [tool]}, "hosted_tools", needs_rule=True)
    for tool, feature in MESSAGES_TOOLS:
        yield Sent(f"tool {tool}", "messages", {"tools": [tool]}, feature)
    for tool in ({"type": "tomorrow_20270101", "name": "t"}, {"name": "f", "tomorrow": {}}):
        yield Sent(f"tool {tool}", "messages", {"tools": [tool]}, "hosted_tools", needs_rule=True)
    for tool in OWN_TOOLS:
        yield Sent(f"tool {tool}", "responses", {"tools": [tool]}, None)
    for operation, members in STORED:
        yield Sent(f"stored {members}", operation, members, "stored_state")
    for kwargs in CONTROLS:
        yield Sent(f"template {kwargs}", "chat", {"chat_template_kwargs": kwargs}, "engine_control")
    for operation, members in ORDINARY_PROMPTS:
        yield Sent(f"prompt {members}", operation, members, None)
    yield from _media()


def _media() -> Iterator[Sent]:
    """Each part in each member that may hold one."""
    for block, feature in SOURCES:
        result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
        for name, value in (
            ("messages", [{"role": "user", "content": [block]}]),
            ("messages", [{"role": "user", "content": [result]}]),
            ("system", [block]),
        ):
            yield Sent(f"{name} of messages: {value}", "messages", {name: value}, feature)
    for part in PARTS:
        message = [{"role": "user", "content": [part]}]
        for operation, name, value in (
            ("chat", "messages", message),
            ("chat", "input", message),
            ("messages", "messages", message),
            ("messages", "system", [part]),
            ("responses", "input", message),
            ("responses", "messages", message),
            ("responses", "instructions", message),
            ("completions", "prompt", [part]),
            ("embeddings", "input", [part]),
            ("rerank", "documents", [{"content": [part]}]),
            ("rerank", "query", {"content": [part]}),
            ("score", "text_2", {"content": [part]}),
        ):
            yield Sent(f"{name} of {operation}: {part}", operation, {name: value}, "remote_media")


def _member(
    entry: dict[str, Any], name: str, feature: str | None, *, needs_rule: bool = False
) -> Sent:
    value = VALUES.get(name, "some value")
    if entry["operation"] == "messages":
        value = MESSAGES_VALUES.get(name, value)
    what = f"{entry['dialect']}: {name}"
    return Sent(what, entry["operation"], {name: value}, feature, needs_rule=needs_rule)


def policy(
    *, is_ruled: bool, allows: tuple[str, ...] = (), upstream: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A document with one endpoint, which every rule in it allows; `upstream` are members of its
    deployment.
    """
    deployment: dict[str, Any] = {
        "name": "d-0",
        "provider": "openai_compatible",
        "model": "m-1",
        "region": "de",
        "operations": list(PATHS),
        "price": {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2},
        "timeouts": {"connect_s": 1, "first_byte_s": 5, "idle_s": 5, "total_s": 10},
    }
    if allows:
        deployment["allows"] = list(allows)
    deployment |= upstream or {}
    return {
        "version": 1,
        "classes": {"restricted": {"regions": ["eu" if is_ruled else "any"]}},
        "deployments": [deployment],
        "routes": [{"name": ROUTE, "deployments": ["d-0"], "objective": "priority"}],
        "teams": [
            {"name": TEAM, "cost_centre": "CC-1", "data_class": "restricted", "routes": [ROUTE]}
        ],
    }


CONVERSATIONS = ("chat", "responses", "messages")
# The upstreams that get a body as it is, each with the operations.
UPSTREAMS: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({}, tuple(name for name in PATHS if name != "messages")),
    ({"provider": "vllm"}, ("messages",)),
    ({"provider": "anthropic", "api_key": REFERENCE, "operations": ["messages"]}, ("messages",)),
)
# Those for which it is translated.
TRANSLATED: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({"native": ["chat"]}, ("responses", "messages")),
    ({"provider": "anthropic", "api_key": REFERENCE}, ("chat", "responses")),
    ({"provider": "gemini", "api_key": REFERENCE}, CONVERSATIONS),
    ({"provider": "bedrock", "api_key": REFERENCE}, CONVERSATIONS),
    ({"provider": "ollama"}, CONVERSATIONS),
)
# The only needs of which a translation keeps nothing, so that it may leave them out.
DROPPABLE = ("hosted_tools", "unknown_fields")
# Words of fields that need a leave, which no upstream may see. No ordinary body has them.
TRACES = (
    "elsewhere",
    "some value",
    "search",
    "fetch",
    "code_execution",
    "tomorrow",
    "shell",
    "context",
    "file_1",
)


async def findings(lane: Lane) -> list[str]:
    """Send every body under a rule and without one; return the wrong results."""
    lane.clock.day = TODAY
    found = []
    for is_ruled in (True, False):
        where = "under a rule" if is_ruled else "without a rule"
        for upstream, operations in UPSTREAMS:
            lane.apply(lane.at(policy(is_ruled=is_ruled, upstream=upstream)))
            for sent in corpus():
                if sent.operation in operations:
                    reply = await _reply(lane, sent)
                    is_refused = sent.feature is not None and (is_ruled or not sent.needs_rule)
                    touched = lane.endpoints[0].touched
                    wrong = _wrong(sent, reply, touched, is_refused=is_refused)
                    found += [f"{where}, {upstream}: {sent.what}: {wrong}"] if wrong else []
        for loss in ("refuse", "drop"):
            for upstream, operations in TRANSLATED:
                members = {"operations": list(CONVERSATIONS), "untranslatable": loss, **upstream}
                lane.apply(lane.at(policy(is_ruled=is_ruled, upstream=members)))
                for sent in corpus():
                    if sent.operation in operations and (is_ruled or not sent.needs_rule):
                        reply = await _reply(lane, sent)
                        wrong = _wrong_translation(lane, sent, reply, drops=loss == "drop")
                        found += [f"{where}, {members}: {sent.what}: {wrong}"] if wrong else []
    return found


async def _reply(lane: Lane, sent: Sent) -> Reply:
    """Send one body, and count the deployments that it touches."""
    lane.endpoints[0].touched, lane.endpoints[0].sent = 0, b""
    asked = Ask(data_class=None, data_tags=(), gateway_region="de", day=TODAY)
    return await lane.ask(asked, path=PATHS[sent.operation], body=sent.body)


def _wrong(sent: Sent, reply: Reply, touched: int, *, is_refused: bool) -> str:
    """Return the fault of an answer to a body that is handed on as it is; empty without one."""
    if not is_refused:
        is_right = reply.status == 200 and touched
        return "" if is_right else f"{reply.status} {reply.body[:300]!r}"
    assert sent.feature is not None
    leaves = sent.feature != NEVER and FEATURES[sent.feature].leaves_region
    wanted = (403, "residency_denied") if leaves else (400, "invalid_request")
    is_right = (reply.status, reply.code) == wanted and not touched
    return "" if is_right else f"{reply.status} {reply.code}, {touched} touched; wanted {wanted}"


def _wrong_translation(lane: Lane, sent: Sent, reply: Reply, *, drops: bool) -> str:
    """Return the fault of an answer to a translated body; empty without one."""
    endpoint = lane.endpoints[0]
    if reply.status not in (200, 400, 403) or (reply.status == 200) != (endpoint.touched > 0):
        return f"{reply.status} {reply.body[:300]!r}, {endpoint.touched} touched"
    if sent.feature is None or not endpoint.touched:
        return ""
    if not drops or sent.feature not in DROPPABLE:
        return f"was sent: {endpoint.sent[:300]!r}"
    traces = [one for one in TRACES if one.encode() in endpoint.sent]
    named = reply.headers.get("x-tollgate-dropped-fields")
    return f"{traces} in {endpoint.sent[:300]!r}, {named} named" if traces or not named else ""
