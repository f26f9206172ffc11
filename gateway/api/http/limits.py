"""Declares the limits on callers' connections (bytes, fields, times), and computes their cap from
the process's limit on open files, which it raises.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

from gateway.errors import BadUsage

# descriptors for Postgres, upstreams, the journal and listeners, however low the process's limit is
RESERVED = 64
SHARE = 0.8
LOW_DESCRIPTORS = 4096
LEAST_DESCRIPTORS = 2 * RESERVED
MORE_DESCRIPTORS = "Raise the limit of open files (ulimit -n, LimitNOFILE=) to 16384."


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits on one connection: sizes in bytes, times in seconds.

    `head_s` counts from the accept, later from a head's first byte.
    """

    head_bytes: int = 32 * 1024
    fields: int = 100
    target_bytes: int = 8 * 1024
    head_s: float = 10.0
    body_grace_s: float = 10.0  # before a body must keep the minimum rate
    body_bytes_per_s: int = 1024
    body_s: float = 120.0
    write_s: float = 60.0
    keep_alive_s: float = 75.0
    connections: int = 10_000


def raise_descriptor_limit(connections: int) -> int:
    """Raise the process's soft limit on open files, as far as allowed, to the need of that many
    connections.

    Return the limit in force.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = int(connections / SHARE) + 1
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def most_connections(descriptors: int, *, configured: int) -> int:
    """Return the cap on callers' connections; Postgres and upstreams need the other descriptors.

    Raises `BadUsage` if the process may open too few files to serve at all.
    """
    if descriptors < LEAST_DESCRIPTORS:
        raise BadUsage(
            f"This process may open {descriptors} files, and {RESERVED} of them are for Postgres, "
            f"upstreams and the journal. {MORE_DESCRIPTORS}"
        )
    return min(configured, int(descriptors * SHARE), descriptors - RESERVED)
