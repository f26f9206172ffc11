"""Limits one process's requests in flight and shares the slots between teams: a team beyond its
share is refused at once with `Overloaded`.
"""

from __future__ import annotations

from gateway.errors import Overloaded

# A team may hold this many times the free slots: alone 4/5 of all, beside an equally busy team 4/9
# each. So there is always a slot for one more team, and a team alone is hardly limited.
TIMES_FREE = 4


class RequestSlots:
    """The slots of one process for requests in flight, taken before a request's body is read."""

    def __init__(self, most: int) -> None:
        """Make `most` slots, all free."""
        self.most = most
        self._total = 0
        self._taken: dict[str, int] = {}

    def take(self, team: str, *, is_only_team: bool) -> None:
        """Take one slot for a request of a team. Raises `Overloaded` if the team holds `TIMES_FREE`
        times the free slots and is not the only one.
        """
        taken = self._taken.get(team, 0)
        if taken >= TIMES_FREE * (self.most - self._total) and not is_only_team:
            raise Overloaded(
                f"Team {team} has {taken} of the {self.most} places for requests in flight here; "
                "the rest is kept for other teams. Try again when some of its requests have ended.",
                retry_after_s=1,
            )
        self._taken[team] = taken + 1
        self._total += 1

    def release(self, team: str) -> None:
        """Free one slot of a team after its request has ended."""
        taken = self._taken[team] - 1
        assert taken >= 0, "each place is given back once"
        if taken:
            self._taken[team] = taken
        else:
            del self._taken[team]
        self._total -= 1
