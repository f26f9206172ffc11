"""Routes, as blocks of a policy document."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from gateway.domain.policy.policy import Balance, Route
from gateway.domain.routing.objectives import OBJECTIVES
from gateway.wire.policy.blocks import Block, Entries, Items, optional, required
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
    one_of,
)

_BALANCE = Balance()


class BalanceBlock(Block):
    """The weights of cost and latency."""

    title: ClassVar[str] = "balance block"
    cost: Share = optional("How much the expected cost counts.", "0.7", _BALANCE.cost, shown="0.5")
    latency: Share = optional(
        "How much the time expected for the whole answer counts.",
        "0.7",
        _BALANCE.latency,
        shown="0.5",
    )


class BoundBlock(Block):
    """A route's bound on latency."""

    title: ClassVar[str] = "route's latency block"
    ttft_p95_ms: Milliseconds = required(
        "Time to the first token that 95 of 100 requests should keep; half of it for "
        "teams of low `priority`.",
        "800",
    )


class RouteBlock(Block):
    """A model name that callers send, and the deployments behind it."""

    title: ClassVar[str] = "route"
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
    latency: BoundBlock | None = optional(
        "Bound on the time to the first token; deployments expected to miss it come "
        "behind the others.",
        "{ttft_p95_ms: 800}",
        shown="no bound",
    )
    max_cost_usd: Annotated[int, dollars(above="0")] | None = optional(
        "Bound on the cost expected of one request; deployments expected to miss it come "
        "behind the others.",
        "0.05",
        shown="no bound",
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

    def route(self) -> Route:
        """Return the route."""
        same = self.values()
        bound, balance, max_cost = (same.pop(n) for n in ("latency", "balance", "max_cost_usd"))
        lists = ("deployments", "shadow_deployments", "aliases")
        others: dict[str, Any] = {name: tuple(same[name] or ()) for name in lists}
        return Route(
            **same
            | others
            | {
                "balance": Balance() if balance is None else Balance(**balance.values()),
                "weights": self.weights or {},
                "ttft_p95_s": None if bound is None else bound.ttft_p95_ms,
                "max_cost_nusd": max_cost,
            }
        )

    @classmethod
    def of_route(cls, route: Route) -> Self:
        """Return the block of a route, with every default that applies written out."""
        bound_s, is_balanced = route.ttft_p95_s, route.objective == "balanced"
        return cls.of_value(
            route,
            aliases=list(route.aliases),
            deployments=list(route.deployments),
            shadow_deployments=list(route.shadow_deployments),
            balance=BalanceBlock.of_value(route.balance) if is_balanced else None,
            weights=dict(route.weights) or None,
            latency=None if bound_s is None else BoundBlock.model_construct(ttft_p95_ms=bound_s),
            max_cost_usd=route.max_cost_nusd,
        )
