"""What a Claude model's name says about the thinking that it accepts."""

from __future__ import annotations

import pytest

from gateway.errors import Untranslatable
from gateway.wire.anthropic.translation.upstream_request import write_messages_request
from gateway.wire.bedrock.request import write_converse_request
from gateway.wire.translation.claude import thinking_of
from gateway.wire.translation.conversation import (
    Conversation,
    ConversationTurn,
    Reasoning,
    Role,
    Sampling,
    TextPart,
)
from gateway.wire.translation.losses import Losses

ADAPTIVE = {"type": "adaptive", "display": "summarized"}


def thinking(model: str, reasoning: Reasoning, losses: Losses) -> dict[str, object] | None:
    asked = Conversation(is_stream=False, reasoning=reasoning, named={"reasoning": "thinking"})
    return thinking_of(asked, losses, model=model, maximum=10_000)


@pytest.mark.parametrize("model", ["claude-sonnet-4-5-20250929", "claude-opus-4-6"])
def test_a_budget_goes_where_it_is_taken(model: str) -> None:
    """The models of 4.6 take both forms."""
    losses = Losses("one", drops=False)
    sent = thinking(model, Reasoning(budget_tokens=4000), losses)
    assert sent == {"type": "enabled", "budget_tokens": 4000}
    assert losses.fields == []


@pytest.mark.parametrize("budget", [10_000, 12_000])
def test_a_budget_that_leaves_nothing_for_the_answer_is_lost_by_name(budget: int) -> None:
    """Anthropic refuses it. It was switched off, or cut, without a word."""
    model = "claude-sonnet-4-5"
    with pytest.raises(Untranslatable, match=r"'thinking'.*not below the maximum of 10000"):
        thinking(model, Reasoning(budget_tokens=budget), Losses("one", drops=False))
    losses = Losses("one", drops=True)
    assert thinking(model, Reasoning(budget_tokens=budget), losses) is None
    assert losses.fields == ["thinking"]


@pytest.mark.parametrize(
    "model", ["claude-opus-4-7", "eu.anthropic.claude-opus-4-8-v1:0", "claude-sonnet-5", "claude"]
)
def test_a_budget_is_lost_where_it_is_refused(model: str) -> None:
    """These answer 400 to `enabled`; refused by name, nothing is sent and nothing is paid."""
    with pytest.raises(Untranslatable, match=r"'thinking'.*takes an effort and no budget"):
        thinking(model, Reasoning(budget_tokens=4000), Losses("one", drops=False))
    losses = Losses("one", drops=True)
    assert thinking(model, Reasoning(budget_tokens=4000), losses) == ADAPTIVE
    assert losses.fields == ["thinking"]


@pytest.mark.parametrize("model", ["claude-opus-5", "claude-opus-4-5", "claude-opus-5-50"])
def test_thinking_can_be_ended(model: str) -> None:
    """At most models."""
    losses = Losses("one", drops=False)
    assert thinking(model, Reasoning(effort="none"), losses) == {"type": "disabled"}


@pytest.mark.parametrize(
    "model", ["claude-opus-5-5", "global.anthropic.claude-opus-5-5", "claude-fable-5-1"]
)
def test_some_models_always_think(model: str) -> None:
    """They answer 400 to `disabled`."""
    with pytest.raises(Untranslatable, match="always thinks"):
        thinking(model, Reasoning(effort="none"), Losses("one", drops=False))
    losses = Losses("one", drops=True)
    assert thinking(model, Reasoning(effort="none"), losses) is None
    assert losses.fields == ["thinking"]


WRITERS = {"anthropic": write_messages_request, "bedrock": write_converse_request}
PREFILLED = Conversation(
    is_stream=False,
    turns=(
        ConversationTurn(role=Role.USER, parts=(TextPart(text="As JSON."),)),
        ConversationTurn(role=Role.ASSISTANT, parts=(TextPart(text="{ "),)),
    ),
    named={"turns": "messages"},
)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    "model", ["claude-opus-4-6", "eu.anthropic.claude-sonnet-4-6", "claude-opus-5", "claude"]
)
def test_a_last_turn_of_the_model_is_lost_where_it_is_refused(writer: str, model: str) -> None:
    """These answer 400 to it. Dropped, the user's turn ends the conversation."""
    with pytest.raises(Untranslatable, match=r"'messages\.prefill'"):
        WRITERS[writer](PREFILLED, Losses("one", drops=False), model=model)
    losses = Losses("one", drops=True)
    *_, said, last = WRITERS[writer](PREFILLED, losses, model=model)["messages"]
    assert (said["role"], said["content"][0]["text"]) == ("assistant", "{ ")
    assert (last["role"], last["content"][0]["text"]) == ("user", ".")
    assert losses.fields == ["messages.prefill"]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("model", ["claude-haiku-4-5", "claude-3-7-sonnet", "kimi-k2", "nova-pro"])
def test_other_models_continue_their_last_turn(writer: str, model: str) -> None:
    """Older ones of Claude, and those of other companies at a server of either dialect."""
    sent = WRITERS[writer](PREFILLED, Losses("one", drops=False), model=model)["messages"]
    assert (sent[-1]["role"], sent[-1]["content"][0]["text"]) == ("assistant", "{")


@pytest.mark.parametrize(
    ("model", "takes_both"),
    [
        ("claude-opus-4-1-20250805", False),
        ("claude-sonnet-4-5-20250929", False),
        ("eu.anthropic.claude-haiku-4-5-20251001-v1:0", False),
        ("claude-opus-4-6", False),
        ("claude", False),
        ("claude-sonnet-4-20250514", True),
        ("anthropic.claude-3-5-haiku-20241022-v1:0", True),
        ("glm-5", True),
    ],
)
@pytest.mark.parametrize("temperature", [None, 0.5, 1])
@pytest.mark.parametrize("top_p", [None, 0.9, 1])
def test_one_sampler_is_sent_where_two_are_refused(
    model: str, *, takes_both: bool, temperature: float | None, top_p: float | None
) -> None:
    """Usual clients send both, so none is refused: `top_p` is left out and named."""
    sampling = Sampling(temperature=temperature, top_p=top_p)
    turn = ConversationTurn(role=Role.USER, parts=(TextPart(text="Hi"),))
    asked = Conversation(is_stream=False, turns=(turn,), sampling=sampling)
    for write, name in ((write_messages_request, "top_p"), (write_converse_request, "topP")):
        losses = Losses("one", drops=False)
        body = write(asked, losses, model=model)
        sent = body.get("inferenceConfig", body)
        kept = top_p == 0.9 and (takes_both or temperature != 0.5)
        assert (name in sent) is kept
        assert ("temperature" in sent) is (temperature == 0.5)
        assert losses.fields == (["top_p"] if top_p == 0.9 and not kept else [])
