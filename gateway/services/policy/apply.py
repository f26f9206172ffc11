"""Makes a document the current policy and records its prices, parses stored versions, and returns
each deployment's price by the precedence of its sources.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Protocol

from gateway.domain.budgets.budgets import BudgetRule
from gateway.domain.budgets.limits import Limits
from gateway.domain.policy.allocation import PolicyAllocation, allocation_of
from gateway.domain.policy.policy import Deployment, Policy, PolicyVersion, Team
from gateway.domain.policy.stored_policy import StoredPolicy
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.selfhost import Calibration, calibrated_price, standard_price
from gateway.errors import NothingFound
from gateway.services.ports import BuiltinPrices
from gateway.wire.parsed_policy import ParsedPolicy, parse


class CurrentPolicy(Protocol):
    """The policy document in force."""

    def current(self) -> StoredPolicy | None:
        """Return the newest policy version, None before the first."""


class AppliedPolicies(CurrentPolicy, Protocol):
    """The policy document in force, and its successor."""

    def apply(
        self,
        document: str,
        *,
        sha256: str,
        author: str,
        message: str,
        is_demo: bool,
        expected_version: int | None,
        budgets: Sequence[BudgetRule],
        allocation: PolicyAllocation,
        limits: Mapping[str, Limits],
    ) -> int:
        """Make a document the current policy, with all its declared budgets, the parts by which
        reports allocate cost and the limits of each team; return its version.
        """


class Book(Protocol):
    """The prices of some deployments in the price book, as they were read."""

    def override(self, deployment: Deployment, *, at: datetime) -> Price | None:
        """Return the price that `price add` set for a deployment at a moment, None if there is
        none.
        """

    def calibrated(self, deployment: Deployment, *, at: datetime) -> Calibration | None:
        """Return the latest calibration of a deployment at a moment, None if there is none."""

    def has_listed(self, deployment: Deployment) -> bool:
        """Return True if the model's list price was imported; it then replaces the bundled list."""

    def listed(self, deployment: Deployment, *, at: datetime) -> Price | None:
        """Return the imported list price of a deployment's model at a moment, None if there is
        none.
        """


class PriceRecord(Protocol):
    """The price book to be read, and the record of the prices in force."""

    def book(self, deployments: Iterable[Deployment]) -> Book:
        """Return the part of the price book that these deployments need."""

    def record_in_force(
        self, prices: Mapping[str, Price], *, policy_version: int, at: datetime
    ) -> object:
        """Record the price by which each deployment is charged from `at` on, if it changed; the
        price book gets no entry.
        """


class ImportedPrices(PriceRecord, Protocol):
    """The price book, which takes list prices too."""

    def import_list_prices(
        self, deployments: Iterable[Deployment], *, author: str, reason: str
    ) -> object:
        """Import list prices for models that the price book does not have yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The result of an apply. `is_new` is False if the identical document was already in force."""

    version: int
    sha256: str
    is_new: bool
    policy: Policy
    prices: Mapping[str, Price]


def apply_policy(
    parsed: ParsedPolicy,
    *,
    policies: AppliedPolicies,
    prices: ImportedPrices,
    builtin: BuiltinPrices,
    author: str,
    message: str,
    now: datetime,
    is_demo: bool = False,
    expected_version: int | None = None,
) -> Applied:
    """Make a document the current policy, with its deployments' prices from now on.

    An identical document makes no new version, but its prices are brought up to date. So repeating
    an apply repairs one that was interrupted between its two transactions.
    """
    policy, digest = parsed.policy, document_sha256(parsed.text)
    current = policies.current()
    is_new = current is None or current.sha256 != digest or current.is_demo != is_demo
    version = policies.apply(
        parsed.text,
        sha256=digest,
        author=author,
        message=message,
        is_demo=is_demo,
        expected_version=expected_version,
        budgets=policy.budgets,
        allocation=allocation_of(policy),
        limits={team.name: team.limits for team in policy.teams.values()},
    )
    deployments = policy.deployments.values()
    prices.import_list_prices(
        deployments, author=author, reason=f"first used by policy version {version}"
    )
    found = prices_of(policy, at=now, builtin=builtin, book=prices.book(deployments))
    prices.record_in_force(found, policy_version=version, at=now)
    return Applied(version=version, sha256=digest, is_new=is_new, policy=policy, prices=found)


def document_sha256(document: str) -> str:
    """Return the hash over the document's UTF-8 bytes, which identifies it."""
    return sha256(document.encode()).hexdigest()


def version_of(stored: StoredPolicy) -> PolicyVersion:
    """Return a stored policy document, parsed, as a policy version.

    Raises `PolicyRejected` if this Tollgate is stricter than the one that wrote it.
    """
    return PolicyVersion(
        version=stored.version, sha256=stored.sha256, policy=parse(stored.document).policy
    )


def require_current(policies: CurrentPolicy) -> PolicyVersion:
    """Return the policy in force. Raises `NothingFound` if none was applied yet."""
    stored = policies.current()
    if stored is None:
        raise NothingFound(
            "No policy was applied yet. Write one and run: tollgate policy apply FILE"
        )
    return version_of(stored)


def require_team(version: PolicyVersion, name: str) -> Team:
    """Return a team of the policy. Raises `NothingFound` with the nearest name."""
    teams = version.policy.teams
    if name not in teams:
        raise NothingFound(
            f"There is no team '{name}' in policy version {version.version}.{_near(name, teams)}"
        )
    return teams[name]


def prices_of(
    policy: Policy, *, at: datetime, builtin: BuiltinPrices, book: Book | None = None
) -> dict[str, Price]:
    """Return the price of each deployment at a moment by `price_of`; unpriced ones are absent.

    Without a book (for a document that is not applied anywhere) only the bundled list counts.
    """
    found = {
        name: price_of(deployment, at=at, builtin=builtin, book=book)
        for name, deployment in policy.deployments.items()
    }
    return {name: price for name, price in found.items() if price is not None}


def price_of(
    deployment: Deployment, *, at: datetime, builtin: BuiltinPrices, book: Book | None
) -> Price | None:
    """Return the price of one deployment at a moment, by the one order of precedence of its
    sources.

    First the policy's own price, then `price add`, the GPU standard cost (by its calibration, else
    by its declared throughput), the list price (imported, else bundled), and the policy's stand-in.
    A self-hosted deployment never takes the list price: that is another company's price.
    """
    if deployment.price is not None:
        return deployment.price
    override = None if book is None else book.override(deployment, at=at)
    if override is not None:
        return override
    if deployment.gpu is not None:
        measured = None if book is None else book.calibrated(deployment, at=at)
        if measured is not None and measured.is_of(deployment.gpu, model=deployment.model):
            return calibrated_price(deployment.gpu, measured)
        return standard_price(deployment.gpu, model=deployment.model)
    listed = None if deployment.is_self_hosted else _list_price(deployment, at, builtin, book)
    return listed or deployment.stand_in_price


def unpriced(policy: Policy, prices: Mapping[str, Price]) -> tuple[str, ...]:
    """Return the deployments without a price; their requests are refused (`unpriced_model`)."""
    return tuple(name for name in policy.deployments if name not in prices)


def _list_price(
    deployment: Deployment, at: datetime, builtin: BuiltinPrices, book: Book | None
) -> Price | None:
    """Return a model's list price at a moment: the imported one if there is any, else the bundled
    one.
    """
    if book is not None and book.has_listed(deployment):
        return book.listed(deployment, at=at)
    return builtin(
        provider=deployment.provider,
        model=deployment.model,
        base_url=deployment.base_url,
        region=deployment.region,
        at=at,
    )


def _near(word: str, names: Mapping[str, object]) -> str:
    """Return a hint for an unknown name: the nearest known name, else all names."""
    near = difflib.get_close_matches(word, list(names), n=1)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" There is: {', '.join(sorted(names)) or 'none'}."
