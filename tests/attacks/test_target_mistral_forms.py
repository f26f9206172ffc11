"""Mistral refuses ids of tool calls that are no nine letters and digits, a system message after a
turn of the model, a last turn of the model without its mark, and OpenAI's tiers and files: all of
them were sent.

The rule: a provider's row states the differences, and a request has a form that the row allows.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.domain.providers.table import PROVIDERS
from gateway.errors import Untranslatable
from gateway.providers.registry import build_providers
from tests import factories
from tests.answers import at_once
from tests.oracles.requests.chat_judges import mistral_faults

ADAPTERS = build_providers(salt_key=bytes(32))
HI = {"role": "user", "content": "Hi"}
IDS = st.text(st.characters(categories=["L", "N"], include_characters="_-:"), min_size=1)
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}


def sent(operation: Operation, **body: Any) -> Any:
    """Return the body that Mistral is sent."""
    native = frozenset({Operation.CHAT})
    limit = PROVIDERS["mistral"].output_limit
    at = factories.deployment(provider="mistral", native=native, output_limit=limit)
    least = {"max_tokens": 400} if operation is Operation.MESSAGES else {}
    read = factories.read(json.dumps({"model": "m", **least, **body}).encode(), operation)
    made = ADAPTERS["mistral"].translate(at, read)
    call = at_once(ADAPTERS["mistral"].call(at, factories.request(read), translation=made))
    return json.loads(call.body)


@given(call_id=IDS)
def test_each_call_and_its_result_have_a_legal_id(call_id: str) -> None:
    """A session may come from any provider, in a chat or in messages; a legal id stays."""
    function = {"name": "f", "arguments": "{}"}
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": call_id, "content": "r"}
    use = {"type": "tool_use", "id": call_id, "name": "f", "input": {}}
    answer = {"type": "tool_result", "tool_use_id": call_id, "content": "r"}
    turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}]
    for body in (
        sent(Operation.CHAT, messages=[HI, called, result]),
        sent(Operation.MESSAGES, messages=[HI, *turns]),
    ):
        assert mistral_faults(body) == []
        _, made, told = body["messages"]
        assert made["tool_calls"][0]["id"] == told["tool_call_id"]
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        assert told["tool_call_id"] == call_id


def test_a_last_turn_of_the_model_is_marked() -> None:
    """Unmarked it is refused; the mark makes the model continue it, as Claude's callers mean it."""
    body = sent(Operation.MESSAGES, messages=[HI, {"role": "assistant", "content": "{"}])
    assert body["messages"][-1] == {"role": "assistant", "content": "{", "prefix": True}


def test_a_late_instruction_is_a_turn_of_the_user() -> None:
    """It keeps its place, as at every target without system messages between turns."""
    late = [{"role": "assistant", "content": "Yes"}, {"role": "system", "content": "In French."}]
    body = sent(Operation.MESSAGES, system="Be brief.", messages=[HI, *late])
    assert [one["role"] for one in body["messages"]] == ["system", "user", "assistant", "user"]


def test_the_tier_has_mistral_s_word() -> None:
    """Its two words are Anthropic's; `auto` is the default of both."""
    body = sent(Operation.MESSAGES, messages=[HI], service_tier="standard_only")
    assert body["service_tier"] == "standard_only"


def test_a_document_is_mistral_s_part() -> None:
    """By its bytes or address; OpenAI's part of a file is none of its parts."""
    blocks = [{"type": "document", "source": PDF, "title": "a.pdf"}, {"type": "text", "text": "?"}]
    body = sent(Operation.MESSAGES, messages=[{"role": "user", "content": blocks}])
    url = f"data:application/pdf;base64,{PDF['data']}"
    part = {"type": "document_url", "document_url": url, "document_name": "a.pdf"}
    assert body["messages"][0]["content"][0] == part


@pytest.mark.parametrize("member", ["verbosity", "safety_identifier", "seed", "user"])
def test_a_member_that_its_schema_lacks_is_lost_by_name(member: str) -> None:
    """It forbids unknown ones: named here, with a switch that drops it."""
    with pytest.raises(Untranslatable) as refused:
        sent(Operation.CHAT, messages=[HI], **{member: "low"})
    assert refused.value.param == member
