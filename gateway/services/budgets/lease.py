"""One worker's share of one budget in one period: free, held, and what is next asked of
Postgres.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterable
from datetime import datetime

from gateway.domain.budgets.budgets import (
    Account,
    Hold,
    PeriodSpan,
    SliceAsk,
    SliceGranted,
    slice_nusd,
)
from gateway.domain.pricing.pricing import MOST_NUSD

IDLE_S = 1.0  # a lease without a hold for so long gives back what is free
RECENT_HOLDS = 8  # a busy lease keeps at least so many of its largest recent hold
LOOK_EVERY_S = 0.25
FORGET = 0.5  # of a rate, with each look at it
FRESH_S = 0.25  # Postgres's word on a budget is believed for so long without asking again
# the writer reads what the journal's group commit has synced, a moment after it was settled
SYNCED_WITHIN_S = 1.0


class Waiter:
    """One request that waits for Postgres's word on some leases: True when it has come on all of
    them.
    """

    __slots__ = ("amount_nusd", "answered", "unheard")

    def __init__(
        self, amount_nusd: int, budget_leases: Iterable[BudgetLease], answered: Future[bool]
    ) -> None:
        self.amount_nusd, self.answered = amount_nusd, answered
        self.unheard = {budget_lease.key for budget_lease in budget_leases}

    @property
    def is_to_serve(self) -> bool:
        """False when it was told that there is no answer.

        One that was told of its slice has not taken it yet.
        """
        return not self.answered.done() or self.answered.result()

    def hear(self, key: tuple[str, int], *, is_answered: bool) -> None:
        """Postgres has spoken of one lease, or did not answer."""
        self.unheard.discard(key)
        if not self.answered.done() and not (is_answered and self.unheard):
            self.answered.set_result(is_answered)


class BudgetLease:
    """Whole nano-dollars.

    `free + held`, and what is settled but not written, is leased from Postgres.

    Postgres's last word is in `limit_nusd`, `spent_nusd` and `leased_nusd` (by all workers), and
    came at `heard_s`; before that the limit is the policy's. A soft budget's lease holds nothing,
    and gives back what a hard one had. What is spent beyond a lease is `overdraft_nusd` until
    Postgres has its events: no answer makes room before that.
    """

    __slots__ = (
        "_aim_nusd",
        "_largest_nusd",
        "_lease_s",
        "_looked_s",
        "_orphaned_nusd",
        "_overdrawn_nusd",
        "_overdrawn_s",
        "_rate_nusd_per_s",
        "_unleased_nusd",
        "_used_nusd",
        "account",
        "ends_s",
        "free_nusd",
        "heard_s",
        "held_nusd",
        "is_hard",
        "key",
        "leased_nusd",
        "limit_nusd",
        "overdraft_nusd",
        "span",
        "spent_nusd",
        "until_s",
        "used_s",
        "waiting",
    )

    def __init__(self, account: Account, span: PeriodSpan, *, now_s: float, lease_s: float) -> None:
        self.account, self.span, self._lease_s = account, span, lease_s
        self.key, self.is_hard = (account.account_id, span.starts_s), account.rule.is_hard
        self.ends_s = float("inf") if span.ends_at is None else span.ends_at.timestamp()
        self.free_nusd = self.held_nusd = self.overdraft_nusd = 0
        self._overdrawn_nusd = (
            0  # the settled part of the overdraft, the last of it at `_overdrawn_s`
        )
        self._overdrawn_s = self.heard_s = float("-inf")
        self.limit_nusd, self.spent_nusd, self.leased_nusd = account.rule.limit_nusd, 0, 0
        self._unleased_nusd = self.limit_nusd
        self.until_s = 0.0  # by our own clock, started before Postgres was asked
        self.used_s = self._looked_s = now_s
        self._largest_nusd = self._used_nusd = 0
        self._rate_nusd_per_s = 0.0
        self._aim_nusd = self._orphaned_nusd = 0
        self.waiting: list[Waiter] = []  # holds that wait until Postgres was asked

    @property
    def room_nusd(self) -> int:
        """What nobody had spent or leased when Postgres was last asked, and what is free here."""
        return self._unleased_nusd + self.free_nusd

    @property
    def still_waiting(self) -> list[Waiter]:
        """Those of `waiting` that have no answer yet; the others are there until their tasks
        run.
        """
        return [one for one in self.waiting if not one.answered.done()]

    def refuses(self, amount_nusd: int, now_s: float, *, within_s: float = FRESH_S) -> bool:
        """True where Postgres has said lately that there is no room for that much."""
        return self.is_hard and now_s - self.heard_s <= within_s and self.room_nusd < amount_nusd

    def can_hold(self, amount_nusd: int, now_s: float) -> bool:
        """True where that much is free, and leased for longer than now."""
        return not self.is_hard or (self.free_nusd >= amount_nusd and now_s < self.until_s)

    def hold(self, amount_nusd: int, now_s: float) -> Hold:
        """Reserve what `can_hold` said; of a soft budget nothing."""
        self.used_s = now_s
        account_id, starts_s = self.key
        if not self.is_hard:
            return Hold(account_id, starts_s, 0)
        self.free_nusd -= amount_nusd
        self.held_nusd += amount_nusd
        self._used_nusd += amount_nusd
        if amount_nusd > self._largest_nusd:
            self._largest_nusd = amount_nusd
            self._aim()
        return Hold(account_id, starts_s, amount_nusd)

    def settle(self, held_nusd: int, taken_nusd: int) -> None:
        """Replace a hold by what its attempt took of it."""
        self.held_nusd -= held_nusd
        returned_nusd = held_nusd - taken_nusd
        if self._orphaned_nusd:
            orphaned_nusd = min(self._orphaned_nusd, held_nusd)
            self._orphaned_nusd -= orphaned_nusd
            returned_nusd = max(returned_nusd - orphaned_nusd, 0)
        self.free_nusd += returned_nusd
        self._used_nusd -= held_nusd - taken_nusd

    def overdraw(self, amount_nusd: int) -> Hold:
        """Reserve what is not leased; the caller has seen that the policy allows it."""
        self.overdraft_nusd += amount_nusd
        return Hold(*self.key, amount_nusd, is_overdraft=True)

    def settle_overdraft(self, held_nusd: int, taken_nusd: int, *, now_s: float) -> None:
        """Replace an overdraft's hold by what its attempt took."""
        self.overdraft_nusd = max(self.overdraft_nusd - held_nusd + taken_nusd, 0)
        self._overdrawn_nusd += taken_nusd
        self._overdrawn_s = now_s

    def note_written(self, until_s: float) -> None:
        """All that was settled before that moment is in Postgres: so is the overdraft that was."""
        if self._overdrawn_nusd and self._overdrawn_s + SYNCED_WITHIN_S <= until_s:
            self.overdraft_nusd = max(self.overdraft_nusd - self._overdrawn_nusd, 0)
            self._overdrawn_nusd = 0

    @property
    def is_low(self) -> bool:
        """True where a busy lease should be filled before it is empty."""
        return self.free_nusd * 2 < self._aim_nusd

    def is_done(self, now_s: float) -> bool:
        """True where nothing of it is left here and nobody has used it for a while."""
        is_empty = not (self.free_nusd or self.held_nusd or self.waiting or self.overdraft_nusd)
        return is_empty and now_s - self.used_s > 60 * IDLE_S

    def ask(self, *, now: datetime, now_s: float, turn: int) -> SliceAsk | None:
        """What to ask Postgres now, None for nothing.

        What goes back leaves the lease with the question.
        """
        self._look(now_s)
        if not self.is_hard and not self.free_nusd:
            return None
        # What is larger than the whole budget is answered without being asked for.
        waiting = [
            one.amount_nusd
            for one in self.waiting
            if one.is_to_serve and one.amount_nusd <= self.limit_nusd
        ]
        self._largest_nusd = max(self._largest_nusd, *waiting, 0)
        self._aim(sum(waiting))
        is_busy = (
            self.is_hard
            and (waiting or now_s - self.used_s <= IDLE_S)
            and now.timestamp() < self.ends_s
        )
        aim_nusd = self._aim_nusd if is_busy else 0
        returned_nusd = (
            self.free_nusd - aim_nusd if not waiting and self.free_nusd > 2 * aim_nusd else 0
        )
        needed_nusd = max(sum(waiting) - self.free_nusd, 0)
        wants = needed_nusd > 0 or self.free_nusd * 2 < aim_nusd
        is_to_renew = (
            self.free_nusd or self.held_nusd
        ) and now_s > self.until_s - self._lease_s * 2 / 3
        if not (wants or returned_nusd or self.still_waiting or is_to_renew):
            return None
        least_nusd = max(min(waiting, default=1) - self.free_nusd, 1)
        most_nusd = max(sum(waiting) + aim_nusd - self.free_nusd, 0)
        self.free_nusd -= returned_nusd
        return SliceAsk(
            account_id=self.account.account_id,
            rule_id=self.account.rule.rule_id,
            starts_at=self.span.starts_at,
            ends_at=self.span.ends_at,
            turn=turn,
            returned_nusd=returned_nusd,
            least_nusd=min(least_nusd, MOST_NUSD) if wants else 0,
            needed_nusd=min(needed_nusd, MOST_NUSD),
            most_nusd=min(most_nusd, MOST_NUSD) if wants else 0,
            held_nusd=min(self.held_nusd, MOST_NUSD),
        )

    def take_back(self, ask: SliceAsk) -> None:
        """Nothing of a question was done."""
        self.free_nusd += ask.returned_nusd

    def take(self, granted: SliceGranted, *, until_s: float, now_s: float) -> None:
        """Postgres has answered."""
        self.free_nusd += granted.granted_nusd
        self.until_s, self.heard_s = until_s, now_s
        if granted.limit_nusd is not None:
            self.limit_nusd = granted.limit_nusd
        self.spent_nusd, self.leased_nusd = granted.spent_nusd, granted.leased_nusd
        self._unleased_nusd = max(self.limit_nusd - self.spent_nusd - self.leased_nusd, 0)
        self._aim()

    def use_rule_of(self, account: Account) -> None:
        """The policy may have changed what the account is under: then Postgres's word was on
        another limit.
        """
        if account.rule != self.account.rule:
            self.heard_s = float("-inf")
        self.account, self.is_hard = account, account.rule.is_hard

    def lose(self) -> None:
        """An operator gave up this worker's journal: nothing of what it had leased is ours any
        more.

        What is held was leased too: as much as that must not come back as free when attempts under
        way are settled.
        """
        self.free_nusd, self.until_s = 0, 0.0
        self._orphaned_nusd = self.held_nusd

    def _aim(self, waiting_nusd: int = 0) -> None:
        """What a busy lease has free: at most one slice, and where that suffices, as much again as
        is held and half of it for as long as a lease lasts at its rate. It is filled again at half,
        and that is what an outage may find.
        """
        lasting_nusd = int(2 * self._rate_nusd_per_s * self._lease_s)
        enough_nusd = max(
            RECENT_HOLDS * self._largest_nusd, self.held_nusd + waiting_nusd, lasting_nusd
        )
        self._aim_nusd = min(slice_nusd(self.limit_nusd, 0), enough_nusd)

    def _look(self, now_s: float) -> None:
        """Learn the rate of spending since the last look, and forget a hold that was larger than
        others.
        """
        passed_s = now_s - self._looked_s
        if passed_s >= LOOK_EVERY_S:
            rate = max(self._used_nusd, 0) / passed_s
            self._rate_nusd_per_s += FORGET * (rate - self._rate_nusd_per_s)
            self._largest_nusd -= self._largest_nusd // 8
            self._looked_s, self._used_nusd = now_s, 0
