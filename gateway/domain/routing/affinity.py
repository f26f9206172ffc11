"""Which replica of an engine a session goes to: the one it was at before, unless that has more than
its share.

Rendezvous hashing with bounded load. Each session has an order of all members of its own, so a
member that leaves moves its sessions alone; and a prefix cache is warm only where the session was
last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.domain.hashing import hash64, known_hash64, mixed
from gateway.domain.request.request import Request


def session_of(request: Request) -> str:
    """Which session a request belongs to: the one its caller names, else that of its key."""
    return named_session(request.session) or request.caller.key_id


def named_session(*names: str | None) -> str | None:
    """A short name for the first of these that says something, None where none does.

    A hash: whatever a caller puts there, it is 16 letters here, and no log and no record repeats
    it.
    """
    for name in names:
        if name:
            return hash64(name).to_bytes(8, "big").hex()
    return None


def spread(session: str, members: Sequence[str], in_flight: Mapping[str, int]) -> tuple[str, ...]:
    """The members in the order that this session should try them: a permutation.

    The order of the hash; members that have their share already, a quarter over the mean with the
    newcomer counted in, come behind those that have not. One always has not.
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
    """How many one member may have at once, when all together have `total` and one more comes:
    rounded up.
    """
    return -(-5 * (total + 1) // (4 * members))
