"""Every kind of attempt decided again: a broken rule is distinguished from an undecidable one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date

from gateway.domain.policy.policy import DataClass, ResidencyRule
from gateway.domain.providers.known_hosts import Statement
from gateway.domain.residency.attempt_verification import Verified, verify_sent
from tests import factories

DAY = date(2026, 11, 22)
SHA = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    day: date = DAY
    policy_version: int = 7
    policy_sha256: str = SHA
    data_class: str = "confidential"
    data_tags: frozenset[str] = frozenset()
    gateway_region: str = "unknown"
    deployment: str = "one"
    region: str = "eu-de"
    host: str = "127.0.0.1"
    attempts: int = 10
    contradicted: int = 0


def verified(*sent: Attempts, allowed: str = "eu") -> Verified:
    statement = Statement(at_rest="eu-de", source="a contract", as_of=DAY)
    rule = ResidencyRule(rule_id="class:confidential", regions=frozenset({allowed}))
    policy = factories.policy(
        factories.deployment(residency=statement), classes={DataClass.CONFIDENTIAL: rule}
    )
    return verify_sent(sent, {7: factories.version(policy)}, team="payments")


def test_allowed_requests_are_counted_by_place() -> None:
    """The auditor's first question: the amounts by place."""
    found = verified(Attempts(), Attempts(day=date(2026, 11, 23), attempts=5))
    assert (found.attempts, list(found.outside), list(found.unverified)) == (15, [], [])
    (place,) = found.places
    assert (place.region, place.deployment, place.data_class, place.attempts) == (
        "eu-de",
        "one",
        "confidential",
        15,
    )
    facts = {
        fact.fact: (fact.value, fact.source, fact.as_of, fact.versions) for fact in found.facts
    }
    assert facts["at rest"] == ("eu-de", "a contract", DAY, (7,))
    assert facts["retention (days)"] == ("unknown", "the policy", None, (7,))


def test_a_request_that_a_rule_denies_is_outside() -> None:
    """The record says that it was sent; its own policy says that it must not have been."""
    (doubt,) = verified(Attempts(), allowed="us").outside
    assert (doubt.attempts, doubt.why) == (10, "class:confidential/regions")


def test_an_undecidable_record_is_not_called_allowed() -> None:
    """A lost policy, a record that differs from it, a missing class or tag: it cannot be
    decided.
    """
    odd = [
        replace(Attempts(), policy_version=6),
        replace(Attempts(), policy_sha256="f" * 64),
        replace(Attempts(), region="us-east"),
        replace(Attempts(), deployment="gone"),
        replace(Attempts(), data_class="restricted"),
        replace(Attempts(), data_class="nonsense"),
        replace(Attempts(), data_tags=frozenset({"phi"})),
    ]
    found = verified(*odd)
    assert list(found.outside) == []
    assert len(found.unverified) == len(odd)
    assert all(doubt.why for doubt in found.unverified)


def test_an_upstream_that_reported_another_region_is_outside() -> None:
    """Its region was promised; two of ten answers reported another."""
    (doubt,) = verified(Attempts(contradicted=2)).outside
    assert (doubt.attempts, doubt.why) == (2, "its upstream reported another place")
