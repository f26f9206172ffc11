"""Reading a snapshot from the stores: keys stay fresh in every state of the policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import pytest

from gateway.domain.policy.api_keys import KeyRecord
from gateway.domain.policy.last_snapshot import LastSnapshot
from gateway.domain.policy.policy import Deployment
from gateway.domain.policy.price_book import PriceBook
from gateway.domain.pricing.pricing import Price
from gateway.errors import BadUsage, PolicyRejected
from gateway.services.snapshot.source import StoredSnapshots
from gateway.storage.policy.prices import StoredBook
from tests.factories import PEPPER, key, key_record
from tests.fakes import FakeClock
from tests.integration.policy import small

DOCUMENT = small("http://127.0.0.1:9")


@dataclass
class Stored:
    """A policy as it is stored."""

    version: int = 7
    sha256: str = "7" * 64
    document: str = DOCUMENT
    is_demo: bool = False


@dataclass
class Stores:
    """Policies, keys, prices and word of changes, in memory."""

    policy: Stored | None = field(default_factory=Stored)
    records: list[KeyRecord] = field(default_factory=lambda: [key_record(key(1))])
    ejected: dict[str, str] = field(default_factory=dict)
    ensured: int = 0

    def stated_places(self) -> dict[str, str]:
        return self.ejected

    def current(self) -> Stored | None:
        return self.policy

    def live(self) -> list[KeyRecord]:
        return self.records

    def book(self, deployments: Iterable[Deployment]) -> StoredBook:
        return StoredBook(PriceBook(entries=()))

    def import_list_prices(
        self, deployments: Iterable[Deployment], *, author: str, reason: str
    ) -> None:
        raise AssertionError("a gateway imports no prices")

    def record_in_force(
        self, prices: Mapping[str, Price], *, policy_version: int, at: datetime
    ) -> None:
        self.ensured += 1

    def wait(self, timeout_s: float) -> bool:
        return True


def no_price(*, provider: str, model: str, base_url: str, region: str = "", at: datetime) -> None:
    """A list without prices."""


def source(stores: Stores, **changes: Callable[[], None]) -> StoredSnapshots:
    return StoredSnapshots(
        policies=stores,
        keys=stores,
        ejections=stores,
        prices=stores,
        wait_for_change=stores.wait,
        peppers={PEPPER.pepper_id: PEPPER},
        builtin=no_price,
        clock=FakeClock(),
        **changes,
    )


def test_nothing_changed_is_the_same_snapshot() -> None:
    """Its caches are kept."""
    stores = Stores()
    before = source(stores).load(None)
    assert before is not None
    assert source(stores).load(before) is before


def test_a_saved_snapshot_is_restored_unchanged() -> None:
    """The first look after a restart then finds nothing changed, and writes nothing."""
    stores = Stores(ejected={"gpt-eu": "us"})
    before = source(stores).load(None)
    assert before is not None
    assert before.ejected == {"gpt-eu": "us"}
    last = LastSnapshot(
        good_at=FakeClock().now(),
        version=before.policy.version,
        sha256=before.policy.sha256,
        document=before.document,
        prices=before.prices,
        keys=tuple(before.keys.values()),
        ejected=before.ejected,
    )
    rebuilt = source(stores).rebuilt(last)
    assert rebuilt == before
    assert source(stores).load(rebuilt) is rebuilt
    assert stores.ensured == 1


def test_a_policy_that_cannot_be_read_here_keeps_no_revoked_key_alive() -> None:
    """A newer Tollgate applied it.

    The policy before stays in force, keys go on being refreshed, readiness says why.
    """
    stores = Stores()
    before = source(stores).load(None)
    stores.policy = Stored(
        version=8, sha256="8" * 64, document=DOCUMENT + "from_the_future: true\n"
    )
    stores.records = [key_record(key(2))]
    now = source(stores).load(before)
    assert before is not None
    assert now is not None
    assert (now.policy, set(now.keys)) == (before.policy, {key_record(key(2)).key_id})
    assert now.behind is not None
    assert now.behind.startswith(
        "version 8 is applied and cannot be read here, 7 stays in force: line "
    )
    assert "error: from_the_future" in now.behind
    assert source(stores).load(now) is now
    stores.policy = Stored(version=9, sha256="9" * 64)
    fixed = source(stores).load(now)
    assert fixed is not None
    assert (fixed.behind, fixed.policy.version) == (None, 9)


def test_a_policy_that_cannot_be_read_at_a_start_is_refused() -> None:
    """There is none before it to stay in force."""
    stores = Stores(policy=Stored(document="nonsense"))
    with pytest.raises(PolicyRejected):
        source(stores).load(None)


def test_another_document_under_the_same_number_is_another_policy() -> None:
    """The database was made anew, or restored to before."""
    stores = Stores()
    before = source(stores).load(None)
    stores.policy = Stored(sha256="a" * 64, document=DOCUMENT.replace("payments", "search"))
    now = source(stores).load(before)
    assert now is not None
    assert list(now.policy.policy.teams) == ["search"]


def test_the_pepper_is_checked_before_the_first_snapshot_alone() -> None:
    """It does not change under a running worker, and each look would cost two statements more."""
    checks: list[None] = []

    def check() -> None:
        checks.append(None)

    checked = source(Stores(), check=check)
    checked.load(checked.load(None))
    assert len(checks) == 1

    def wrong() -> None:
        raise BadUsage("This pepper file belongs to another database.")

    with pytest.raises(BadUsage):
        source(Stores(), check=wrong).load(None)


def test_no_policy_is_no_snapshot() -> None:
    """A gateway that was never given one says so."""
    assert source(Stores(policy=None)).load(None) is None
    assert source(Stores()).wait(1) is True
