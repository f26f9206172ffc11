"""The allowed places of a request: unknown is denied, a denial always wins, order never matters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date, timedelta
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.places.regions import ANY, UNPLACED, RegionTree
from gateway.domain.policy.policy import DataClass, Deployment, ResidencyRule
from gateway.domain.providers.known_hosts import Statement
from gateway.domain.residency.rules import Denial, Permit, denials, rules_for, verify
from gateway.errors import InvalidRequest, ResidencyDenied
from tests.factories import class_rule, deployment, policy, team

DAY = date(2026, 11, 22)
DECLARED = {
    "eu": ("eu-1", "eu-2"),
    "us": ("us-east",),
    "home": ("de", "ch"),
    "de": ("de-a", "de-b"),
}
TREE = RegionTree(DECLARED)
NAMES = sorted(
    {
        *DECLARED,
        *(child for cs in DECLARED.values() for child in cs),
        "europe",
        "eea",
        "fr",
        "uk",
        "cn",
    }
)
LISTS = ("regions", "at_rest", "telemetry", "gateway_regions")
DENYING = ("deny_regions", "deny_providers")

places = st.sampled_from([*NAMES, *sorted(UNPLACED)])
allowing = st.none() | st.frozensets(st.sampled_from([*NAMES, ANY]), max_size=4)
rules = st.builds(
    ResidencyRule,
    rule_id=st.sampled_from(["class:internal", "tag:phi", "team:payments"]),
    regions=allowing,
    at_rest=allowing,
    telemetry=allowing,
    gateway_regions=allowing,
    self_hosted_only=st.booleans(),
    max_retention_days=st.none() | st.integers(0, 40),
    deny_regions=st.frozensets(st.sampled_from(NAMES), max_size=2),
    deny_providers=st.frozensets(st.sampled_from(["openai", "vllm", "groq"]), max_size=2),
    is_shadow=st.booleans(),
)
rule_sets = st.lists(rules, max_size=3, unique_by=lambda rule: rule.rule_id)
statements = st.none() | st.builds(
    Statement,
    at_rest=st.none() | places,
    telemetry=st.none() | places,
    retention_days=st.none() | st.integers(0, 40),
    source=st.just("a contract"),
    as_of=st.none() | st.sampled_from([DAY, DAY - timedelta(days=90), DAY - timedelta(days=91)]),
)
deployments = st.builds(
    lambda **details: deployment(**details),
    region=places,
    is_self_hosted=st.booleans(),
    residency=statements,
    provider=st.sampled_from(["openai", "vllm"]),
    base_url=st.sampled_from(
        ["http://127.0.0.1:9/v1", "https://eu.api.openai.com/v1", "https://api.groq.com/v1"]
    ),
)
valid = st.none() | st.just(90)


def ask(
    applying: Iterable[ResidencyRule],
    one: Deployment,
    *,
    at: str = "unknown",
    tree: RegionTree = TREE,
    valid_days: int | None = None,
    day: date = DAY,
) -> tuple[Denial, ...]:
    return denials(applying, one, regions=tree, gateway_region=at, day=day, valid_days=valid_days)


def ids(found: Iterable[Denial]) -> list[str]:
    return [f"{denial.rule_id}/{denial.field}" for denial in found]


def allows(
    applying: Iterable[ResidencyRule], one: Deployment, *, at: str, valid_days: int | None
) -> bool:
    return all(denial.is_shadow for denial in ask(applying, one, at=at, valid_days=valid_days))


def facts(as_of: date | None = DAY, **given: Any) -> Statement:
    """Return a contract's facts."""
    return Statement(source="a contract" if as_of else "", as_of=as_of, **given)


# (a rule's fields, a deployment's, the fields that deny it, the message)
ROWS: list[tuple[dict[str, Any], dict[str, Any], list[str], str]] = [
    ({"regions": {"eu"}}, {"region": "eu-1"}, [], ""),
    ({"regions": {"eu"}}, {"region": "us-east"}, ["regions"], "is in us-east, allowed is eu "),
    ({"regions": {"eu-1", "fr"}}, {"region": "eu"}, ["regions"], "is in eu, allowed is eu-1|fr "),
    ({"regions": set()}, {"region": "eu"}, ["regions"], "is in eu, allowed is nowhere "),
    ({"regions": {"any"}}, {"region": "global"}, [], ""),
    ({"regions": {"eu"}}, {"region": "global"}, ["regions"], "is in global, allowed is eu "),
    (
        {"at_rest": {"eu"}},
        {},
        ["at_rest"],
        "has no statement on where it keeps data at rest, allowed is eu ",
    ),
    ({"at_rest": {"eu"}}, {"residency": facts(at_rest="eu-2")}, [], ""),
    (
        {"at_rest": {"eu"}},
        {"residency": facts(at_rest="us")},
        ["at_rest"],
        "keeps data at rest in us (a contract, 2026-11-22), allowed is eu ",
    ),
    (
        {"telemetry": {"eu"}},
        {},
        ["telemetry"],
        "has no statement on where it sends telemetry, allowed is eu ",
    ),
    ({"telemetry": {"any"}}, {}, [], ""),
    (
        {"telemetry": {"eu"}},
        {"residency": facts(telemetry="global")},
        ["telemetry"],
        "sends telemetry to global (a contract, 2026-11-22), allowed is eu ",
    ),
    ({"self_hosted_only": True}, {"is_self_hosted": True}, [], ""),
    ({"self_hosted_only": True}, {}, ["self_hosted"], "is not self-hosted "),
    (
        {"max_retention_days": 30},
        {},
        ["max_retention_days"],
        "has no statement on how long it keeps data, allowed are 30 da",
    ),
    ({"max_retention_days": 30}, {"residency": facts(retention_days=30)}, [], ""),
    ({"max_retention_days": 0}, {"residency": facts(retention_days=0)}, [], ""),
    (
        {"max_retention_days": 30},
        {"residency": facts(retention_days=31)},
        ["max_retention_days"],
        "keeps data for 31 days (a contract, 2026-11-22), allowed are 30 days ",
    ),
    ({"deny_regions": {"us"}}, {"residency": facts(at_rest="fr", telemetry="fr")}, [], ""),
    (
        {"deny_regions": {"us", "cn"}},
        {"region": "us-east", "residency": facts(None, at_rest="us", telemetry="fr")},
        ["deny_regions"],
        "is in us-east and keeps data at rest in us, denied is cn|us ",
    ),
    (
        {"deny_regions": {"us"}},
        {"residency": facts(at_rest="us", telemetry="fr")},
        ["deny_regions"],
        "keeps data at rest in us (a contract, 2026-11-22), denied is us ",
    ),
    (
        {"deny_regions": {"us"}},
        {"residency": facts(at_rest="fr", telemetry="us-east")},
        ["deny_regions"],
        "sends telemetry to us-east (a contract, 2026-11-22), denied is us ",
    ),
    (
        {"deny_regions": {"us"}},
        {},
        ["deny_regions"],
        "has no statement on where it keeps data at rest and has no statement on where it sends "
        "telemetry, denied is us ",
    ),
    (
        {"regions": {"any"}, "deny_regions": {"de"}},
        {"region": "eu", "residency": facts(at_rest="fr", telemetry="fr")},
        ["deny_regions"],
        "is in eu (a contract, 2026-11-22), denied is de ",
    ),
    ({"deny_providers": {"vllm"}}, {}, [], ""),
    (
        {"deny_providers": {"openai_compatible"}},
        {},
        ["deny_providers"],
        "is of openai_compatible, which is denied ",
    ),
    (
        {"deny_providers": {"openai"}},
        {"base_url": "https://EU.api.openai.com./v1"},
        ["deny_providers"],
        "is of openai, which is denied ",
    ),
    (
        {"gateway_regions": {"eu"}},
        {},
        ["gateway_regions"],
        "is asked by a gateway in us-east, allowed is eu ",
    ),
    ({"gateway_regions": {"us"}}, {}, [], ""),
    (
        {"regions": {"eu"}, "telemetry": {"eu"}, "self_hosted_only": True},
        {"region": "cn"},
        ["regions", "self_hosted", "telemetry"],
        "is in cn, allowed is eu ",
    ),
    ({}, {"region": "unknown"}, [], ""),
]


@pytest.mark.parametrize(("rule", "of", "fields", "reason"), ROWS)
def test_each_field_of_a_rule_denies_its_own_requests(
    rule: dict[str, Any], of: dict[str, Any], fields: list[str], reason: str
) -> None:
    """The table of docs/decisions/0012, a row at a time, with the words that callers and auditors
    read.
    """
    fixed = {
        name: frozenset(value) if isinstance(value, set) else value for name, value in rule.items()
    }
    found = ask([ResidencyRule(rule_id="tag:phi", **fixed)], deployment(**of), at="us-east")
    assert [denial.field for denial in found] == fields
    for denial in found:
        assert denial.why.endswith(f" (tag:phi/{denial.field})")
    assert not fields or found[0].why.startswith(reason)


@pytest.mark.parametrize(
    ("as_of", "is_self_hosted", "valid_days", "counts"),
    [
        (DAY, False, 90, True),
        (DAY - timedelta(days=90), False, 90, True),
        (DAY - timedelta(days=91), False, 90, False),
        (DAY - timedelta(days=91), True, 90, False),
        (DAY - timedelta(days=9999), False, None, True),
        (DAY + timedelta(days=1), False, 90, True),
        (None, False, None, True),
        (None, False, 90, False),
        (None, True, 90, True),
    ],
)
def test_an_old_fact_counts_as_unknown(
    as_of: date | None, is_self_hosted: bool, valid_days: int | None, counts: bool
) -> None:
    """A promise of two years ago has expired; facts about our own systems need no other source."""
    one = deployment(
        region="fr",
        is_self_hosted=is_self_hosted,
        residency=facts(as_of, at_rest="fr", telemetry="fr", retention_days=0),
    )
    eu = frozenset({"eu"})
    rule = ResidencyRule(
        rule_id="tag:phi",
        regions=eu,
        at_rest=eu,
        telemetry=eu,
        max_retention_days=9,
        deny_regions=frozenset({"us"}),
    )
    every = ["at_rest", "deny_regions", "max_retention_days", "regions", "telemetry"]
    found = ask([rule], one, valid_days=valid_days)
    assert [denial.field for denial in found] == ([] if counts else every)


def test_an_expired_fact_is_named_with_its_source_and_date() -> None:
    """The admin must find the contract that is to be renewed, not wonder why `eu` is not in
    `eu`.
    """
    old = facts(date(2026, 1, 2), at_rest="eu-1")
    (at_rest,) = ask(
        [ResidencyRule(rule_id="tag:phi", at_rest=frozenset({"eu"}))],
        deployment(residency=old),
        valid_days=90,
    )
    assert at_rest.why == (
        "keeps data at rest in eu-1 (a contract, 2026-01-02), which is older than 90 days and no "
        "longer counts, allowed is eu (tag:phi/at_rest)"
    )
    (regions,) = ask([class_rule("internal", "eu")], deployment(region="eu-1"), valid_days=90)
    assert regions.why == (
        "is in eu-1, which counts for nothing without a source and a date, allowed is eu "
        "(class:internal/regions)"
    )


@given(rule_sets, deployments, places, valid)
def test_the_order_of_rules_never_matters(
    applying: list[ResidencyRule], one: Deployment, at: str, valid_days: int | None
) -> None:
    """Nor that of a document's regions."""
    expected = ask(applying, one, at=at, valid_days=valid_days)
    shuffled = RegionTree(
        {parent: tuple(reversed(DECLARED[parent])) for parent in reversed(DECLARED)}
    )
    for order in permutations(applying):
        assert ask(order, one, at=at, valid_days=valid_days, tree=shuffled) == expected
    assert list(expected) == sorted(expected)


@given(rule_sets, rules, deployments, places, valid)
def test_another_rule_never_adds_a_deployment(
    applying: list[ResidencyRule],
    more: ResidencyRule,
    one: Deployment,
    at: str,
    valid_days: int | None,
) -> None:
    """All rules that apply must allow: a tag more can only close doors."""
    wide, narrow = (
        ask(applying, one, at=at, valid_days=valid_days),
        ask([*applying, more], one, at=at, valid_days=valid_days),
    )
    assert set(wide) <= set(narrow)


@given(
    rules,
    deployments,
    places,
    valid,
    st.sampled_from(DENYING),
    st.sampled_from([*NAMES, "openai", "vllm"]),
)
def test_denying_more_never_adds_a_deployment(
    rule: ResidencyRule, one: Deployment, at: str, valid_days: int | None, field: str, name: str
) -> None:
    """Even if every region is allowed: a denial always wins."""
    stricter = replace(rule, **{field: getattr(rule, field) | {name}})
    assert allows([rule], one, at=at, valid_days=valid_days) or not allows(
        [stricter], one, at=at, valid_days=valid_days
    )


@given(rules, deployments, places, valid, st.sampled_from(LISTS), st.sampled_from([*NAMES, ANY]))
def test_allowing_less_never_adds_a_deployment(
    rule: ResidencyRule, one: Deployment, at: str, valid_days: int | None, field: str, name: str
) -> None:
    """Removing a name from a list, or adding a list, can only exclude deployments."""
    listed = getattr(rule, field)
    stricter = replace(rule, **{field: frozenset({name}) if listed is None else listed - {name}})
    assert allows([rule], one, at=at, valid_days=valid_days) or not allows(
        [stricter], one, at=at, valid_days=valid_days
    )


@given(rules, deployments, places, valid, st.integers(0, 40))
def test_demanding_more_never_adds_a_deployment(
    rule: ResidencyRule, one: Deployment, at: str, valid_days: int | None, days: int
) -> None:
    """Self-hosting, a shorter retention, facts that expire."""
    most = days if rule.max_retention_days is None else min(days, rule.max_retention_days)
    for stricter in (replace(rule, self_hosted_only=True), replace(rule, max_retention_days=most)):
        assert allows([rule], one, at=at, valid_days=valid_days) or not allows(
            [stricter], one, at=at, valid_days=valid_days
        )
    assert allows([rule], one, at=at, valid_days=None) or not allows(
        [rule], one, at=at, valid_days=90
    )


@given(rule_sets, rules, deployments, places, valid)
def test_a_shadow_rule_never_changes_the_allowed_deployments(
    applying: list[ResidencyRule],
    more: ResidencyRule,
    one: Deployment,
    at: str,
    valid_days: int | None,
) -> None:
    """It is a rehearsal: it reports its denials exactly as if enforced, and denies nothing."""
    shadow, enforced = replace(more, is_shadow=True), replace(more, is_shadow=False)
    before = allows(applying, one, at=at, valid_days=valid_days)
    assert allows([*applying, shadow], one, at=at, valid_days=valid_days) == before
    shadow_denials, enforced_denials = (
        ask([shadow], one, at=at, valid_days=valid_days),
        ask([enforced], one, at=at, valid_days=valid_days),
    )
    assert all(denial.is_shadow for denial in shadow_denials)
    assert [denial.why for denial in shadow_denials] == [denial.why for denial in enforced_denials]


@pytest.mark.parametrize(
    ("provider", "host", "denied"),
    [
        ("openai_compatible", "team.openai.azure.com", "azure_openai"),
        ("openai", "team.openai.azure.com", "azure_openai"),
        ("openai_compatible", "ae.api.openai.com", "openai"),
        ("openai_compatible", "eu-west-1.api.x.ai", "xai"),
        ("openai_compatible", "generativelanguage.googleapis.com", "gemini"),
        ("openai_compatible", "europe-west4-aiplatform.googleapis.com", "vertex"),
        ("openai_compatible", "bedrock-runtime.eu-central-1.amazonaws.com", "amazon"),
        ("anthropic", "bedrock-runtime.eu-central-1.amazonaws.com", "amazon"),
        ("vertex", "proxy.example", "google"),
        ("bedrock", "proxy.example", "amazon"),
    ],
)
def test_a_provider_is_denied_by_every_name_of_its_host(
    provider: str, host: str, denied: str
) -> None:
    """A deployment of another dialect at Azure's host was not Azure's, and Claude on Bedrock in
    its own dialect was not Amazon's: rules that deny these let their requests through.
    """
    at = deployment(provider=provider, base_url=f"https://{host}/v1")
    rule = ResidencyRule(rule_id="team:payments", deny_providers=frozenset({denied}))
    assert ids(ask([rule], at)) == ["team:payments/deny_providers"]


PHI = ResidencyRule(rule_id="tag:phi", at_rest=frozenset({"eu"}))
GDPR = ResidencyRule(rule_id="tag:gdpr", regions=frozenset({"eea"}))
OWN = ResidencyRule(rule_id="team:payments", deny_providers=frozenset({"groq"}))


def test_the_rules_of_a_request_are_its_classs_its_tags_and_its_teams() -> None:
    """The team's tags apply to all its requests, in addition to the request's own."""
    document = policy(data_tags={"phi": PHI, "gdpr": GDPR})
    internal, confidential = (
        document.classes[DataClass.INTERNAL],
        document.classes[DataClass.CONFIDENTIAL],
    )

    def found(of: Any, data_class: DataClass, *tags: str) -> tuple[ResidencyRule, ...]:
        return rules_for(document, of, data_class=data_class, data_tags=frozenset(tags))

    assert found(team(), DataClass.INTERNAL) == (internal,)
    assert found(team(), DataClass.CONFIDENTIAL, "phi") == (confidential, PHI)
    tagged = team(data_tags=frozenset({"phi"}), residency=OWN)
    assert found(tagged, DataClass.INTERNAL) == (internal, PHI, OWN)
    assert found(tagged, DataClass.INTERNAL, "phi", "gdpr") == (internal, GDPR, PHI, OWN)


def test_a_label_without_a_rule_is_refused() -> None:
    """Passed over it would be a request without a bound; so would a team's tag that its policy does
    not know.
    """
    with pytest.raises(InvalidRequest, match="declares no data class 'restricted'"):
        rules_for(policy(), team(), data_class=DataClass.RESTRICTED)
    with pytest.raises(InvalidRequest, match=r"declares no data tag 'x'\. Declared: none"):
        rules_for(policy(), team(), data_class=DataClass.INTERNAL, data_tags=frozenset({"x"}))
    with pytest.raises(InvalidRequest, match=r"declares no data tag 'x'\. Declared: gdpr, phi"):
        rules_for(
            policy(data_tags={"phi": PHI, "gdpr": GDPR}),
            team(data_tags=frozenset({"x"})),
            data_class=DataClass.INTERNAL,
        )


def permit(**changes: object) -> Permit:
    # Built here past the decision on purpose: the transport must refuse it all the same.
    values: dict[str, object] = {
        "deployment": deployment(region="eu-1"),
        "attempt": 1,
        "policy_version": 1,
        "origin": "http://127.0.0.1:9",
        "rules": (class_rule("restricted", "eu"),),
        "regions": TREE,
        "gateway_region": "fr",
        "day": DAY,
        "valid_days": None,
    }
    return Permit(**values | changes)  # type: ignore[arg-type]


def test_a_permit_holds_for_its_own_target() -> None:
    """The ordinary case raises nothing, and a shadow rule is no reason to."""
    verify(permit(), origin="http://127.0.0.1:9")
    shadow = class_rule("restricted", is_shadow=True)
    verify(permit(rules=(shadow,)), origin="http://127.0.0.1:9")


def test_a_permit_does_not_hold_for_another_target() -> None:
    """A permit for one address opens no other."""
    with pytest.raises(
        ResidencyDenied, match=r"http://127\.0\.0\.1:10 is not http://127\.0\.0\.1:9"
    ):
        verify(permit(), origin="http://127.0.0.1:10")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"deployment": deployment(region="us-east")},
            r"one is in us-east, allowed is eu \(class:restricted/regions\)",
        ),
        (
            {"rules": (GDPR, PHI)},
            r"one has no statement on where it keeps data at rest, allowed is eu",
        ),
        (
            {"rules": (class_rule("x", "any", gateway_regions=frozenset({"us"})),)},
            "asked by a gateway in fr",
        ),
        ({"valid_days": 90}, "counts for nothing without a source"),
        (
            {"rules": (class_rule("a", is_shadow=True), class_rule("b"))},
            r"allowed is nowhere \(class:b/regions\)",
        ),
    ],
)
def test_a_permit_is_checked_against_its_rules_again(
    changes: dict[str, object], reason: str
) -> None:
    """The rules are run once more just before the socket: a forged permit sends nothing."""
    with pytest.raises(ResidencyDenied, match=rf"{reason}.*\. Nothing was sent"):
        verify(permit(**changes), origin="http://127.0.0.1:9")
