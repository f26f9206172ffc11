"""Decides the hold and the bounds of a request whose tools the provider runs itself: rounds
that read the context window again, calls that cost a fee, and fees that no usage counts.

Its facts are `domain.providers.hosted_tools`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal

from msgspec import Struct

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment, HostedToolsRule
from gateway.domain.pricing.pricing import MTOK, Price
from gateway.domain.pricing.settlement import UncountedFee
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.providers.hosted_tools import (
    RoundLimit,
    SearchModels,
    ToolFacts,
    ToolsAt,
    tools_at,
)
from gateway.domain.request.request import HostedTool, RequestFacts
from gateway.domain.request.unpriced import (
    Unpriced,
    unpriced_argument,
    unpriced_call,
    unpriced_model,
)

# Held where nothing relies on the bound: calls of tools that the provider charges by the call; a
# request seldom makes ten.
MOST_TOOL_CALLS = 64
# An upstream of this limit runs one call in a round only if calls in parallel are off.
PARALLEL_CALLS = "parallel_tool_calls"
# A past request, of which only the feature is known.
_UNNAMED = HostedTool(name="", where="tools")


class Rounds(Struct, frozen=True, kw_only=True, gc=False):
    """The hold of one attempt with tools of the provider, and the bounds that it sends.

    `windows` are the readings of the context window, and `answers` the answers of the maximum that
    is sent. `calls` are those that may cost a fee, `call_usd` is the dearest known fee that the
    price does not list, and `unpriced` the first fee that neither states. `members` are the
    request's own members to set, `uses` the bound of each tool by its place in the list.
    `left_out` are not sent. `unbounded` is the tool for which nothing bounds the rounds; then
    `most_rounds` is the bound that its provider states. `made` are the names of the counts of
    which one is billed before the model decides: OpenAI makes a container that no call may use.
    `finds_in_body`: the rounds read nothing but parts of the request and of the answer.
    """

    windows: int = 1
    answers: int = 1
    calls: int = 0
    call_usd: Decimal = Decimal(0)
    members: tuple[tuple[str, int | bool], ...] = ()
    uses: tuple[tuple[int, int], ...] = ()
    left_out: tuple[HostedTool, ...] = ()
    unbounded: HostedTool | None = None
    most_rounds: int | None = None
    fee: UncountedFee | None = None
    missing: tuple[Unpriced, ...] = ()
    made: tuple[str, ...] = ()
    finds_in_body: bool = False

    def with_made(self, calls: Mapping[str, int]) -> Mapping[str, int]:
        """Return the calls that an answer shows, with those that are billed if it shows none."""
        return dict.fromkeys(self.made, 1) | dict(calls) if self.made else calls

    @property
    def changes_body(self) -> bool:
        """Return True if the request must change before it is sent."""
        return bool(self.members or self.uses or self.left_out)


def rounds_of(
    facts: RequestFacts,
    deployment: Deployment,
    price: Price,
    *,
    features: frozenset[str],
    is_relied_on: bool,
) -> Rounds:
    """Return the hold and the bounds for the tools that the provider runs in one attempt.

    `features` are those that reach the deployment. `is_relied_on` is True if a hard budget depends
    on the bound; only then the rounds are bounded, and a tool without a bound is left out or named.
    """
    tools = facts.hosted or ((_UNNAMED,) if "hosted_tools" in features else ())
    model = deployment.search_model
    at = _tools_of(facts, deployment)
    if deployment.translates(facts.operation):
        tools = ()  # no translation carries them
    if facts.has_files and at.with_files is not None:
        tools = (*tools, HostedTool(name=at.with_files, where="files"))
    if not is_relied_on:
        listed = {rate.kind for rate in price.rates}
        rows = [_row_of(tool, at, deployment, listed) for tool in tools]
        has_argument = any(
            _fee_arguments(tool, row, deployment, listed)
            for tool, row in zip(tools, rows, strict=True)
        )
        if model is not None:
            rows.append(_row_of_model(model, deployment, listed))
        agents = 1 if model is None else model.agents
        return Rounds(
            windows=agents,
            answers=agents,
            calls=_most_calls(rows, at) + _calls_of_request(model),
            call_usd=_unlisted_usd(rows, price),
            fee=UncountedFee(kind=None)
            if has_argument
            else _uncounted(rows, deployment, model, price),
            made=_made(rows),
        )
    plan = _Plan(facts, deployment, at, price)
    for tool in tools:
        plan.add(tool)
    if model is not None:
        plan.add_model(model)
    return plan.rounds(model)


def adds_tool(facts: RequestFacts, deployment: Deployment) -> bool:
    """Return True if the provider adds a tool of its own to a request with files."""
    return _tools_of(facts, deployment).with_files is not None


def _tools_of(facts: RequestFacts, deployment: Deployment) -> ToolsAt:
    """Return the tools of a provider in the operation in which a request is sent: translated ones
    are chats.
    """
    is_translated = deployment.translates(facts.operation)
    operation = Operation.CHAT if is_translated else facts.operation
    return tools_at(deployment.provider_facts.name, operation)


class _Plan:
    """Adds up the rounds of a request's tools, one by one."""

    def __init__(
        self, facts: RequestFacts, deployment: Deployment, at: ToolsAt, price: Price
    ) -> None:
        """Start without any tool."""
        self._deployment, self._at, self._price = deployment, at, price
        self._listed = {rate.kind for rate in price.rates}
        self._asked = dict(facts.round_limits)
        self._most = deployment.hosted_rounds
        self._sent: dict[RoundLimit, int] = {}
        self._uses: list[tuple[int, int]] = []
        self._left_out: list[HostedTool] = []
        self._rows: list[ToolFacts] = []
        self._stated = self._held = 0
        self._unbounded: tuple[HostedTool, int | None] | None = None
        self._missing: list[Unpriced] = []
        self._has_fee = False

    def add(self, tool: HostedTool) -> None:
        """Bound one tool, leave it out, or note that nothing bounds it."""
        row = _row_of(tool, self._at, self._deployment, self._listed)
        limit = self._limit_of(row, tool)
        most = _least(row.most_rounds, self._at.most_rounds)
        missing = () if tool is _UNNAMED else self._missing_fees(tool, row)
        drops = self._deployment.hosted_tools is HostedToolsRule.DROP and tool.can_leave_out
        if missing and drops:
            self._left_out.append(tool)
            return
        if row.reads_again is False and limit is None:
            pass
        elif limit is not None and limit.is_of_tool:
            assert tool.index is not None, "only a tool of the list has such a limit"
            self._uses.append((tool.index, _at_most(self._most, tool.most_uses)))
        elif limit is not None:
            self._sent[limit] = _at_most(self._most, self._asked.get(limit.value))
        elif most is not None and most <= self._most:
            self._stated += most
        elif self._deployment.hosted_tools is HostedToolsRule.HOLD:
            self._held = self._most
        elif drops:
            self._left_out.append(tool)
            return
        elif self._unbounded is None:
            self._unbounded = (tool, most)
        self._rows.append(row)
        self._has_fee |= not row.is_free
        self._missing += missing

    def add_model(self, model: SearchModels) -> None:
        """Add the rounds of a model that makes some by itself: as many as its provider states, else
        as many as the deployment holds. Those of models that search in rounds without end need
        `hosted_tools: hold`.
        """
        row = _row_of_model(model, self._deployment, self._listed)
        self._rows.append(row)
        if (kind := self._unpriced_kind(row)) is not None:
            self._missing.append(unpriced_model(kind))
        if model.tool.most_rounds is not None:
            self._stated += model.tool.most_rounds
        elif model.is_unbounded and self._deployment.hosted_tools is not HostedToolsRule.HOLD:
            self._unbounded = (HostedTool(name="", where=f"model: {self._deployment.model}"), None)
        else:
            self._held = self._most

    def rounds(self, model: SearchModels | None) -> Rounds:
        """Return the sum."""
        uses, limits = sum(most for _, most in self._uses), sum(self._sent.values())
        rounds = uses + limits + self._stated + self._held
        if self._at.most_rounds is not None:
            rounds = min(rounds, max(self._at.most_rounds, self._held))
        if self._unbounded is not None:
            rounds = max(rounds, self._most)
        tool, most = self._unbounded or (None, None)
        calls = rounds if self._at.bounds_calls else max(rounds, MOST_TOOL_CALLS)
        if self._has_fee:
            calls = max(calls, 1)  # as `made`
        members: list[tuple[str, int | bool]] = [(one.value, n) for one, n in self._sent.items()]
        if RoundLimit.MAX_TURNS in self._sent:
            members.append((PARALLEL_CALLS, False))
        return Rounds(
            windows=rounds + 1,
            answers=1 if self._at.caps_all_rounds else rounds + 1,
            calls=calls + _calls_of_request(model),
            call_usd=_unlisted_usd(self._rows, self._price),
            members=tuple(members),
            uses=tuple(self._uses),
            left_out=tuple(self._left_out),
            unbounded=tool,
            most_rounds=most,
            fee=_uncounted(self._rows, self._deployment, model, self._price),
            missing=tuple(self._missing),
            made=_made(self._rows),
            finds_in_body=model is None
            and all(row.finds_in_body or row.reads_again is False for row in self._rows),
        )

    def _missing_fees(self, tool: HostedTool, row: ToolFacts) -> tuple[Unpriced, ...]:
        """Return the missing rate of a tool's calls, or the arguments that its rate may not cover;
        empty if the rate is known.
        """
        if (kind := self._unpriced_kind(row)) is not None:
            return (unpriced_call(tool, kind),)
        return tuple(
            unpriced_argument(tool, argument, TokenKind(row.bills_as or row.unknown_fee or ""))
            for argument in _fee_arguments(tool, row, self._deployment, self._listed)
        )

    def _unpriced_kind(self, row: ToolFacts) -> TokenKind | None:
        """Return the kind of a tool's calls if neither the price nor the provider states its fee.
        An engine of one's own charges none.
        """
        if row.unknown_fee is None or self._deployment.is_self_hosted:
            return None
        kind = TokenKind(row.unknown_fee)
        return None if kind in self._listed else kind

    def _limit_of(self, row: ToolFacts, tool: HostedTool) -> RoundLimit | None:
        """Return the member that bounds a tool's rounds in this request, None if none does."""
        if row.limit is None or self._at.limit_is_void_with in self._asked:
            return None
        return None if row.limit.is_of_tool and tool.index is None else row.limit


def _row_of(
    tool: HostedTool, at: ToolsAt, deployment: Deployment, listed: Collection[TokenKind]
) -> ToolFacts:
    """Return the facts about a tool of a request: without a fee if no page and no price states it,
    and the deployment lists the tool. `listed` are the kinds of the price.
    """
    return _as_listed(_facts_of(tool, at), tool.listed_as, deployment, listed)


def _row_of_model(
    model: SearchModels, deployment: Deployment, listed: Collection[TokenKind]
) -> ToolFacts:
    """Return the facts about the searches of a model, as those of a tool."""
    return _as_listed(model.tool, model.tool.unknown_fee, deployment, listed)


def _as_listed(
    row: ToolFacts, name: str | None, deployment: Deployment, listed: Collection[TokenKind]
) -> ToolFacts:
    """Return the facts without a fee if nothing states it and the deployment lists the name."""
    if row.unknown_fee is None or row.unknown_fee in listed or name not in deployment.listed:
        return row
    return replace(row, bills_as=None, is_counted=True, most_call_usd=Decimal(0))


def _fee_arguments(
    tool: HostedTool, row: ToolFacts, deployment: Deployment, listed: Collection[TokenKind]
) -> list[str]:
    """Return the arguments of a tool that change the fee of its calls, or may: only if the price
    has their rate, which stands for calls without them. A deployment may list them.
    """
    kind = row.bills_as or row.unknown_fee
    if not tool.arguments or deployment.is_self_hosted or kind not in listed:
        return []
    names = deployment.listed
    return [
        one for one in tool.arguments if one not in names and one.partition("=")[0] not in names
    ]


def _facts_of(tool: HostedTool, at: ToolsAt) -> ToolFacts:
    """Return the facts about a tool of a request."""
    return at.facts_of(tool.name, is_member=tool.member is not None)


def _calls_of_request(model: SearchModels | None) -> int:
    """Return the calls that each request of a model is billed, even without any round."""
    return 0 if model is None else model.per_request or 0


def _most_calls(rows: list[ToolFacts], at: ToolsAt) -> int:
    """Return the most calls with a fee that nothing relies on: as the provider states, else a
    guess.
    """
    calls = 0
    for row in rows:
        if not row.is_free:
            stated = _least(row.most_rounds, at.most_rounds)
            calls += MOST_TOOL_CALLS if stated is None else stated
    return min(calls, MOST_TOOL_CALLS)


def _unlisted_usd(rows: list[ToolFacts], price: Price) -> Decimal:
    """Return the dearest known fee of a call of these tools that the price does not list, or lists
    for cheaper calls of the kind.
    """
    listed = {rate.kind for rate in price.rates}
    fees = [row.most_call_usd for row in rows if row.is_floor or row.bills_as not in listed]
    return max((fee for fee in fees if fee is not None), default=Decimal(0))


def _uncounted(
    rows: list[ToolFacts], deployment: Deployment, model: SearchModels | None, price: Price
) -> UncountedFee | None:
    """Return the fee that no usage counts, or that the price states too low; None if there is none.
    An engine of one's own charges none.
    """
    if deployment.is_self_hosted:
        return None
    for row in _without_count(rows):
        per_request = model.per_request if model is not None and model.tool is row else None
        kind = None if row.bills_as is None else TokenKind(row.bills_as)
        return UncountedFee(kind=kind, per_request=per_request)
    for row in rows:
        if row.is_cheaper_thinking and not deployment.unasked.thinks_hidden:
            kind = TokenKind(row.bills_as or "")
            listed = price.rate(kind, input_tokens=0)
            is_named = any(name.replace("_", "") in row.tools for name in deployment.listed)
            if listed is not None and not is_named and listed / MTOK < (row.most_call_usd or 0):
                return UncountedFee(kind=kind, is_dearer=True)
    return None


def _made(rows: list[ToolFacts]) -> tuple[str, ...]:
    """Return the names of the counts of which one is billed before the model decides."""
    return tuple({f"{row.bills_as}_calls" for row in rows if row.is_made_at_once})


def _without_count(rows: list[ToolFacts]) -> Iterator[ToolFacts]:
    """Yield the tools whose calls may cost a fee and stand in no usage."""
    return (row for row in rows if not row.is_counted and not row.is_free)


def _at_most(most: int, asked: int | None) -> int:
    """Return the smaller of the deployment's bound and the caller's own."""
    return most if asked is None or asked < 0 else min(most, asked)


def _least(first: int | None, other: int | None) -> int | None:
    """Return the smaller of two stated bounds, None if neither is stated."""
    return min((one for one in (first, other) if one is not None), default=None)
