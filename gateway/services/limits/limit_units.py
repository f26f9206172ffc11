"""Counts the units of rate and concurrency limits that one worker holds, and computes its asks to
Postgres; `limiter` sends them.

Decides how much to take ahead and when to give it back. `limiter` manages the waiting requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import TypeAlias

from gateway.domain.budgets.limits import (
    TICK_MS,
    WINDOW_S,
    LimitAsk,
    LimitGranted,
    Limits,
    LimitUnit,
    SlidingCounts,
)

# All workers together hold at most a hundredth of a limit, or one request each. That bounds the
# units that an idle worker can keep from a busy one. It also bounds the difference between "the
# last 60 seconds" at the gateway and in Postgres.
LOT_SHARE = 100
AHEAD_S = 0.5  # seconds that a lot lasts at the recent rate
LOT_LASTS_S = 0.9  # seconds; unused units then go back
PEAK_LASTS_S = 0.5  # slots unused in this half-second and in the last one go back
GIVE_BACK_AFTER_S = 0.05  # settlements within this many seconds are sent together
MEASURE_EVERY_S = 0.1
RATE_OVER_S = 0.5
# Other workers may return unused units at any time, so "nothing before T" may be too pessimistic.
ASK_AGAIN_S = 0.25
RENEW_EVERY_S = 5.0
SLOTS_LAST_S = 12.0  # seconds; Postgres forgets them after 15 s, and our clock started earlier


class HeldUnits:
    """The units of one limit that this worker holds: the common part of windows and slots.

    Requests are admitted from `free` at once; waiting requests have asked for `waiting` units.

    `corrections` are units by tick that Postgres does not have yet. `sent` are the corrections of
    an ask without an answer; they are repeated with that ask's number, and with no other, until it
    is answered.
    """

    __slots__ = (
        "asks_again_s",
        "corrections",
        "due_s",
        "free",
        "is_listed",
        "is_wanted",
        "limit",
        "limit_id",
        "measure",
        "sent",
        "waiting",
    )

    def __init__(self, limit_id: str, measure: LimitUnit, limit: int) -> None:
        """Start without held units of a limit."""
        self.limit_id, self.measure, self.limit = limit_id, measure, limit
        self.free = self.waiting = 0
        self.asks_again_s = 0.0
        self.due_s: float | None = None
        self.is_listed = self.is_wanted = False
        self.corrections: dict[int, int] = {}
        self.sent: dict[int, int] | None = None

    @property
    def needs_asking(self) -> bool:
        """Return True if Postgres must be asked: a request waits, or a correction must be sent."""
        return (
            self.is_wanted
            or self.free < self.waiting
            or bool(self.corrections)
            or self.sent is not None
        )

    def requeue_corrections(self) -> None:
        """Keep the corrections of the last ask for the next one, because Postgres's answer does not
        cover this limit.
        """
        if self.sent is not None:
            for tick, units in self.sent.items():
                self._note_correction(tick, units)
            self.sent = None

    def _note_correction(self, tick: int, units: int) -> None:
        """Add units to those that the next ask reports for a tick: positive ones were used,
        negative ones are returned.
        """
        self.corrections[tick] = self.corrections.get(tick, 0) + units


class LimitWindow(HeldUnits):
    """One sliding window of a limit, with one lot of units that this worker took at one tick."""

    __slots__ = (
        "_answered_s",
        "_counted_s",
        "_demand",
        "_is_renewing",
        "_left",
        "_lot_s",
        "_low",
        "_own",
        "_rate",
        "_returned",
        "_since_answer",
        "_slides",
        "_typical",
        "tick",
    )

    def __init__(self, limit_id: str, measure: LimitUnit, limit: int) -> None:
        """Start an empty window, without units from Postgres."""
        super().__init__(limit_id, measure, limit)
        self.tick = 0
        self._own = SlidingCounts()
        self._left = limit
        self._slides: tuple[tuple[float, int], ...] = ()  # (time, units)
        self._answered_s: float | None = None
        self._since_answer = 0
        self._returned = 0  # units returned at settlement that Postgres does not have yet
        self._lot_s = self._counted_s = 0.0
        self._demand = self._typical = 0
        self._rate = 0.0
        self._low = -1
        self._is_renewing = False

    # ---- admit

    def take(self, units: int, now_s: float) -> int:
        """Take units of the current lot for a request; return the tick at which they count.

        The caller has checked that the lot has enough.
        """
        self.free -= units
        self._demand += units
        self._typical = units
        self._own.add(now_s, units)
        return self.tick

    @property
    def is_low(self) -> bool:
        """Return True if a new lot of units should be requested from Postgres."""
        return self.free <= self._low

    def can_take_alone(self, units: int, *, now_s: float, workers: int) -> bool:
        """Return True if, while Postgres is away or late, this worker's own share of the limit has
        room for the units.
        """
        own = self._own.slide(now_s)
        left = self._left // workers - self._since_answer
        return own == 0 or own + units <= self.limit // workers or units <= left

    def take_alone(self, units: int, *, now_s: float, tick: int) -> int:
        """Take units of this worker's own share while Postgres is away or late, to report them
        later; return the tick at which they count.
        """
        self._demand += units
        self._since_answer += units
        self._own.add(now_s, units)
        self._note_correction(tick, units)
        return tick

    def settle(self, tick: int, *, taken_s: float, unused: int, now_s: float) -> bool:
        """Return a request's `unused` units (reserved minus used) to the limit; if negative, count
        the units used beyond its reservation.
        """
        if unused == 0 or now_s - taken_s > WINDOW_S:
            return False
        self._own.correct(taken_s, -unused)
        self._note_correction(tick, -unused)
        self._returned += unused
        return True

    # ---- refuse

    def refuses(self, units: int, now_s: float) -> bool:
        """Return True if Postgres's last answer, at most 0.25 s old, leaves no room for the units,
        even with those returned since.
        """
        if now_s >= self.asks_again_s or units <= self._left + self._returned:
            return False
        return now_s < (self._known_ready_s(units) or 0.0)

    def ready_s(self, units: int, now_s: float) -> float:
        """Return the earliest known time at which the units fit into the window again."""
        known_s = self._known_ready_s(units)
        if known_s is not None:
            return known_s
        return self._slides[-1][0] if self._slides else now_s + 1.0

    def share_ready_s(self, units: int, *, now_s: float, workers: int) -> float:
        """Return the time at which this worker's own share has room for the units again, for
        refusals while Postgres is away or late.
        """
        return self._own.ready_s(now_s, self._own.slide(now_s) + units - self.limit // workers)

    def _known_ready_s(self, units: int) -> float | None:
        """Return the time at which enough units leave the window, by Postgres's last answer; None
        if unknown.
        """
        short = units - self._left
        for at_s, sliding in self._slides:
            short -= sliding
            if short <= 0:
                return at_s
        return None

    def remaining(self, now_s: float) -> tuple[int, float]:
        """Return the last known remainder of the limit, and in how many seconds it grows."""
        if self._answered_s is None or now_s - self._answered_s > WINDOW_S:
            return self.limit, 0.0
        back = sum(units for at_s, units in self._slides if at_s <= now_s)
        next_s = next((at_s for at_s, _ in self._slides if at_s > now_s), now_s)
        return max(
            min(self._left + back + self.free - self._since_answer, self.limit), 0
        ), next_s - now_s

    # ---- ask

    def next_ask(
        self, needs: tuple[tuple[int, int], ...], *, now_s: float, workers: int
    ) -> LimitAsk:
        """Return the window's next ask to Postgres: units for the waiting requests (`needs`), a lot
        ahead, and corrections.

        The units held stay usable until the answer, unless they are too few or too many.
        """
        self._measure_rate(now_s)
        is_short = self.free < self.waiting
        self._is_renewing = is_short or self.is_wanted or now_s - self._lot_s >= LOT_LASTS_S
        self.is_wanted = False
        ahead = self._units_ahead(workers) if self._is_renewing else 0
        needs = needs if self._is_renewing else ()
        if self.free and self._is_renewing and (self.waiting or not ahead):
            self._give_back()
        if self.sent is None:
            self.sent, self.corrections, self._returned = self.corrections, {}, 0
        return LimitAsk(
            limit_id=self.limit_id,
            measure=self.measure,
            most=self.limit,
            needs=needs,
            ahead=ahead,
            corrections=tuple(self.sent.items()),
        )

    def apply_answer(
        self, answered: LimitGranted, *, asked_s: float, now_s: float, workers: int, is_repeat: bool
    ) -> None:
        """Update the window from Postgres's answer to its ask."""
        self.sent = None
        self._left = self.limit - answered.used
        self._slides = tuple((now_s + ms / 1000, units) for ms, units in answered.slides)
        self._answered_s, self._since_answer = now_s, 0
        self.asks_again_s = now_s + ASK_AGAIN_S
        if is_repeat:  # taken for requests that already had another answer
            self._note_correction(answered.tick, -answered.granted)
        elif self._is_renewing:
            self._give_back()
            self.tick, self.free, self._lot_s = answered.tick, answered.granted, asked_s
            self._low = (self.free - self.waiting) // 2 if self.free > self.waiting else -1

    def give_all_back(self) -> None:
        """Mark all held units of the window for return to Postgres and take none ahead, because the
        worker ends.
        """
        self._give_back()
        self.is_wanted, self._demand, self._rate = False, 0, 0.0

    def due_at_s(self, now_s: float) -> float | None:
        """Return the time of the window's next report to Postgres without any request; None if none
        is due.
        """
        if self.corrections:
            return now_s + GIVE_BACK_AFTER_S
        return self._lot_s + LOT_LASTS_S if self.free else None

    def _measure_rate(self, now_s: float) -> None:
        """Update the average rate of demanded units, which sizes the next lot."""
        passed_s = now_s - self._counted_s
        if passed_s >= MEASURE_EVERY_S:
            weight = min(passed_s / RATE_OVER_S, 1.0)
            self._rate += weight * (self._demand / passed_s - self._rate)
            self._demand, self._counted_s = 0, now_s

    def _units_ahead(self, workers: int) -> int:
        """Return the units to ask for beyond those of waiting requests: half a second's demand
        within bounds, 0 at a low rate.
        """
        most = max(self.limit // (LOT_SHARE * workers), self._typical)
        ahead = min(int(self._rate * AHEAD_S), most)
        return ahead if ahead >= self._typical else 0

    def _give_back(self) -> None:
        """Mark the unused units of the current lot for return to Postgres with the next ask."""
        if self.free:
            self._note_correction(self.tick, -self.free)
            self.free = 0


class LimitSlots(HeldUnits):
    """A limit's slots for concurrent requests: `held` counts those reserved in Postgres, `in_use`
    those in use.
    """

    __slots__ = ("_last_peak", "_left", "_peak", "_peak_s", "_renewed_s", "held", "in_use")

    def __init__(self, limit_id: str, measure: LimitUnit, limit: int) -> None:
        """Start without reserved slots of a limit."""
        super().__init__(limit_id, measure, limit)
        self.held = self.in_use = self._peak = self._last_peak = 0
        self._peak_s = self._renewed_s = 0.0
        self._left = limit

    @property
    def is_low(self) -> bool:
        """Return False: a slot is requested only when a request needs one, and ended requests free
        the next.
        """
        return False

    def take(self, units: int, now_s: float) -> int:
        """Take a reserved slot for a request; slots count at no tick, so return 0."""
        self.free -= units
        self._count_in_use(units)
        return 0

    def can_take_alone(self, units: int, *, now_s: float, workers: int) -> bool:
        """Return True if, while Postgres is away or late, this worker's own share of the slots, at
        least one, has room.
        """
        return self.in_use + units <= max(self.limit // workers, 1)

    def take_alone(self, units: int, *, now_s: float, tick: int) -> int:
        """Take a slot of this worker's own share while Postgres is away or late, to report it
        later; return `tick` unchanged.
        """
        self._count_in_use(units)
        self._count_free(now_s)
        return tick

    def settle(self, tick: int, *, taken_s: float, unused: int, now_s: float) -> bool:
        """Free the slot of an ended request; return True. The arguments matter only to windows."""
        self.in_use -= 1
        self._count_free(now_s)
        return True

    def refuses(self, units: int, now_s: float) -> bool:
        """Return True if Postgres recently reported that all slots are in use."""
        return now_s < self.asks_again_s and units > self._left

    def ready_s(self, units: int, now_s: float) -> float:
        """Return a guess of the time at which a slot is free: the end of a running request cannot
        be known.
        """
        return now_s + 1.0

    def share_ready_s(self, units: int, *, now_s: float, workers: int) -> float:
        """Return a guess of the time at which this worker's own share has a free slot, for refusals
        while Postgres is away or late.
        """
        return now_s + 1.0

    def next_ask(
        self, needs: tuple[tuple[int, int], ...], *, now_s: float, workers: int
    ) -> LimitAsk:
        """Return the slots' next ask to Postgres. Slots unused for up to a second are given
        back.
        """
        if now_s - self._peak_s >= PEAK_LASTS_S:
            self._last_peak, self._peak, self._peak_s = self._peak, self.in_use, now_s
        self.is_wanted = False
        if now_s - self._renewed_s > SLOTS_LAST_S:
            self.held = self.in_use  # other workers may have the rest by now
        self.held = max(min(self.held, max(self._peak, self._last_peak)), self.in_use)
        self._count_free(now_s)
        ahead = self.in_use // 8 if self.waiting else 0
        return LimitAsk(
            limit_id=self.limit_id,
            measure=self.measure,
            most=self.limit,
            needs=needs,
            ahead=ahead,
            kept=self.held,
        )

    def apply_answer(
        self, answered: LimitGranted, *, asked_s: float, now_s: float, workers: int, is_repeat: bool
    ) -> None:
        """Update the reserved slots from Postgres's answer to their ask."""
        # After an outage more slots may be in use than the limit allows. Each worker then gives up
        # its part of the excess as requests end. If workers reused every freed slot, the total
        # would stay above the limit as long as they are busy.
        over = max(answered.used - self.limit, 0)
        self.held, self._renewed_s = max(answered.granted - ceil(over / workers), 0), asked_s
        self._left = self.limit - answered.used
        self.asks_again_s = now_s + ASK_AGAIN_S
        self._count_free(now_s)

    def give_all_back(self) -> None:
        """Mark all unused slots for return to Postgres, because the worker ends."""
        self._peak = self._last_peak = 0
        self._peak_s, self.is_wanted = float("inf"), self.held > 0

    def due_at_s(self, now_s: float) -> float | None:
        """Return the time of the slots' next report to Postgres without any request; None if none
        is due.
        """
        if self.held > self.in_use:
            return max(self._peak_s + PEAK_LASTS_S, now_s + GIVE_BACK_AFTER_S)
        return self._renewed_s + RENEW_EVERY_S if self.held or self.in_use else None

    def _count_in_use(self, units: int) -> None:
        """Count slots that requests now use, and the highest recent number."""
        self.in_use += units
        self._peak = max(self._peak, self.in_use)

    def _count_free(self, now_s: float) -> None:
        """Update the number of slots free for requests: reserved minus in use, or 0 if the
        reservation is too old.
        """
        is_ours = now_s - self._renewed_s <= SLOTS_LAST_S
        self.free = max(self.held - self.in_use, 0) if is_ours else 0


Pool: TypeAlias = LimitWindow | LimitSlots


class WorkerLimit:
    """One limit as this worker applies it: its windows of requests and tokens, and its slots."""

    __slots__ = ("limits", "pools", "requests", "slots", "tokens", "used_s")

    def __init__(self, limit_id: str, limits: Limits) -> None:
        """Make a limit's windows and slots, without units yet."""
        self.limits = limits
        self.used_s = 0.0
        self.requests = LimitWindow(limit_id, LimitUnit.REQUESTS, 0)
        self.tokens = LimitWindow(limit_id, LimitUnit.TOKENS, 0)
        self.slots = LimitSlots(limit_id, LimitUnit.CONCURRENT, 0)
        self.pools: tuple[Pool, ...] = (self.requests, self.tokens, self.slots)
        self.use_figures(limits)

    def use_figures(self, limits: Limits) -> None:
        """Use the figures of another policy version; held units stay, and Postgres is asked again
        before the next refusal.
        """
        self.limits = limits
        figures = (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrent)
        for pool, figure in zip(self.pools, figures, strict=True):
            pool.limit, pool.asks_again_s = figure or 0, 0.0

    @property
    def is_idle(self) -> bool:
        """Return True if no units are held, in transit or awaited."""
        return not any(pool.is_listed or pool.waiting for pool in self.pools)


def grouped(needs: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the waiting requests' needs in their order as pairs (units, count), with equal
    neighbours merged.
    """
    found: list[tuple[int, int]] = []
    for units in needs:
        if found and found[-1][0] == units:
            found[-1] = (units, found[-1][1] + 1)
        else:
            found.append((units, 1))
    return tuple(found)


def tick_at(now_s: float, offset_ms: float | None) -> int:
    """Return the database's current tick from the offset of its clock to ours; 0 if the offset is
    unknown.
    """
    return 0 if offset_ms is None else int((now_s * 1000 + offset_ms) // TICK_MS)
