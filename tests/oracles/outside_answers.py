"""llm-comply, a conformance tool of other people, judges the answers of a running gateway: each of its
three formats that callers speak, before each target that speaks another dialect.

It gets the answers of the fake upstream, whose model's name states whether it calls a tool.
"""  # noqa: E501

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.gateway_process import FakeUpstreamProcess, Gateway

COMMAND = os.environ["LLM_COMPLY"]
FORMATS = {"chat": "openai-chat", "messages": "anthropic", "responses": "open-responses"}
KEY = 'api_key: "env:FAKE_KEY"'
TARGETS = {
    "chat": "provider: openai_compatible, base_url: UPSTREAM/v1, native: [chat], "
    "operations: [chat, messages, responses]",
    "anthropic": f"provider: anthropic, base_url: UPSTREAM/v1, {KEY}",
    "gemini": f"provider: gemini, base_url: UPSTREAM/v1beta, {KEY}",
    "bedrock": f"provider: bedrock, base_url: UPSTREAM, {KEY}",
    "ollama": "provider: ollama, base_url: UPSTREAM",
}
OWN_TARGET = {"chat": "chat", "messages": "anthropic"}
PAIRS = [
    (caller, target) for caller in FORMATS for target in TARGETS if OWN_TARGET.get(caller) != target
]
CASES = {"chat": 8, "messages": 8, "responses": 12}
# Words of findings, with the reason why each stays (docs/reference/translations.md).
LISTED = {
    "'input_tokens_details': None": "the upstream has no word for cached tokens, and 0 is a count",
    "'output_tokens_details': None": "nor one for tokens of reasoning",
    "chat-reasoning-summary: usage.completion_tokens_details": "the same in a chat: a warning",
    "unknown SSE event type: response.reasoning_summary_text.": "its table has another name than "
    "its description, which is OpenAI's",
    "compact-response: ": "a warning: a conversation is compacted by OpenAI's own API alone",
    "anth-error-handling: invalid request returned a success": "a warning: `max_tokens` has a "
    "default (docs/reference/http.md)",
}
# The fake server counts and hides it.
LISTED_AT = {"messages-chat": "anth-thinking-display: no thinking"}
# The tool skips the cases of reasoning unless the model's name is one of those that it knows.
ROUTE = "gpt-5-claude-opus-"
ANSWER = "in:90+out:6+think:2"
TOOL_CASES = {
    "chat": "chat-tool-calling",
    "messages": "anth-tool-calling",
    "responses": "tool-calling",
}


def policy(upstream: str) -> str:
    """Return a policy with two routes for each target: one whose model calls a tool."""
    deployments, routes = [], []
    for target, provider in TARGETS.items():
        for name, script in ((target, ANSWER), (f"{target}-calls", f"{ANSWER}+call")):
            place = provider.replace("UPSTREAM", upstream)
            deployments.append(
                f'  - {{name: {name}, model: "fake/{script}", region: unknown, {place}, '
                "price: {input_usd_per_mtok: 1, output_usd_per_mtok: 10}, untranslatable: drop}"
            )
            routes.append(f"  - {{name: {ROUTE}{name}, deployments: [{name}]}}")
    names = ", ".join(f"{ROUTE}{target}, {ROUTE}{target}-calls" for target in TARGETS)
    return "\n".join(
        [
            "version: 1",
            "classes: {internal: {regions: [any]}}",
            "deployments:",
            *deployments,
            "routes:",
            *routes,
            "teams:",
            f"  - {{name: t, cost_centre: C, data_class: internal, routes: [{names}]}}",
        ]
    )


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    fake_upstream: FakeUpstreamProcess,
) -> Iterator[Gateway]:
    """Yield a gateway before the fake upstream in all its dialects."""
    yield from launch_gateway(policy(fake_upstream.url), module_database_url)


@pytest.mark.parametrize(("caller", "target"), PAIRS)
def test_no_case_has_a_finding_that_is_not_listed(
    gateway: Gateway, caller: str, target: str
) -> None:
    """A skipped case is a finding, as are a failed one and a warning."""
    tools = TOOL_CASES[caller]
    cases = [
        *(one for one in judged(gateway, caller, f"{ROUTE}{target}") if one["id"] != tools),
        *judged(gateway, caller, f"{ROUTE}{target}-calls", "--filter", tools),
    ]
    assert len(cases) > CASES[caller]
    found = [
        f"{one['id']}: {finding}"
        for one in cases
        for finding in [*one.get("errors", ()), *one.get("warnings", ())]
    ]
    listed = [*LISTED, LISTED_AT.get(f"{caller}-{target}", "nothing")]
    assert [one for one in found if not any(words in one for words in listed)] == []
    assert [one["id"] for one in cases if one["status"] == "skipped"] == []


def judged(gateway: Gateway, caller: str, route: str, *more: str) -> list[dict[str, Any]]:
    """Return the cases of a caller's format with their results."""
    arguments = [
        *("--base-url", gateway.base_url, "--api-key", gateway.key, "--model", route),
        *("--format", FORMATS[caller], "--json", *more),
    ]
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
    cases: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return cases
