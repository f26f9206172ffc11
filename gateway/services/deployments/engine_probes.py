"""Finds self-hosted engines that hang and opens their breakers, and probes each engine with an open
breaker by one generated token until it answers.

A hung engine answers 200 on `/health`. So the attempts in flight and a probe of one generated token
decide. No team pays for a probe: its cost is a part of the engine's bill that no team caused. Its
tokens are recorded before and after, because unknown attempts are settled from the engine's
counters. If a probe cannot be recorded, it is not sent, and the next caller's metered request
serves as the probe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from math import inf
from typing import Protocol
from uuid import UUID

import structlog

from gateway.domain.deployments.engine_counters import Tokens
from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.routing.probe_permit import probe_permit
from gateway.errors import DatabaseUnavailable, RequestError
from gateway.services.deployments.ejections import Ejections
from gateway.services.deployments.state import DeploymentHealth, DeploymentState
from gateway.services.ports import Clock, Provider, Transport
from gateway.services.upstream_error import caller_error

log = structlog.get_logger()

LOOK_EVERY_S = 0.25  # seconds; a recovered engine must be in use again within ten
HANGS_AFTER_S = 8.0
PROBE_S = 5.0  # seconds for one token; with a longer queue the engine should get no requests
PROBE_BYTES = 64 * 1024
NOTE_AGAIN_S = 2.0
HANGS = "no_progress"
NOTHING = Tokens(prompt=0, generation=0)


class ProbeNotes(Protocol):
    """Records probes of engines with their tokens.

    `storage.deployments.engine_probes.EngineProbeNotes` implements it. Called in a thread.
    """

    def sent(self, probe_id: UUID, deployment: str, *, at: datetime) -> None:
        """Record a probe before it is sent. Raises `DatabaseUnavailable`."""

    def ended(self, probe_id: UUID, made: Tokens | None, *, at: datetime) -> None:
        """Record a probe's end; `made` is its tokens, None if unknown. Raises
        `DatabaseUnavailable`.
        """


class EngineProbes:
    """The background job that finds hung engines and probes them. `policy` returns the current
    version, None before the first.

    `looks_alive` returns False if the engine's own figures stand still or cannot be read. It
    returns None if unknown; a deployment that may only be slow then does not count as hung.
    """

    def __init__(
        self,
        health: DeploymentHealth,
        *,
        transport: Transport,
        providers: Mapping[str, Provider],
        policy: Callable[[], PolicyVersion | None],
        ejections: Ejections,
        clock: Clock,
        new_id: Callable[[], UUID],
        region: str,
        looks_alive: Callable[[str], bool | None],
        notes: ProbeNotes,
    ) -> None:
        """Make the job without probes under way; `run` starts it."""
        self._health, self._transport, self._providers = health, transport, providers
        self._policy, self._ejections, self._clock, self._new_id = policy, ejections, clock, new_id
        self._region, self._looks_alive, self._notes = region, looks_alive, notes
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._notes_away_until_s = -inf

    async def run(self) -> None:
        """Check the self-hosted engines and probe the hung ones, until cancelled.

        While this runs and can record its probes, no caller's request serves as a probe.
        """
        try:
            while True:
                self.run_once()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            self._health.probes_engines = False
            probes = list(self._under_way.values())
            for probe in probes:
                probe.cancel()
            await asyncio.gather(*probes, return_exceptions=True)

    def run_once(self) -> None:
        """Check every self-hosted engine once. Starts the due probes without waiting for them."""
        version = self._policy()
        if version is None:
            return
        self._health.forget_but(version.policy)
        self._health.probes_engines = self._clock.monotonic() >= self._notes_away_until_s
        for standing in self._health.states():
            deployment = version.policy.deployments[standing.deployment.name]
            if not deployment.is_self_hosted or deployment.base_url != standing.deployment.base_url:
                continue
            now_s = self._clock.monotonic()
            if standing.breaker.opened_s is None:
                if self._hangs(standing, now_s):
                    self._health.open_breaker(deployment, HANGS, now_s=now_s)
                    _leave(standing, now_s)
            elif (
                self._health.probes_engines
                and standing.breaker.is_due(now_s)
                and self._may_be_probed(deployment)
            ):
                probe = asyncio.get_running_loop().create_task(self._probe(version, deployment))
                self._under_way[deployment.name] = probe
                probe.add_done_callback(partial(self._note_probe_ended, deployment.name))

    def _note_probe_ended(self, name: str, probe: asyncio.Task[None]) -> None:
        """Remove a deployment's probe from those under way, because its task ended."""
        self._under_way.pop(name, None)

    def _may_be_probed(self, deployment: Deployment) -> bool:
        """Return True if no probe of it is under way and this worker has not ejected it."""
        return deployment.name not in self._under_way and not self._ejections.is_out(
            deployment.name
        )

    def _hangs(self, standing: DeploymentState, now_s: float) -> bool:
        """Return True if an attempt in flight has waited for long, no attempt received anything
        meanwhile, and the engine's figures stand still.

        Requests that keep arriving do not hide a hang: a start is no sign of life.
        """
        longest_s = max((slot.silent_s(now_s) for slot in standing.under_way), default=0.0)
        is_silent = longest_s >= HANGS_AFTER_S and now_s - standing.received_s >= HANGS_AFTER_S
        return is_silent and self._looks_alive(standing.deployment.name) is False

    async def _probe(self, version: PolicyVersion, deployment: Deployment) -> None:
        """Probe one engine: record the probe, send it, and report its result to the deployment's
        breaker.
        """
        probe_id = self._new_id()
        if not await self._note(partial(self._notes.sent, probe_id, deployment.name)):
            return
        began_s = self._clock.monotonic()
        self._health.of(deployment).breaker.began(began_s)
        answer = ProbeAnswer()
        try:
            await send_probe(
                version,
                deployment,
                probe_id,
                provider=self._providers[deployment.provider],
                transport=self._transport,
                region=self._region,
                day=self._clock.now().date(),
                answer=answer,
            )
        except RequestError as error:
            answer.problem = error
        except Exception:  # the task's boundary; the breaker treats a silent probe as lost
            log.exception("engine_not_probed", deployment=deployment.name)
            return
        self._health.note_probe(
            deployment, answer.problem, began_s=began_s, now_s=self._clock.monotonic()
        )
        await self._note(partial(self._notes.ended, probe_id, answer.made))

    async def _note(self, note: Callable[..., None]) -> bool:
        """Record a probe's begin or end in Postgres; return False if that fails."""
        try:
            await asyncio.to_thread(note, at=self._clock.now())
        except DatabaseUnavailable as away:
            log.warning("probe_not_noted", problem=away.message)
        except Exception:  # the task's boundary; an unrecorded probe is not sent
            log.exception("probe_not_noted")
        else:
            return True
        self._notes_away_until_s = self._clock.monotonic() + NOTE_AGAIN_S
        self._health.probes_engines = False
        return False


def _leave(standing: DeploymentState, now_s: float) -> None:
    """End the attempts whose callers received nothing yet from a hung engine, so that their
    requests go to another deployment; one without another keeps waiting.
    """
    for slot in tuple(standing.under_way):
        if slot.leave is not None:
            slot.leave(now_s)


@dataclass(slots=True)
class ProbeAnswer:
    """The result of a probe. Zero tokens are certain before it is sent; afterwards only the answer
    tells.

    `could_be_made` is False if this process cannot make the request, because the deployment's
    credential cannot be read here.
    """

    made: Tokens | None = NOTHING
    problem: RequestError | None = None
    could_be_made: bool = False


async def send_probe(
    version: PolicyVersion,
    deployment: Deployment,
    probe_id: UUID,
    *,
    provider: Provider,
    transport: Transport,
    region: str,
    day: date,
    answer: ProbeAnswer,
) -> None:
    """Generate one token at a deployment and record the result in `answer`; `region` is this
    gateway's. Raises the deployment's error.
    """
    permit = probe_permit(version, deployment, gateway_region=region, day=day)
    call = await provider.probe(deployment, probe_id)
    answer.could_be_made = True
    upstream = await transport.send(permit, call, within_s=PROBE_S)
    answer.made = None
    try:
        status, headers = await upstream.head()
        body = await upstream.read(PROBE_BYTES)
    finally:
        upstream.close()
    answer.made = _tokens(provider.usage_in(body))
    if not 200 <= status < 300:
        answer.made = answer.made or NOTHING
        raise caller_error(provider, deployment, call, (status, headers), body=body)


def _tokens(usage: TokenUsage | None) -> Tokens | None:
    """Return the tokens of a probe from its answer's usage; None if one figure is missing."""
    if usage is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    return Tokens(prompt=usage.input_tokens, generation=usage.output_tokens)
