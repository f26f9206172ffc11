"""Finds the members of a request whose effect on the cost is not known at a deployment, with their
factor of its hold; decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from math import ceil

from msgspec.structs import replace

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment
from gateway.domain.request.bound import Bound
from gateway.domain.request.request import RequestBody

MOST_RECORDED = 8  # names in an event
# Names of members look like this; anything else may be a caller's text.
_NAME_SHAPE = re.compile(r"(?:anthropic-beta: )?[A-Za-z_][A-Za-z0-9_.=?-]{0,63}")
_NONE: frozenset[str] = frozenset()


def unlisted_at(deployment: Deployment, read: RequestBody) -> tuple[str, ...]:
    """Return the names in a request that a deployment is not known to take within the hold, in
    alphabetical order; none for a translated request, whose members
    the translation writes.
    """
    taken = deployment.bounded_members.get(read.facts.operation)
    if taken is None:
        return ()
    parts = read.facts.unlisted_parts
    if not parts and read.members.keys() <= taken:
        return ()  # nearly every request
    return tuple(sorted((read.members.keys() - taken) | (parts - deployment.listed)))


def unlisted_of(deployments: Iterable[Deployment], read: RequestBody) -> frozenset[str]:
    """Return the names in a request that at least one of the deployments is not known to take."""
    found = _NONE
    for one in deployments:
        if names := unlisted_at(one, read):
            found = found.union(names)
    return found


def still_unlisted(
    deployment: Deployment, operation: Operation, names: Collection[str]
) -> tuple[str, ...]:
    """Return those of some names that a deployment is not known to take."""
    taken = deployment.bounded_members.get(operation)
    if taken is None or not names:
        return ()
    return tuple(sorted(set(names) - taken - deployment.listed))


def multiplied(bound: Bound, deployment: Deployment, names: Collection[str]) -> Bound:
    """Return the bound of an attempt whose unlisted members are sent: its cost times the factor
    that the deployment states.
    """
    factor = deployment.unlisted.factor
    if factor is None or not names:
        return bound
    return replace(bound, nusd=ceil(bound.nusd * factor))


def recorded(names: Collection[str]) -> list[str]:
    """Return unlisted names as an event keeps them: few, and none that may be a caller's text."""
    known = [name for name in names if _NAME_SHAPE.fullmatch(name)]
    return known[:MOST_RECORDED] if known else ["?"]
