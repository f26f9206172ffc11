"""Builds the upstream side of a serving process: the state of deployments, and transport,
providers, token counter and engine probes; it sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from gateway.domain.providers.table import TextForms
from gateway.providers.engine_sampler import EngineSampler
from gateway.providers.engines.tokenizer_file import text_forms_of
from gateway.providers.registry import build_providers, prompt_counters
from gateway.providers.token_counting import OfflineTokenCounter
from gateway.providers.transport import Http1Transport, open_transport
from gateway.services.deployments.ejections import Ejections
from gateway.services.deployments.engine_load import EngineLoads
from gateway.services.deployments.engine_probes import EngineProbes
from gateway.services.deployments.estimates import Estimates
from gateway.services.deployments.state import DeploymentHealth
from gateway.services.ports import Provider
from gateway.services.request.abandoned import AbandonedAnswers, DrainLimits
from gateway.services.request.prompt_counts import PromptCounter
from gateway.serving.context import ProcessContext
from gateway.settings import Settings
from gateway.storage.deployments.ejections import EjectionStore
from gateway.storage.deployments.engine_probes import EngineProbeNotes

CACHE_SALTS = (
    # each use of the pepper has another label, so no derived key serves two
    b"tollgate cache salts v1"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployments:
    """The knowledge about deployments: ejections, engine loads, estimates and state."""

    ejections: Ejections
    loads: EngineLoads
    estimates: Estimates
    health: DeploymentHealth


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """The path to upstreams: transport, providers, and the settlement of abandoned answers.

    `text_forms` are the forms in which the configured tokenizers read a text, by the upstream's
    model.
    """

    transport: Http1Transport
    counter: OfflineTokenCounter
    abandoned: AbandonedAnswers
    providers: Mapping[str, Provider]
    prompt_counters: Mapping[str, PromptCounter]
    text_forms: Mapping[str, TextForms]
    probes: EngineProbes


def build_deployments(context: ProcessContext) -> Deployments:
    """Build one worker's own knowledge about deployments, still empty: residency ejections, engine
    loads, estimates and health.
    """
    clock, metrics = context.clock, context.metrics
    ejections = Ejections(
        EjectionStore(context.stores.database), clock, on_ejected=metrics.count_ejection
    )
    loads = EngineLoads(
        policy=context.policy, page=EngineSampler(clock.now).metrics_page, clock=clock
    )
    health = DeploymentHealth(
        max_in_flight=max(context.settings.max_streams // 2, 1),
        on_begin=loads.began,
        on_open=metrics.note_opened,
        on_close=metrics.note_closed,
        on_retry=metrics.count_retry,
        on_retry_refused=metrics.count_refused_retry,
    )
    return Deployments(
        ejections=ejections, loads=loads, estimates=Estimates(clock, loads=loads), health=health
    )


def build_dispatch(context: ProcessContext, deployments: Deployments) -> Dispatch:
    """Build transport, providers, probes and abandoned answers of a process. A broken tokenizer is
    logged now, not at the first cut stream.
    """
    settings = context.settings
    transport = open_transport(settings.max_streams)
    counter = _token_counter(settings)
    limits = DrainLimits(
        answers=settings.abandoned_answers,
        seconds=settings.abandoned_s,
        events=settings.abandoned_events,
    )
    abandoned = AbandonedAnswers(counter, limits, is_stopping=lambda: context.drain.is_over)
    providers = build_providers(salt_key=context.peppers[0].derived(CACHE_SALTS))
    probes = EngineProbes(
        deployments.health,
        transport=transport,
        providers=providers,
        policy=context.policy,
        ejections=deployments.ejections,
        clock=context.clock,
        new_id=context.new_id,
        region=settings.region,
        looks_alive=deployments.loads.looks_alive,
        notes=EngineProbeNotes(context.stores.database),
    )
    return Dispatch(
        transport=transport,
        counter=counter,
        abandoned=abandoned,
        providers=providers,
        prompt_counters=prompt_counters(providers),
        text_forms=_text_forms(settings.tokenizers),
        probes=probes,
    )


def _text_forms(tokenizers: Mapping[str, Path]) -> Mapping[str, TextForms]:
    """Return the forms in which the configured tokenizers read a text, without those whose file
    cannot be read: any form counts for them.
    """
    found = {}
    for model, path in tokenizers.items():
        with suppress(OSError, msgspec.DecodeError):
            found[model] = text_forms_of(path.read_bytes())
    return found


def _token_counter(settings: Settings) -> OfflineTokenCounter:
    """Build the counter of tokens with the configured tokenizers; log each one that cannot be
    used.
    """
    counter = OfflineTokenCounter({model: str(path) for model, path in settings.tokenizers.items()})
    for model, problem in counter.check().items():
        structlog.get_logger().warning("tokenizer_not_usable", model=model, problem=problem)
    return counter
