"""Applying, pricing, comparing and explaining policies, over stores that remember."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from gateway.domain.budgets.budgets import BudgetRule
from gateway.domain.budgets.limits import Limits
from gateway.domain.operation import Operation
from gateway.domain.policy.allocation import PolicyAllocation
from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.selfhost import Calibration
from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from gateway.domain.request.request import RequestFacts, unsent
from gateway.domain.routing.replay import Place
from gateway.errors import BadUsage, ModelNotFound, NothingFound, PolicyRejected, RouteNotAllowed
from gateway.services.policy.apply import (
    apply_policy,
    document_sha256,
    prices_of,
    require_current,
    unpriced,
    version_of,
)
from gateway.services.policy.explain import explain
from gateway.services.policy.policy_diff import Change, changes
from gateway.services.policy.unsent_requests import decision_for
from gateway.wire.parsed_policy import parse
from tests.factories import calibration
from tests.policy.documents import ALLOWED, EXAMPLE, changed

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TODAY = NOW.date()
HERE = Place(gateway_region="unknown", day=TODAY)
LIST_PRICE = Price(
    provider="openai",
    model="gpt-5.5",
    source="list",
    rates=(Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal(5)),),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One remembered document."""

    version: int
    sha256: str
    document: str
    is_demo: bool


@dataclass(slots=True)
class Shelf:
    """Remembers documents, the expected current version, and the budgets that came with each
    apply.
    """

    stored: list[Stored] = field(default_factory=list)
    expected: list[int | None] = field(default_factory=list)
    budgets: list[Sequence[BudgetRule]] = field(default_factory=list)

    def current(self) -> Stored | None:
        return self.stored[-1] if self.stored else None

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
        self.budgets.append(budgets)
        current = self.current()
        if current is not None and (current.sha256, current.is_demo) == (sha256, is_demo):
            return current.version
        self.expected.append(expected_version)
        version = len(self.stored) + 1
        self.stored.append(
            Stored(version=version, sha256=sha256, document=document, is_demo=is_demo)
        )
        return version


@dataclass(slots=True)
class Book:
    """A shelf that is its own book. Remembers which prices were ensured for which version."""

    ensured: list[tuple[int, dict[str, Price]]] = field(default_factory=list)
    pinned: list[tuple[str, str]] = field(default_factory=list)
    overrides: dict[str, Price] = field(default_factory=dict)
    calibrations: dict[str, Calibration] = field(default_factory=dict)
    imported: dict[str, Price | None] = field(default_factory=dict)

    def book(self, deployments: Iterable[Deployment]) -> Book:
        return self

    def override(self, deployment: Deployment, *, at: datetime) -> Price | None:
        return self.overrides.get(deployment.name)

    def calibrated(self, deployment: Deployment, *, at: datetime) -> Calibration | None:
        return self.calibrations.get(deployment.name)

    def has_listed(self, deployment: Deployment) -> bool:
        return deployment.name in self.imported

    def listed(self, deployment: Deployment, *, at: datetime) -> Price | None:
        return self.imported[deployment.name]

    def import_list_prices(
        self, deployments: Iterable[Deployment], *, author: str, reason: str
    ) -> None:
        self.pinned.append((author, reason))

    def record_in_force(
        self, prices: Mapping[str, Price], *, policy_version: int, at: datetime
    ) -> None:
        assert at == NOW
        self.ensured.append((policy_version, dict(prices)))


def listed(
    *, provider: str, model: str, base_url: str, region: str = "", at: datetime
) -> Price | None:
    """A list that knows one model."""
    return LIST_PRICE if (provider, model, at) == ("openai", "gpt-5.5", NOW) else None


def put(document: str, shelf: Shelf, book: Book, *, is_demo: bool = False) -> tuple[int, bool]:
    applied = apply_policy(
        parse(document),
        policies=shelf,
        prices=book,
        builtin=listed,
        author="ada",
        message="",
        now=NOW,
        is_demo=is_demo,
        expected_version=7,
    )
    return applied.version, applied.is_new


def current(document: str = EXAMPLE) -> PolicyVersion:
    return PolicyVersion(version=3, sha256="s", policy=parse(document).policy)


def prices(version: PolicyVersion) -> dict[str, Price]:
    return prices_of(version.policy, at=NOW, builtin=listed)


def test_an_apply_stores_the_document_and_dates_its_prices() -> None:
    """An auditor reads the document as written later; its hash identifies it."""
    shelf, book = Shelf(), Book()
    assert put(EXAMPLE, shelf, book) == (1, True)
    assert shelf.stored == [
        Stored(version=1, sha256=document_sha256(EXAMPLE), document=EXAMPLE, is_demo=False)
    ]
    assert shelf.expected == [7]
    assert [(version, sorted(found)) for version, found in book.ensured] == [
        (1, ["gpt-eu", "partner", "qwen-eu"])
    ]


def test_applying_a_document_again_only_completes_its_prices() -> None:
    """An apply that died between its two transactions is completed by repeating it."""
    shelf, book = Shelf(), Book()
    put(EXAMPLE, shelf, book)
    assert put(EXAMPLE, shelf, book) == (1, False)
    assert len(shelf.stored) == 1
    assert [version for version, _ in book.ensured] == [1, 1]


def test_an_apply_brings_every_budget_also_when_nothing_else_is_new() -> None:
    """The statement that leases money reads them in Postgres: a restored database without them
    would lease none.
    """
    shelf, book = Shelf(), Book()
    for _ in range(2):
        put(ALLOWED, shelf, book)
    assert [budgets == parse(ALLOWED).policy.budgets for budgets in shelf.budgets] == [True, True]
    assert shelf.budgets[0]


def test_a_real_policy_replaces_the_same_demo_policy() -> None:
    """Demo traffic is kept out of the reports, so the difference is one of substance."""
    shelf, book = Shelf(), Book()
    put(EXAMPLE, shelf, book, is_demo=True)
    assert put(EXAMPLE, shelf, book) == (2, True)


def test_a_rejected_document_changes_nothing() -> None:
    """A gateway keeps the last good policy."""
    shelf, book = Shelf(), Book()
    with pytest.raises(PolicyRejected):
        put(changed("version: 1", "version: 2"), shelf, book)
    assert (shelf.stored, book.ensured) == ([], [])


def test_a_missing_policy_is_an_error_with_the_next_step() -> None:
    """The first command after an installation is often the wrong one."""
    with pytest.raises(NothingFound, match="tollgate policy apply FILE"):
        require_current(Shelf())


def test_a_stored_document_is_read_back() -> None:
    """The policy in force equals the written one."""
    shelf = Shelf()
    put(EXAMPLE, shelf, Book())
    stored = shelf.current()
    assert stored is not None
    assert version_of(stored) == require_current(shelf)


def test_prices_come_from_the_policy_then_the_gpu_then_the_list() -> None:
    """The order decides a team's price."""
    found = prices(current())
    assert found["partner"].source == "policy"
    assert found["gpt-eu"] == LIST_PRICE
    assert found["qwen-eu"].source == "GPU rate, uncalibrated: 1 x H200 at 3.10 USD per GPU hour"


def own(name: str) -> Price:
    return replace(LIST_PRICE, source=name)


STOOD_IN = changed(
    "gpu: {type: H200, count: 1, usd_per_gpu_hour: 3.10, input_tok_per_s: 40000, "
    "output_tok_per_s: 2500,\n"
    "          target_utilisation: 0.5}",
    "stand_in_price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}",
    text=changed(
        "    model: gpt-5.5\n",
        "    model: gpt-5.5\n    stand_in_price: {input_usd_per_mtok: 5, output_usd_per_mtok: "
        "20}\n",
    ),
)


@pytest.mark.parametrize(
    ("document", "book", "expected"),
    [
        (EXAMPLE, None, {"qwen-eu": "GPU", "gpt-eu": "list", "partner": "policy"}),
        (EXAMPLE, Book(), {"qwen-eu": "GPU", "gpt-eu": "list", "partner": "policy"}),
        (
            EXAMPLE,
            Book(overrides={name: own("contract") for name in ("qwen-eu", "gpt-eu", "partner")}),
            {"qwen-eu": "contract", "gpt-eu": "contract", "partner": "policy"},
        ),
        (
            EXAMPLE,
            Book(imported={"gpt-eu": own("imported")}),
            {"qwen-eu": "GPU", "gpt-eu": "imported", "partner": "policy"},
        ),
        (EXAMPLE, Book(imported={"gpt-eu": None}), {"qwen-eu": "GPU", "partner": "policy"}),
        (STOOD_IN, Book(), {"qwen-eu": "stand-in:", "gpt-eu": "list", "partner": "policy"}),
        (
            STOOD_IN,
            Book(imported={"gpt-eu": None}),
            {"qwen-eu": "stand-in:", "gpt-eu": "stand-in:", "partner": "policy"},
        ),
        (
            STOOD_IN,
            Book(overrides={"qwen-eu": own("contract")}),
            {"qwen-eu": "contract", "gpt-eu": "list", "partner": "policy"},
        ),
    ],
)
def test_there_is_one_order_of_prices(
    document: str, book: Book | None, expected: dict[str, str]
) -> None:
    """Policy, `price add`, GPU, the list as imported, the bundled list; a stand-in only if there
    is no other.
    """
    found = prices_of(parse(document).policy, at=NOW, builtin=listed, book=book)
    assert {name: price.source.split(" ")[0] for name, price in found.items()} == expected
    assert {name for name, price in found.items() if price.is_stand_in} == {
        name for name, source in expected.items() if source == "stand-in:"
    }


def test_a_calibration_wins_over_declared_figures_while_it_is_of_this_engine() -> None:
    """Another model or GPU was never measured. A price that a person set still comes first."""
    policy = parse(EXAMPLE).policy
    qwen = policy.deployments["qwen-eu"]
    assert qwen.gpu is not None
    measured = calibration(model=qwen.model, gpu_type="H200", gpu_count=1)

    def source(book: Book) -> str:
        return prices_of(policy, at=NOW, builtin=listed, book=book)["qwen-eu"].source

    book = Book(calibrations={"qwen-eu": measured})
    assert source(book).startswith("GPU rate, calibrated 2026-11-20 at concurrency 16: 1 x H200")
    for other in (replace(measured, model="x"), replace(measured, gpu_count=2)):
        assert "uncalibrated" in source(Book(calibrations={"qwen-eu": other}))
    both = Book(calibrations={"qwen-eu": measured}, overrides={"qwen-eu": own("contract")})
    assert source(both) == "contract"


def test_an_apply_pins_the_list_before_it_prices() -> None:
    """The prices at the policy's approval stay in force until a person approves another list."""
    shelf, book = Shelf(), Book(imported={"gpt-eu": own("imported")})
    put(EXAMPLE, shelf, book)
    assert book.pinned == [("ada", "first used by policy version 1")]
    assert book.ensured[0][1]["gpt-eu"].source == "imported"


def test_a_self_hosted_model_never_takes_a_list_price() -> None:
    """The list has a provider's price for that model, not our GPU's cost."""
    document = changed("provider: openai\n", "provider: openai_compatible\n    self_hosted: true\n")
    policy = current(document).policy

    def any_price(
        *, provider: str, model: str, base_url: str, region: str = "", at: datetime
    ) -> Price | None:
        return LIST_PRICE

    found = prices_of(policy, at=NOW, builtin=any_price)
    assert unpriced(policy, found) == ("gpt-eu",)


def test_the_difference_names_added_removed_and_changed_parts() -> None:
    """An admin confirms the difference, not the document."""
    after = changed(
        "data_class: internal, routes: [assistant, partner-chat]",
        "data_class: public, routes: [assistant]",
    )
    after = changed(
        "  - {name: partner-chat, deployments: [partner], objective: priority}\n", "", text=after
    )
    after = changed("us: [us-east]", "us: [us-east, us-west], ch: [ch-zrh]", text=after)
    assert changes(parse(EXAMPLE).policy, parse(after).policy) == (
        Change(
            verb="changed", kind="region", name="us", details=("[us-east] → [us-east, us-west]",)
        ),
        Change(verb="added", kind="region", name="ch"),
        Change(
            verb="changed",
            kind="team",
            name="search",
            details=(
                "data_class: internal → public",
                "routes: [assistant, partner-chat] → [assistant]",
            ),
        ),
        Change(verb="removed", kind="route", name="partner-chat"),
    )
    assert changes(parse(EXAMPLE).policy, parse(EXAMPLE).policy) == ()
    assert {change.verb for change in changes(None, parse(EXAMPLE).policy)} == {"added"}


def asking(route: str) -> RequestFacts:
    """A chat request of that route."""
    return unsent(Operation.CHAT, route)


def test_an_explanation_names_every_candidate_and_why_it_lost() -> None:
    """A refusal that cannot be explained is a support ticket."""
    version = current()
    decision = decision_for(
        version,
        asking("gpt-4o-mini"),
        team="payments",
        data_class="restricted",
        prices=prices(version),
        place=HERE,
    )
    explanation = explain(decision, usage=TokenUsage(input_tokens=1_000_000, output_tokens=0))
    assert (explanation.route, explanation.data_class) == ("assistant", "restricted")
    assert explanation.outcome == "Goes to qwen-eu."
    assert [(v.deployment, v.rank, v.cost_usd) for v in explanation.verdicts] == [
        ("qwen-eu", 1, Decimal("0.043055556")),
        ("gpt-eu", None, Decimal("5.000000000")),
    ]
    assert explanation.verdicts[0].reason == "first by priority"
    assert "self-hosted" in explanation.verdicts[1].reason


def test_a_refusal_is_explained_with_the_callers_message() -> None:
    """The admin must see the developer's message."""
    version = current()
    decision = decision_for(
        version,
        asking("partner-chat"),
        team="search",
        data_class="restricted",
        prices=prices(version),
        place=HERE,
    )
    explanation = explain(decision)
    assert explanation.is_refused
    assert explanation.outcome.startswith(
        "Refused by residency rule restricted→eu (self-hosted only): partner is not"
    )


def test_tokens_without_a_rate_have_an_unknown_cost() -> None:
    """A price that does not cover output must not look free."""
    version = current()
    decision = decision_for(
        version, asking("assistant"), team="payments", prices=prices(version), place=HERE
    )
    costs = [
        v.cost_usd
        for v in explain(decision, usage=TokenUsage(input_tokens=10, output_tokens=10)).verdicts
    ]
    assert costs[0] is not None
    assert costs[1] is None, "the list's price has no output rate"


@pytest.mark.parametrize(
    ("asked", "error", "part"),
    [
        ({"team": "payment"}, NothingFound, "Did you mean 'payments'?"),
        ({"team": "x"}, NothingFound, "There is: payments, search."),
        ({"route": "nope"}, ModelNotFound, "Yours: assistant"),
        ({"route": "partner-chat"}, RouteNotAllowed, "may not use route"),
        ({"data_class": "internal"}, BadUsage, "never lower it"),
        (
            {"data_class": "secret"},
            NothingFound,
            "Declared: public, internal, confidential, restricted",
        ),
    ],
)
def test_a_wrong_name_is_answered_with_the_existing_names(
    asked: dict[str, str], error: type[Exception], part: str
) -> None:
    """A typo must not look like a refusal."""
    version = current()
    wanted = {"team": "payments"} | asked
    facts = asking(wanted.pop("route", "assistant"))
    with pytest.raises(error, match=r".*") as raised:
        decision_for(version, facts, prices=prices(version), place=HERE, **wanted)
    assert part in str(raised.value)
