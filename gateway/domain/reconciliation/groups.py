"""Groups the lines of a bill with the deployments that they belong to, as far as their members can
tell them apart.

A line belongs to a deployment if the model is its own and each member that the policy states equals
that of the line. Lines that name fewer members belong to several deployments or keys at once: all
of these are one group, and are compared together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations

from gateway.domain.policy.policy import Billing
from gateway.domain.reconciliation.bills import BilledTo, canonical_model, is_same_model
from gateway.domain.reconciliation.metered import MeteredAt


class Standing(StrEnum):
    """The relation of a line to the deployments of the policy."""

    OWN = "own"
    UNMETERED = "unmetered"  # of a stated account and model, but of another project or key
    UNMAPPED = "unmapped"  # of an account or a model that no deployment has


@dataclass(slots=True)
class LineGroup:
    """Deployments and places of a bill that can only be compared together."""

    deployments: set[MeteredAt] = field(default_factory=set)
    places: dict[BilledTo, Standing] = field(default_factory=dict)
    accounts: set[str] = field(default_factory=set)

    @property
    def account(self) -> str:
        """Return the account of the group's rows; several are joined."""
        return ", ".join(sorted(self.accounts))

    @property
    def model(self) -> str:
        """Return the model of the group's rows: that of its deployments, else that of the bill."""
        models = {at.model for at in self.deployments} or {to.model for to in self.places}
        return ", ".join(sorted(models))


def groups_of(
    places: Collection[BilledTo], billing: Mapping[MeteredAt, Billing]
) -> list[LineGroup]:
    """Return the groups of the places of one kind of token, and of all deployments."""
    union = _Union()
    standings = {place: standing_of(place, billing) for place in places}
    for place, standing in standings.items():
        union.add(place)
        if standing is Standing.OWN:
            for at in billing:
                if belongs(place, at, billing[at]):
                    union.join(place, at)
    for at in billing:
        union.add(at)
    _join_coarser(union, places)
    found: dict[object, LineGroup] = {}
    for at in billing:
        group = found.setdefault(union.root(at), LineGroup())
        group.deployments.add(at)
    for place in places:
        group = found.setdefault(union.root(place), LineGroup())
        group.places[place] = standings[place]
        group.accounts.add(place.account)
    for group in found.values():
        stated = {account for at in group.deployments if (account := billing[at].account)}
        group.accounts |= stated
    return list(found.values())


def belongs(place: BilledTo, at: MeteredAt, billing: Billing) -> bool:
    """Return True if a place of a bill is a deployment's own."""
    return _is_billed_to(place, billing) and (
        not place.model or is_same_model(place.model, at.model)
    )


def standing_of(place: BilledTo, billing: Mapping[MeteredAt, Billing]) -> Standing:
    """Return the relation of a place of a bill to the deployments."""
    if any(belongs(place, at, one) for at, one in billing.items()):
        return Standing.OWN
    is_stated = any(one.account in (None, place.account) for one in billing.values())
    has_model = not place.model or any(is_same_model(place.model, at.model) for at in billing)
    return Standing.UNMETERED if is_stated and has_model else Standing.UNMAPPED


def _is_billed_to(place: BilledTo, billing: Billing) -> bool:
    """Return True if each stated member equals that of the place, if the export has it."""
    return (
        billing.account in (None, place.account)
        and (place.project is None or billing.project in (None, place.project))
        and (place.key is None or billing.key in (None, place.key))
    )


def _join_coarser(union: _Union, places: Collection[BilledTo]) -> None:
    """Join the places that cannot be told apart, because one lacks a member that another has."""
    shapes: dict[tuple[bool, bool], list[BilledTo]] = {}
    for place in places:
        shapes.setdefault((place.project is None, place.key is None), []).append(place)
    for (one, firsts), (other, seconds) in combinations(shapes.items(), 2):
        no_project, no_key = one[0] or other[0], one[1] or other[1]

        def shared(
            place: BilledTo, no_project: bool = no_project, no_key: bool = no_key
        ) -> tuple[object, ...]:
            """Return the members that both shapes have."""
            return (
                place.account,
                canonical_model(place.model),
                None if no_project else place.project,
                None if no_key else place.key,
            )

        partners: dict[tuple[object, ...], list[BilledTo]] = {}
        for place in firsts:
            partners.setdefault(shared(place), []).append(place)
        for place in seconds:
            for partner in partners.get(shared(place), ()):
                union.join(place, partner)


class _Union:
    """Disjoint sets."""

    def __init__(self) -> None:
        """Make no set yet."""
        self._parents: dict[object, object] = {}

    def add(self, one: object) -> None:
        """Make a set of one, unless it is in a set."""
        self._parents.setdefault(one, one)

    def root(self, one: object) -> object:
        """Return the representative of a set."""
        self.add(one)
        while self._parents[one] != one:
            self._parents[one] = self._parents[self._parents[one]]
            one = self._parents[one]
        return one

    def join(self, one: object, other: object) -> None:
        """Make one set of two."""
        self._parents[self.root(one)] = self.root(other)
