"""Keeps the amounts of one worker's lease on one budget period (free, held, overdrawn), and
computes its next ask to Postgres; it sends nothing.
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

# Seconds without a hold or a wait for one; then the lease gives back its free part, at a look
# within two seconds. A refused caller is told to try again after one.
IDLE_S = 1.6
DONE_S = 60.0  # an empty lease is dropped
RECENT_HOLDS = 8  # a busy lease keeps at least this many of its largest recent hold
LOOK_EVERY_S = 0.25
FORGET = 0.5  # the share of the rate that each look forgets
FRESH_S = 0.25  # seconds for which Postgres's last answer on a budget is trusted
# The writer reads whatever the journal's group commit has synced, shortly after settlement.
SYNCED_WITHIN_S = 1.0


class Waiter:
    """A request that waits for Postgres's answer on some leases. Its result is True once all have
    answers.
    """

    __slots__ = ("amount_nusd", "answered", "unanswered")

    def __init__(
        self, amount_nusd: int, budget_leases: Iterable[BudgetLease], answered: Future[bool]
    ) -> None:
        """Record a request that waits for these leases; `answered` is the future that ends its
        wait.
        """
        self.amount_nusd, self.answered = amount_nusd, answered
        self.unanswered = {budget_lease.key for budget_lease in budget_leases}

    @property
    def is_to_serve(self) -> bool:
        """Return False if this request already knows that Postgres will not answer.

        A waiter that received its slice has not taken it yet.
        """
        return not self.answered.done() or self.answered.result()

    def note_answer(self, key: tuple[str, int], *, is_answered: bool) -> None:
        """Record that Postgres answered for one lease, or failed to; the last answer or the first
        failure ends the wait.
        """
        self.unanswered.discard(key)
        if not self.answered.done() and not (is_answered and self.unanswered):
            self.answered.set_result(is_answered)


class BudgetLease:
    """A worker's lease on one budget, in whole nano-dollars.

    Postgres has leased `free + held`, and any settled amount that is not written yet.

    `limit_nusd`, `spent_nusd` and `leased_nusd` (over all workers) are Postgres's last answer,
    received at `answered_s`. Before the first answer, the limit comes from the policy. The lease
    of a soft budget holds nothing; if the budget was hard before, the lease gives its money back.
    `overdraft_nusd` is the spending beyond the lease. It stays until Postgres has its events: no
    answer makes room earlier.
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
        "answered_s",
        "ends_s",
        "free_nusd",
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
        """Make an empty lease on one account's budget for one period."""
        self.account, self.span, self._lease_s = account, span, lease_s
        self.key, self.is_hard = (account.account_id, span.starts_s), account.rule.is_hard
        self.ends_s = float("inf") if span.ends_at is None else span.ends_at.timestamp()
        self.free_nusd = self.held_nusd = self.overdraft_nusd = 0
        # The settled part of the overdraft; its last settlement was at `_overdrawn_s`.
        self._overdrawn_nusd = 0
        self._overdrawn_s = self.answered_s = float("-inf")
        self.limit_nusd, self.spent_nusd, self.leased_nusd = account.rule.limit_nusd, 0, 0
        self._unleased_nusd = self.limit_nusd
        self.until_s = 0.0  # by this process's clock, read before Postgres was asked
        self.used_s = self._looked_s = now_s
        self._largest_nusd = self._used_nusd = 0
        self._rate_nusd_per_s = 0.0
        self._aim_nusd = self._orphaned_nusd = 0
        self.waiting: list[Waiter] = []  # waiters for the next answer of Postgres

    @property
    def room_nusd(self) -> int:
        """Return the unleased budget at Postgres's last answer, plus this lease's own free part."""
        return self._unleased_nusd + self.free_nusd

    @property
    def still_waiting(self) -> list[Waiter]:
        """Return the requests that still wait for Postgres on this lease; the others stay listed
        until their tasks run.
        """
        return [one for one in self.waiting if not one.answered.done()]

    def refuses(self, amount_nusd: int, now_s: float, *, within_s: float = FRESH_S) -> bool:
        """Return True if an answer of Postgres within the last `within_s` seconds shows no room for
        the amount.
        """
        return self.is_hard and now_s - self.answered_s <= within_s and self.room_nusd < amount_nusd

    def can_hold(self, amount_nusd: int, now_s: float) -> bool:
        """Return True if the amount is free and the lease has not expired; always for a soft
        budget.
        """
        return not self.is_hard or (self.free_nusd >= amount_nusd and now_s < self.until_s)

    def hold(self, amount_nusd: int, now_s: float) -> Hold:
        """Move an amount that `can_hold` confirmed from the free to the held part; a soft budget
        holds nothing.
        """
        self.used_s = now_s
        account_id, starts_s = self.key
        if not self.is_hard:
            return Hold(account_id, starts_s, 0)
        self.free_nusd -= amount_nusd
        self.held_nusd += amount_nusd
        self._used_nusd += amount_nusd
        if amount_nusd > self._largest_nusd:
            self._largest_nusd = amount_nusd
            self._update_target()
        return Hold(account_id, starts_s, amount_nusd)

    def settle(self, held_nusd: int, taken_nusd: int) -> None:
        """Replace a hold by `taken_nusd`, the cost of its attempt up to the hold, and free the
        rest.
        """
        self.held_nusd -= held_nusd
        returned_nusd = held_nusd - taken_nusd
        if self._orphaned_nusd:
            orphaned_nusd = min(self._orphaned_nusd, held_nusd)
            self._orphaned_nusd -= orphaned_nusd
            returned_nusd = max(returned_nusd - orphaned_nusd, 0)
        self.free_nusd += returned_nusd
        self._used_nusd -= held_nusd - taken_nusd

    def overdraw(self, amount_nusd: int) -> Hold:
        """Hold an amount beyond the lease while Postgres is away. The caller has checked that the
        policy allows it.
        """
        self.overdraft_nusd += amount_nusd
        return Hold(*self.key, amount_nusd, is_overdraft=True)

    def settle_overdraft(self, held_nusd: int, taken_nusd: int, *, now_s: float) -> None:
        """Replace an overdraft's hold by `taken_nusd`, the cost of its attempt; it counts until
        Postgres has the event.
        """
        self.overdraft_nusd = max(self.overdraft_nusd - held_nusd + taken_nusd, 0)
        self._overdrawn_nusd += taken_nusd
        self._overdrawn_s = now_s

    def note_written(self, until_s: float) -> None:
        """Record that Postgres has every event settled before `until_s`, so their overdraft
        ends.
        """
        if self._overdrawn_nusd and self._overdrawn_s + SYNCED_WITHIN_S <= until_s:
            self.overdraft_nusd = max(self.overdraft_nusd - self._overdrawn_nusd, 0)
            self._overdrawn_nusd = 0

    @property
    def is_low(self) -> bool:
        """Return True if the free part is below half of its target, so more should be asked for."""
        return self.free_nusd * 2 < self._aim_nusd

    def is_done(self, now_s: float) -> bool:
        """Return True if the lease is empty and has been unused for a while, so it can be
        dropped.
        """
        is_empty = not (self.free_nusd or self.held_nusd or self.waiting or self.overdraft_nusd)
        return is_empty and now_s - self.used_s > DONE_S

    def next_ask(self, *, now: datetime, now_s: float, turn: int) -> SliceAsk | None:
        """Return the next ask to Postgres, or None if there is nothing to ask.

        The amount to return leaves the lease together with the ask.
        """
        self._update_rate(now_s)
        if not self.is_hard and not self.free_nusd:
            return None
        # An amount above the whole budget gets its answer without an ask.
        waiting = [
            one.amount_nusd
            for one in self.waiting
            if one.is_to_serve and one.amount_nusd <= self.limit_nusd
        ]
        self._largest_nusd = max(self._largest_nusd, *waiting, 0)
        self._update_target(sum(waiting))
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

    def undo_ask(self, ask: SliceAsk) -> None:
        """Put the money back that an ask was to return, because Postgres refused the ask."""
        self.free_nusd += ask.returned_nusd

    def apply_answer(self, granted: SliceGranted, *, until_s: float, now_s: float) -> None:
        """Add the granted money to the lease, with Postgres's figures of the budget and the lease's
        new end.
        """
        self.free_nusd += granted.granted_nusd
        self.until_s, self.answered_s = until_s, now_s
        if granted.limit_nusd is not None:
            self.limit_nusd = granted.limit_nusd
        self.spent_nusd, self.leased_nusd = granted.spent_nusd, granted.leased_nusd
        self._unleased_nusd = max(self.limit_nusd - self.spent_nusd - self.leased_nusd, 0)
        self._update_target()

    def use_rule_of(self, account: Account) -> None:
        """Use the account's budget rule of the current policy. If the limit changed, Postgres's
        last answer no longer counts.
        """
        if account.rule != self.account.rule:
            self.answered_s = float("-inf")
        self.account, self.is_hard = account, account.rule.is_hard

    def lose(self) -> None:
        """Drop all leased money, because an operator declared this worker's journal lost.

        The held part was leased too: it must not become free again when the attempts in flight
        settle.
        """
        self.free_nusd, self.until_s = 0, 0.0
        self._orphaned_nusd = self.held_nusd

    def _update_target(self, waiting_nusd: int = 0) -> None:
        """Update the free amount that a busy lease aims for.

        That is at most one slice. It covers the current holds once more, plus half of the lease's
        duration at its spending rate. The lease is refilled at half of that. During an outage of
        Postgres the lease has between half and all of it.
        """
        lasting_nusd = int(2 * self._rate_nusd_per_s * self._lease_s)
        enough_nusd = max(
            RECENT_HOLDS * self._largest_nusd, self.held_nusd + waiting_nusd, lasting_nusd
        )
        self._aim_nusd = min(slice_nusd(self.limit_nusd, 0), enough_nusd)

    def _update_rate(self, now_s: float) -> None:
        """Update the spending rate since the last update, and forget one unusually large hold."""
        passed_s = now_s - self._looked_s
        if passed_s >= LOOK_EVERY_S:
            rate = max(self._used_nusd, 0) / passed_s
            self._rate_nusd_per_s += FORGET * (rate - self._rate_nusd_per_s)
            self._largest_nusd -= self._largest_nusd // 8
            self._looked_s, self._used_nusd = now_s, 0
