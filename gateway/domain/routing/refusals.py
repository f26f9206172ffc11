"""Refused requests: the counts that are kept of them, because they leave no attempt and no
event.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

SHADOW = "shadow:"  # before the code of a request that passed because the limit is in shadow mode


class Refused(NamedTuple):
    """One kind of refusal in one hour (UTC).

    `rules` are those that excluded deployments, or the name of a limit.
    """

    hour: datetime
    team: str
    route: str
    data_class: str
    code: str
    rules: tuple[str, ...]
