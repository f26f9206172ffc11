"""SGLang's, llama.cpp's and TensorRT-LLM's siblings of vLLM's `kv_transfer_params` passed without
`engine_control`: the host to exchange a cache with, a pickled program, another team's session.
"""

from __future__ import annotations

import json

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.policy.request_fields import FEATURES
from gateway.domain.providers.members import engines
from gateway.domain.providers.members.effects import ELSEWHERE
from gateway.domain.request.bound import bound_of
from gateway.errors import InvalidRequest
from tests import factories

# Words in the names of members that name a peer, a process, a slot, an adapter or a session.
STEERING = ("bootstrap", "rank", "slot", "lora", "disagg", "logit_proc", "session_par", "extra_key")
CHAT = {"model": "assistant", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}


@pytest.mark.parametrize("member", FEATURES["engine_control"].members)
def test_it_is_refused_by_name_without_permission(member: str) -> None:
    """At every provider: which engine stands behind an address is not known."""
    asked = factories.read(json.dumps(CHAT | {member: "x"}).encode(), Operation.CHAT)
    known = factories.snapshot()
    decision = known.policy.policy
    from gateway.domain.routing.decide import decide

    found = decide(
        known.policy,
        team=decision.teams["payments"],
        route=next(iter(decision.routes.values())),
        data_class=factories.request().data_class,
        facts=asked.facts,
        prices=known.prices,
        day=factories.NOW.date(),
    ).refusal(asked.facts)
    assert isinstance(found, InvalidRequest)
    assert member in found.message


def test_no_published_member_that_names_a_peer_is_forgotten() -> None:
    """The neighbours: each member of an engine's schema whose name says that it steers."""
    published = {
        name
        for table in engines.NAMES.values()
        for names in table.values()
        for name in names.split()
    }
    steering = {name for name in published if any(word in name for word in STEERING)}
    assert steering <= set(FEATURES["engine_control"].members)


PROMPTS: dict[Operation, dict[str, object]] = {
    Operation.CHAT: {"messages": CHAT["messages"]},
    Operation.COMPLETIONS: {"prompt": "x"},
    Operation.RESPONSES: {"input": "x"},
    Operation.MESSAGES: {"messages": CHAT["messages"], "max_tokens": 9},
    Operation.EMBEDDINGS: {"input": "x"},
    Operation.RERANK: {"query": "x", "documents": ["y"]},
    Operation.SCORE: {"text_1": "x", "text_2": "y"},
}


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("member", sorted(ELSEWHERE))
def test_input_that_the_body_does_not_show_holds_the_window(
    member: str, operation: Operation
) -> None:
    """SGLang puts a session's turns before the prompt; tensors are decoded to any length."""
    body = {"model": "assistant", member: {"id": "s"}, **PROMPTS[operation]}
    asked = factories.read(json.dumps(body).encode(), operation)
    at = factories.deployment(
        provider="sglang",
        context_window=8000,
        native=frozenset({operation}),
        allows=frozenset({"engine_control"}),
    )
    found = bound_of(
        asked.facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=at,
        price=factories.price(),
    )
    assert not found.is_certain or found.input_tokens >= 8000
