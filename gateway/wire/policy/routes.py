"""Declares the blocks of routes, their weights and their bounds in a policy document, and converts
them to domain values and back.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from gateway.domain.policy.policy import Balance, Route
from gateway.domain.routing.objectives import OBJECTIVES
from gateway.wire.policy.scalars import (
    Alias,
    Milliseconds,
    ModelName,
    Names,
    Seconds,
    Share,
    Tokens,
    Weight,
    check_name,
    dollars,
)
from gateway.wire.yaml_blocks.blocks import Block, Entries, Items, optional, required
from gateway.wire.yaml_blocks.scalars import one_of

_BALANCE = Balance()


class BalanceBlock(Block):
    """The weights of cost and latency."""

    title = "balance block"
    makes = Balance
    cost: Share = optional("How much the expected cost counts.", "0.7", _BALANCE.cost, shown="0.5")
    latency: Share = optional(
        "How much the time expected for the whole answer counts.",
        "0.7",
        _BALANCE.latency,
        shown="0.5",
    )


class BoundBlock(Block):
    """A route's bound on latency."""

    title = "route's latency block"
    ttft_p95_s: Milliseconds = required(
        "Time to the first token that 95 of 100 requests should keep; half of it for "
        "teams of low `priority`.",
        "800",
        alias="ttft_p95_ms",
    )


class RouteBlock(Block):
    """A model name that callers send, and the deployments behind it."""

    title = "route"
    makes = Route
    name: ModelName = required("The model name that callers send.", "assistant")
    aliases: Annotated[list[Alias], Items()] | None = optional(
        "Other model names that mean this route; `*` stands for anything. Exact names win"
        " over patterns, earlier routes over later ones.",
        '[gpt-4o, "gpt-4o-*"]',
        shown="`[]`",
    )
    deployments: Names = required(
        "The deployments behind it, in order of preference.", "[qwen-eu, gpt-eu]"
    )
    shadow_deployments: Names | None = optional(
        "Ranked beside the real ones for each request; the first one is recorded and "
        "never used (`tollgate report shadow`).",
        "[gpt-eu, qwen-eu]",
        shown="`[]`",
    )
    objective: Annotated[str, one_of(tuple(OBJECTIVES))] = optional(
        "How eligible deployments are ordered: `priority` as listed, `cheapest` by the "
        "cost expected of this request, `fastest` by the time expected for its whole "
        "answer, `balanced` by both, `weighted` by shares.",
        "cheapest",
        "priority",
    )
    balance: BalanceBlock | None = optional(
        "How much cost and latency count; only with `objective: balanced`.",
        "{cost: 0.7, latency: 0.3}",
        shown="see below",
    )
    weights: Annotated[dict[str, Weight], Entries(check_name)] | None = optional(
        "Each deployment's share of the callers; a caller stays where it was. Only with "
        "`objective: weighted`.",
        "{qwen-eu: 90, gpt-eu: 10}",
        shown="none; required for `weighted`",
    )
    ttft_p95_s: BoundBlock | None = optional(
        "Bound on the time to the first token; deployments expected to miss it come "
        "behind the others.",
        "{ttft_p95_ms: 800}",
        shown="no bound",
        alias="latency",
    )
    max_cost_nusd: Annotated[int, dollars(above="0")] | None = optional(
        "Bound on the cost expected of one request; deployments expected to miss it come "
        "behind the others.",
        "0.05",
        shown="no bound",
        alias="max_cost_usd",
    )
    degrade_to: ModelName | None = optional(
        "The route whose deployments are tried first if none of this one's meets its "
        "bounds; teams need not list it.",
        "assistant-small",
    )
    timeout_s: Seconds = optional(
        "Longest time for a request, all its attempts together.", "120", 600.0, shown="600"
    )
    max_output_tokens: Tokens | None = optional(
        "Maximum tokens of an answer if the caller gives none; sent upstream.",
        "4096",
        shown="none: a caller without a maximum gets the deployment's",
    )

    def value(self, **others: Any) -> Any:
        """Return the route that this block declares."""
        bound = self.ttft_p95_s
        return super().value(ttft_p95_s=None if bound is None else bound.ttft_p95_s, **others)

    @classmethod
    def of_value(cls, value: Any, **others: Any) -> Self:
        """Return the block of a route, with every default that applies written out."""
        bound_s, is_balanced = value.ttft_p95_s, value.objective == "balanced"
        return super().of_value(
            value,
            balance=BalanceBlock.of_value(value.balance) if is_balanced else None,
            weights=dict(value.weights) or None,
            ttft_p95_s=None if bound_s is None else BoundBlock.model_construct(ttft_p95_s=bound_s),
            **others,
        )
