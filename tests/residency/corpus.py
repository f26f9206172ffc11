"""Fields of many providers, sent through a gateway under a residency rule and without one.

Under a rule every denied member, every unknown one and every part with an address is refused, and
the endpoint that is allowed sees no byte of it. Every ordinary member of the official clients
passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gateway.domain.policy.request_fields import FEATURES
from tests.residency.cases import ROUTE, TEAM, TODAY, Ask
from tests.residency.lane import Lane

FIELDS = Path(__file__).with_name("fields.yaml")
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "score": "/v1/score",
}
URL = "https://elsewhere.example/x.png"
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": ROUTE, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
    "completions": {"model": ROUTE, "prompt": "hi", "max_tokens": 8},
    "responses": {"model": ROUTE, "input": "hi", "max_output_tokens": 8},
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
    for operation in PATHS:
        for name in ("tomorrow", "x_new_field", "guided_decoding_backend"):
            yield Sent(
                f"unknown {name}", operation, {name: {"a": 1}}, "unknown_fields", needs_rule=True
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
    for tool in UNKNOWN_TOOLS:
        yield Sent(f"tool {tool}", "responses", {"tools": [tool]}, "hosted_tools", needs_rule=True)
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
    for part in PARTS:
        message = [{"role": "user", "content": [part]}]
        for operation, name, value in (
            ("chat", "messages", message),
            ("chat", "input", message),
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


def _member(entry: dict[str, Any], name: str, feature: str | None) -> Sent:
    value = VALUES.get(name, "some value")
    return Sent(f"{entry['dialect']}: {name}", entry["operation"], {name: value}, feature)


def policy(*, is_ruled: bool, allows: tuple[str, ...] = ()) -> dict[str, Any]:
    """A document with one endpoint, which every rule in it allows."""
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
    return {
        "version": 1,
        "classes": {"restricted": {"regions": ["eu" if is_ruled else "any"]}},
        "deployments": [deployment],
        "routes": [{"name": ROUTE, "deployments": ["d-0"], "objective": "priority"}],
        "teams": [
            {"name": TEAM, "cost_centre": "CC-1", "data_class": "restricted", "routes": [ROUTE]}
        ],
    }


async def findings(lane: Lane) -> list[str]:
    """Send every body under a rule and without one; return the wrong results."""
    asked, found = Ask(data_class=None, data_tags=(), gateway_region="de", day=TODAY), []
    lane.clock.day = asked.day
    for is_ruled in (True, False):
        lane.apply(lane.at(policy(is_ruled=is_ruled)))
        for sent in corpus():
            endpoint = lane.endpoints[0]
            endpoint.touched = 0
            reply = await lane.ask(asked, path=PATHS[sent.operation], body=sent.body)
            is_refused = sent.feature is not None and (is_ruled or not sent.needs_rule)
            where = (
                f"{'under a rule' if is_ruled else 'without a rule'}, {sent.what}: "
                f"{reply.status} {reply.code}"
            )
            if is_refused:
                assert sent.feature is not None
                leaves = sent.feature != NEVER and FEATURES[sent.feature].leaves_region
                wanted = (403, "residency_denied") if leaves else (400, "invalid_request")
                if (reply.status, reply.code) != wanted or endpoint.touched:
                    found.append(
                        f"{where}, {endpoint.touched} bytes or connections; wanted {wanted}"
                    )
            elif reply.status != 200 or not endpoint.touched:
                found.append(f"{where}: {reply.body[:300]!r}")
    return found
