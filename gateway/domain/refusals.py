"""Requests that were decided against: what is counted of them, since they leave no attempt and no event."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple


class Refused(NamedTuple):
    """One kind of refusal in one hour (UTC). `rules` are the residency rules that kept every deployment away."""

    hour: datetime
    team: str
    route: str
    data_class: str
    code: str
    rules: tuple[str, ...]
