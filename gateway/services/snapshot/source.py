"""Builds the snapshot from what is stored: current policy, its prices, live keys.

Or from what was kept of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.domain.policy.api_keys import KeyRecord, Pepper
from gateway.domain.policy.last_snapshot import LastSnapshot
from gateway.domain.policy.policy import PolicyVersion
from gateway.domain.pricing.pricing import Price
from gateway.errors import PolicyRejected
from gateway.services.policy.apply import (
    BuiltinPrices,
    PriceShelf,
    StoredDocument,
    prices_of,
    version_of,
)
from gateway.services.ports import Clock
from gateway.services.snapshot.snapshot import Snapshot
from gateway.wire.policy import parse


class PolicySource(Protocol):
    """Where policies are stored."""

    def current(self) -> StoredDocument | None:
        """The version in force."""


class KeySource(Protocol):
    """Where keys are stored."""

    def live(self) -> Sequence[KeyRecord]:
        """Keys that are not revoked."""


class EjectionSource(Protocol):
    """Where it is stored which deployments are out of use."""

    def stated(self) -> Mapping[str, str]:
        """What the upstream of each of them said of its place."""


class Changes(Protocol):
    """Word of changes."""

    def wait(self, timeout_s: float) -> bool:
        """True if something changed within the time."""


def _nothing_to_check() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshots:
    """A `SnapshotSource` over the stores. Returns the same snapshot while nothing changed.

    `check` is asked before the first snapshot is read and raises `BadUsage` where the keys cannot
    be ours.
    """

    policies: PolicySource
    keys: KeySource
    ejections: EjectionSource
    prices: PriceShelf
    changes: Changes
    peppers: Mapping[str, Pepper]
    builtin: BuiltinPrices
    clock: Clock
    check: Callable[[], None] = _nothing_to_check

    def load(self, before: Snapshot | None) -> Snapshot | None:
        """Read what is stored now.

        Raises `DatabaseUnavailable`, and at first `BadUsage` or `PolicyRejected`.
        """
        if before is None:
            self.check()
        stored = self.policies.current()
        if stored is None:
            return None
        keys = {record.key_id: record for record in self.keys.live()}
        ejected = dict(self.ejections.stated())
        policy, document, behind = _policy(stored, before)
        prices = self._prices(policy, before)
        if before is not None and (policy, prices, keys, behind, ejected) == (
            before.policy,
            before.prices,
            before.keys,
            before.behind,
            before.ejected,
        ):
            return before
        return Snapshot(
            policy=policy,
            prices=prices,
            keys=keys,
            peppers=self.peppers,
            document=document,
            behind=behind,
            ejected=ejected,
        )

    def rebuilt(self, last: LastSnapshot) -> Snapshot:
        """The snapshot that was kept, with the peppers of now. Raises `PolicyRejected`."""
        return Snapshot(
            policy=PolicyVersion(
                version=last.version, sha256=last.sha256, policy=parse(last.document).policy
            ),
            prices=last.prices,
            keys={record.key_id: record for record in last.keys},
            peppers=self.peppers,
            document=last.document,
            ejected=last.ejected,
        )

    def wait(self, timeout_s: float) -> bool:
        """True as soon as something changed, False when the time is over."""
        return self.changes.wait(timeout_s)

    def _prices(self, policy: PolicyVersion, before: Snapshot | None) -> Mapping[str, Price]:
        """Prices change by date or time of day without any other change, so they are asked for each
        time.
        """
        now = self.clock.now()
        book = self.prices.book(policy.policy.deployments.values())
        prices = prices_of(policy.policy, at=now, builtin=self.builtin, book=book)
        if before is None or before.prices != prices:
            self.prices.ensure(prices, policy_version=policy.version, at=now)
        return prices


def _policy(
    stored: StoredDocument, before: Snapshot | None
) -> tuple[PolicyVersion, str, str | None]:
    """The policy, its document, and why it is not the newest one.

    One that this Tollgate cannot read, because a newer one applied it, leaves the one before in
    force: keys must go on being refreshed, or a revoked one would work until the snapshot is too
    old, and then none would.
    """
    if before is not None and (before.policy.version, before.policy.sha256) == (
        stored.version,
        stored.sha256,
    ):
        return before.policy, before.document, None
    try:
        return version_of(stored), stored.document, None
    except PolicyRejected as rejected:
        if before is None:
            raise
        why = (
            f"version {stored.version} is applied and cannot be read here, "
            f"{before.policy.version} stays in force"
        )
        first = next(
            (str(finding) for finding in rejected.findings if finding.is_error), rejected.message
        )
        return before.policy, before.document, f"{why}: {first}"
