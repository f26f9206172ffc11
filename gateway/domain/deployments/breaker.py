"""Decides from one deployment's recent outcomes whether to pass it over or to let one probe attempt
through (a circuit breaker); sends nothing.

It only advises. Its caller tries the last eligible deployment in any case.
"""

from __future__ import annotations

from gateway.domain.sliding_count import SlidingCount

WINDOW_S = 10
LEAST_OUTCOMES = 20  # with fewer, a failure rate of one half means little
FAILED_SHARE = 0.5
# refused connections and timeouts: nothing answers, and each further one costs a caller seconds
SILENT_IN_A_ROW = 5
FIRST_OPEN_S = 5.0
# So that a recovered deployment is in use within ten seconds, including the probe's time.
LONGEST_OPEN_S = 9.5
PROBE_LOST_S = 9.5  # seconds; after that a silent probe does not block the next one


class Breaker:
    """Closed, open, or open with a probe due.

    Time is an argument; `began_s` is the attempt's start.

    An attempt that began before the breaker opened is no evidence about the deployment since then.
    """

    __slots__ = (
        "_due_s",
        "_failed",
        "_in_a_row",
        "_open_for_s",
        "_probe_s",
        "_succeeded",
        "opened_s",
    )

    def __init__(self) -> None:
        """Start closed, without any recorded attempt."""
        self._succeeded, self._failed = SlidingCount(WINDOW_S), SlidingCount(WINDOW_S)
        self._in_a_row = 0
        self._open_for_s = FIRST_OPEN_S
        self._due_s = 0.0
        self._probe_s: float | None = None  # when the probe under way began
        self.opened_s: float | None = None  # None while it is closed

    def is_due(self, now_s: float) -> bool:
        """Return True if the breaker is open and the next attempt would be the probe."""
        if self.opened_s is None or now_s < self._due_s:
            return False
        return self._probe_s is None or now_s - self._probe_s >= PROBE_LOST_S

    def began(self, now_s: float) -> None:
        """Record that an attempt at the deployment begins; if a probe is due, this attempt is
        it.
        """
        if self.opened_s is not None and self.is_due(now_s):
            self._probe_s = now_s

    def succeeded(self, began_s: float, now_s: float) -> bool:
        """Record an attempt that the deployment answered; it closes an open breaker if it began
        after the opening. Return True if it did.
        """
        if self.opened_s is None:
            self._in_a_row = 0
            self._succeeded.add(now_s)
            return False
        if began_s < self.opened_s:
            return False
        self.opened_s = self._probe_s = None
        self._open_for_s = FIRST_OPEN_S
        self._in_a_row = 0
        self._succeeded.clear()
        self._failed.clear()
        return True

    def failed(self, began_s: float, now_s: float, *, is_silent: bool) -> bool:
        """Record a failed attempt, which may open the breaker or, as a failed probe, keep it open
        longer; `is_silent` if nothing answered at all.

        Return True if that opened the breaker.
        """
        if self.opened_s is not None:
            # The probe, or an attempt as late as it.
            if self._probe_s is not None and began_s >= self._probe_s:
                self._open_for_s = min(self._open_for_s * 2, LONGEST_OPEN_S)
                self._put_off_probe(now_s)
            return False
        self._failed.add(now_s)
        self._in_a_row = self._in_a_row + 1 if is_silent else 0
        failed, succeeded = self._failed.total, self._succeeded.count(now_s)
        has_failed = failed + succeeded >= LEAST_OUTCOMES and failed >= FAILED_SHARE * (
            failed + succeeded
        )
        return (has_failed or self._in_a_row >= SILENT_IN_A_ROW) and self.open(now_s)

    def open(self, now_s: float) -> bool:
        """Open the breaker at once, for a reason that needs no counting. Return True if it was
        closed.
        """
        if self.opened_s is not None:
            return False
        self.opened_s = now_s
        self._put_off_probe(now_s)
        return True

    def give_up(self, began_s: float) -> None:
        """Record that an attempt ended without a result because its caller left; it counts neither
        as a success nor as a failure.

        If it was the probe, another one may be sent.
        """
        if self._probe_s is not None and began_s >= self._probe_s:
            self._probe_s = None

    def _put_off_probe(self, now_s: float) -> None:
        """Put the next probe off until the open time from now has passed, and forget the probe
        under way.
        """
        self._due_s, self._probe_s = now_s + self._open_for_s, None
