"""One HTTP request to an upstream, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamCall:
    """One POST to a deployment, ready to send. Header names are in lower case."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    asks_running_usage: bool = False
