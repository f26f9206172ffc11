"""Declares the key by which refused requests are counted: hour, team, route, data class, code and
rules; counts nothing.

A refusal leaves no attempt and no event. `services/request/refusals.py` counts them.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

SHADOW = "shadow:"  # before the code of a request that passed because the limit is in shadow mode


class RefusalCountKey(NamedTuple):
    """The key of one count: refusals of one kind in one hour (UTC).

    `rules` are those that excluded deployments, or the name of a limit.
    """

    hour: datetime
    team: str
    route: str
    data_class: str
    code: str
    rules: tuple[str, ...]
