"""How a request that is not sent would be ordered: for explanations, and for the cases that a policy is tested with."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from gateway.domain.expectation import Live
from gateway.domain.objectives import Lineup, assumed, lineup_of, rank
from gateway.domain.policy import Operation
from gateway.domain.request import Ask
from gateway.domain.routing import Decision, Ranking
from gateway.services.outlook import Outlook

PROMPT_TOKENS = 1000  # where nobody says how long the prompt is


def imagined(
    decision: Decision, ask: Ask, *, session: str, degrade: Callable[[], Decision] | None = None,
    outlook: Outlook | None = None, tokens: int | None = None, answer_tokens: int = 0,
) -> Ranking | None:  # fmt: skip
    """The order of a request that is not sent, None where it is refused.

    From what `outlook` has seen, without one from what the policy declares. `tokens` and `answer_tokens`, where they
    are given, are taken as they are.
    """
    if not decision.eligible:
        return None
    operation = ask.operation

    def look(of: Decision) -> tuple[Lineup, Live]:
        lineup, live = _assumed(of, operation) if outlook is None else outlook.look(of, operation)
        return lineup, _as_said(live, exact=tokens is not None, answer_tokens=answer_tokens)

    def degraded() -> tuple[Lineup, Live] | None:
        other = None if degrade is None else degrade()
        return None if other is None or not other.eligible else look(other)

    lineup, live = look(decision)
    sized = ask if tokens is None else replace(ask, body_bytes=tokens)
    return rank(lineup, sized, live, session=session, degrade=degraded)


def basis(*, is_live: bool, tokens: int | None, answer_tokens: int) -> str:
    """What an explanation's expectations stand on, in words."""
    prompt = "the request's own prompt" if tokens is None else f"a prompt of {tokens:,} tokens"
    answer = f" and an answer of {answer_tokens:,}" if answer_tokens else ""
    known = (
        "what this worker of the gateway has seen lately"
        if is_live
        else "what the policy declares: this command knows nothing of the running gateway, POST /v1/route/explain does"
    )
    return f"For {prompt}{answer}, from {known}."


def _assumed(decision: Decision, operation: Operation) -> tuple[Lineup, Live]:
    lineup = lineup_of(decision, operation)
    return lineup, assumed(lineup)


def _as_said(live: Live, *, exact: bool, answer_tokens: int) -> Live:
    """The same with sizes that were said: then a size counts tokens, not bytes."""
    prospects = [replace(one, tokens_per_byte=1.0) for one in live.prospects] if exact else live.prospects
    return replace(
        live, prospects=prospects, output_tokens=float(answer_tokens) if answer_tokens else live.output_tokens
    )
