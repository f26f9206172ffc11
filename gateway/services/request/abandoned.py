"""What happens to an attempt that its caller, its upstream or this replica did not see through to
its end.

An abandoned answer that is billed anyway is read to its end for the sake of its usage; what was cut
before its upstream said any usage is counted. Both are tasks of the application, bounded in number
and time, and never of the request: that one is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

import structlog

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.pricing.settlement import Counted
from gateway.domain.request.token_estimate import estimate
from gateway.errors import RequestError
from gateway.services.ports import TokenCounter
from gateway.services.request.attempt import Attempt
from gateway.services.request.upstream_answer import UpstreamAnswer
from gateway.wire.sse import EventTooLarge

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLimits:
    """How much is read on for callers who left: how many answers at once, for how long, how many
    events each.
    """

    answers: int
    seconds: float
    events: int


class AbandonedAnswers:
    """Settles what did not end well.

    `is_stopping` is true once live answers are cut off by this replica's stop.
    """

    def __init__(
        self, counter: TokenCounter, limits: DrainLimits, *, is_stopping: Callable[[], bool]
    ) -> None:
        self._counter, self._limits, self._is_stopping = counter, limits, is_stopping
        self._tasks: dict[asyncio.Task[None], tuple[UpstreamAnswer, Outcome]] = {}
        self._is_closed = False

    def left(self, attempt: Attempt, exchange: UpstreamAnswer | None) -> None:
        """The caller is gone, or the replica stops.

        No await: nothing that waits would be waited for.
        """
        outcome = Outcome.GATEWAY_STOPPED if self._is_stopping() else Outcome.CLIENT_GONE
        if exchange is None:
            attempt.settle(outcome, was_served=False)  # cancelled before anything was sent
        elif (
            outcome is not Outcome.CLIENT_GONE
            or not exchange.has_more
            or not self._may_read_on(exchange)
        ):
            if outcome is Outcome.CLIENT_GONE and self._bills_on(exchange):
                self._leave_unknown(exchange, outcome)
            else:
                self.done(exchange, outcome)
        elif not exchange.is_ended:
            read_on = self._drain if exchange.is_read_to_its_end else self._take_arrived
            self._start(read_on(exchange, outcome), exchange, outcome)

    def done(self, exchange: UpstreamAnswer, outcome: Outcome) -> None:
        """Nothing more will be read: close, and settle by what was seen; by a count where nobody
        said. No await.
        """
        if exchange.is_ended:
            return
        if exchange.needs_counting and self._has_room:
            exchange.upstream.close()
            self._start(self._count(exchange, outcome), exchange, outcome)
        else:
            self._settle_now(exchange, outcome)

    async def count(self, exchange: UpstreamAnswer) -> Counted | None:
        """Count what was answered, None where its upstream said how much.

        Bounded in time; never raises.
        """
        counted = _estimated(exchange)
        if counted is None or not self._has_room:
            return counted
        attempt = exchange.attempt
        try:
            return await self._counter.count(
                attempt.candidate.deployment.model, attempt.request.body, attempt.observed
            )
        except Exception:  # a tokenizer's own: the estimate stands
            log.exception("count_failed", request_id=str(attempt.request.request_id))
            return counted

    async def close(self) -> None:
        """Settle by what was seen so far, at once: there is no one left to read on for."""
        self._is_closed = True
        left = list(self._tasks.values())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for (
            exchange,
            outcome,
        ) in left:  # here and not in the tasks: one cancelled before its first step runs nothing
            self._settle_now(exchange, outcome)

    def _may_read_on(self, exchange: UpstreamAnswer) -> bool:
        """What has arrived takes a moment, so no drain that takes a minute stands in its way."""
        if self._is_closed or self._is_stopping():
            return False
        if exchange.has_all or not exchange.is_read_to_its_end:
            return True
        return self._has_share(exchange.attempt.request.caller.team)

    def _bills_on(self, exchange: UpstreamAnswer) -> bool:
        """True if a provider goes on and bills what nobody reads here, and has said no usage
        yet.
        """
        is_live = not (exchange.is_ended or self._is_closed or self._is_stopping())
        is_paid = not exchange.attempt.candidate.deployment.is_self_hosted
        return is_live and is_paid and exchange.has_more and exchange.attempt.observed.usage is None

    def _leave_unknown(self, exchange: UpstreamAnswer, outcome: Outcome) -> None:
        """Settle at the hold: an estimate of what was seen would be less than what is billed."""
        exchange.upstream.close()
        exchange.attempt.settle(outcome)
        exchange.is_ended = True

    def _has_share(self, team: str) -> bool:
        """One team holds at most twice as many places as are free then, so that it cannot take all
        of them.
        """
        own = sum(
            exchange.attempt.request.caller.team == team for exchange, _ in self._tasks.values()
        )
        return own < 2 * (self._limits.answers - len(self._tasks))

    @property
    def _has_room(self) -> bool:
        return (
            not (self._is_closed or self._is_stopping()) and len(self._tasks) < self._limits.answers
        )

    def _start(
        self, work: Coroutine[None, None, None], exchange: UpstreamAnswer, outcome: Outcome
    ) -> None:
        """Let a task settle it; where the task fails, its end does."""
        exchange.is_ended = True
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = (exchange, outcome)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        exchange, outcome = self._tasks.pop(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error(
                "ending_failed",
                request_id=str(exchange.attempt.request.request_id),
                exc_info=failure,
            )
        self._settle_now(exchange, outcome)  # changes nothing where the task did

    def _settle_now(self, exchange: UpstreamAnswer, outcome: Outcome) -> None:
        """Close, and settle by what was seen. Never raises: `close` goes on to the next one."""
        attempt = exchange.attempt
        if attempt.event is None:
            was_served, counted = True, None
            try:
                exchange.upstream.close()
                was_served, counted = exchange.was_served, _estimated(exchange)
            except Exception:  # whatever cannot be closed or counted is settled all the same
                log.exception("ending_failed", request_id=str(attempt.request.request_id))
            attempt.settle(outcome, was_served=was_served, counted=counted)
        exchange.is_ended = True

    async def _drain(self, exchange: UpstreamAnswer, outcome: Outcome) -> None:
        try:
            async with asyncio.timeout(self._limits.seconds):
                await exchange.read_on(max_events=self._limits.events)
        except (RequestError, EventTooLarge, TimeoutError):
            pass  # what was seen until then is what there is
        except Exception:  # the background task's boundary
            log.exception("drain_failed", request_id=str(exchange.attempt.request.request_id))
        exchange.upstream.close()
        await self._count(exchange, outcome)

    async def _take_arrived(self, exchange: UpstreamAnswer, outcome: Outcome) -> None:
        """Meter what had arrived when the caller left: of a slow caller that can be thousands of
        tokens.
        """
        try:
            async with asyncio.timeout(self._limits.seconds):
                await exchange.read_arrived()
        except (RequestError, EventTooLarge, TimeoutError):
            pass  # what was seen until then is what there is
        except Exception:  # the background task's boundary
            log.exception("drain_failed", request_id=str(exchange.attempt.request.request_id))
        exchange.upstream.close()
        await self._count(exchange, outcome)

    async def _count(self, exchange: UpstreamAnswer, outcome: Outcome) -> None:
        """Settle by our own count, by an estimate where there is no time for one."""
        counted = await self.count(exchange)
        exchange.attempt.settle(outcome, was_served=exchange.was_served, counted=counted)


def _estimated(exchange: UpstreamAnswer) -> Counted | None:
    """What sizes alone say, where something was answered and its upstream never said how much."""
    if not exchange.needs_counting:
        return None
    observed = exchange.attempt.observed
    return estimate(
        exchange.request.body.facts,
        output_bytes=observed.size_bytes,
        is_whole=observed.is_whole or observed.is_done,
    )
