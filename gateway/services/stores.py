"""Declares the protocols of the stores that services and commands use (database, keys, policies,
prices, budgets, ledger, audit), and their bundle `Stores`.

`gateway.composition` builds it of the adapters in `storage`. Every method raises
`DatabaseUnavailable` if Postgres does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Protocol, TypeVar
from uuid import UUID

from gateway.domain.allocation.currency import NewRate
from gateway.domain.allocation.reallocation import ApprovedReallocation, NewReallocation
from gateway.domain.budgets.budgets import BudgetRule
from gateway.domain.budgets.grants import Granted, WorkerLease
from gateway.domain.budgets.limits import Limits
from gateway.domain.database_server import ServerFacts
from gateway.domain.deployments.engine_counters import Tokens
from gateway.domain.deployments.gpu_bills import BillLine
from gateway.domain.deployments.imported_bills import BillFile, DeploymentBill, ImportedBill
from gateway.domain.ledger.audit_chain import AuditAct, AuditRow, ChainHead
from gateway.domain.ledger.health import LedgerState
from gateway.domain.ledger.journals import ServingWorker, StoredJournal
from gateway.domain.ledger.month_close import BilledSpan, MonthClose, VerifiedMonth
from gateway.domain.ledger.records import CopiedSlice, DeadLetter, Written
from gateway.domain.ledger.resolution import BookedResolution, StatedCost
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.logins import CreatedLogins, LoginPurpose
from gateway.domain.places.regions import UNKNOWN
from gateway.domain.policy.allocation import PolicyAllocation
from gateway.domain.policy.api_keys import KeyRecord, Pepper, StoredKey
from gateway.domain.policy.policy import Deployment
from gateway.domain.policy.price_book import Dated, InForce, ModelKey, NewEntry, PriceBook
from gateway.domain.policy.stored_policy import StoredPolicy
from gateway.domain.policy.unlisted_use import UnlistedUse
from gateway.domain.pricing.price_corrections import Adjustment, PricedEvent
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.selfhost import Calibration
from gateway.domain.reconciliation.bills import Bill
from gateway.domain.reconciliation.imports import BookedTrueUps, ImportedExport
from gateway.domain.reconciliation.metered import MeteredUsage
from gateway.domain.reconciliation.true_ups import TrueUp, TrueUpKey
from gateway.domain.reports.schedule import NewSchedule
from gateway.domain.residency.ejection import Ejection
from gateway.wire.bills.exports.collected import ParsedExport

S = TypeVar("S")
R = TypeVar("R")


class DatabaseAdministration(Protocol):
    """The database itself: its tables, logins, clock and the peppers that its keys need."""

    @property
    def name(self) -> str:
        """Return the database's address without the password."""

    def upgrade(self, *, on_step: Callable[[str], None] | None = None) -> list[str]:
        """Bring the tables to this version; return the applied migrations."""

    def pending(self) -> list[str]:
        """Return the migrations that are not applied yet."""

    def attach_months(self) -> list[str]:
        """Attach each month's partition that somebody detached; return their names."""

    def ensure_months(self, *, first: date, last: date) -> list[str]:
        """Create the missing monthly partitions of the ledger; return their names."""

    def ensure_logins(
        self, *, given: Mapping[LoginPurpose, str], renews: bool = False
    ) -> CreatedLogins:
        """Create the missing database logins, as the owner; `given` are the addresses in the
        settings. `renews` sets a new password for each login that they do not name.
        """

    def role_problem(self, address: str, purpose: LoginPurpose) -> str | None:
        """Return why the login of an address cannot work for its purpose, with the remedy; None if
        Postgres's catalogue has no reason.
        """

    def register_peppers(self, peppers: Sequence[Pepper]) -> None:
        """Record the peppers in use. Raises `BadUsage` if the keys were made with others."""

    def check_peppers(self, peppers: Sequence[Pepper]) -> None:
        """Raise `BadUsage` if this database's keys were made with other peppers."""

    def refresh_rollups(self, *, before: date | None = None) -> int:
        """Bring the sums by hour, day and month up to date, or with `before` those that end
        before a day; return the number of hours.
        """

    def sum_wrong_hours_again(self, *, since: datetime) -> int:
        """Have the hours summed again whose sums differ from their events; return their number."""

    def ledger_state(
        self, *, partitions_until: date, rollup_since: datetime | None = None
    ) -> LedgerState:
        """Return the ledger's state; with `rollup_since` also compare roll-ups with events."""

    def unlisted_uses(self, *, teams: Sequence[str], since: datetime) -> tuple[UnlistedUse, ...]:
        """Return the use of unlisted members by some teams since a moment."""

    def acts_as(self) -> tuple[str, str]:
        """Return the connection's login and the role that it acts as."""

    def too_powerful(self, users: Iterable[str]) -> list[tuple[str, bool]]:
        """Return those of the database logins `users` that may change booked events, each with True
        for a superuser.
        """

    def require_suitable(self) -> None:
        """Raise `UnsuitableDatabase` if Tollgate cannot work with this address."""

    def server_facts(self) -> ServerFacts:
        """Return the server's durability, the rights of every login, and the holders of locks."""

    def clock_skew_s(self, now: Callable[[], datetime]) -> float:
        """Return how far the database's clock is ahead of `now`, in seconds."""

    def close(self) -> None:
        """Close the connections to Postgres. A later use opens them again."""


class ApiKeys(Protocol):
    """The API keys of all teams. The audit log keeps each `reason`."""

    def create(self, record: KeyRecord, *, created_by: str, reason: str = "") -> None:
        """Store a new API key. Raises `BadUsage` if its id is taken."""

    def rotate(
        self,
        key_id: str,
        *,
        make: Callable[[StoredKey], KeyRecord],
        ends_at: datetime,
        by: str,
        now: datetime,
        reason: str = "",
    ) -> tuple[StoredKey, KeyRecord]:
        """Create a new API key beside a live one, which ends at `ends_at`; return both.

        Raises `NothingFound` or `BadUsage`; then nothing was changed.
        """

    def revoke(self, key_id: str, *, revoked_by: str, reason: str = "") -> bool:
        """Revoke an API key now; return False if it is unknown or was revoked before."""

    def pause(self, key_id: str, *, paused_by: str, reason: str = "") -> bool:
        """Reject an API key until it is resumed; return False if it is unknown, paused or
        revoked.
        """

    def resume(self, key_id: str, *, reason: str = "") -> bool:
        """Accept a paused API key again; return False if it is unknown or not paused."""

    def list_all(self) -> list[StoredKey]:
        """Return every API key ever made, oldest first."""

    def live(self) -> list[KeyRecord]:
        """Return the API keys that are not revoked, including paused ones."""

    def require(self, key_id: str) -> StoredKey:
        """Return one API key, revoked or not. Raises `NothingFound`."""


class PolicyHistory(Protocol):
    """All versions of the policy document."""

    def author(self, operator: str) -> str:
        """Return the author of a change for the history: the database login and the person."""

    def current(self) -> StoredPolicy | None:
        """Return the newest policy version, None before the first."""

    def get(self, version: int) -> StoredPolicy | None:
        """Return one policy version, or None."""

    def history(self) -> list[StoredPolicy]:
        """Return every policy version, newest first."""

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

    @property
    def book(self) -> PriceBook:
        """Return all entries of these deployments in the price book."""

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


class PriceEntries(Protocol):
    """The price book and the record of the prices in force."""

    def book(self, deployments: Iterable[Deployment]) -> Book:
        """Return the part of the price book that these deployments need."""

    def import_list_prices(
        self, deployments: Iterable[Deployment], *, author: str, reason: str
    ) -> object:
        """Import list prices for models that the price book does not have yet."""

    def record_in_force(
        self, prices: Mapping[str, Price], *, policy_version: int, at: datetime
    ) -> object:
        """Record the price by which each deployment is charged from `at` on, if it changed; the
        price book gets no entry.
        """

    def entries(self, keys: Iterable[ModelKey]) -> PriceBook:
        """Return all overrides, and the imported prices of these models of the list."""

    def add(self, entries: Iterable[NewEntry], *, author: str, reason: str) -> int:
        """Add entries to the price book in one transaction, in order; return their number."""

    def in_force(self, deployment: str, *, limit: int) -> list[InForce]:
        """Return the prices that a deployment was charged by, newest first."""

    def charged(self, deployments: Iterable[str]) -> Mapping[str, Price]:
        """Return the latest price that each of these deployments was charged by, if any."""

    def store_event_prices(self, prices: Iterable[Price]) -> None:
        """Store prices so that demo events can name them; the price book and the deployments'
        charged prices stay unchanged.
        """


class PriceList(Protocol):
    """The bundled price list; it needs no database and no network."""

    def builtin_price(
        self, *, provider: str, model: str, base_url: str, region: str = UNKNOWN, at: datetime
    ) -> Price | None:
        """Return the list's price of a model at a moment and place, None if its full cost is
        unknown.
        """

    def key_of(self, deployment: Deployment) -> ModelKey | None:
        """Return the list's key of a deployment's model, None if the list does not know it."""

    def listed_price(self, key: ModelKey, at: datetime) -> Price | None:
        """Return the bundled list's price of one of its models at a moment, None if it has none
        then.
        """

    def all_keys(self) -> list[ModelKey]:
        """Return the keys of every model of the list."""

    def models_named(self, model: str) -> list[ModelKey]:
        """Return the keys of the list's models with exactly this name, its maker's first."""

    def schedule(self, key: ModelKey) -> tuple[Dated, ...]:
        """Return every price that the list has for a model, in the order of their starts."""


class BudgetGrants(Protocol):
    """Changes of budgets outside the policy, and the workers' leases."""

    def grant(
        self,
        account_id: str,
        amount_nusd: int,
        *,
        expires_at: datetime | None,
        reason: str,
        now: datetime,
    ) -> Granted:
        """Add an amount to the limit of an account's budget in its current period.

        Raises `NothingFound` or `BadUsage`; then nothing was granted.
        """

    def leases(self, account_id: str, starts_at: datetime) -> tuple[WorkerLease, ...]:
        """Return the money that each worker has leased from one account's budget period, the
        largest first.
        """


class EventBooking(Protocol):
    """Writes usage events and dead letters to the ledger."""

    def write(self, events: Sequence[UsageEvent]) -> int:
        """Write events to the ledger exactly once; return the number of new ones."""

    def book_letter(self, letter: DeadLetter) -> Written:
        """Book a dead letter's document once, from the money leased for it."""


class BulkBooking(Protocol):
    """Copies generated events into the ledger, many at once; budgets are not charged."""

    def copy(
        self, slices: Sequence[S], make: Callable[[S], tuple[Sequence[UsageEvent], R]]
    ) -> Iterator[CopiedSlice[R]]:
        """Make and copy each slice once, and yield it in its order when it is in the ledger.

        `make` runs in other processes, and gives the same events for the same slice.
        """


class DemoOrganisations(Protocol):
    """The register of the demo organisations in a database."""

    def begin(self, organisation: str, *, is_ledger: bool, last_day: date) -> date:
        """Record that an organisation is about to be written, and return its last day: that of the
        first time, if there was one.

        Raises `OperatorError` if it would be a ledger beside other real events.
        """


class DeadLetterQueue(Protocol):
    """The dead letters: records that the ledger refused."""

    def waiting(self) -> list[DeadLetter]:
        """Return the unresolved dead letters, oldest first."""

    def close(self, letter_id: UUID, *, resolution: str) -> bool:
        """Record a dead letter's resolution; return False if it already had one."""


class Resolutions(Protocol):
    """The booking of costs that a person states for unknown attempts."""

    def resolve(
        self, request_id: UUID, *, attempt: int | None, cost: StatedCost | int, reason: str
    ) -> BookedResolution:
        """Book the cost of an unknown attempt: nothing, its hold, or nano-dollars.

        Raises `NothingFound` or `BadUsage`; then nothing was booked.
        """


class RepriceLedger(Protocol):
    """Reads a month's events and posts adjustments, for repricing."""

    def state(self, month: date) -> str | None:
        """Return whether a month's ledger is open or closed, as its stored state; None if nothing
        was booked in it.
        """

    def events(
        self, month: date, *, route: str | None, deployment: str | None
    ) -> Iterator[PricedEvent]:
        """Yield a month's charged events, of one route or deployment if given; demo data is left
        out.
        """

    def post(
        self, month: date, adjustments: Iterable[Adjustment], *, author: str, reason: str
    ) -> int:
        """Write adjustments to the ledger in one transaction, each once; return the number of new
        ones.

        Raises if the month is closed.
        """


class Reallocations(Protocol):
    """The re-allocations between cost centres, to be entered and approved."""

    def add(self, entry: NewReallocation) -> UUID:
        """Store a proposed re-allocation, which books nothing yet; return its id."""

    def approve(self, reallocation_id: UUID, *, reason: str) -> ApprovedReallocation:
        """Approve a re-allocation and book its two adjustments; a second time changes nothing.

        Raises `NothingFound`, or `OperatorError` if this login or person entered it.
        """


class CurrencyRates(Protocol):
    """The dated rates at which reports show money in other currencies."""

    def add(self, rate: NewRate) -> None:
        """Add a rate from a day on. Raises `OperatorError` if a closed month has one there."""


class Schedules(Protocol):
    """The schedules by which statements are sent."""

    def add(self, schedule: NewSchedule) -> None:
        """Store a schedule. Raises `BadUsage` if its name is taken."""

    def remove(self, name: str) -> None:
        """Remove a schedule. Raises `NothingFound`."""


class MonthBooks(Protocol):
    """The closed versions of months."""

    def closes(self, month: date) -> list[MonthClose]:
        """Return the closed versions of a month, the first one first."""

    def close(
        self,
        month: date,
        *,
        billed: Sequence[BilledSpan],
        accepted: Mapping[str, str],
        reason: str = "",
        on_part: Callable[[str, int], None],
    ) -> MonthClose:
        """Close a month in one transaction; `accepted` has the reason for each open check.

        Raises `BadUsage` or `OperatorError`; then nothing was changed.
        """

    def reopen(self, month: date, *, reason: str) -> MonthClose:
        """Reopen the newest closed month; return the version that it had.

        Raises `OperatorError`; then nothing was changed.
        """

    def verify(
        self, month: date, *, on_part: Callable[[str, int], None]
    ) -> Sequence[VerifiedMonth]:
        """Compute the hash of each version of a month again. Raises `NothingFound`."""


class ProbeNotes(Protocol):
    """Records probes of engines with their tokens.

    `storage.deployments.engine_probes.EngineProbeNotes` implements it. Called in a thread.
    """

    def sent(self, probe_id: UUID, deployment: str, *, at: datetime) -> None:
        """Record a probe before it is sent. Raises `DatabaseUnavailable`."""

    def ended(self, probe_id: UUID, made: Tokens | None, *, at: datetime) -> None:
        """Record a probe's end; `made` is its tokens, None if unknown. Raises
        `DatabaseUnavailable`.
        """


class GpuBills(Protocol):
    """The imported bills of self-hosted deployments' GPUs."""

    def deployments(self) -> frozenset[str]:
        """Return the self-hosted deployments that the ledger knows, in the policy or not."""

    def preview(self, lines: Sequence[BillLine]) -> list[DeploymentBill]:
        """Return the effect of an import by deployment, without writing anything."""

    def add(self, file: BillFile, lines: Sequence[BillLine]) -> ImportedBill:
        """Import the lines of a bill in one transaction; change nothing if all of them count
        already. Hours of closed months stay; the difference is booked as a `late_bill`.
        """


class ProviderBills(Protocol):
    """The imported bills of providers, the metered usage beside them, and the true-ups."""

    def preview(self, provider: str, export: ParsedExport) -> ImportedExport:
        """Return the effect of an import, without writing anything."""

    def add(self, provider: str, export: ParsedExport, file: BillFile) -> ImportedExport:
        """Import an export in one transaction; change nothing if every day counts already."""

    def bill(self, provider: str, *, first: date, last: date) -> Bill:
        """Return the bill of a provider in some days, both inclusive."""

    def metered(
        self, provider: str, *, first: date, last: date, on_day: Callable[[date], None]
    ) -> MeteredUsage:
        """Return the metered usage at a provider in some days; `on_day` is called before each."""

    def approve(
        self,
        provider: str,
        month: date,
        *,
        make: Callable[[Mapping[TrueUpKey, int]], Sequence[TrueUp]],
        reason: str,
    ) -> BookedTrueUps:
        """Book the true-ups that `make` returns for those booked so far, in one transaction."""


class AuditTrail(Protocol):
    """The audit log, to be read."""

    def rows(self) -> Iterator[AuditRow]:
        """Yield every row of the audit log as it is stored, in order."""

    def count(self) -> int:
        """Return the number of rows of the audit log."""

    def head(self) -> ChainHead | None:
        """Return the last row of the audit log; None if it is empty."""

    def acts(
        self, *, since: datetime | None, action: str | None, subject: str | None
    ) -> list[AuditAct]:
        """Return administrative acts from the audit log in order; None matches all."""


class EjectionRegister(Protocol):
    """The deployments that answered from another place than promised."""

    def current(self) -> list[Ejection]:
        """Return the ejections of deployments that are out of use now."""

    def between(self, since: datetime, until: datetime) -> list[Ejection]:
        """Return the ejections in force at some time from `since` up to, not including, `until`."""

    def stated_places(self) -> Mapping[str, str]:
        """Return the place that each deployment out of use now reported, by deployment."""

    def readmit(self, deployment: str, *, by: str, reason: str) -> bool:
        """End a deployment's ejection, so that it is used again; return False if it is not out of
        use.
        """


class JournalRegister(Protocol):
    """The journals that Postgres knows, and the workers behind them."""

    def all(self) -> Sequence[StoredJournal]:
        """Return every journal, the most recently active first."""

    def declare_lost(self, journal_id: UUID, *, reason: str) -> None:
        """Record that a journal is lost for ever. Raises `NothingFound` or `BadUsage`."""

    def serving(self) -> Sequence[ServingWorker]:
        """Return the workers with a heartbeat in the last minute, so those that serve now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """An open database and its stores. `url` has the password."""

    url: str
    database: DatabaseAdministration
    keys: ApiKeys
    policies: PolicyHistory
    prices: PriceEntries
    price_list: PriceList
    budgets: BudgetGrants
    ledger: EventBooking
    bulk: BulkBooking
    demo_organisations: DemoOrganisations
    letters: DeadLetterQueue
    resolutions: Resolutions
    repricing: RepriceLedger
    reallocations: Reallocations
    currencies: CurrencyRates
    months: MonthBooks
    schedules: Schedules
    journals: JournalRegister
    ejections: EjectionRegister
    probes: ProbeNotes
    gpu_bills: GpuBills
    provider_bills: ProviderBills
    audit: AuditTrail
