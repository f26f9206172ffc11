"""The members that the gateway adds to requests that it does not translate, each with a switch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment, OutputLimit, PromptCache, Route
from gateway.domain.providers.own_members import (
    DEVELOPER,
    REFUSABLE,
    ROLE_SWITCH,
    SWITCHES,
    TOOL_CHOICE,
    StreamUsage,
)
from gateway.domain.providers.table import PROVIDERS
from gateway.domain.request.bound import bound_of
from gateway.errors import InvalidRequest
from gateway.providers.openai import OpenAI
from gateway.providers.registry import build_providers
from gateway.services.upstream_error import caller_error
from gateway.wire.dialect import UpstreamRequest
from gateway.wire.translation.sent_rounds import with_rounds
from tests import factories
from tests.answers import at_once

ADAPTERS = build_providers(salt_key=bytes(32))
TOOL = {"type": "function", "function": {"name": "f"}}
MESSAGES = [{"role": "developer", "content": "a"}]
BODIES: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: {"messages": MESSAGES, "tools": [TOOL]},
    Operation.COMPLETIONS: {"prompt": "a"},
    Operation.RESPONSES: {"input": "a", "tools": [{"type": "web_search"}]},
    Operation.EMBEDDINGS: {"input": "a"},
    Operation.RERANK: {"query": "a", "documents": ["b"]},
    Operation.SCORE: {"text_1": "a", "text_2": "b"},
    Operation.MESSAGES: {
        "messages": [{"role": "user", "content": "a"}],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
    },
}
# Their value alone is the gateway's, and no server refuses them.
ALWAYS = {"model", "stream"}
EACH = [
    (provider, operation, is_stream)
    for provider, facts in PROVIDERS.items()
    for operation in sorted(facts.native)
    for is_stream in (False, True)
]


def names_in(value: Any) -> Iterator[str]:
    """The names of all members in a JSON value."""
    if isinstance(value, dict):
        yield from value
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list):
            yield from names_in(one)


def sent(one: Deployment, operation: Operation, *, is_stream: bool) -> tuple[set[str], bytes]:
    """The names that a request has more than its caller's, with the bounds of a hard budget, and
    its body.
    """
    asked = {"model": "assistant", **BODIES[operation], **({"stream": True} if is_stream else {})}
    read = factories.read(json.dumps(asked).encode(), operation)
    bound = bound_of(
        read.facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=one,
        price=factories.price(),
        is_relied_on=True,
        bounds_rounds=True,
    )
    if bound.rounds is not None:
        read = with_rounds(read, bound.rounds)
    adapter = ADAPTERS[one.provider]
    translation = adapter.translate(one, read)
    call = at_once(
        adapter.call(
            one,
            factories.request(read),
            output_cap_tokens=bound.output_cap_tokens,
            translation=translation,
        )
    )
    return set(names_in(json.loads(call.body))) - set(names_in(asked)), call.body


def deployment(provider: str, **changes: Any) -> Deployment:
    """A deployment with everything that makes the gateway add something."""
    return factories.deployment(
        **{
            "provider": provider,
            "native": PROVIDERS[provider].native,
            "context_window": 4096,
            "max_output_tokens": 9,
            "prompt_cache": PromptCache.SEPARATE,
        }
        | changes
    )


def test_each_member_that_is_added_has_its_switch() -> None:
    """The table of switches is held against the requests that are sent. `num_ctx` is Ollama's own
    dialect's.
    """
    seen: set[str] = set()
    for provider, operation, is_stream in EACH:
        added, _ = sent(deployment(provider), operation, is_stream=is_stream)
        assert added - ALWAYS <= SWITCHES.keys(), (provider, operation)
        seen |= added
    assert seen - ALWAYS >= SWITCHES.keys() - {"num_ctx", "max_turns"}


def test_the_switches_leave_all_of_them_out() -> None:
    """All but the member of a maximum, of which there is one at least, and a hard budget's."""
    for provider, operation, is_stream in EACH:
        one = deployment(
            provider,
            stream_usage=StreamUsage.UNASKED,
            output_limit=OutputLimit.MAX_TOKENS,
            prompt_cache=PromptCache.TRUSTED,
            allows=frozenset({"store"}),
            refuses=frozenset(REFUSABLE),
        )
        added, body = sent(one, operation, is_stream=is_stream)
        bounds = {"max_tokens", "max_output_tokens", "max_tool_calls", "max_uses", "max_turns"}
        assert added <= bounds | {"parallel_tool_calls"}, (provider, operation)
        assert b'"developer"' not in body


@pytest.mark.parametrize(
    ("refuses", "role", "choice"),
    [
        (set(), DEVELOPER, "auto"),
        ({DEVELOPER}, "system", "auto"),
        ({TOOL_CHOICE}, DEVELOPER, None),
    ],
)
def test_a_server_is_not_sent_what_it_refuses(
    refuses: set[str], role: str, choice: str | None
) -> None:
    """Older and newer builds of one engine differ."""
    one = deployment("trtllm", refuses=frozenset(refuses))
    body = json.loads(sent(one, Operation.CHAT, is_stream=False)[1])
    assert body["messages"] == [{"role": role, "content": "a"}]
    assert body.get("tool_choice") == choice


@pytest.mark.parametrize("word", ["Unknown role: developer", "'developer' is not one of"])
def test_a_refused_role_comes_with_its_switch(word: str) -> None:
    """The caller's SDK may choose the role, and the admin can have it changed."""
    body = json.dumps({"error": {"message": word, "param": "messages[0].role"}}).encode()
    for role, has_switch in ((b"developer", True), (b"system", False)):
        asked = b'{"messages":[{"role":"%b","content":"developer"}]}' % role
        asked = asked if has_switch else asked.replace(b'"developer"', b'"a"')
        call = UpstreamRequest(url="http://127.0.0.1:9/v1", headers={}, body=asked)
        one = factories.deployment("d")
        error = caller_error(OpenAI(), one, call, (400, {}), body=body, asked=asked)
        assert isinstance(error, InvalidRequest)
        assert (ROLE_SWITCH in error.message) is has_switch
        assert error.param == "messages[0].role"
