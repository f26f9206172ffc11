"""Requests that were decided against: what is counted of them, since they leave no attempt and no
event.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

SHADOW = "shadow:"  # before the code of what was let pass, because the limit is in shadow


class Refused(NamedTuple):
    """One kind of refusal in one hour (UTC).

    `rules` are those that kept deployments away, or the name of a limit.
    """

    hour: datetime
    team: str
    route: str
    data_class: str
    code: str
    rules: tuple[str, ...]
