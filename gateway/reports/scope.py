"""Declares the scope of a reader: the rows of all teams, or of some teams alone; reads nothing.

Postgres keeps it: `sources.connection` opens each snapshot for a scope.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Scope:
    """The teams whose rows a reader may see, sorted; None is every row of the organisation."""

    teams: tuple[str, ...] | None

    @classmethod
    def of_teams(cls, names: Iterable[str]) -> Self:
        """Return the scope of some teams; of none, no row."""
        return cls(tuple(sorted(set(names))))


WHOLE_ORGANISATION = Scope(None)
NO_TEAM = Scope(())
