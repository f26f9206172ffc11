"""Learns latency and tokens of each deployment from settled attempts and engine loads, and returns
the order in which a request tries the eligible ones.

A worker learns them from settled attempts and from engines' reports. It keeps them in memory and
forgets them within minutes. `domain.routing.objectives` turns them into an order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from gateway.domain.deployments.engine_load import EngineLoad
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.operation import WITHOUT_OUTPUT, Operation
from gateway.domain.policy.policy import Deployment, LatencyPrior
from gateway.domain.request.bound import UNSEEN_PROMPT
from gateway.domain.request.request import Request, RequestFacts
from gateway.domain.routing.affinity import session_of
from gateway.domain.routing.decide import Candidate, Decision, Ranking
from gateway.domain.routing.objectives import Candidates, candidates_of, rank
from gateway.domain.routing.predictions import (
    DEFAULT_PRIOR,
    OUTPUT_TOKENS,
    TOKENS_PER_BYTE,
    Conditions,
    Prediction,
    queue_s,
)
from gateway.domain.samples import PRIOR_SAMPLES, Mean, Quantiles
from gateway.services.deployments.cached_sessions import CachedSessions
from gateway.services.ports import Clock

# seconds; quantiles are recomputed at most this often, so an order may be that old
FRESH_S = 0.1
# A model that is not in memory is read from disk first: 5 GB at 0.5 GB/s. Ollama does not report
# how long it takes.
LOADING_S = 10.0
MOST_VIEWS = 1024  # ranked decisions; a snapshot has a few hundred
MOST_DEPLOYMENTS = 4096
MOST_PAIRS = 10_000  # pairs of route and team for each estimate, a few hundred bytes each

Pair = tuple[str, str]  # route and team


class Loads(Protocol):
    """Engines' own load figures; `services.deployments.engine_load` collects them."""

    def of(self, deployment: str) -> EngineLoad | None:
        """Return the last load of a deployment's engine, None if it reported nothing in the last
        seconds.
        """

    def note_header(self, deployment: str, value: str) -> None:
        """Record the load header of an engine's answer."""


class _NoLoads:
    """Loads without any engine, for a worker that samples none."""

    def of(self, deployment: str) -> EngineLoad | None:
        """Return None: no engine's load is known."""
        return None

    def note_header(self, deployment: str, value: str) -> None:
        """Ignore the load header of an answer."""


class _DeploymentStats:
    """The observations of one engine: times and tokens of past attempts.

    Another model, price or address under the same name is another engine.

    `base_url` is None while only events are known.
    """

    __slots__ = (
        "_at_s",
        "_figures",
        "_is_new",
        "_prior",
        "base_url",
        "bytes",
        "cached",
        "model",
        "overhead",
        "price_id",
        "tokens",
        "tpot",
        "ttft",
    )

    def __init__(self, model: str, price_id: str | None) -> None:
        """Start without observations of a model at a price."""
        self.model, self.price_id = model, price_id
        self.base_url: str | None = None
        self.overhead = 0
        self.ttft, self.tpot = Quantiles(), Quantiles()
        self.tokens, self.bytes = Mean(), Mean()
        self.cached: dict[Pair, Mean] = {}
        self._prior = DEFAULT_PRIOR
        self._figures, self._at_s, self._is_new = (0.0, 0.0, 0.0, 0.0, 0.0), float("-inf"), True

    def is_of(self, deployment: Deployment, price_id: str | None) -> bool:
        """Return True if the observations belong to this deployment's engine, as far as is
        known.
        """
        is_there = self.base_url is None or self.base_url == deployment.base_url
        return is_there and self.model == deployment.model and self.price_id == price_id

    def name_place(self, deployment: Deployment) -> None:
        """Take over the engine's address and declared speed from the policy's deployment."""
        self.base_url, self.overhead = deployment.base_url, deployment.input_overhead_tokens
        prior = deployment.prior or DEFAULT_PRIOR
        if prior != self._prior:
            self._prior, self._at_s = prior, float("-inf")

    def note(self, event: UsageEvent, now_s: float) -> None:
        """Learn times and tokens from an attempt that ended at this deployment."""
        if event.ttft_s is not None:
            self.ttft.add(event.ttft_s, now_s)
        elif event.outcome is Outcome.UPSTREAM_TIMEOUT:
            # a lower bound: the first token had not come yet
            self.ttft.add(event.duration_s, now_s)
        if event.tpot_s is not None:
            self.tpot.add(event.tpot_s, now_s)
        self._is_new = True
        usage, features = event.usage, event.features
        if event.outcome is not Outcome.OK or not usage.input_tokens:
            return
        if usage.cached_input_tokens is not None:
            share = min(1.0, usage.cached_input_tokens / usage.input_tokens)
            _mean_of(self.cached, (event.route, event.team)).add(share, now_s)
        bound = features.get("input_bound_tokens")
        if (
            isinstance(bound, int)
            and bound > self.overhead
            and UNSEEN_PROMPT.isdisjoint(features.get("features", ()))
        ):
            self.tokens.add(usage.input_tokens, now_s)
            self.bytes.add(bound - self.overhead, now_s)

    def figures(self, now_s: float) -> tuple[float, float, float, float, float]:
        """Return TTFT (median, 95th percentile), TPOT, samples and tokens per byte, refreshed if
        needed.
        """
        old_s = now_s - self._at_s
        if old_s >= FRESH_S and (self._is_new or old_s >= 10 * FRESH_S):
            prior: LatencyPrior = self._prior
            ttft_s, ttft_p95_s, samples = self.ttft.at(now_s, prior_s=prior.ttft_s)
            tpot_s, _, _ = self.tpot.at(now_s, prior_s=prior.tpot_s)
            self._figures = (ttft_s, ttft_p95_s, tpot_s, samples, self._tokens_per_byte(now_s))
            self._at_s, self._is_new = now_s, False
        return self._figures

    def _tokens_per_byte(self, now_s: float) -> float:
        """Return tokens ÷ bytes of all prompts, so that long ones weigh as much as they cost.

        The prior is five prompts of the mean size.
        """
        weight = self.bytes.weight(now_s)
        if weight <= 1e-3:
            return TOKENS_PER_BYTE
        # Both means have the same weight, so their ratio is the ratio of the sums.
        size = self.bytes.value(now_s, prior=0.0, prior_weight=0.0)
        tokens = self.tokens.value(now_s, prior=size * TOKENS_PER_BYTE)
        return tokens / size if size else TOKENS_PER_BYTE


class _View(Struct):
    """One decision, prepared so that similar requests are ranked quickly.

    It keeps its decision alive, so that no other object can get the same identity.
    """

    candidates: Candidates
    engines: tuple[int, ...]  # indexes of the engines that may report a load
    late: set[str]
    predictions: list[Prediction]
    live: Conditions
    fresh_until_s: float = float("-inf")


class Estimates:
    """Learns from attempts, and ranks a decision's eligible deployments for one request."""

    def __init__(self, clock: Clock, *, loads: Loads | None = None) -> None:
        """Start without observations; `loads` has the engines' reported load."""
        self._clock = clock
        self._loads: Loads = loads or _NoLoads()
        self._seen: dict[str, _DeploymentStats] = {}
        self._outputs: dict[Pair, Mean] = {}
        self._views: dict[int, _View] = {}
        # By route and priority: the deployments that missed its latency bound last time.
        self._late: dict[Pair, set[str]] = {}
        self._in_flight: dict[str, int] = {}
        self._sessions = CachedSessions()

    @property
    def in_flight(self) -> Mapping[str, int]:
        """Return this worker's attempts in flight, by deployment."""
        return self._in_flight

    def rank(
        self, request: Request, decision: Decision, *, degrade: Callable[[], Decision] | None = None
    ) -> Ranking:
        """Return the order in which a request should try its decision's eligible deployments.

        `degrade` decides about the route's `degrade_to`; it is called only if needed.
        """
        facts = request.body.facts
        if not decision.is_ordered and _fits(facts, decision.least_window):
            return decision.as_listed
        view = self._fresh_view(decision, facts.operation)

        def degraded() -> tuple[Candidates, Conditions] | None:
            """Decide about the route that this one degrades to; None if there is none or it has no
            eligible deployment.
            """
            other = degrade() if degrade is not None else None
            return (
                None
                if other is None or not other.eligible
                else self.current_conditions(other, facts.operation)
            )

        kept_at = None
        if request.session is not None:
            kept_at = self._sessions.deployment_of(
                decision.route.name, session_of(request), now_s=self._clock.monotonic()
            )
        ranking = rank(
            view.candidates,
            facts,
            view.live,
            session=session_of(request),
            degrade=degraded,
            kept_at=kept_at,
        )
        if kept_at is not None and ranking.choices[0].candidate.deployment.name == kept_at:
            ranking = replace(ranking, kept_at=kept_at)
        if ranking.late or view.late:
            view.late.difference_update(view.candidates.names)
            view.late.update(ranking.late)
        return ranking

    def current_conditions(
        self, decision: Decision, operation: Operation = Operation.CHAT
    ) -> tuple[Candidates, Conditions]:
        """Return a decision's eligible deployments with their current estimates and load."""
        view = self._fresh_view(decision, operation)
        return view.candidates, view.live

    def began(self, deployment: str) -> None:
        """Count an attempt in flight at a deployment."""
        self._in_flight[deployment] = self._in_flight.get(deployment, 0) + 1

    def ended(self, deployment: str) -> None:
        """Remove an ended attempt from the deployment's attempts in flight."""
        left = self._in_flight.get(deployment, 0) - 1
        if left > 0:
            self._in_flight[deployment] = left
        else:
            self._in_flight.pop(deployment, None)

    def note_session(self, request: Request, event: UsageEvent | None) -> None:
        """Learn from an attempt that ended where its caller's session has its prompt cached."""
        if event is not None and request.session is not None:
            now_s = self._clock.monotonic()
            self._sessions.note(event, session=session_of(request), now_s=now_s)

    def note_load(self, deployment: str, header: str) -> None:
        """Record the load that an engine reported in a header of an answer."""
        self._loads.note_header(deployment, header)

    def note(self, event: UsageEvent) -> None:
        """Learn latency and tokens from a settled attempt. Never awaits."""
        now_s = self._clock.monotonic()
        seen = self._seen.get(event.deployment)
        if seen is None or (seen.model, seen.price_id) != (event.model, event.price_id):
            if seen is not None and seen.base_url is not None:
                return  # it started before the policy put another engine there
            seen = self._add_stats(event.deployment, _DeploymentStats(event.model, event.price_id))
        seen.note(event, now_s)
        if (
            event.outcome is Outcome.OK
            and event.usage.output_tokens
            and event.operation not in WITHOUT_OUTPUT
        ):
            choices = event.features.get("choices", 1)
            _mean_of(self._outputs, (event.route, event.team)).add(
                event.usage.output_tokens / choices, now_s
            )

    def _fresh_view(self, decision: Decision, operation: Operation) -> _View:
        """Return the prepared decision with predictions that are recent enough."""
        view = self._views.get(id(decision))
        if view is None:
            view = self._new_view(decision, operation)
        now_s = self._clock.monotonic()
        if now_s >= view.fresh_until_s:
            self._refresh(view, now_s)
        for place in view.engines:
            view.predictions[place] = self._engine(view, place, now_s)
        return view

    def _new_view(self, decision: Decision, operation: Operation) -> _View:
        """Prepare a decision for ranking, and keep it for similar requests."""
        candidates = candidates_of(decision, operation)
        late = self._late.setdefault((decision.route.name, decision.team.priority), set())
        engines = tuple(
            i for i, one in enumerate(candidates.choices) if one.candidate.deployment.is_self_hosted
        )
        if len(self._views) >= MOST_VIEWS:
            # It holds old snapshots' decisions, and each keeps its policy in memory.
            self._views.clear()
        predictions: list[Prediction] = []
        view = _View(candidates, engines, late, predictions, Conditions(predictions=predictions))
        self._views[id(decision)] = view
        return view

    def _refresh(self, view: _View, now_s: float) -> None:
        """Predict latency and tokens at each deployment of the prepared decision again."""
        decision = view.candidates.decision
        pair = (decision.route.name, decision.team.name)
        view.predictions = [
            self._prediction(choice.candidate, pair, now_s) for choice in view.candidates.choices
        ]
        outputs = self._outputs.get(pair)
        view.live = Conditions(
            predictions=view.predictions,
            in_flight=self._in_flight,
            late=view.late,
            output_tokens=OUTPUT_TOKENS
            if outputs is None
            else outputs.value(now_s, prior=OUTPUT_TOKENS),
            output_samples=0.0 if outputs is None else outputs.weight(now_s),
        )
        view.fresh_until_s = now_s + FRESH_S

    def _prediction(self, candidate: Candidate, pair: Pair, now_s: float) -> Prediction:
        """Return the prediction for one candidate from past attempts: latency, tokens per byte and
        cached share.
        """
        seen = self._stats_of(candidate)
        ttft_s, ttft_p95_s, tpot_s, samples, tokens_per_byte = seen.figures(now_s)
        cached = seen.cached.get(pair)
        return Prediction(
            ttft_s,
            ttft_p95_s,
            tpot_s,
            samples,
            tokens_per_byte,
            0.0 if cached is None else cached.value(now_s, prior=0.0, prior_weight=PRIOR_SAMPLES),
            0.0 if cached is None else cached.weight(now_s),
        )

    def _engine(self, view: _View, place: int, now_s: float) -> Prediction:
        """Return the prediction for a self-hosted engine: its past attempts, corrected by the load
        and speed that it reports.
        """
        candidate, known = view.candidates.choices[place].candidate, view.predictions[place]
        ttft_s, ttft_p95_s, tpot_s, samples, _ = self._stats_of(candidate).figures(now_s)
        load = self._loads.of(candidate.deployment.name)
        if load is None:
            waiting = None
        else:
            first_s = ttft_s if load.prefill_s is None else load.prefill_s
            first_p95_s = ttft_p95_s if load.prefill_s is None else load.prefill_s
            queued_s, late_s = queue_s(load, ttft_s=first_s)
            ttft_s, ttft_p95_s, waiting = (
                first_s + queued_s,
                first_p95_s + late_s,
                load.waiting or 0.0,
            )
            if load.is_loaded is False:
                ttft_s, ttft_p95_s = ttft_s + LOADING_S, ttft_p95_s + LOADING_S
            tpot_s = tpot_s if load.tpot_s is None else load.tpot_s
        return Prediction(
            ttft_s,
            ttft_p95_s,
            tpot_s,
            samples,
            known.tokens_per_byte,
            known.cached_share,
            known.cached_samples,
            waiting,
        )

    def _stats_of(self, candidate: Candidate) -> _DeploymentStats:
        """Return the observations of the engine that is behind a candidate's deployment now."""
        deployment, price = candidate.deployment, candidate.price
        price_id = None if price is None else price.price_id
        seen = self._seen.get(deployment.name)
        if seen is None or not seen.is_of(deployment, price_id):
            seen = self._add_stats(deployment.name, _DeploymentStats(deployment.model, price_id))
        seen.name_place(deployment)
        return seen

    def _add_stats(self, deployment: str, seen: _DeploymentStats) -> _DeploymentStats:
        """Keep new observations of a deployment, in place of the oldest if there are too many."""
        if len(self._seen) >= MOST_DEPLOYMENTS and deployment not in self._seen:
            del self._seen[next(iter(self._seen))]
        self._seen[deployment] = seen
        return seen


def _fits(facts: RequestFacts, window: int | None) -> bool:
    """Return True if prompt and answer surely fit the context window: nearly every prompt has at
    least two bytes per token.
    """
    return (
        window is None
        or facts.body_bytes // 2 + (facts.output_bound_tokens or 0) * facts.choices <= window
    )


def _mean_of(means: dict[Pair, Mean], pair: Pair) -> Mean:
    """Return the mean for a route and team; make an empty one at its first use.

    When there are too many, the oldest is dropped.
    """
    mean = means.get(pair)
    if mean is None:
        if len(means) >= MOST_PAIRS:
            del means[next(iter(means))]
        mean = means[pair] = Mean()
    return mean
