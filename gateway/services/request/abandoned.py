"""Settles attempts at the end of their stream, a failure or their caller's leaving, reading on if
that is billed; counts the tokens of answers without usage.

An abandoned answer that is billed anyway is read to its end for its usage. An answer that was cut
before its usage is counted. Both run as tasks of the application, limited in number and time,
because the request has already ended.
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
from gateway.wire.dialect import EventTooLarge

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLimits:
    """Limits on draining abandoned answers: how many at once, for how long, and how many events
    each.
    """

    answers: int
    seconds: float
    events: int


class AbandonedAnswers:
    """Settles the attempts of ended streams, failed answers and callers that left, and counts
    answers without usage.

    `is_stopping` becomes True when this replica's stop cuts off live answers.
    """

    def __init__(
        self, counter: TokenCounter, limits: DrainLimits, *, is_stopping: Callable[[], bool]
    ) -> None:
        """Start without any answer to settle."""
        self._counter, self._limits, self._is_stopping = counter, limits, is_stopping
        self._tasks: dict[asyncio.Task[None], tuple[UpstreamAnswer, Outcome]] = {}
        self._is_closed = False

    def settle_or_drain(
        self, attempt: Attempt, exchange: UpstreamAnswer | None, *, ended: Outcome | None = None
    ) -> None:
        """Settle an attempt whose caller left or whose replica stops, or read its answer on first
        in the background. `ended` is the outcome if the upstream's error decided it.

        Never awaits, because its caller may already be cancelled.
        """
        is_stopping = self._is_stopping()
        outcome = ended or (Outcome.GATEWAY_STOPPED if is_stopping else Outcome.CLIENT_GONE)
        if exchange is None:
            attempt.settle(outcome, was_served=False)  # cancelled before anything was sent
        elif is_stopping or not exchange.has_more or not self._may_drain(exchange):
            self._leave(exchange, outcome)
        elif not exchange.is_ended:
            read_on = self._drain if exchange.is_read_to_its_end else self._settle_by_arrived
            self._start(read_on(exchange, outcome), exchange, outcome)

    def done(self, exchange: UpstreamAnswer, outcome: Outcome) -> None:
        """Close an answer, ended or not, and settle it by the observed usage, or by a count if that
        is missing. Never awaits.
        """
        if exchange.is_ended:
            return
        if exchange.needs_counting and self._has_room:
            exchange.upstream.close()
            self._start(self._settle_by_count(exchange, outcome), exchange, outcome)
        else:
            self._settle_now(exchange, outcome)

    async def count(self, exchange: UpstreamAnswer) -> Counted | None:
        """Return an answer's tokens by a count, or an estimate without time for it; None if its
        upstream reported its usage.

        Takes bounded time; never raises.
        """
        counted = _estimated(exchange)
        if counted is None or not self._has_room:
            return counted
        attempt = exchange.attempt
        try:
            return await self._counter.count(
                attempt.candidate.deployment.model, attempt.request.body, attempt.observed
            )
        except Exception:  # the tokenizer's error; the estimate stays
            log.exception("count_failed", request_id=str(attempt.request.request_id))
            return counted

    async def close(self) -> None:
        """Settle all answers under way by their usage so far, at once: the process ends."""
        self._is_closed = True
        left = list(self._tasks.values())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Here and not in the tasks: a task cancelled before its first step runs nothing.
        for (
            exchange,
            outcome,
        ) in left:
            self._settle_now(exchange, outcome)

    def _may_drain(self, exchange: UpstreamAnswer) -> bool:
        """Return True if there is a place to drain another answer. Arrived bytes take a moment, so
        long drains do not block them.
        """
        if self._is_closed or self._is_stopping():
            return False
        if exchange.has_all or not exchange.is_read_to_its_end:
            return True
        return self._has_share(exchange.attempt.request.caller.team)

    def _leave(self, exchange: UpstreamAnswer, outcome: Outcome) -> None:
        """Close an answer that is not read on, and settle it: at its hold if its provider may go on
        and bill the rest.
        """
        is_live = not (exchange.is_ended or self._is_closed or self._is_stopping())
        if is_live and _is_still_billed(exchange):
            _settle_at_hold(exchange, outcome)
        else:
            self.done(exchange, outcome)

    def _has_share(self, team: str) -> bool:
        """Return True if the team drains at most twice as many answers as there are free places, so
        that it cannot take all.
        """
        own = sum(
            exchange.attempt.request.caller.team == team for exchange, _ in self._tasks.values()
        )
        return own < 2 * (self._limits.answers - len(self._tasks))

    @property
    def _has_room(self) -> bool:
        """Return True if another background task may drain or count an answer."""
        return (
            not (self._is_closed or self._is_stopping()) and len(self._tasks) < self._limits.answers
        )

    def _start(
        self, work: Coroutine[None, None, None], exchange: UpstreamAnswer, outcome: Outcome
    ) -> None:
        """Start a task that settles an answer's attempt; if the task fails, its end settles it."""
        exchange.is_ended = True
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = (exchange, outcome)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Settle the answer of an ended background task, and log the task's error."""
        exchange, outcome = self._tasks.pop(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error(
                "ending_failed",
                request_id=str(exchange.attempt.request.request_id),
                exc_info=failure,
            )
        self._settle_now(exchange, outcome)  # does nothing if the task settled it

    def _settle_now(self, exchange: UpstreamAnswer, outcome: Outcome) -> None:
        """Close an answer and settle it by the observed usage. Never raises: `close` continues with
        the next one.
        """
        attempt = exchange.attempt
        if attempt.event is None:
            was_served, counted = True, None
            try:
                exchange.upstream.close()
                was_served, counted = exchange.was_served, _estimated(exchange)
            except Exception:  # an answer that cannot be closed or counted is settled all the same
                log.exception("ending_failed", request_id=str(attempt.request.request_id))
            attempt.settle(outcome, was_served=was_served, counted=counted)
        exchange.is_ended = True

    async def _drain(self, exchange: UpstreamAnswer, outcome: Outcome) -> None:
        """Read an abandoned answer to its end, within limits, and settle it by its usage; at its
        hold if it is left before its end and its provider bills the rest.
        """
        is_left = True
        try:
            async with asyncio.timeout(self._limits.seconds):
                await exchange.read_on(max_events=self._limits.events)
        except (RequestError, EventTooLarge):  # the upstream's end, also of one that stalls
            is_left = False
        except TimeoutError:
            pass
        except Exception:  # the background task's boundary
            log.exception("drain_failed", request_id=str(exchange.attempt.request.request_id))
        if is_left and _is_still_billed(exchange):
            _settle_at_hold(exchange, outcome)
            return
        exchange.upstream.close()
        await self._settle_by_count(exchange, outcome)

    async def _settle_by_arrived(self, exchange: UpstreamAnswer, outcome: Outcome) -> None:
        """Read the bytes that had arrived when the caller left, maybe thousands of tokens, and
        settle the answer by them.
        """
        try:
            async with asyncio.timeout(self._limits.seconds):
                await exchange.read_arrived()
        except (RequestError, EventTooLarge, TimeoutError):
            pass  # the usage observed so far counts
        except Exception:  # the background task's boundary
            log.exception("drain_failed", request_id=str(exchange.attempt.request.request_id))
        exchange.upstream.close()
        await self._settle_by_count(exchange, outcome)

    async def _settle_by_count(self, exchange: UpstreamAnswer, outcome: Outcome) -> None:
        """Settle an answer by its reported usage, else by our own count, or by an estimate if there
        is no time for one.
        """
        counted = await self.count(exchange)
        exchange.attempt.settle(outcome, was_served=exchange.was_served, counted=counted)


def _is_still_billed(exchange: UpstreamAnswer) -> bool:
    """Return True if the provider bills an unread answer to its end, and has not reported its
    usage.
    """
    deployment = exchange.attempt.candidate.deployment
    # A provider about which no source says so is assumed to bill.
    stops_billing = deployment.provider_facts.bills_after_disconnect is False
    is_paid = not (deployment.is_self_hosted or stops_billing)
    observed = exchange.attempt.observed
    is_unknown = observed.usage is None or observed.is_behind
    return is_paid and exchange.has_more and is_unknown


def _settle_at_hold(exchange: UpstreamAnswer, outcome: Outcome) -> None:
    """Settle an answer that is billed unread as unknown, at its hold: an estimate of the seen part
    would be less than the bill.
    """
    exchange.upstream.close()
    exchange.attempt.settle(outcome)
    exchange.is_ended = True


def _estimated(exchange: UpstreamAnswer) -> Counted | None:
    """Return an estimate of an answer's tokens by its size; None without an answer or with reported
    usage.
    """
    if not exchange.needs_counting:
        return None
    observed = exchange.attempt.observed
    return estimate(
        exchange.request.body.facts,
        output_bytes=observed.size_bytes,
        is_empty=observed.is_empty,
    )
