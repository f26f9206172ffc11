"""Checks a Host header against the names that a listener without a key accepts (dashboard,
metrics), so that DNS rebinding cannot read it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

LOCAL = "localhost"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")


def answers_to(host: str | None, *, bound: str, listed: Collection[str]) -> bool:
    """Return True if a listener bound to an address answers to a Host header.

    Loopback names always pass. On another bind IP literals pass too: DNS rebinding needs a name.
    Names must be listed.
    """
    match = _HOST.fullmatch(host or "")
    if match is None:
        return False
    name = match.group(1).strip("[]").lower().rstrip(".")
    if name == LOCAL or name in {one.lower() for one in listed}:
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not is_loopback(bound)


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches the address."""
    try:
        return host == LOCAL or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
