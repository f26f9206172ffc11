"""Orders an engine's replicas for a session: its own first, unless that one has more than its share
in flight.

Rendezvous hashing with bounded load. Each session has its own order of all members, so a member
that leaves moves only its own sessions. A prefix cache is warm only at the session's last replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.domain.hashing import hash64, known_hash64, mixed
from gateway.domain.request.request import Request


def session_of(request: Request) -> str:
    """Return a request's session: the caller's name for it, else the one of its key."""
    return named_session(request.session) or request.caller.key_id


def named_session(*names: str | None) -> str | None:
    """Return a short name for the first non-empty name, None if all are empty.

    It is a hash of 16 letters, so no log or record repeats the caller's text.
    """
    for name in names:
        if name:
            return hash64(name).to_bytes(8, "big").hex()
    return None


def spread(session: str, members: Sequence[str], in_flight: Mapping[str, int]) -> tuple[str, ...]:
    """Return the replicas in the order in which a session should try them: its own first, those
    with their full share in flight last.

    The order is the hash's. Members that have their share already, a quarter over the mean with the
    newcomer counted in, follow those below it. At least one is below it.
    """
    if len(members) < 2:
        return tuple(members)
    seed = hash64(session)
    ordered = sorted([(mixed(seed ^ known_hash64(member)), member) for member in members])
    load = [in_flight.get(member, 0) for _, member in ordered]
    bound = most_in_flight(sum(load), len(members))
    if max(load) < bound:
        return tuple([member for _, member in ordered])
    late = [member for (_, member), count in zip(ordered, load, strict=True) if count >= bound]
    return (
        *[member for (_, member), count in zip(ordered, load, strict=True) if count < bound],
        *late,
    )


def most_in_flight(total: int, members: int) -> int:
    """Return the number of attempts in flight from which a replica takes no more sessions' requests
    first: a quarter over the mean, the new attempt included.
    """
    return -(-5 * (total + 1) // (4 * members))
