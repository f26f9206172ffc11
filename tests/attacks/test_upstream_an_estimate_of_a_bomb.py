"""An answer without usage is counted by its size: 200 KB of gzip were booked as 1,048,576 tokens,
USD 10.49 of a hold of USD 0.0006, though the request had a maximum of 20 tokens.
"""

from __future__ import annotations

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.pricing.settlement import Counted
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.providers.table import AT_ROOT, PROVIDERS
from gateway.domain.request.bound import bound_of
from tests.factories import deployment, facts, price, settled

MOST = 20
ROUTE = Route(name="assistant", deployments=("one",))
OWN_DIALECTS = {
    "anthropic": PROVIDERS["anthropic"].native,
    "gemini": PROVIDERS["gemini"].native,
    "vertex": PROVIDERS["vertex"].native,
    "bedrock": PROVIDERS["bedrock"].native,
    "ollama": AT_ROOT["ollama"].native,
}


def sent_tokens(provider: str, operation: Operation, native: frozenset[Operation]) -> int | None:
    """Return the most output tokens under the maximum that the upstream honours."""
    bound = bound_of(
        facts(operation, output_bound_tokens=MOST),
        route=ROUTE,
        deployment=deployment(provider=provider, native=native),
        price=price(),
    )
    return bound.sent_output_tokens


@pytest.mark.parametrize(
    "operation", [Operation.CHAT, Operation.RESPONSES, Operation.MESSAGES], ids=str
)
@pytest.mark.parametrize("provider", OWN_DIALECTS)
def test_the_caller_s_maximum_bounds_an_estimate(provider: str, operation: Operation) -> None:
    most = sent_tokens(provider, operation, OWN_DIALECTS[provider])
    assert most == MOST
    counted = Counted(usage=TokenUsage(input_tokens=9, output_tokens=2**20), is_exact=False)
    made = settled(counted=counted, sent_output_tokens=most, least_output_tokens=2**12)
    assert made.usage.output_tokens == MOST
    assert made.is_suspect


def test_a_server_that_ignores_unknown_members_may_write_more() -> None:
    """Servers of OpenAI's dialect know one of two members for the maximum, or the other."""
    native = PROVIDERS["openai_compatible"].native
    assert sent_tokens("openai_compatible", Operation.CHAT, native) is None
