"""Declares the key by which refused requests are counted: hour, team, project, api key, route, data
class, code and rules; counts nothing.

A refusal leaves no attempt and no event. `services/request/refusals.py` counts them.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

SHADOW = "shadow:"  # before the code of a request that passed because the limit is in shadow mode
OTHER = "other"  # the rule of the kinds beyond `MOST_ROWS`
MOST_ROWS = 1_000  # of a team and hour, those of `OTHER` among them
MOST_CODES = 50  # rows of `OTHER`: each code has one


class RefusalCountKey(NamedTuple):
    """The key of one count: refusals of one kind in one hour (UTC).

    `rules` are the budget, the limit or the residency rules that refused, and `rule` is the first
    of them. A text is empty if it is not known: a request whose body was not read has no route.
    """

    hour: datetime
    team: str
    route: str
    data_class: str
    code: str
    rules: tuple[str, ...]
    project: str = ""
    key_id: str = ""
    rule: str = ""

    @property
    def as_other(self) -> RefusalCountKey:
        """Return the key of the count by the code alone."""
        return RefusalCountKey(self.hour, self.team, "", "", self.code, (), rule=OTHER)
