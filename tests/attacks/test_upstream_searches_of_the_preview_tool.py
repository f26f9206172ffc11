"""OpenAI bills a search of its preview tool USD 10 a thousand to models that reason, and 25 to all
others; the list has 10 for both, so gpt-4o's searches were booked at two fifths, as if sure.
"""

from __future__ import annotations

from decimal import Decimal

import pytest
from msgspec.structs import replace

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.settlement import Evidence, Settlement, settle
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.domain.request.request import HostedTool
from gateway.domain.request.rounds import rounds_of
from tests import factories

USAGE = TokenUsage(input_tokens=1000, output_tokens=100)
HELD_NUSD = 10**9


def price(usd_per_kcall: str) -> Price:
    """Return a price with a rate of searches."""
    rates = {TokenKind.INPUT: "5", TokenKind.OUTPUT: "30"}
    return Price(
        provider="openai",
        model="m",
        source="a list",
        rates=(
            *(Rate(kind=kind, usd_per_mtok=Decimal(usd)) for kind, usd in rates.items()),
            Rate(kind=TokenKind.WEB_SEARCH, usd_per_mtok=Decimal(usd_per_kcall) * 1000),
        ),
    )


def settled(
    tool: str, model: str, *, calls: int, usd_per_kcall: str = "10", listed: frozenset[str]
) -> Settlement:
    """Return the settlement of a response with one tool, after so many searches."""
    there: Deployment = factories.deployment(
        provider="openai", is_self_hosted=False, model=model, listed=listed
    )
    facts = replace(
        factories.facts(Operation.RESPONSES, output_bound_tokens=1, body_bytes=1),
        hosted=(HostedTool(name=tool, where="tools", index=0),),
    )
    paid = price(usd_per_kcall)
    rounds = rounds_of(facts, there, paid, features=frozenset(), is_relied_on=True)
    evidence = Evidence(
        final=USAGE,
        was_served=True,
        fee=rounds.fee,
        calls={"web_search_calls": calls} if calls else {},
    )
    return settle(evidence, price=paid, held_nusd=HELD_NUSD)


@pytest.mark.parametrize(
    ("tool", "model", "calls", "usd", "listed", "source"),
    [
        ("web_search_preview", "gpt-4o", 1, "10", "", UsageSource.UNKNOWN),
        ("web_search_preview_2025_03_11", "gpt-4.1", 2, "10", "", UsageSource.UNKNOWN),
        ("web_search_preview", "gpt-4o", 0, "10", "", UsageSource.PROVIDER),
        ("web_search_preview", "gpt-4o", 1, "25", "", UsageSource.PROVIDER),
        ("web_search_preview", "gpt-4o", 1, "10", "web_search_preview", UsageSource.PROVIDER),
        ("web_search_preview", "gpt-5.5", 1, "10", "", UsageSource.PROVIDER),
        ("web_search", "gpt-4o", 1, "10", "", UsageSource.PROVIDER),
    ],
)
def test_a_search_is_never_booked_below_its_fee(
    tool: str, model: str, calls: int, usd: str, listed: str, source: UsageSource
) -> None:
    """It is held where the price states the cheaper fee; a rate of 25, or the tool's name in
    `listed`, settles it.
    """
    names = frozenset({listed} if listed else ())
    name = tool.replace("_", "")
    found = settled(name, model, calls=calls, usd_per_kcall=usd, listed=names)
    assert found.source is source
    if source is UsageSource.PROVIDER:
        tokens_nusd = 1000 * 5_000 + 100 * 30_000
        assert found.cost_nusd == tokens_nusd + calls * int(Decimal(usd) * 1_000_000)
