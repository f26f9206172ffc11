"""Reads policy, keys, ejections and current prices, which also change by date or time of day, into
a snapshot; records price changes; rebuilds a stored snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.domain.policy.api_keys import KeyRecord, Pepper
from gateway.domain.policy.last_snapshot import LastSnapshot
from gateway.domain.policy.policy import PolicyVersion
from gateway.domain.policy.stored_policy import StoredPolicy
from gateway.domain.pricing.pricing import Price
from gateway.errors import PolicyRejected
from gateway.services.policy.apply import CurrentPolicy, PriceRecord, prices_of, version_of
from gateway.services.ports import BuiltinPrices, Clock
from gateway.services.snapshot.snapshot import Snapshot
from gateway.wire.parsed_policy import parse


class LiveKeys(Protocol):
    """The API keys that callers may use."""

    def live(self) -> list[KeyRecord]:
        """Return the API keys that are not revoked, including paused ones."""


class StatedPlaces(Protocol):
    """The deployments that answered from another place than promised."""

    def stated_places(self) -> Mapping[str, str]:
        """Return the place that each deployment out of use now reported, by deployment."""


def _nothing_to_check() -> None:
    """Do nothing: the default of a source whose keys need no check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshots:
    """Snapshots from the stores; the same one while nothing changed. Runs in threads.

    `wait_for_change` returns True if something changed within so many seconds. `check` runs before
    the first snapshot is read. It raises `BadUsage` if the keys cannot belong to this gateway.
    """

    policies: CurrentPolicy
    keys: LiveKeys
    ejections: StatedPlaces
    prices: PriceRecord
    wait_for_change: Callable[[float], bool]
    peppers: Mapping[str, Pepper]
    builtin: BuiltinPrices
    clock: Clock
    check: Callable[[], None] = _nothing_to_check
    note_time: Callable[[], None] = _nothing_to_check  # notes Postgres's time if that is old

    def load(self, before: Snapshot | None) -> Snapshot | None:
        """Read policy, prices and keys from Postgres; return `before` itself if nothing changed,
        None without a policy.

        Raises `DatabaseUnavailable`, and on the first load `BadUsage` or `PolicyRejected`.
        """
        if before is None:
            self.check()
        self.note_time()
        stored = self.policies.current()
        if stored is None:
            return None
        keys = {record.key_id: record for record in self.keys.live()}
        ejected = dict(self.ejections.stated_places())
        policy, document, behind = _policy(stored, before)
        prices = self._read_and_record_prices(policy, before)
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
        """Return the snapshot stored on disk with the current peppers. Raises `PolicyRejected`."""
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
        """Return True as soon as policy or keys changed in Postgres, False after the timeout."""
        return self.wait_for_change(timeout_s)

    def _read_and_record_prices(
        self, policy: PolicyVersion, before: Snapshot | None
    ) -> Mapping[str, Price]:
        """Return the deployments' prices at this moment, and record them in Postgres as in force if
        `before` had others.

        They change by date or time of day alone, so each load reads them.
        """
        now = self.clock.now()
        book = self.prices.book(policy.policy.deployments.values())
        prices = prices_of(policy.policy, at=now, builtin=self.builtin, book=book)
        if before is None or before.prices != prices:
            self.prices.record_in_force(prices, policy_version=policy.version, at=now)
        return prices


def _policy(stored: StoredPolicy, before: Snapshot | None) -> tuple[PolicyVersion, str, str | None]:
    """Return the policy in force, its document, and the reason why it is not the newest one.

    If a newer Tollgate applied a policy that this one cannot read, the one before stays in force.
    Keys must still be refreshed: otherwise a revoked key would work until the snapshot is too old,
    and then no key would.
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
