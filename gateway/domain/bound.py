"""What one attempt can cost at most: an upper bound of its tokens, at the dearest price they may have."""

from __future__ import annotations

from msgspec import Struct

from gateway.domain.policy import Deployment, Operation, Route
from gateway.domain.pricing import Price, hold_nusd
from gateway.domain.request import Ask

# Where neither caller, route nor deployment bounds the answer, the hold takes this many output tokens, and is no bound.
UNBOUNDED_OUTPUT_TOKENS = 32_768
MOST_TOOL_CALLS = 64  # of tools that the provider runs and charges by the call; a request seldom makes ten
# Requests with these features have a prompt that is not all in their body.
UNSEEN_PROMPT = frozenset({"stored_state", "hosted_tools", "remote_media"})


class Bound(Struct, frozen=True, kw_only=True, gc=False):
    """The most an attempt can use and cost. `output_cap_tokens` is to be sent upstream, None for nothing.

    `is_certain` is False where nobody bounds it: then the figures are a guess, which no hard budget can rely on.
    """

    input_tokens: int
    output_tokens: int
    nusd: int
    output_cap_tokens: int | None
    is_certain: bool

    @property
    def tokens(self) -> int:
        """Prompt and answer together."""
        return self.input_tokens + self.output_tokens


def bound_of(ask: Ask, *, route: Route, deployment: Deployment, price: Price) -> Bound:
    """Bound one attempt of a request at one deployment.

    No tokenizer makes more tokens than bytes, but for what a chat template adds. Prompt and answer are each at most
    the context window. Where the caller gives no maximum, the lower cap of route and deployment is sent.
    """
    window, asked_tokens = deployment.context_window, ask.output_bound_tokens
    sees_prompt = not ask.features or UNSEEN_PROMPT.isdisjoint(ask.features)
    prompt_tokens = ask.body_bytes + deployment.input_overhead_tokens
    if window is not None and (prompt_tokens > window or not sees_prompt):
        prompt_tokens = window
    cap_tokens = None
    if ask.operation is Operation.EMBEDDINGS:
        answer_tokens, is_capped = 0, True
    else:
        if asked_tokens is None:
            cap_tokens = _cap(route, deployment)
        most_tokens = asked_tokens or cap_tokens or window or UNBOUNDED_OUTPUT_TOKENS
        if window is not None and most_tokens > window:
            most_tokens = window
        answer_tokens = most_tokens * ask.choices
        is_capped = asked_tokens is not None or cap_tokens is not None
    return Bound(
        input_tokens=prompt_tokens, output_tokens=answer_tokens,
        nusd=hold_nusd(
            price, input_bound_tokens=prompt_tokens, output_bound_tokens=answer_tokens,
            tool_calls_bound=MOST_TOOL_CALLS if "hosted_tools" in ask.features else 0,
        ),
        output_cap_tokens=cap_tokens, is_certain=window is not None or (sees_prompt and is_capped),
    )  # fmt: skip


def _cap(route: Route, deployment: Deployment) -> int | None:
    caps = [cap for cap in (route.max_output_tokens, deployment.max_output_tokens) if cap is not None]
    return min(caps, default=None)
