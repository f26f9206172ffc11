"""Computes an upper bound of one attempt's tokens and cost before it is sent, at the dearest rates,
for holds and token limits.
"""

from __future__ import annotations

from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from gateway.domain.operation import PAIRING, WITHOUT_OUTPUT, Operation
from gateway.domain.policy.policy import Deployment, Route
from gateway.domain.policy.request_fields import UNKNOWN_TOOLS
from gateway.domain.pricing.cache_writes import ALL_WRITES, SHORTEST_LIFETIME, written_kinds
from gateway.domain.pricing.pricing import (
    MOST_NUSD,
    Price,
    calls_hold_nusd,
    hold_nusd,
    tokens_hold_nusd,
)
from gateway.domain.pricing.tokens import INPUT_KINDS, TokenKind
from gateway.domain.providers.table import TextForms
from gateway.domain.providers.unasked import (
    DEAR_PICTURE_FACTOR,
    MOST_DEAR_PICTURES_USD_PER_MTOK,
)
from gateway.domain.request.request import RequestFacts
from gateway.domain.request.rounds import Rounds, adds_tool, rounds_of
from gateway.domain.request.text_forms import PromptSize
from gateway.domain.request.unpriced import (
    Unpriced,
    dearest_write_usd_per_mtok,
    listed_name,
    unbounded_member,
    unbounded_places,
    unpriced_kinds,
)

# If neither caller, route nor deployment bounds the answer, the hold takes this many output tokens,
# and is no bound.
UNBOUNDED_OUTPUT_TOKENS = 32_768
# The text with which templates introduce tools: Qwen's has 150 tokens, the longest known one 500.
TOOL_PREFACE_TOKENS = 1024
# Requests with these features have a prompt that is not all in their body.
UNSEEN_PROMPT = frozenset({"stored_state", "hosted_tools", "remote_media"})
# Requests with these features may have a picture that their body does not show.
_ELSEWHERE, _TOOLS = frozenset({"remote_media", "stored_state"}), {"hosted_tools", UNKNOWN_TOOLS}
# Tools of the provider whose results are text; those of any other may be pictures.
_TEXT_TOOLS = ("filesearch", "toolsearch", "websearch", "xsearch")
# The place of thinking that the model's provider does not count, and the feature of such members.
_THINKS, _OTHER_MAXIMUM = "model: thinking", "other_maximum"
# By this name a deployment lists that no service tier costs more than the standard one.
_TIER = "service_tier"
# By this name a deployment lists that its pictures cost no more than their tokens.
_PICTURES = "image_input"


class Bound(Struct, frozen=True, kw_only=True, gc=False):
    """The maximum use and cost of an attempt.

    `input_tokens` and `output_tokens` are those of one round, `nusd` is the cost of all.
    `output_cap_tokens` is the maximum of one answer that is sent upstream, None to send none.
    `is_certain` is False if nothing bounds the attempt: the figures are then a guess, and no hard
    budget can rely on them. `rounds` is None for a request without tools that the provider runs.
    `missing` are the kinds without a rate, and the members, that a hard budget cannot hold.
    """

    input_tokens: int
    output_tokens: int
    nusd: int
    output_cap_tokens: int | None
    is_certain: bool
    rounds: Rounds | None = None
    missing: tuple[Unpriced, ...] = ()

    @property
    def unpriced(self) -> Unpriced | None:
        """Return the first thing that a hard budget cannot hold, which the refusal explains."""
        return self.missing[0] if self.missing else None

    @property
    def tokens(self) -> int:
        """Return the maximum tokens of prompt and answer together, of one round."""
        return self.input_tokens + self.output_tokens

    @property
    def sent_output_tokens(self) -> int | None:
        """Return the most output tokens of all answers under the maximum that is sent; None if
        none is sent.
        """
        if self.output_cap_tokens is None:
            return None
        return self.output_tokens * (1 if self.rounds is None else self.rounds.answers)


def bound_of(
    facts: RequestFacts,
    *,
    route: Route,
    deployment: Deployment,
    price: Price,
    is_relied_on: bool = False,
    bounds_rounds: bool = False,
    text_forms: TextForms | None = None,
) -> Bound:
    """Return the maximum tokens and cost of one attempt of a request at one deployment.

    A tokenizer makes at most one token of each byte that it reads, and may read another form of the
    text than was sent (`text_forms`; the provider's, if it is None); a chat template adds to it.
    The context window bounds each prompt and each answer. `is_relied_on` is True if a hard budget
    or a token limit depends on the bound: it is then sent even if the caller gave a maximum,
    because an upstream of OpenAI's dialect ignores unknown members. `bounds_rounds` is True if a
    hard budget does: then the rounds of the provider's own tools are bounded as well.
    """
    window, asked_tokens, prompts = (
        deployment.context_window,
        facts.output_bound_tokens,
        facts.prompts,
    )
    size = facts.as_read(text_forms or deployment.provider_facts.text_forms)
    prompt_tokens, sees_prompt = _prompt(facts, size, deployment)
    cap_tokens = None
    if facts.operation in WITHOUT_OUTPUT:
        answer_tokens, is_capped = 0, True
    else:
        most_tokens = asked_tokens or _cap(route, deployment)
        if most_tokens is None:
            most_tokens, is_capped = window or UNBOUNDED_OUTPUT_TOKENS, False
        else:
            is_capped = True
            if window is not None and most_tokens > window:
                most_tokens = window
            if is_relied_on or asked_tokens is None or _is_honoured(facts.operation, deployment):
                cap_tokens = most_tokens
        if facts.thinking is not None or deployment.unasked.thinks_beyond:
            most_tokens, facts = _with_thinking(most_tokens, facts, deployment)
        # OpenAI charges rejected predicted tokens as output, on top of the maximum. These are the
        # `answers`, without the call.
        answer_tokens = (most_tokens + size.predicted_bytes) * facts.choices * (prompts or 1)
    features = facts.features
    if features:  # nearly no request has one
        features = features - deployment.unsent_features(facts.operation)
    if (
        facts.hosted
        or deployment.search_model is not None
        or "hosted_tools" in features
        or (facts.has_files and adds_tool(facts, deployment))
    ):
        rounds = rounds_of(facts, deployment, price, features=features, is_relied_on=bounds_rounds)
        if window is not None and (rounds.windows > 1 or deployment.search_model is not None):
            # The results of the tools come on top of the body, or again from it.
            seen_tokens = 2 * prompt_tokens + answer_tokens
            prompt_tokens = min(window, seen_tokens) if rounds.finds_in_body else window
            if deployment.search_model is not None and deployment.search_model.ignores_maximum:
                answer_tokens = window * facts.answers
        nusd = _nusd_of_rounds(price, prompt_tokens, answer_tokens, rounds)
    else:
        rounds = None
        nusd = hold_nusd(price, input_bound_tokens=prompt_tokens, output_bound_tokens=answer_tokens)
    bound = Bound(
        input_tokens=prompt_tokens,
        output_tokens=answer_tokens,
        nusd=nusd,
        output_cap_tokens=cap_tokens,
        is_certain=prompts is not None
        and (window is not None or (sees_prompt and is_capped))
        and (
            not features
            or deployment.unlisted.factor is not None
            or not unbounded_places(facts, features, deployment)
        )
        and (rounds is None or _are_bounded(rounds, window)),
        rounds=rounds,
    )
    if bounds_rounds and (
        features
        or facts.capabilities
        or facts.cache_lifetimes
        or facts.expansion_tokens is None
        or rounds
        or deployment.unasked.is_special
        or deployment.provider_facts.refusal_fees_usd
    ):
        return _with_kinds(bound, facts, features, deployment=deployment, price=price)
    return bound


def _with_thinking(
    most_tokens: int, facts: RequestFacts, deployment: Deployment
) -> tuple[int, RequestFacts]:
    """Return the most tokens of an answer with the thinking that its maximum does not bound, and
    the facts. Without a window nothing may bound it: then they name the member, or the model.
    """
    budget, window = facts.thinking, deployment.context_window
    if deployment.translates(facts.operation) or deployment.provider_facts.is_engine:
        budget = None  # translations keep it below the maximum, and engines count all tokens
    if deployment.unasked.thinks_beyond:
        where = _THINKS
        more_tokens = window if budget is None else budget.tokens + most_tokens
    elif budget is None or budget.tokens < most_tokens:
        return most_tokens, facts
    else:
        where, more_tokens = budget.where, window
    if listed_name(where) in deployment.listed:
        return most_tokens, facts
    if more_tokens is not None:
        return more_tokens if window is None else min(more_tokens, window), facts
    return most_tokens, replace(
        facts,
        features=facts.features | {_OTHER_MAXIMUM},
        unbounded=facts.unbounded | {where},
    )


def _with_kinds(
    bound: Bound,
    facts: RequestFacts,
    features: frozenset[str],
    *,
    deployment: Deployment,
    price: Price,
) -> Bound:
    """Return the bound of a hard budget with the kinds that cost more than plain input, or with
    those that have no rate. `features` are those that reach the deployment.
    """
    rounds = bound.rounds
    missing = unpriced_kinds(facts, features, deployment, price)
    places, factor = unbounded_places(facts, features, deployment), deployment.unlisted.factor
    if places and factor is None:
        missing += tuple(map(unbounded_member, places))
    if rounds is not None:
        missing += rounds.missing
    if missing:
        return replace(bound, missing=missing, is_certain=False)
    times = factor if places and factor is not None else 1
    if deployment.is_self_hosted:
        return replace(bound, nusd=min(ceil(bound.nusd * times), MOST_NUSD))
    read_tokens = bound.input_tokens * (1 if rounds is None else rounds.windows)
    is_marked = deployment.unasked.writes_if_marked
    price = price.billable(
        read_tokens,
        writes=written_kinds(facts.cache_lifetimes) if is_marked else ALL_WRITES,
        has_tiers=_TIER not in deployment.listed or any(one.startswith(_TIER) for one in features),
    )
    nusd = _nusd_of_rounds(price, bound.input_tokens, bound.output_tokens, rounds or Rounds())
    if _has_dear_pictures(deployment, price) and _may_show(facts, features):
        more_tokens = read_tokens * (DEAR_PICTURE_FACTOR - 1)
        nusd += hold_nusd(price, input_bound_tokens=more_tokens, output_bound_tokens=0)
    if facts.cache_lifetimes or deployment.unasked.writes_cache:
        nusd += _writes_nusd(facts, deployment, price, read_tokens)
    there = deployment.provider_facts
    if (fee_usd := there.refusal_fees_usd.get(facts.operation)) is not None:
        nusd = max(nusd, calls_hold_nusd(1, usd=fee_usd))
    return replace(bound, nusd=min(ceil(nusd * times), MOST_NUSD))


def _writes_nusd(
    facts: RequestFacts, deployment: Deployment, price: Price, prompt_tokens: int
) -> int:
    """Return the most that writes to the provider's cache cost beyond the dearest listed input."""
    lifetimes = facts.cache_lifetimes
    if deployment.unasked.writes_cache and facts.operation not in WITHOUT_OUTPUT:
        lifetimes |= {SHORTEST_LIFETIME}
    beyond = dearest_write_usd_per_mtok(lifetimes, price) - price.dearest(*INPUT_KINDS)
    return tokens_hold_nusd(prompt_tokens, usd_per_mtok=beyond) if beyond > 0 else 0


def _has_dear_pictures(deployment: Deployment, price: Price) -> bool:
    """Return True if a picture may be billed for more tokens than it takes in the window: by the
    model's name, or by a price that may be that model's if the name hides the model.
    """
    if _PICTURES in deployment.listed:
        return False
    return deployment.unasked.has_dear_pictures or (
        deployment.unasked.may_hide_dear_pictures
        and price.dearest(TokenKind.INPUT) <= MOST_DEAR_PICTURES_USD_PER_MTOK
    )


def _may_show(facts: RequestFacts, features: frozenset[str]) -> bool:
    """Return True if a prompt may have a picture: a page of a file, a thing that is fetched or kept
    elsewhere, the result of a tool that the provider runs.
    """
    if "vision" in facts.capabilities or facts.expansion_tokens is None:
        return True
    if not features.isdisjoint(_ELSEWHERE):
        return True
    return not features.isdisjoint(_TOOLS) and not (
        facts.hosted and all(tool.name.startswith(_TEXT_TOOLS) for tool in facts.hosted)
    )


def _are_bounded(rounds: Rounds, window: int | None) -> bool:
    """Return True if the rounds have a bound, and a window that bounds each of them."""
    return rounds.unbounded is None and (rounds.windows == 1 or window is not None)


def _nusd_of_rounds(price: Price, prompt_tokens: int, answer_tokens: int, rounds: Rounds) -> int:
    """Return the maximum cost of all rounds, with the fees of their calls."""
    nusd = hold_nusd(
        price,
        input_bound_tokens=prompt_tokens * rounds.windows,
        output_bound_tokens=answer_tokens * rounds.answers,
        tool_calls_bound=rounds.calls,
    )
    return min(nusd + calls_hold_nusd(rounds.calls, usd=rounds.call_usd), MOST_NUSD)


def _is_honoured(operation: Operation, deployment: Deployment) -> bool:
    """Return True if the upstream's dialect has one member for the maximum, so that the caller's
    own bounds the answer: Anthropic's messages, and the dialects that no caller speaks.
    """
    if operation in deployment.native:
        return operation is Operation.MESSAGES
    return Operation.CHAT not in deployment.native


def _prompt(
    facts: RequestFacts, size: PromptSize | RequestFacts, deployment: Deployment
) -> tuple[int, bool]:
    """Return an upper bound of the tokens of all prompts together, and False if the body does not
    show their length.
    """
    window, expansion_tokens = deployment.context_window, size.expansion_tokens
    # The size of a picture's file does not determine its price: providers charge by its pixels.
    sees_prompt = (
        expansion_tokens is not None
        and (
            not facts.features
            or UNSEEN_PROMPT.isdisjoint(
                facts.features - deployment.unsent_features(facts.operation)
            )
        )
        and "vision" not in facts.capabilities
    )
    # A template writes its text around each pair that is scored.
    templates = (facts.prompts or 1) if facts.operation in PAIRING else 1
    overhead_tokens = deployment.input_overhead_tokens * templates
    tokens = size.body_bytes + overhead_tokens
    if expansion_tokens:
        tokens += expansion_tokens
        if facts.calls_undeclared and deployment.provider_facts.needs_declared_tools:
            tokens += TOOL_PREFACE_TOKENS  # the translation declares the tools
    if window is not None and facts.prompts is not None:
        most_tokens = window * facts.prompts
        if tokens > most_tokens or not sees_prompt:
            return most_tokens, sees_prompt
    return tokens, sees_prompt


def _cap(route: Route, deployment: Deployment) -> int | None:
    """Return the smaller maximum of output tokens of a route and a deployment; without one, that of
    a dialect that requires one, else None.
    """
    caps = [
        cap for cap in (route.max_output_tokens, deployment.max_output_tokens) if cap is not None
    ]
    return min(caps, default=deployment.provider_facts.default_output_tokens)
