"""Counts the tokens of a prompt that is not answered: at a deployment that can count, else by an
estimate. Nothing is charged or recorded.

The prompt leaves the gateway, so the same decision applies as to its answer, and each call has a
permit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.domain.policy.policy import Deployment
from gateway.domain.request.request import Request
from gateway.domain.request.token_estimate import tokens_in
from gateway.domain.routing.decide import Choice
from gateway.errors import ContextLengthExceeded, InvalidRequest, RequestError, UpstreamError
from gateway.services.codings import CODING, opened
from gateway.services.request.service import RequestService
from gateway.services.snapshot.snapshot import Snapshot
from gateway.services.upstream_error import ErrorReader, caller_error
from gateway.wire.dialect import UpstreamRequest

WITHIN_S = 10.0  # of one call: clients count before each of their requests
MOST_CALLS = 2
MAX_ANSWER_BYTES = 2**16


class PromptCounter(ErrorReader, Protocol):
    """A provider that can count the tokens of a prompt."""

    async def count_call(self, deployment: Deployment, request: Request) -> UpstreamRequest:
        """Return the call that counts a request's prompt."""

    def counted(self, body: bytes) -> int | None:
        """Return the tokens that an answer to the call states, None if it states none."""


@dataclass(frozen=True, slots=True)
class PromptCount:
    """The tokens of one prompt. `deployment` counted them, None for the gateway's estimate."""

    tokens: int
    deployment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCounts:
    """Counts prompts at the deployments that can; `counters` are their providers by name."""

    requests: RequestService
    counters: Mapping[str, PromptCounter]

    async def count(self, request: Request, snapshot: Snapshot) -> PromptCount:
        """Return the tokens of a request's prompt.

        Raises the `RequestError` for the caller: a refused decision, or a request that the
        upstream refuses.
        """
        facts = request.body.facts
        decision = self.requests.decide(request, snapshot)
        if refusal := decision.refusal(facts):
            self.requests.refusals.note(
                request.caller.team,
                refusal.code,
                rules=refusal.rules,
                route=decision.route.name,
                data_class=decision.class_label,
                project=request.project or "",
                key_id=request.caller.key_id,
            )
            raise refusal
        able = [
            choice
            for choice in self.requests.estimates.rank(request, decision).choices
            if choice.candidate.deployment.provider in self.counters
            and facts.operation in choice.candidate.deployment.native
        ]
        for choice in able[:MOST_CALLS]:
            try:
                tokens = await self._counted_at(choice, request)
            except (InvalidRequest, ContextLengthExceeded):
                raise  # the caller can fix it
            except RequestError:
                continue  # another deployment may count; at the end an estimate is better than none
            return PromptCount(tokens, choice.candidate.deployment.name)
        return PromptCount(tokens_in(facts.body_bytes))

    async def _counted_at(self, choice: Choice, request: Request) -> int:
        """Return the tokens that one deployment counts. Raises a `RequestError`."""
        deployment = choice.candidate.deployment
        counter = self.counters[deployment.provider]
        permit = choice.decision.permit(choice.candidate, attempt=1)
        call = await counter.count_call(deployment, request)
        upstream = await self.requests.transport.send(permit, call, within_s=WITHIN_S)
        try:
            status, headers = await upstream.head()
            self.requests.ejections.note_head(
                headers, choice.decision, deployment, request_id=request.request_id
            )
            body = opened(
                await upstream.read(MAX_ANSWER_BYTES),
                headers.get(CODING),
                most_bytes=MAX_ANSWER_BYTES,
            )
        finally:
            upstream.close()
        if not 200 <= status < 300:
            raise caller_error(counter, deployment, call, (status, headers), body=body)
        tokens = counter.counted(body)
        if tokens is None:
            raise UpstreamError(f"{deployment.name} stated no count.")
        return tokens
