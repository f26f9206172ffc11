"""xAI's `deferred` was sent on, and its receipt for a later answer was booked as an answer of no
tokens. A request whose usage comes after its answer is refused by name, whatever is allowed.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.known_members import KNOWN_MEMBERS
from gateway.domain.policy.listed_members import TABLES, bounded_members
from gateway.domain.policy.request_fields import ANSWERED_LATER, FEATURE_OF_MEMBER
from gateway.domain.providers.table import PROVIDERS
from gateway.errors import InvalidRequest
from gateway.wire.anthropic.dialect import AnthropicDialect
from gateway.wire.openai.dialect import OpenAIDialect

# The words of names that ask for an answer later or elsewhere.
LATER = re.compile(
    r"async|background|batch|callback|defer|hook|later|notif|poll|queue|schedul", re.IGNORECASE
)
PUBLISHED = {
    name
    for operations in TABLES.values()
    for names in operations.values()
    for name in names.split()
} | {*KNOWN_MEMBERS, *FEATURE_OF_MEMBER}
# Parts of `background`, which is refused, and tools that are loaded later in the same answer. The
# effect of neither is known: a hard budget refuses them.
OTHERWISE = {"background_options", "deferred_tools"}
PROMPTS: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: {"messages": [{"role": "user", "content": "x"}]},
    Operation.COMPLETIONS: {"prompt": "x"},
    Operation.RESPONSES: {"input": "x"},
    Operation.EMBEDDINGS: {"input": "x"},
    Operation.MESSAGES: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
}


def read(operation: Operation, name: str, value: object) -> None:
    """Read a request with one more member, as its dialect's clients send it."""
    dialect = AnthropicDialect() if operation is Operation.MESSAGES else OpenAIDialect()
    body = {"model": "m", **PROMPTS[operation], name: value}
    dialect.read_request(operation, json.dumps(body).encode())


def test_every_published_name_that_asks_for_a_later_answer_is_judged() -> None:
    """A newer schema brings siblings of `background`: each one needs a decision here."""
    assert {name for name in PUBLISHED if LATER.search(name)} == ANSWERED_LATER | OTHERWISE


@pytest.mark.parametrize("operation", PROMPTS)
@pytest.mark.parametrize("name", sorted(ANSWERED_LATER))
def test_it_is_refused_by_name_in_every_operation(operation: Operation, name: str) -> None:
    """Servers differ in the operations that take it; false and null are as good as none."""
    for value in (True, 1, "true", {}):
        with pytest.raises(InvalidRequest, match=f"'{name}' is not offered") as refused:
            read(operation, name, value)
        assert refused.value.param == name
    for harmless in (False, None):
        read(operation, name, harmless)


@pytest.mark.parametrize("name", ["async", "callback_url", "is_async", "webhook", "webhook_url"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_one_that_no_schema_names_is_not_known_to_a_hard_budget(provider: str, name: str) -> None:
    """It is refused there with every other unknown name."""
    assert not any(name in bounded_members(provider, operation) for operation in PROMPTS)
