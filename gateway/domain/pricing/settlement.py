"""Computes the charge of one ended attempt from every observation of its usage, or its hold if the
true cost stays unknown; books nothing.

It is one pure function for every ending.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import asdict, replace

from gateway.domain.pricing.cache_writes import WRITE_KINDS
from gateway.domain.pricing.pricing import (
    MOST_NUSD,
    Line,
    Price,
    Steps,
    cost_nusd,
    plausible_lines,
)
from gateway.domain.pricing.repeated_usage import (
    DISCOUNTED,
    completed,
    dearer,
    is_cheaper,
)
from gateway.domain.pricing.tokens import (
    NOTHING_SERVED,
    OUTPUT_KINDS,
    TokenKind,
    TokenUsage,
    UsageSource,
)


class Counted(Struct, frozen=True, kw_only=True, gc=False):
    """Tokens that the gateway counted itself in the sent and received text.

    `is_exact`: the model's own tokenizer counted exactly the text of the answer. The input is never
    exact: the chat template's additions are unknown here.
    """

    usage: TokenUsage
    is_exact: bool


class UncountedFee(Struct, frozen=True, kw_only=True, gc=False):
    """A fee beside the tokens that the upstream may charge and does not report.

    `kind` is the kind of its calls, None if it has no price here. `per_request` is the number of
    calls that each request is billed by the provider's stated rule, None without one. `is_dearer`:
    the calls are counted, but cost more than the rate of the price.
    """

    kind: TokenKind | None
    per_request: int | None = None
    is_dearer: bool = False

    def counted_in(self, usage: TokenUsage) -> TokenUsage | None:
        """Return the usage with the calls of this fee; None if nothing states their number."""
        if self.kind is None:
            return None
        name = f"{self.kind}_calls"
        calls = getattr(usage, name)
        if self.is_dearer:
            return None if calls else usage
        if calls is not None:
            return usage
        return None if self.per_request is None else replace(usage, **{name: self.per_request})


UNPRICED_TOOL = "unpriced_tool"  # seen in an answer: one whose calls have no price here
OTHER_MODEL = "other_model"  # seen in an answer: a router has chosen it


def fee_of_shown(shown: frozenset[str]) -> UncountedFee | None:
    """Return the fee of the provider's tools whose work an answer shows, by their kinds; None if it
    shows none. The number of their calls does not show.
    """
    tools = shown - OUTPUT_KINDS
    if not tools:
        return None
    return UncountedFee(kind=TokenKind.WEB_SEARCH if tools == {TokenKind.WEB_SEARCH} else None)


class Evidence(Struct, frozen=True, kw_only=True, gc=False):
    """The evidence about the usage of one attempt, and the figures that it allows.

    `final` is the upstream's last usage, `running` its last figure before that, `counted` ours.
    `dearest` has, of several final usages, the dearest figure of each count; None if there was one.
    `impossible` is a final usage beside `final` that cannot be true and states more.
    `is_behind`: the answer went on after `running`, which is only its least.
    `was_served` is False only if certainly nothing was generated. `least_output_tokens` is the
    minimum that the seen answer implies. `writes_output` is False for embeddings: their usage has
    no output side. If another operation's usage lacks it, the answer's tokens are unknown and not
    zero. `has_prompt` is False if the request has no prompt. `fee` is one that no usage counts.
    `calls` are the provider's own tool calls that were seen in the answer, by their counts' names.
    `asked_writes` is the kind of the writes for the longest cache lifetime that the request asked
    for, None if it asked for none. `has_stated_writes`: it asked for some, or the model writes
    unasked; they cost the stated factor if the price lists no rate of writes. `is_self_hosted`: an
    engine of one's own bills nothing beside its tokens. `is_cut`: the upstream says that the
    answer ended at its maximum, so a shorter text hides tokens. `thinks_hidden`: the model thinks
    before its text, and shows none or a summary of it. `asked_output_tokens` is the most that the
    request itself allows, None if it does not say. `seen_kinds` are those of the seen output that
    is no text, pictures and sounds, and that of a sound in the prompt.
    """

    final: TokenUsage | None = None
    dearest: TokenUsage | None = None
    impossible: TokenUsage | None = None
    running: TokenUsage | None = None
    is_behind: bool = False
    counted: Counted | None = None
    was_served: bool
    writes_output: bool = True
    least_output_tokens: int = 0
    has_prompt: bool = True
    fee: UncountedFee | None = None
    calls: Mapping[str, int] = {}
    asked_writes: TokenKind | None = None
    has_stated_writes: bool = False
    is_self_hosted: bool = False
    is_cut: bool = False
    thinks_hidden: bool = False
    asked_output_tokens: int | None = None
    seen_kinds: frozenset[TokenKind] = frozenset()

    def is_whole(self, usage: TokenUsage) -> bool:
        """Return True if a usage has both sides: the prompt's tokens, and the output's unless none
        is written.
        """
        has_input = usage.input_tokens is not None and not (usage.lacks_prompt and self.has_prompt)
        return has_input and (usage.output_tokens is not None or not self.writes_output)

    @property
    def hides_output(self) -> bool:
        """True if the text of the answer may hide tokens: it ended at its maximum, or its thinking
        is hidden and no usage that can be true counts its whole output.
        """
        if self.is_cut or not self.thinks_hidden or not self.writes_output:
            return self.is_cut and self.writes_output
        stated = self.final
        if stated is None and not self.is_behind:
            stated = self.running
        return stated is None or stated.output_tokens is None or not self.can_become(stated)

    @property
    def has_unknown_units(self) -> bool:
        """True if a usage of the upstream counts something that no price is known for."""
        usages = (self.final, self.running, self.dearest)
        return any(usage is not None and usage.unknown_units for usage in usages)

    def can_become(self, usage: TokenUsage) -> bool:
        """Return True if a usage contradicts neither itself nor the seen answer; a side may still
        be missing.
        """
        return usage.is_plausible and (
            usage.output_tokens is None or usage.output_tokens >= self.least_output_tokens
        )

    def can_be(self, usage: TokenUsage) -> bool:
        """Return True if a usage can be the whole truth: it has both sides and contradicts
        nothing.
        """
        return self.is_whole(usage) and self.can_become(usage)

    def whole_of(self, final: TokenUsage) -> TokenUsage:
        """Return a final usage with each count that another usage of the answer states dearer, if
        it was final, or that it leaves out; the same object if there is none. It may contradict
        itself.
        """
        whole = final
        if self.dearest is not None:
            join = dearer if is_cheaper(final, self.dearest) else completed
            whole = join(final, self.dearest)
        if self.running is not None and self.running.is_plausible:
            whole = completed(whole, self.running)
        return final if whole == final else whole

    def is_contradicted(self, final: TokenUsage) -> bool:
        """Return True if another final usage states a dearer figure, or more and cannot be true."""
        is_less = self.dearest is not None and is_cheaper(final, self.dearest)
        return is_less or self.impossible is not None


class Settlement(Struct, frozen=True, kw_only=True, gc=False):
    """The true cost of an attempt, or its hold if the true cost is unknown.

    `reported` is the upstream's usage, if another usage (or none) was charged. `held_nusd` is set
    without a cost, and beside a cost above it: then both are kept and flagged.
    """

    usage: TokenUsage
    source: UsageSource
    lines: tuple[Line, ...]
    cost_nusd: int | None
    held_nusd: int | None
    is_suspect: bool
    reported: TokenUsage | None = None


def settle(
    evidence: Evidence,
    *,
    price: Price,
    held_nusd: int,
    service_tier: str | None = None,
    is_tier_known: bool = True,
    sent_output_tokens: int | None = None,
) -> Settlement:
    """Return the settlement of one attempt: the true cost by the best evidence, or its hold if the
    true cost is unknown.

    Of final figures that contradict each other, and of a final one below the last running one, the
    dearer is charged, count by count, and flagged. A part that the final one leaves out is taken
    from an earlier one; figures that contradict each other together are held. An impossible final
    figure (it contradicts itself, or the seen answer) is not charged. Our own figure is charged if
    there is one, else the attempt is held; `reported` keeps the upstream's figure, and it is
    flagged; so is a possible one beside it, if the impossible one states more. The same applies to
    an answer to a prompt of 0 tokens, unless the request has none. A cost above the hold is
    charged, because the provider will bill it, and flagged. Our own figure stops at
    `sent_output_tokens`, the maximum sent to the upstream, and is flagged there. Tokens that the
    price or the service tier does not cover are held and flagged, never charged as another kind; so
    is every attempt whose tier is not known. A fee whose number of calls nothing states is held,
    because the tokens alone would be too little. Of the calls that a usage states and those that
    were seen, the more are charged, and flagged. Our own figure of an answer that ended at its
    maximum is the maximum, as an estimate, and the hold if none was sent: thinking is not in its
    text. Any other answer of a model that thinks hidden is held. Tokens of an unknown kind are
    charged as the dearest kind that price and request allow, as an estimate; so are writes to a
    cache that were asked for, by the provider's stated factor, if the price lists no rate of
    writes. The output of an answer with pictures or sounds that its usage does not count is of an
    unknown kind, and held if the price has no rate of a seen kind.
    """
    final, running, counted = evidence.final, evidence.running, evidence.counted
    if final is None and running is None and not evidence.was_served:
        return _NOTHING
    bill = _Bill(price, service_tier, held_nusd, is_tier_known, evidence)
    if final is not None and final.has_unread:
        running = None  # the final one may be any number, so no earlier one stands for it
    if final is not None and evidence.can_be(final):
        if (
            evidence.dearest is None
            and evidence.impossible is None
            and (evidence.running is None or evidence.running == final)
        ):  # no other usage was seen: so ends nearly every answer
            return bill.charge(final, UsageSource.PROVIDER)
        if _is_not_below(final, running):
            whole, is_suspect = evidence.whole_of(final), evidence.is_contradicted(final)
            if not evidence.can_be(whole):
                return bill.hold(TokenUsage(), reported=final, is_suspect=True)
            other = final if whole is not final else evidence.impossible
            return bill.charge(whole, UsageSource.PROVIDER, reported=other, is_suspect=is_suspect)
        assert running is not None, "a final figure is below a running one"
        both = dearer(final, running)
        if evidence.dearest is not None:
            both = dearer(both, evidence.dearest)
        if evidence.can_be(both):
            return bill.charge(both, UsageSource.DERIVED, reported=final, is_suspect=True)
        return bill.hold(TokenUsage(), reported=final, is_suspect=True)
    if running is not None and not evidence.is_behind and evidence.can_be(running):
        least = None if final is not None else evidence.dearest  # a final one amid the answer
        usage = running if least is None else dearer(running, least)
        if not evidence.can_be(usage):
            return bill.hold(TokenUsage(), reported=running, is_suspect=True)
        is_suspect = final is not None or (least is not None and is_cheaper(running, least))
        return bill.charge(usage, UsageSource.DERIVED, reported=final, is_suspect=is_suspect)
    reported = final or running
    is_suspect = final is not None or (running is not None and not evidence.can_become(running))
    if counted is not None:
        known = _input_side(final) or _input_side(running)
        usage = _at_least(running, _joined(known, counted.usage))
        if final is None and evidence.dearest is not None:  # the answer went on after it
            usage = dearer(usage, evidence.dearest)
        is_raised = False
        if evidence.hides_output and usage.output_tokens is not None:
            most = (
                evidence.asked_output_tokens if sent_output_tokens is None else sent_output_tokens
            )
            # The maximum is near the truth only if the answer ended there.
            if most is None or (not evidence.is_cut and usage.output_tokens < most):
                return bill.hold(TokenUsage(), reported=reported, is_suspect=is_suspect)
            if is_raised := usage.output_tokens < most:
                usage = replace(usage, output_tokens=most)
        if (
            known is None
            and reported is not None
            and reported.lacks_prompt
            and (final is not None or reported.input_tokens == 0)
            and evidence.can_become(reported)
        ):
            usage = replace(reported, input_tokens=counted.usage.input_tokens)
        if sent_output_tokens is not None and (usage.output_tokens or 0) > sent_output_tokens:
            # An upstream that writes more than the maximum cannot bill it, but could fill a budget.
            usage, is_suspect = _with_output_at_most(usage, sent_output_tokens), True
            lowest = min(evidence.least_output_tokens, sent_output_tokens)
            evidence = replace(evidence, least_output_tokens=lowest)
        if evidence.has_unknown_units:  # in a usage that cannot be the whole one
            usage = replace(usage, unknown_units=1)
        if evidence.can_be(usage):
            is_exact = known is not None and counted.is_exact and not is_raised
            source = UsageSource.DERIVED if is_exact else UsageSource.ESTIMATED
            return bill.charge(usage, source, reported=reported, is_suspect=is_suspect)
    # Of an answer that went on after its last figure the prompt is known, and stands in the row; a
    # prompt of 0 is one that is not counted yet.
    prompt = _input_side(running) if final is None and evidence.is_behind else None
    known_side = (
        TokenUsage() if prompt is None or not prompt.input_tokens else _joined(prompt, TokenUsage())
    )
    return bill.hold(known_side, reported=reported, is_suspect=is_suspect)


def unknown_settlement(held_nusd: int) -> Settlement:
    """Return the settlement of an attempt of unknown usage: its hold."""
    return Settlement(
        usage=_UNKNOWN,
        source=UsageSource.UNKNOWN,
        lines=(),
        cost_nusd=None,
        held_nusd=held_nusd,
        is_suspect=False,
    )


WHOLES = frozenset({"input_tokens", "output_tokens"})
_UNKNOWN = TokenUsage()
_NOTHING = Settlement(
    usage=NOTHING_SERVED,
    source=UsageSource.NONE,
    lines=(),
    cost_nusd=0,
    held_nusd=None,
    is_suspect=False,
)


class _Bill(Struct, frozen=True, gc=False):
    """The price, tier and hold by which one attempt is settled, and the fee that its usage does
    not count.
    """

    price: Price
    service_tier: str | None
    held_nusd: int
    is_tier_known: bool
    evidence: Evidence

    def charge(
        self,
        usage: TokenUsage,
        source: UsageSource,
        *,
        reported: TokenUsage | None = None,
        is_suspect: bool = False,
    ) -> Settlement:
        """Return the settlement of this usage at the price, or of the hold if the price cannot
        cover it.
        """
        if not self.is_tier_known:
            return self.hold(usage, reported=reported, is_suspect=True)
        evidence = self.evidence
        if evidence.calls:
            counts = asdict(usage)
            is_suspect = is_suspect or any(
                counts[name] not in (None, n) for name, n in evidence.calls.items()
            )
            usage = replace(
                usage, **{name: max(n, counts[name] or 0) for name, n in evidence.calls.items()}
            )
        if usage.unknown_units or (
            (evidence.running is not None or evidence.dearest is not None)
            and evidence.has_unknown_units
        ):
            if not evidence.is_self_hosted:
                return self.hold(usage, reported=reported or usage, is_suspect=True)
            usage = replace(usage, unknown_units=None)
        if evidence.fee is not None:
            counted = evidence.fee.counted_in(usage)
            if counted is None:
                return self.hold(usage, reported=reported, is_suspect=is_suspect)
            usage = counted
        try:
            listed = price = self.price.for_tier(self.service_tier)
            if (
                evidence.has_stated_writes
                and usage.cache_write_tokens
                and not evidence.is_self_hosted
            ):
                price = listed.with_stated_writes
            priced = usage
            if (
                evidence.asked_writes is not None
                or usage.unknown_input_tokens
                or usage.unknown_output_tokens
                or usage.unknown_cache_write_tokens
                or evidence.seen_kinds
            ):
                priced = _with_known_kinds(usage, price, evidence)
            receipt = plausible_lines(priced, price)
        except ValueError:  # a kind or a service tier that the price does not cover
            return self.hold(usage, reported=reported, is_suspect=True)
        if priced is not usage:
            usage, reported, source = priced, reported or usage, UsageSource.ESTIMATED
        if price is not listed:
            rates = listed.steps(usage.input_tokens or 0)
            if any(line.kind not in rates for line in receipt):
                source = UsageSource.ESTIMATED  # the provider's page states a rate, not the price
        cost = cost_nusd(receipt)
        if cost > MOST_NUSD:  # plausible counts can still cost more than the ledger's column holds
            return self.hold(usage, reported=reported, is_suspect=True)
        is_above_hold = cost > self.held_nusd
        return Settlement(
            usage=usage,
            source=source,
            lines=receipt,
            cost_nusd=cost,
            held_nusd=self.held_nusd if is_above_hold else None,
            is_suspect=is_suspect or is_above_hold,
            reported=reported,
        )

    def hold(
        self, usage: TokenUsage, *, reported: TokenUsage | None, is_suspect: bool
    ) -> Settlement:
        """Return the settlement at the hold: the true cost is unknown."""
        return Settlement(
            usage=usage,
            source=UsageSource.UNKNOWN,
            lines=(),
            cost_nusd=None,
            held_nusd=self.held_nusd,
            is_suspect=is_suspect,
            reported=reported,
        )


def _with_known_kinds(usage: TokenUsage, price: Price, evidence: Evidence) -> TokenUsage:
    """Return the usage with its tokens of an unknown kind as the dearest kind that the price has,
    and writes to the cache without a lifetime as those of the asked one; the same object if it has
    neither. Writes beside those of named lifetimes, or of another name, are the dearest ones if the
    request asked for none but the shortest. Raises `ValueError` for a seen kind of output that
    neither the usage counts nor the price lists.
    """
    asked_writes = evidence.asked_writes
    found: dict[str, int | None] = {}
    if asked_writes is not None and usage.cache_write_tokens and not _names_lifetime(usage):
        found[f"{asked_writes}_tokens"] = usage.cache_write_tokens
    if usage.unknown_cache_write_tokens:
        kind = asked_writes or _dearest(WRITE_KINDS, price.steps(usage.input_tokens or 0))
        found["unknown_cache_write_tokens"] = None
        if kind is not TokenKind.CACHE_WRITE:
            known = getattr(usage, f"{kind}_tokens") or 0
            found[f"{kind}_tokens"] = known + usage.unknown_cache_write_tokens
    unsplit = dict.fromkeys(("input", "output"), 0)
    if evidence.seen_kinds:
        unsplit["input"] = _unsplit_input(usage, price, evidence)
        unsplit["output"] = _unsplit_output(usage, price, evidence)
    if usage.unknown_input_tokens or usage.unknown_output_tokens or any(unsplit.values()):
        rates = price.steps(usage.input_tokens or 0)
        for side in ("input", "output"):
            unknown = getattr(usage, f"unknown_{side}_tokens") or 0
            kinds = {
                TokenKind(kind): f"{kind}_tokens" for kind in (f"audio_{side}", f"image_{side}")
            }
            if unsplit[side] > unknown:
                unknown = unsplit[side]
                kinds = {kind: name for kind, name in kinds.items() if kind in evidence.seen_kinds}
            dearest = _dearest((TokenKind(side), *kinds), rates)
            if dearest in kinds:
                name = kinds[dearest]
                found[name] = unknown + (getattr(usage, name) or 0)
            found[f"unknown_{side}_tokens"] = None
    return replace(usage, **found) if found else usage


def _unsplit_input(usage: TokenUsage, price: Price, evidence: Evidence) -> int:
    """Return the input tokens that may be of a sound in the prompt which the usage does not count;
    0 unless the price has a dearer rate of sounds.
    """
    kind = TokenKind.AUDIO_INPUT
    rates = price.steps(usage.input_tokens or 0)
    is_unknown = kind in evidence.seen_kinds and usage.audio_input_tokens is None
    if not is_unknown or _dearest((TokenKind.INPUT, kind), rates) is TokenKind.INPUT:
        return 0
    return max(0, (usage.input_tokens or 0) - (usage.image_input_tokens or 0))


def _unsplit_output(usage: TokenUsage, price: Price, evidence: Evidence) -> int:
    """Return the output tokens that may be of a seen kind which the usage does not count: all but
    the reasoning and the other kinds. Raises `ValueError` if the price has no rate of such a kind.

    One rate of tokens holds for all kinds of an engine of one's own, unless its price lists more.
    """
    rates = price.steps(usage.input_tokens or 0)
    seen = evidence.seen_kinds & OUTPUT_KINDS
    kinds = {kind for kind in seen if not getattr(usage, f"{kind}_tokens")}
    if evidence.is_self_hosted:
        kinds &= rates.keys()
    if not kinds:
        return 0
    if missing := kinds - rates.keys():
        raise ValueError(f"the price has no rate of {', '.join(sorted(missing))}")
    known = (usage.reasoning_tokens, usage.audio_output_tokens, usage.image_output_tokens)
    return max(0, (usage.output_tokens or 0) - sum(count or 0 for count in known))


def _dearest(kinds: Iterable[TokenKind], rates: Steps) -> TokenKind:
    """Return the kind with the highest rate, the first one if none has a rate."""
    return max(kinds, key=lambda kind: rates[kind].usd_per_mtok if kind in rates else 0)


def _names_lifetime(usage: TokenUsage) -> bool:
    """Return True if a usage states for which time any of its writes to the cache is."""
    lifetimes = (
        usage.cache_write_30m_tokens,
        usage.cache_write_1h_tokens,
        usage.cache_write_12h_tokens,
        usage.unknown_cache_write_tokens,
    )
    return any(count is not None for count in lifetimes)


def _is_not_below(final: TokenUsage, running: TokenUsage | None) -> bool:
    """Return True if no count of a final usage is below the last running usage. A part that it
    leaves out is not below; a discount may become known late.
    """
    if running is None or not running.is_plausible:
        return True
    stated = asdict(final)
    return not any(
        count
        and name not in DISCOUNTED
        and count > (stated[name] or 0)
        and (name in WHOLES or stated[name] is not None)
        for name, count in asdict(running).items()
    )


def _at_least(running: TokenUsage | None, usage: TokenUsage) -> TokenUsage:
    """Return our own count of an answer, raised to the output tokens of the running usage."""
    least = 0 if running is None or not running.is_plausible else running.output_tokens or 0
    if usage.output_tokens is None or usage.output_tokens >= least:
        return usage
    return replace(usage, output_tokens=least)


def _with_output_at_most(usage: TokenUsage, output_tokens: int) -> TokenUsage:
    """Return the usage with at most that many output tokens, and no more reasoning among them."""
    reasoning = usage.reasoning_tokens
    return replace(
        usage,
        output_tokens=output_tokens,
        reasoning_tokens=None if reasoning is None else min(reasoning, output_tokens),
        audio_output_tokens=None,
        image_output_tokens=None,
    )


def _input_side(reported: TokenUsage | None) -> TokenUsage | None:
    """Return an upstream's usage if its input tokens are credible, else None."""
    is_there = (
        reported is not None
        and reported.is_plausible
        and reported.input_tokens is not None
        and not reported.lacks_prompt
    )
    return reported if is_there else None


def _joined(known: TokenUsage | None, counted: TokenUsage) -> TokenUsage:
    """Return the provider's input with all its parts, if known, and the counted output."""
    if known is None:
        return counted
    return replace(
        known,
        output_tokens=counted.output_tokens,
        reasoning_tokens=counted.reasoning_tokens,
        audio_output_tokens=counted.audio_output_tokens,
        image_output_tokens=counted.image_output_tokens,
    )
