"""Looks after self-hosted engines: passes over what hangs, and asks what is passed over whether it is back.

A hung engine answers 200 on `/health`, so it is believed by what comes of the attempts under way there, and by one
token that it makes. A probe is metered to nobody: what it costs is a part of the engine's own bill that no team
caused, and is shown as such.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from uuid import UUID

import structlog

from gateway.domain.policy import Deployment, PolicyVersion
from gateway.domain.probe_permit import probe_permit
from gateway.errors import RequestError
from gateway.services.ejections import Ejections
from gateway.services.health import Health, Place, Standing
from gateway.services.ports import Clock, Provider, Transport

log = structlog.get_logger()

LOOK_EVERY_S = 0.25  # of ten seconds in which what is back must be in use again
HANGS_AFTER_S = 8.0
PROBE_S = 5.0  # for one token; a queue that is longer is no place to send a request to
PROBE_BYTES = 64 * 1024
HANGS = "no_progress"


class EngineProbes:
    """A job of each worker. `policy` is the one in force, None before the first.

    `looks_alive` is False for a deployment whose engine's own figures stand still or cannot be read, None where nobody
    knows: then nothing is said to hang that may be merely slow.
    """

    def __init__(
        self, health: Health, *, transport: Transport, providers: Mapping[str, Provider],
        policy: Callable[[], PolicyVersion | None], ejections: Ejections, clock: Clock, new_id: Callable[[], UUID],
        region: str, looks_alive: Callable[[str], bool | None],
    ) -> None:  # fmt: skip
        self._health, self._transport, self._providers = health, transport, providers
        self._policy, self._ejections, self._clock, self._new_id = policy, ejections, clock, new_id
        self._region, self._looks_alive = region, looks_alive
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look until cancelled. As long as this runs, no caller's request has to find out whether an engine is back."""
        self._health.probes_engines = True
        try:
            while True:
                try:
                    self.look()
                except Exception:  # the background loop's boundary: the next look has another chance
                    log.exception("engines_not_probed")
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            self._health.probes_engines = False
            probes = list(self._under_way.values())
            for probe in probes:
                probe.cancel()
            await asyncio.gather(*probes, return_exceptions=True)

    def look(self) -> None:
        """One look at every engine. Starts the probes that are due; does not wait for them."""
        version = self._policy()
        if version is None:
            return
        self._health.forget_but(version.policy)
        for standing in self._health.standings():
            deployment = version.policy.deployments[standing.deployment.name]
            if not deployment.is_self_hosted or deployment.base_url != standing.deployment.base_url:
                continue
            now_s = self._clock.monotonic()
            if standing.breaker.opened_s is None:
                if self._hangs(standing, now_s):
                    self._health.open(deployment, HANGS, now_s=now_s)
            elif standing.breaker.is_due(now_s) and self._may_be_probed(deployment):
                standing.breaker.began(now_s)
                probe = asyncio.get_running_loop().create_task(self._probe(version, deployment, now_s))
                self._under_way[deployment.name] = probe
                probe.add_done_callback(partial(self._forget, deployment.name))

    def _forget(self, name: str, probe: asyncio.Task[None]) -> None:
        self._under_way.pop(name, None)

    def _may_be_probed(self, deployment: Deployment) -> bool:
        return deployment.name not in self._under_way and not self._ejections.is_out(deployment.name)

    def _hangs(self, standing: Standing, now_s: float) -> bool:
        """Whether attempts are under way, none of them has heard anything for long, and the engine's figures stand."""
        heard_s = [_heard_s(place) for place in standing.under_way]
        is_silent = bool(heard_s) and now_s - max(heard_s) >= HANGS_AFTER_S
        return is_silent and self._looks_alive(standing.deployment.name) is False

    async def _probe(self, version: PolicyVersion, deployment: Deployment, began_s: float) -> None:
        problem: RequestError | None = None
        try:
            await self._ask(version, deployment)
        except RequestError as error:
            problem = error
        except Exception:  # the task's boundary; the breaker takes a probe that nobody hears of for lost
            log.exception("engine_not_probed", deployment=deployment.name)
            return
        self._health.note_probe(deployment, problem, began_s=began_s, now_s=self._clock.monotonic())

    async def _ask(self, version: PolicyVersion, deployment: Deployment) -> None:
        """Have it make one token. Raises what went wrong."""
        provider = self._providers[deployment.provider]
        day = self._clock.now().date()
        permit = probe_permit(version, deployment, gateway_region=self._region, day=day)
        upstream = await self._transport.send(permit, provider.probe(deployment, self._new_id()), within_s=PROBE_S)
        try:
            status, headers = await upstream.head()
            body = await upstream.read(PROBE_BYTES)
        finally:
            upstream.close()
        if not 200 <= status < 300:
            raise provider.error(deployment, status, headers, body=body)


def _heard_s(place: Place) -> float:
    """When an attempt last heard something; what waits for its room or its record has not been sent."""
    attempt = place.attempt
    if attempt is None:
        return float("inf")
    return max(attempt.started_s, attempt.headers_s or 0.0, attempt.last_token_s or 0.0)
