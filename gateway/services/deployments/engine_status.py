"""Asks every self-hosted engine of a policy for its live signals and for one generated token, for a
person at the command line; routing does not use it.

No gateway has to run. Ready means that the token came: `/health` also answers 200 while an engine's
core hangs. A probe's tokens are recorded as those of a gateway's probes, so no team is charged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from gateway.domain.deployments.engine_load import EngineMetrics
from gateway.domain.deployments.engine_pages import EnginePage, pages_of
from gateway.domain.deployments.engine_signals import (
    EngineReport,
    EngineSignals,
    report_on,
    signals_between,
)
from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.errors import DatabaseUnavailable, RequestError
from gateway.services.deployments.engine_probes import ProbeAnswer, ProbeNotes, send_probe
from gateway.services.ports import Clock, Provider, Transport

MOST_AT_ONCE = 16
SILENT = "its metrics page does not answer, so its load is unknown"
NO_FIGURES = "no page shows its load"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """The state of one engine. `is_ready` is None if no probe could be sent.

    `problems` tell what could not be had and why; `signals` are empty if no page answered.
    """

    deployment: Deployment
    is_ready: bool | None
    signals: EngineSignals
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInspection:
    """The parts that an inspection of engines needs; `page` reads an engine's page by path, None
    without an answer.

    With `over_s`, rates and quantiles are of that many seconds, else since the engine's start.
    """

    page: Callable[[Deployment, str], str | None]
    transport: Transport
    providers: Mapping[str, Provider]
    notes: ProbeNotes
    clock: Clock
    new_id: Callable[[], UUID]
    region: str
    over_s: float = 0.0

    async def run(self, version: PolicyVersion) -> list[EngineStatus]:
        """Return the status of every self-hosted deployment, in the order of the policy."""
        slots = asyncio.Semaphore(MOST_AT_ONCE)
        own = [one for one in version.policy.deployments.values() if one.is_self_hosted]

        async def inspected(deployment: Deployment) -> EngineStatus:
            async with slots:
                return await self._inspect(version, deployment)

        return list(await asyncio.gather(*map(inspected, own)))

    async def _inspect(self, version: PolicyVersion, deployment: Deployment) -> EngineStatus:
        """Read one engine's pages and probe it."""
        signals, silence = await self._signals(deployment)
        is_ready, problem = await self._probe(version, deployment)
        problems = [text for text in (problem, silence) if text is not None]
        return EngineStatus(
            deployment=deployment, is_ready=is_ready, signals=signals, problems=tuple(problems)
        )

    async def _signals(self, deployment: Deployment) -> tuple[EngineSignals, str | None]:
        """Return an engine's signals, and the reason if it shows none."""
        pages, report = await asyncio.to_thread(self._first_report, deployment)
        if pages is None:
            return EngineSignals(), SILENT if report is None else NO_FIGURES
        assert report is not None, "a page with figures was found"
        before = None
        if self.over_s:
            await asyncio.sleep(self.over_s)
            before, report = report, await asyncio.to_thread(self._report, deployment, pages)
        if report is None:
            return EngineSignals(), SILENT
        return signals_between(before, report), None

    def _first_report(
        self, deployment: Deployment
    ) -> tuple[Sequence[EnginePage] | None, EngineReport | None]:
        """Return the first group of pages with figures and their report. Without figures: None, and
        an empty report if a page answered.
        """
        answered = None
        for pages in pages_of(deployment.provider):
            report = self._report(deployment, pages)
            if report is None:
                continue
            if report.metrics != EngineMetrics():
                return pages, report
            answered = report
        return None, answered

    def _report(self, deployment: Deployment, pages: Sequence[EnginePage]) -> EngineReport | None:
        """Return the report on a group of an engine's pages; None if the first one is silent."""
        return report_on(pages, deployment.model, partial(self.page, deployment))

    async def _probe(
        self, version: PolicyVersion, deployment: Deployment
    ) -> tuple[bool | None, str | None]:
        """Ask an engine for one token; return whether it answered, and the reason if it did not.

        A probe that cannot be recorded is not sent: its tokens would be charged to a team whose
        attempt is settled from the engine's counters.
        """
        probe_id = self.new_id()
        try:
            await asyncio.to_thread(self.notes.sent, probe_id, deployment.name, at=self.clock.now())
        except DatabaseUnavailable as away:
            return None, f"not probed, because the probe cannot be recorded: {away.message}"
        answer = ProbeAnswer()
        try:
            await send_probe(
                version,
                deployment,
                probe_id,
                provider=self.providers[deployment.provider],
                transport=self.transport,
                region=self.region,
                day=self.clock.now().date(),
                answer=answer,
            )
        except RequestError as error:
            answer.problem = error
        # Without its end in the records, its tokens count as unknown, as those of a gateway that
        # dies.
        with suppress(DatabaseUnavailable):
            await asyncio.to_thread(self.notes.ended, probe_id, answer.made, at=self.clock.now())
        if answer.problem is None:
            return True, None
        if not answer.could_be_made:
            return None, f"not probed: {answer.problem.message}"
        return False, answer.problem.message
