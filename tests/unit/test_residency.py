"""Where a request may be processed: unknown is denied, a denial always wins, order never matters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.policy import ClassRule, Deployment
from gateway.domain.residency import ANY, UNPLACED, Permit, denial, leaves, verify
from gateway.errors import ResidencyDenied
from tests.factories import deployment

TREE = {"world": ("eu", "us"), "eu": ("eu-de", "eu-fr"), "us": ("us-east", "us-west"), "eu-de": ("eu-de-1", "eu-de-2")}
NAMES = sorted({*TREE, *(child for children in TREE.values() for child in children), *UNPLACED, "atlantis"})

region_sets = st.frozensets(st.sampled_from([*NAMES, ANY]))
rules = st.builds(ClassRule, name=st.just("rule"), regions=region_sets, self_hosted_only=st.booleans())
deployments = st.builds(
    lambda region, own: deployment(region=region, is_self_hosted=own), st.sampled_from(NAMES), st.booleans()
)


def allows(rule: ClassRule, one: Deployment) -> bool:
    return denial(rule, one, TREE) is None


def oracle_leaves(region: str) -> set[str]:
    """The slow way: walk until nothing has children."""
    found, todo = set(), [region]
    while todo:
        at = todo.pop()
        todo += TREE.get(at, ())
        if not TREE.get(at):
            found.add(at)
    return found


@given(rules, deployments)
def test_all_leaves_must_be_allowed(rule: ClassRule, one: Deployment) -> None:
    """A deployment that may run anywhere under `eu` is not allowed by a rule for half of it."""
    allowed = set().union(*(oracle_leaves(region) for region in rule.regions)) - UNPLACED
    expected = (not rule.self_hosted_only or one.is_self_hosted) and (
        ANY in rule.regions or oracle_leaves(one.region) <= allowed
    )
    assert allows(rule, one) == expected


@given(rules, deployments, st.sampled_from([*NAMES, ANY]))
def test_narrowing_the_regions_never_adds_a_deployment(rule: ClassRule, one: Deployment, dropped: str) -> None:
    """Taking a region out of a rule can only close doors."""
    narrower = replace(rule, regions=rule.regions - {dropped})
    assert allows(rule, one) or not allows(narrower, one)


@given(rules, deployments)
def test_a_denial_always_wins(rule: ClassRule, one: Deployment) -> None:
    """Demanding self-hosting never lets in what was refused without it."""
    stricter = replace(rule, self_hosted_only=True)
    assert allows(rule, one) or not allows(stricter, one)


@given(region_sets, deployments)
def test_order_never_matters(regions: frozenset[str], one: Deployment) -> None:
    """Regions, and children in the tree, may be written in any order."""
    rule = ClassRule(name="rule", regions=regions)
    shuffled = {parent: tuple(reversed(children)) for parent, children in reversed(TREE.items())}
    assert denial(rule, one, TREE) == denial(rule, one, shuffled)


@given(region_sets, st.sampled_from(sorted(UNPLACED)))
def test_unplaced_deployments_match_only_any(regions: frozenset[str], region: str) -> None:
    """`global` and `unknown` promise no place: even a rule that names them does not let them in."""
    rule = ClassRule(name="rule", regions=regions)
    assert allows(rule, deployment(region=region)) == (ANY in regions)


def test_leaves_of_a_tree_of_any_depth() -> None:
    """Regions nest as deep as a company's map does."""
    assert leaves("world", TREE) == {"eu-de-1", "eu-de-2", "eu-fr", "us-east", "us-west"}
    assert leaves("atlantis", TREE) == {"atlantis"}


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (ClassRule(name="restricted", regions=frozenset({"eu", "us"})), "restricted→eu|us"),
        (ClassRule(name="restricted", regions=frozenset()), "restricted→nowhere"),
        (ClassRule(name="restricted", regions=frozenset({ANY}), self_hosted_only=True), "restricted→self-hosted"),
    ],
)
def test_a_denial_names_its_rule(rule: ClassRule, said: str) -> None:
    """The caller's error and the auditor's record quote this id."""
    assert denial(rule, deployment(region="atlantis"), TREE) == said


def permit(**changes: object) -> Permit:
    # Built here past the decision on purpose: the transport must refuse it all the same.
    values: dict[str, object] = {
        "deployment": deployment(region="eu-de"), "attempt": 1, "policy_version": 1, "origin": "http://127.0.0.1:9",
        "rule": ClassRule(name="restricted", regions=frozenset({"eu"})), "regions": TREE,
    }  # fmt: skip
    return Permit(**values | changes)  # type: ignore[arg-type]


def test_a_permit_holds_for_its_own_target() -> None:
    """The ordinary case raises nothing."""
    verify(permit(), origin="http://127.0.0.1:9")


def test_a_permit_does_not_hold_for_another_target() -> None:
    """A permit for one address opens no other."""
    with pytest.raises(ResidencyDenied, match=r"http://127\.0\.0\.1:10 is not http://127\.0\.0\.1:9"):
        verify(permit(), origin="http://127.0.0.1:10")


def test_a_permit_is_checked_against_its_rule_again() -> None:
    """The rule is run once more just before the socket: a forged permit sends nothing."""
    with pytest.raises(ResidencyDenied, match=r"restricted→eu\. Nothing was sent"):
        verify(permit(deployment=deployment(region="us-east")), origin="http://127.0.0.1:9")
