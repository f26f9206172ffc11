"""Earlier calls of tools whose results stand later, are missing, come twice or name no call, were
sent to chat servers as they came. OpenAI's rule: the results of a message's calls follow it at
once, one for each call.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import FieldLoss
from gateway.errors import InvalidRequest
from gateway.providers.registry import build_providers
from gateway.wire.anthropic.dialect import AnthropicDialect
from gateway.wire.openai.dialect import OpenAIDialect
from tests.answers import at_once
from tests.factories import deployment, read, request
from tests.oracles.requests.chat_judges import chat_faults

ADAPTERS = build_providers(salt_key=bytes(32))
CALLERS = {
    Operation.RESPONSES: ("call_id", OpenAIDialect()),
    Operation.MESSAGES: ("tool_use_id", AnthropicDialect()),
}
CHAT_SERVERS = ("openai", "openai_compatible", "vllm", "mistral")
STRICT = (*CHAT_SERVERS, "anthropic", "bedrock", "gemini")
History = list[tuple[str, str]]  # user or assistant and a text, call or result and an id


def history(seed: int) -> History:
    """Return rounds of calls with their results, and texts anywhere among them."""
    random = Random(seed)
    found: History = [("user", "Go.")]
    for turn in range(random.randint(1, 3)):
        # Nine letters, as Mistral wants them: others it gets in another form.
        ids = [f"call{turn:02}{number:03}" for number in range(random.randint(1, 3))]
        calls = [("call", one) for one in ids]
        results = [("result", one) for one in random.sample(ids, len(ids))]
        for one in (*calls, *results):
            found += [(random.choice(("user", "assistant")), f"before {one}")] * random.randint(
                0, 1
            )
            found.append(one)
    return [*found, ("user", "And now?")]


def _message(kind: str, text: str) -> dict[str, Any]:
    """Return a message of Anthropic's dialect."""
    role, block = kind, dict[str, Any](type="text", text=text)
    if kind == "call":
        role, block = "assistant", {"type": "tool_use", "id": text, "name": "f", "input": {}}
    if kind == "result":
        role, block = "user", {"type": "tool_result", "tool_use_id": text, "content": "r"}
    return {"role": role, "content": [block]}


def _item(kind: str, text: str) -> dict[str, Any]:
    """Return an item of responses."""
    if kind == "call":
        return {"type": "function_call", "call_id": text, "name": "f", "arguments": "{}"}
    if kind == "result":
        return {"type": "function_call_output", "call_id": text, "output": "r"}
    part = "output_text" if kind == "assistant" else "input_text"
    return {"type": "message", "role": kind, "content": [{"type": part, "text": text}]}


def sent(
    provider: str, operation: Operation, turns: History, loss: FieldLoss = FieldLoss.REFUSE
) -> Any:
    """Return the body that a provider is sent for a history."""
    body: dict[str, Any] = {"model": "m"}
    if operation is Operation.MESSAGES:
        body |= {"max_tokens": 9, "messages": [_message(*one) for one in turns]}
    else:
        body["input"] = [_item(*one) for one in turns]
    native = frozenset({Operation.CHAT}) if provider in CHAT_SERVERS else frozenset()
    one = deployment(provider=provider, native=native, untranslatable=loss)
    asked = read(json.dumps(body).encode(), operation)
    made = ADAPTERS[provider].translate(one, asked)
    return json.loads(at_once(ADAPTERS[provider].call(one, request(asked), translation=made)).body)


def faults(body: dict[str, Any]) -> list[str]:
    """Return the rules of OpenAI's that the messages of a request break."""
    return chat_faults({"model": "m", "messages": body["messages"]})


@pytest.mark.parametrize("operation", CALLERS)
@pytest.mark.parametrize("provider", STRICT)
def test_the_results_of_calls_follow_them_at_once(provider: str, operation: Operation) -> None:
    """One for each and in the order of the calls, and no text of the history is lost."""
    for seed in range(15):
        turns = history(seed)
        body = sent(provider, operation, turns)
        text = json.dumps(body)
        assert all(one in text for kind, one in turns if kind in ("user", "assistant")), seed
        if provider not in CHAT_SERVERS:
            continue
        assert faults(body) == [], seed
        ids = [call["id"] for one in body["messages"] for call in one.get("tool_calls", ())]
        results = [one["tool_call_id"] for one in body["messages"] if one["role"] == "tool"]
        assert results == ids == [one for kind, one in turns if kind == "call"], seed


def _missing(turns: History) -> History:
    """Take the last result away."""
    last = max(at for at, (kind, _) in enumerate(turns) if kind == "result")
    return [*turns[:last], *turns[last + 1 :]]


def _doubled(turns: History) -> History:
    """Send the first result once more at the end."""
    return [*turns, next(one for one in turns if one[0] == "result")]


def _orphaned(turns: History) -> History:
    """Send a result of no call."""
    return [("result", "of no call"), *turns]


def _early(turns: History) -> History:
    """Send a result before its call."""
    return [next(one for one in turns if one[0] == "result"), *_missing(turns)]


@pytest.mark.parametrize("operation", CALLERS)
@pytest.mark.parametrize("provider", STRICT)
@pytest.mark.parametrize("spoil", [_missing, _doubled, _orphaned, _early])
def test_a_call_without_one_result_is_refused_by_the_callers_member(
    operation: Operation, provider: str, spoil: Callable[[History], History]
) -> None:
    """Its own dialect refuses it, too. With `drop` the rest is a request that OpenAI takes."""
    name, dialect = CALLERS[operation]
    for seed in range(4):
        turns = spoil(history(seed))
        with pytest.raises(InvalidRequest) as refused:
            sent(provider, operation, turns)
        assert refused.value.param == name, seed
        error = dialect.error_body(refused.value.code, str(refused.value), param=name)
        assert json.loads(error)["error"]["type"] == "invalid_request_error"
        body = sent(provider, operation, turns, FieldLoss.DROP)
        assert provider not in CHAT_SERVERS or faults(body) == [], seed
