"""Tracks one upstream attempt: records its intent, times its answer, and settles it exactly once,
however it ends; the service sends it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from gateway.domain.budgets.budgets import Account
from gateway.domain.ledger.records import Intent
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.money import plain_usd
from gateway.domain.operation import WITHOUT_OUTPUT
from gateway.domain.places.regions import OTHER_PLACE
from gateway.domain.policy.request_fields import (
    REROUTING,
    feature_and_tier,
)
from gateway.domain.pricing.cache_writes import longest_kind
from gateway.domain.pricing.pricing import Price, tier_name
from gateway.domain.pricing.settlement import (
    OTHER_MODEL,
    Counted,
    Evidence,
    Settlement,
    fee_of_shown,
    settle,
)
from gateway.domain.pricing.tokens import OUTPUT_KINDS, TokenKind, TokenUsage, with_reasoning
from gateway.domain.providers.table import TextForms
from gateway.domain.request.bound import Bound, bound_of
from gateway.domain.request.request import Request
from gateway.domain.request.served_tier import UNKNOWN_TIER, ServedTier, agreed_tier, served_tier
from gateway.domain.request.unlisted import multiplied
from gateway.domain.request.unpriced import has_sound
from gateway.domain.residency.stated_place import Contradiction, stated_region
from gateway.domain.routing.decide import Candidate, Choice, Decision, Ranking
from gateway.services.deployments.state import Slot
from gateway.services.ports import Clock
from gateway.services.request.admission import AttemptGrant
from gateway.services.request.begun_event import EventTemplates, begun_event, may_be_rerouted
from gateway.services.request.meter import Meter
from gateway.services.request.totals import OnSettled, RequestTotals
from gateway.wire.dialect import Translation
from gateway.wire.observed import WORD, Observed
from gateway.wire.prompt_text import has_prompt_text
from gateway.wire.translation.asked_thinking import asks_thinking
from gateway.wire.translation.losses import MOST_NAMED, named_in_header

log = structlog.get_logger()
MOST_TIER_CHARS = 64
_USUAL_WORDS = frozenset({"stop", "length", "tool_calls", "end_turn", "completed"})
_ID = re.compile(r"[A-Za-z0-9_.:+/=-]{1,256}")  # of an answer, base64 included: LiteLLM's
SHORTEST_WAIT_S = 0.001  # seconds; a shorter wait is the gateway's own work and counts as overhead


class Attempt(Struct, kw_only=True):
    """The life of one upstream call. The relay fills `observed` as the answer passes.

    `translation` is the request in the deployment's dialect, None if it speaks the caller's.
    `begun` is the event that stands if the process dies; `event` is the settled one. Each listener
    of `on_settled` is called once, when the attempt ends. `slot` is its place in flight at the
    deployment. `queue_s` is its wait here for capacity, budget or a pause, from its request (see
    `Attempts.begin`) until it could be sent; None if not recorded. `received_s` and `started_s` are
    clock times.
    """

    request: Request
    decision: Decision
    candidate: Candidate
    number: int
    started_s: float
    received_s: float
    bound: Bound
    begun: UsageEvent
    slot: Slot
    on_settled: list[OnSettled]
    clock: Clock
    meter: Meter
    queue_s: float | None = None
    translation: Translation | None = None
    observed: Observed = msgspec.field(default_factory=Observed)
    http_status: int | None = None
    stated_region: str | None = None  # the region that the upstream's headers report
    stated_tier: str | None = None  # the service tier that the upstream's headers report
    headers_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    max_gap_s: float | None = None
    _pieces: int = 0
    event: UsageEvent | None = None
    # The cost shown in the answer, and the usage that it is for. A plain answer was whole then. A
    # stream may say more, which changes the cost: then another one is booked, and flagged.
    _shown: tuple[TokenUsage, Settlement] | None = None
    _priced_tier: str | None = None  # the service tier of the last settlement

    def note_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Record the status and headers of the upstream's answer."""
        self.http_status = status
        self.headers_s = self.slot.last_received_s = self.clock.monotonic()
        self.stated_region = stated_region(headers, None)
        tier_header = self.candidate.deployment.provider_facts.tier_header
        if tier_header is not None:
            self.stated_tier = (headers.get(tier_header) or "")[:MOST_TIER_CHARS] or None

    def note_progress(self) -> None:
        """Record that a part of the upstream's answer arrived, with its times.

        Parts without content, such as comments that keep a connection open, count as silence.
        """
        pieces = self.observed.pieces
        if pieces == self._pieces:
            return
        self._pieces = pieces
        now_s = self.clock.monotonic()
        if self.last_token_s is None:
            self.first_token_s = now_s
            self.meter.saw_first_usage()
        else:
            gap_s = now_s - self.last_token_s
            if self.max_gap_s is None or gap_s > self.max_gap_s:
                self.max_gap_s = gap_s
        self.last_token_s = now_s
        self.slot.note_received(now_s)

    def running_usage(self) -> TokenUsage | None:
        """Return the last usage that the upstream reported so far; None if it would not be all that
        is charged, so that recovery keeps the hold.
        """
        rounds = self.bound.rounds
        return self.observed.usage if rounds is None or rounds.fee is None else None

    def cost_text(self, usage: TokenUsage) -> str | None:
        """Return the cost for the caller's answer if `usage` is its last: plain dollars, None if
        unknown.
        """
        settlement = self._settlement(usage, was_served=True)
        if settlement.cost_nusd is None:
            return None
        self._shown = (usage, settlement)
        return plain_usd(settlement.cost_nusd)

    @property
    def overhead_s(self) -> float | None:
        """Return the gateway's own seconds from the request's arrival to this attempt's start; None
        before the upstream answered.

        Its waits here are left out. A later attempt's overhead includes the earlier attempts.
        """
        if self.headers_s is None:
            return None
        return self.started_s - self.received_s - (self.queue_s or 0.0)

    def intend(self) -> Awaitable[None]:
        """Write the intent to send this attempt to the journal; resolves when it is durable.

        Raises `JournalFull`.
        """
        # Only engines report running usage, and they have one tier, so the other tiers of a list
        # price are left out.
        intent = Intent(
            event=self.begun,
            price=self._price.for_tier(None),
            writes_output=self.request.body.facts.operation not in WITHOUT_OUTPUT,
        )
        try:
            return self.meter.intend(intent, self.running_usage)
        except BaseException:
            self._end(None)
            raise

    def settle(
        self, outcome: Outcome, *, was_served: bool = True, counted: Counted | None = None
    ) -> UsageEvent:
        """Replace the hold by the true cost, and record the attempt's event.

        Never awaits; a second call changes nothing.

        `was_served` is False if the upstream certainly generated nothing; `counted` is our own
        count. If an answer cannot be settled, its hold is booked: an attempt without an event would
        keep its money and slot. Never raises.
        """
        if self.event is None:
            try:
                event = self._settled(outcome, was_served=was_served, counted=counted)
                self.meter.settle(event)
            except Exception:  # the last resort, for any content of the answer
                log.exception(
                    "settlement_failed",
                    request_id=str(self.request.request_id),
                    attempt=self.number,
                )
                event = self._settle_at_its_hold(outcome)
            self.event = event
            self._end(event)
        return self.event

    def _settle_at_its_hold(self, outcome: Outcome) -> UsageEvent:
        """Record the attempt as unknown usage at its hold, because its settlement failed; never
        raises.
        """
        event = self._at_its_hold(outcome)
        try:
            self.meter.settle(event)
        except Exception:  # the intent stays in the journal, and the next start books it
            log.exception(
                "settlement_not_written",
                request_id=str(self.request.request_id),
                attempt=self.number,
            )
            self.meter.give_up(event)
        return event

    def _end(self, event: UsageEvent | None) -> None:
        """Call the listeners of `on_settled`; `event` is None for an attempt that was never
        sent.
        """
        listeners, self.on_settled = self.on_settled, []
        for listener in listeners:
            try:
                listener(event)
            except Exception:  # the other listeners must be called too
                log.exception(
                    "end_not_told", request_id=str(self.request.request_id), attempt=self.number
                )

    def _settled(
        self, outcome: Outcome, *, was_served: bool, counted: Counted | None
    ) -> UsageEvent:
        """Return the attempt's settled event, marked suspect if the upstream reported another
        place.
        """
        event = self._as_event(
            outcome, self._last_settlement(was_served=was_served, counted=counted)
        )
        found = self._contradiction()
        if found is None:
            return event
        self.meter.report_region_mismatch(found, event.key)
        return replace(event, is_suspect=True, decision={**event.decision, "stated": found.stated})

    def _at_its_hold(self, outcome: Outcome) -> UsageEvent:
        """Return the event of an attempt with an unreadable answer: unknown usage, booked at its
        hold, for review.
        """
        duration_s = self.clock.monotonic() - self.started_s
        return replace(
            self.begun,
            outcome=outcome,
            http_status=self.http_status,
            duration_s=duration_s,
            is_suspect=True,
        )

    def _contradiction(self) -> Contradiction | None:
        """Return the place that the upstream reported, if it was not promised or is not allowed;
        else None.
        """
        first, second = self.observed.stated_geo, self.observed.other_geo
        if first is None and self.stated_region is None:
            return None  # nearly every answer
        places = (
            self.stated_region,
            *(stated_region({}, geo) for geo in (first, second) if geo),
        )
        contradictions = (
            self.decision.contradiction(stated, self.candidate.deployment)
            for stated in places
            if stated is not None
        )
        return next((found for found in contradictions if found is not None), None)

    @property
    def _price(self) -> Price:
        """Return the price of the attempt's candidate, which every eligible one has."""
        assert self.candidate.price is not None, "an unpriced deployment is never eligible"
        return self.candidate.price

    def _at_stated_place(self, price: Price) -> Price:
        """Return the price at the place that the answer states, of one with several places.

        A request that names a place, and whose answer does not, may be served at any.
        """
        stated = self.observed.stated_geo
        if self.observed.other_geo is not None or (
            stated is None and REROUTING in self.request.body.facts.features
        ):
            stated = OTHER_PLACE
        return price.at(stated)

    @property
    def service_tier(self) -> ServedTier:
        """Return the service tier in which the answer was served. A tier that the translation left
        out was not asked for.
        """
        observed, features = self.observed, self.request.body.facts.features
        in_body, echoed = observed.service_tier, observed.echoed_tier
        if (
            self.stated_tier is None
            and (in_body is not None or not features)
            and echoed is None
            and in_body != UNKNOWN_TIER
        ):
            return in_body, True  # nearly every answer
        sent = self.translation
        is_sent = sent is None or "service_tier" not in sent.dropped_fields
        asked = _asked_tier(self.request) if is_sent else None
        if in_body is None or tier_name(echoed) != tier_name(asked):
            in_body = agreed_tier(echoed, in_body)
        return served_tier(
            asked,
            in_head=self.stated_tier,
            in_body=in_body,
            silence_is_standard=self.candidate.deployment.provider_facts.silence_is_standard,
        )

    @property
    def dropped_fields(self) -> tuple[str, ...]:
        """Return the caller's names of the fields that were not sent."""
        lost = () if self.translation is None else self.translation.dropped_fields
        rounds, candidate = self.bound.rounds, self.candidate
        if candidate.unlisted and candidate.left_out:
            lost = (*lost, *map(named_in_header, candidate.left_out[:MOST_NAMED]))
        return lost if rounds is None else (*lost, *(one.where for one in rounds.left_out))

    @property
    def _asked_output_tokens(self) -> int | None:
        """Return the most output tokens under the request's own maximum, None if it has none."""
        has_maximum = self.request.body.facts.output_bound_tokens is not None
        return self.bound.output_tokens if has_maximum else None

    @property
    def _thinks_hidden(self) -> bool:
        """Return True if the answer may hide thinking: an item of it was seen, or the request asks
        for it, or the model does it unasked and the request does not stop it.
        """
        asked = asks_thinking(self.request.body, left_out=self.dropped_fields)
        by_itself = self.candidate.deployment.unasked.thinks_hidden
        return self.observed.has_thought or (by_itself if asked is None else asked)

    def _last_settlement(self, *, was_served: bool, counted: Counted | None) -> Settlement:
        """Return the settlement by all evidence, flagged if the caller was shown another cost."""
        final, shown = self.observed.final, self._shown
        if shown is not None and shown[0] is final and self.observed.is_whole:
            return shown[1]
        settlement = self._settlement(final, was_served=was_served, counted=counted)
        if shown is not None and settlement.cost_nusd != shown[1].cost_nusd:
            return replace(settlement, is_suspect=True)
        return settlement

    def _settlement(
        self, final: TokenUsage | None, *, was_served: bool, counted: Counted | None = None
    ) -> Settlement:
        """Compute tokens, lines and cost from the final usage and all other evidence of this
        attempt.
        """
        observed, facts = self.observed, self.request.body.facts
        lifetimes, deployment = facts.cache_lifetimes, self.candidate.deployment
        running, rounds = observed.running, self.bound.rounds
        if (final is not None and final.unexplained_tokens) or running is not None:
            is_beside = deployment.provider_facts.reasoning_is_beside
            final = with_reasoning(final, is_beside=is_beside)
            running = with_reasoning(running, is_beside=is_beside)
        evidence = Evidence(
            final=final,
            dearest=observed.dearest,
            impossible=observed.impossible,
            running=running,
            is_behind=running is not None and observed.is_behind,
            was_served=was_served,
            writes_output=facts.operation not in WITHOUT_OUTPUT,
            least_output_tokens=observed.least_output_tokens,
            has_prompt=final is None
            or not final.lacks_prompt
            or has_prompt_text(self.request.body),
            fee=None if rounds is None else rounds.fee,
            calls=observed.calls if rounds is None else rounds.with_made(observed.calls),
            is_self_hosted=deployment.is_self_hosted,
        )
        if lifetimes or deployment.unasked.writes_cache:
            asked = longest_kind(lifetimes)
            evidence = replace(evidence, asked_writes=asked, has_stated_writes=True)
        if observed.shown or facts.features or facts.sound:
            evidence = self._with_shown(evidence, observed.shown)
        if counted is not None:
            evidence = replace(
                evidence,
                counted=counted,
                is_cut=observed.is_cut,
                thinks_hidden=not deployment.is_self_hosted and self._thinks_hidden,
                asked_output_tokens=self._asked_output_tokens,
            )
        price = self._price
        if price.elsewhere:
            price = self._at_stated_place(price)
        self._priced_tier, is_tier_known = self.service_tier
        return settle(
            evidence,
            price=price,
            held_nusd=self.bound.nusd,
            service_tier=self._priced_tier,
            is_tier_known=is_tier_known,
            sent_output_tokens=self.bound.sent_output_tokens,
        )

    def _with_shown(self, evidence: Evidence, shown: frozenset[str]) -> Evidence:
        """Return the evidence with the kinds that prompt and answer show, and with the fee of tools
        or of another model that the answer shows and neither request nor model announced.
        """
        seen = frozenset(TokenKind(kind) for kind in shown & OUTPUT_KINDS)
        if has_sound(self.request.body.facts):
            seen |= {TokenKind.AUDIO_INPUT}
        evidence = replace(evidence, seen_kinds=seen)
        if self.bound.rounds is not None or self.candidate.deployment.is_self_hosted:
            return evidence
        if self.candidate.deployment.unasked.is_router:
            shown -= {OTHER_MODEL}  # its price is flagged as an estimate
        # The operator knows that the listed tools cost nothing there.
        return replace(evidence, fee=fee_of_shown(shown - self.candidate.deployment.listed))

    def _as_event(self, outcome: Outcome, settlement: Settlement) -> UsageEvent:
        """Return the initial event completed by outcome, usage, cost and times."""
        observed, begun, price = self.observed, self.begun, self._price
        reason, tier = observed.finish_reason, self._priced_tier
        if price.elsewhere:
            price = self._at_stated_place(price)
            is_flagged = price.is_flagged or may_be_rerouted(
                self.request.body.facts, self.candidate.deployment
            )
            begun = replace(begun, price_id=price.price_id, is_stand_in_price=is_flagged)
        return replace(
            begun,
            outcome=outcome,
            http_status=self.http_status,
            usage=settlement.usage,
            usage_source=settlement.source,
            lines=settlement.lines,
            cost_nusd=settlement.cost_nusd,
            held_nusd=settlement.held_nusd,
            ttft_s=self._ttft_s(),
            tpot_s=self._tpot_s(settlement.usage),
            duration_s=self.clock.monotonic() - self.started_s,
            overhead_s=self.overhead_s,
            max_gap_s=self.max_gap_s,
            engine_queue_s=observed.engine_queue_s,
            finish_reason=reason if reason in _USUAL_WORDS else _stored_word(reason),
            upstream_request_id=_stored_id(observed.upstream_id),
            service_tier=None if tier is None else _stored_word(tier),
            reported=settlement.reported,
            is_suspect=settlement.is_suspect,
            usage_detail=observed.usage_detail,
        )

    def _ttft_s(self) -> float | None:
        """Return the time to first token in seconds; None for a plain answer."""
        return None if self.first_token_s is None else self.first_token_s - self.started_s

    def _tpot_s(self, usage: TokenUsage) -> float | None:
        """Return the time per output token after the first, in seconds; None for fewer than two
        tokens.
        """
        if (
            self.first_token_s is None
            or self.last_token_s is None
            or (usage.output_tokens or 0) < 2
        ):
            return None
        assert usage.output_tokens is not None
        return (self.last_token_s - self.first_token_s) / (usage.output_tokens - 1)


def _stored_word(stated: str | None) -> str | None:
    """Return an upstream's word as it is stored: `?` for a text of any other shape, which may be
    content.
    """
    return stated if stated is None or WORD.fullmatch(stated) else UNKNOWN_TIER


def _stored_id(stated: str | None) -> str | None:
    """Return an upstream's id as it is stored; None for a text of any other shape."""
    return stated if stated is None or _ID.fullmatch(stated) else None


class AdmittedRequest(Struct):
    """An admitted request on its way through its attempts, which must all end by the clock time
    `deadline_s`.

    `totals` adds up its attempts; None if nothing waits for the request's end. `text_forms` are
    the forms in which tokenizers read a text, by the upstream's model, as far as files state them.
    """

    request: Request
    ranking: Ranking
    accounts: Sequence[Account]
    needs_bound: bool
    received_s: float
    deadline_s: float
    has_hard_budget: bool = False
    text_forms: Mapping[str, TextForms] = {}
    totals: RequestTotals | None = None
    _bounds: dict[int, Bound] = {}  # by the choice's identity, because a choice may be tried twice

    def bound_at(self, choice: Choice) -> Bound:
        """Return the maximum tokens and cost of one attempt at a choice's deployment."""
        bound = self._bounds.get(id(choice))
        if bound is None:
            candidate = choice.candidate
            assert candidate.price is not None, "an unpriced deployment is never eligible"
            bound = self._bounds[id(choice)] = bound_of(
                self.request.body.facts,
                route=choice.decision.route,
                deployment=candidate.deployment,
                price=candidate.price,
                is_relied_on=self.needs_bound or candidate.deployment.limits.refuses_tokens,
                bounds_rounds=self.has_hard_budget,
                text_forms=self.text_forms.get(candidate.deployment.model),
            )
            if candidate.unlisted:
                bound = multiplied(bound, candidate.deployment, candidate.unlisted)
                self._bounds[id(choice)] = bound
        return bound


@dataclass(frozen=True, slots=True)
class Attempts:
    """Starts attempts, each with its initial event, its clock and its listeners."""

    meter: Meter
    clock: Clock
    event_templates: EventTemplates = field(default_factory=EventTemplates)

    def begin(
        self,
        admitted: AdmittedRequest,
        choice: Choice,
        grant: AttemptGrant,
        slot: Slot,
        *,
        number: int,
        wanted_s: float | None = None,
        sent: Request | None = None,
        translation: Translation | None = None,
    ) -> Attempt:
        """Start an attempt's clock after everything was granted, and return the attempt.

        `sent` is the request without the members that the deployment is not sent, None for all.

        `wanted_s` is when only capacity, a budget or a pause remained: after its request was
        ranked, or after the previous attempt ended.
        """
        request, clock = admitted.request, self.clock
        started_s = slot.last_received_s = clock.monotonic()
        queue_s = None
        if wanted_s is not None:
            waited_s = started_s - wanted_s
            queue_s = waited_s if waited_s >= SHORTEST_WAIT_S else 0.0
        bound = admitted.bound_at(choice)
        on_settled = [slot.release, *grant.on_settled]
        if admitted.totals is not None:
            admitted.totals.note_attempt_started()
            on_settled.append(admitted.totals.note_settled)
        return Attempt(
            request=request if sent is None else sent,
            decision=choice.decision,
            candidate=choice.candidate,
            number=number,
            started_s=started_s,
            received_s=admitted.received_s,
            bound=bound,
            clock=clock,
            meter=self.meter,
            slot=slot,
            on_settled=on_settled,
            queue_s=queue_s,
            translation=translation,
            begun=begun_event(
                self.event_templates.of(choice, request.body.facts.operation),
                request,
                admitted.ranking,
                choice,
                bound,
                number=number,
                started_at=clock.now(),
                holds=grant.holds,
                queue_s=queue_s,
                translation=translation,
            ),
        )


def _asked_tier(request: Request) -> str | None:
    """Return the service tier that the request asks for, None if it names none but the standard
    one; a tier that no price can name is `unlisted`.
    """
    if not request.body.facts.features:
        return None  # nearly every request
    named = (feature_and_tier(feature) for feature in request.body.facts.features)
    return next((tier or "unlisted" for name, tier in named if name == "service_tier"), None)
