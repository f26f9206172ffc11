"""Writes a generated month into a ledger, and the policy that says whose bill it is."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from tests.invoices.generator import ACCOUNT, KEY, PROJECT, RATES, Call, Month
from tests.storage.factories import event, request_id

PROVIDERS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "csv": "openai_compatible",
    "focus": "azure_openai",
    "aws-cur": "bedrock",
    "gcp-billing": "gemini",
}
OURS = {
    "input": TokenKind.INPUT,
    "cached": TokenKind.CACHED_INPUT,
    "output": TokenKind.OUTPUT,
}
POLICY = """version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
{deployments}
routes:
  - {{name: assistant, deployments: [{names}]}}
teams:
  - {{name: payments, cost_centre: CC-1207, data_class: internal, routes: [assistant]}}
  - {{name: platform, cost_centre: CC-0001, data_class: internal, routes: [assistant]}}
"""
DEPLOYMENT = """  - name: {model}
    provider: {provider}
    base_url: "{address}"
    api_key: "env:SOME_KEY"
    model: {model}
    region: us
    price: {{input_usd_per_mtok: 1, cached_input_usd_per_mtok: 1, output_usd_per_mtok: 2}}
    billing: {{account: {account}, project: {project}, key: {key}}}"""


def policy_of(provider: str) -> str:
    """Return a policy with the month's deployments."""
    address = "https://llm.example/v1"
    if provider == "azure_openai":
        address = "https://x.openai.azure.com/openai/v1"
    deployments = [
        DEPLOYMENT.format(
            model=model,
            provider=provider,
            address=address,
            account=ACCOUNT,
            project=PROJECT,
            key=KEY,
        )
        for model in RATES
    ]
    return POLICY.format(deployments="\n".join(deployments), names=", ".join(RATES))


def events_of(month: Month, provider: str) -> list[UsageEvent]:
    """Return the month's calls as usage events."""
    return [event_of(number, call, provider) for number, call in enumerate(month.calls)]


def event_of(number: int, call: Call, provider: str, **changes: Any) -> UsageEvent:
    """Return a call as a usage event."""
    rates = RATES[call.model]
    lines = tuple(
        Line(
            kind=OURS[kind],
            tokens=count,
            usd_per_mtok=Decimal(rates[kind]) / 1000,
            cost_nusd=count * rates[kind],
        )
        for kind, count in call.tokens.items()
        if count
    )
    tokens = call.tokens
    fields: dict[str, Any] = {
        "request_id": request_id(number, call.at),
        "started_at": call.at,
        "duration_s": call.duration_s,
        "team": "payments" if number % 3 else "platform",
        "cost_centre": "CC-1207" if number % 3 else "CC-0001",
        "deployment": call.model,
        "provider": provider,
        "model": call.model,
        "outcome": Outcome(call.outcome),
        "usage_source": UsageSource.PROVIDER if call.outcome == "ok" else UsageSource.DERIVED,
        "usage": TokenUsage(
            input_tokens=tokens["input"] + tokens["cached"],
            cached_input_tokens=tokens["cached"],
            cache_write_tokens=0,
            output_tokens=tokens["output"],
            reasoning_tokens=0,
        ),
        "lines": lines,
        "cost_nusd": call.cost,
    }
    return event(number, at=call.at, **fields | changes)
