"""Holds the dependencies of the endpoints that FastAPI serves, and the steps that several of their
handlers share: the caller, its labels, its slot and the request's body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from fastapi import Request

from gateway.api import attribution, body
from gateway.api.authenticate import caller_of
from gateway.api.large_bodies import LargeBodies, is_large
from gateway.api.request_slots import RequestSlots
from gateway.domain.budgets.limits import LimitedBy
from gateway.domain.checks import Check
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.request.request import Caller
from gateway.domain.routing.replay import Place
from gateway.reports.reports import Reports
from gateway.services.deployments.estimates import Estimates
from gateway.services.limits.limiter import LimitStatus
from gateway.services.limits.own_reads import OwnReads
from gateway.services.ports import Clock
from gateway.services.request.prompt_counts import PromptCounts
from gateway.services.request.stored_response_calls import StoredResponseCalls
from gateway.services.snapshot.snapshot import SnapshotHolder

T = TypeVar("T")

_READ_HEADERS = {name: name.decode() for name in (*body.HEADERS, *attribution.HEADERS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainEndpoints:
    """The dependencies of the endpoints that FastAPI serves: all except forwarding.

    `standing` returns the use of limits from this worker's memory. `not_ready` returns the reasons
    to send traffic elsewhere, each with its remedy. `reads` runs the reads of callers; `checks`
    returns readiness's other checks. `recent` finds events settled here that may not be in Postgres
    yet. `is_lagging` is True while any worker's journal may hold events older than a minute. It
    runs in a thread and may raise `DatabaseUnavailable`. `region` is the gateway's own region,
    `estimates` this worker's observations. `counts` counts prompts that are not answered.
    """

    holder: SnapshotHolder
    reports: Reports
    reads: OwnReads
    clock: Clock
    standing: Callable[[Sequence[LimitedBy]], Sequence[LimitStatus]]
    allows_demo_keys: bool
    not_ready: Callable[[], list[str]]
    checks: Callable[[], Sequence[Check]]
    recent: Callable[[UUID], Sequence[UsageEvent]]
    is_lagging: Callable[[], bool]
    region: str
    max_body_bytes: int
    slots: RequestSlots
    large_bodies: LargeBodies
    estimates: Estimates
    stored_responses: StoredResponseCalls
    counts: PromptCounts

    async def read(self, caller: Caller, work: Callable[[], T]) -> T:
        """Run `work`, one read of the caller's own data, in a thread and under its team's request
        limit; return its result.

        Raises the errors of `OwnReads`.
        """
        snapshot = self.holder.require()
        team = snapshot.policy.policy.teams[caller.team]
        terms = snapshot.terms_of(
            team, project=caller.project, key_id=caller.key_id, day=self.place.day
        )
        return await self.reads.read(caller.team, terms.limits, work)

    async def caller(self, request: Request) -> Caller:
        """Return the authenticated caller of a request. Raises the errors of `caller_of`."""
        return await caller_of(
            request.scope["headers"],
            self.holder,
            now=self.clock.now,
            allows_demo=self.allows_demo_keys,
        )

    @property
    def place(self) -> Place:
        """Return this gateway's region and the present day, for a decision."""
        return Place(gateway_region=self.region, day=self.clock.now().date())

    @contextmanager
    def slot(self, caller: Caller) -> Iterator[None]:
        """Hold one of the team's slots for requests in flight. Raises `Overloaded`."""
        teams = self.holder.require().policy.policy.teams
        self.slots.take(caller.team, is_only_team=len(teams) == 1)
        try:
            yield
        finally:
            self.slots.release(caller.team)

    def check_declared(self, headers: dict[str, str]) -> None:
        """Refuse a body by its declared type, encoding or length. Raises the errors of
        `body.check_declared`.
        """
        body.check_declared(headers, limit_bytes=self.max_body_bytes)

    async def read_body(self, request: Request, caller: Caller, parse: Callable[[bytes], T]) -> T:
        """Return the request's body, parsed by `parse`: a large one in the thread for large bodies.

        Raises `RequestTooLarge`, `ClientGone` and the errors of `parse`.
        """
        content = await body.read_body(request.receive, limit_bytes=self.max_body_bytes)
        if is_large(content):
            return await self.large_bodies.read(caller.team, parse, content)
        return parse(content)


def labels_of(request: Request) -> dict[str, str]:
    """Return the headers that label a request and declare its body. Raises `InvalidRequest`."""
    return attribution.read(request.scope["headers"], _READ_HEADERS)


def headers_of(request: Request) -> dict[str, str]:
    """Return all headers of a request; those that label it are checked. Raises
    `InvalidRequest`.
    """
    return dict(request.headers) | labels_of(request)
