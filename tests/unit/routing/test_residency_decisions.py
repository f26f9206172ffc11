"""A decision's use of rules, and its record: tags, the gateway's place, the day, shadow mode."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from gateway.domain.ids import day_of
from gateway.domain.policy.policy import DataClass, ResidencyRule
from gateway.domain.providers.known_hosts import Statement
from gateway.domain.residency.rules import verify
from gateway.domain.routing.decide import Decision, decide, origin_of
from gateway.errors import InvalidRequest, ResidencyDenied
from gateway.services.policy.explain import explain
from gateway.services.snapshot import snapshot as snapshots
from tests import factories
from tests.factories import NOW, class_rule, deployment, facts, policy, price, team, version
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import WHOLE, Stage, body, stage

TODAY = NOW.date()
EU = frozenset({"eu"})
PHI = ResidencyRule(rule_id="tag:phi", at_rest=EU, max_retention_days=0)
HERE = ResidencyRule(rule_id="tag:here", gateway_regions=EU)
SHADOW = ResidencyRule(rule_id="tag:trial", regions=EU, is_shadow=True)
TAGS = {"phi": PHI, "here": HERE, "trial": SHADOW}
KEPT = Statement(
    at_rest="fr", telemetry="global", retention_days=0, source="contract 7", as_of=TODAY
)


def decided(*deployments: Any, payer: Any = None, **options: Any) -> Decision:
    document = policy(*deployments, data_tags=TAGS, **options.pop("document", {}))
    values: dict[str, Any] = {"data_class": DataClass.INTERNAL, "day": TODAY} | options
    return decide(
        version(document),
        team=payer or team(),
        route=document.routes["assistant"],
        facts=facts(),
        prices={name: price() for name in document.deployments},
        **values,
    )


def names(found: Decision) -> list[str]:
    return [candidate.deployment.name for candidate in found.eligible]


def test_a_data_tag_adds_its_rule_to_that_of_the_class() -> None:
    """Whether the team has it or the request says it."""
    both = (deployment("plain"), deployment("kept", residency=KEPT))
    assert names(decided(*both)) == ["plain", "kept"]
    assert names(decided(*both, data_tags=frozenset({"phi"}))) == ["kept"]
    assert names(decided(*both, payer=team(data_tags=frozenset({"phi"})))) == ["kept"]


def test_a_team_has_a_rule_of_its_own() -> None:
    """One team's contract is not every team's."""
    own = ResidencyRule(rule_id="team:payments", deny_providers=frozenset({"openai_compatible"}))
    assert names(decided(payer=team(residency=own))) == []
    assert names(decided(payer=team(residency=replace(own, is_shadow=True)))) == ["one"]


def test_the_gateways_own_place_is_looked_at() -> None:
    """Pinning the model and not the ingress pins nothing; a gateway without a stated region has
    an unknown one.
    """
    tags = frozenset({"here"})
    assert names(decided(data_tags=tags, gateway_region="eu-fr")) == ["one"]
    assert names(decided(data_tags=tags, gateway_region="us-east")) == []
    error = decided(data_tags=tags).refusal()
    assert isinstance(error, ResidencyDenied)
    assert (
        "one is asked by a gateway in unknown, allowed is eu (tag:here/gateway_regions)"
        in error.message
    )
    assert "TOLLGATE_REGION is a gateway's own region." in error.message


def test_facts_expire_on_the_day_of_the_request() -> None:
    """Not on that of a replay or of the last restart."""
    for days, expected in ((30, ["one"]), (31, [])):
        found = decided(
            deployment(residency=KEPT),
            data_class=DataClass.CONFIDENTIAL,
            day=TODAY + timedelta(days=days),
            document={"facts_valid_days": 30},
        )
        assert names(found) == expected
        (recorded,) = found.record["candidates"]  # type: ignore[misc]
        assert recorded.get("at_rest") == ("fr" if expected else None), (
            "what is unknown is left out"
        )


def test_a_refusal_by_several_rules_names_each_with_its_remedy() -> None:
    """Mending one of two rules would only lead to the next refusal."""
    error = decided(
        deployment("gpt-us", region="us-east"),
        data_class=DataClass.CONFIDENTIAL,
        data_tags=frozenset({"phi", "trial"}),
    ).refusal()
    assert error is not None
    assert error.message == (
        "Refused by residency rules confidential→eu, tag:phi: gpt-us is in us-east, allowed is eu "
        "(class:confidential/regions); gpt-us has no statement on where it keeps data at rest, "
        "allowed is eu (tag:phi/at_rest); gpt-us has no statement on how long it keeps data, "
        "allowed are 0 days (tag:phi/max_retention_days). Nothing was sent. The 'residency' block "
        "of a deployment in the policy has the facts about it. Try another route, or: tollgate "
        "policy explain --team payments --route assistant --class confidential --data-tag phi "
        "--data-tag trial"
    )


def test_a_rule_in_shadow_is_recorded_and_changes_nothing() -> None:
    """An admin sees a rule's effect before it is enforced: in the event, and in `policy
    explain`.
    """
    asked = {"data_tags": frozenset({"trial"})}
    found = decided(deployment("in-us", region="us-east"), **asked)
    assert names(found) == ["in-us"]
    (candidate,) = found.candidates
    assert [(one.rule_id, one.field) for one in candidate.shadow] == [("tag:trial", "regions")]
    assert candidate.obstacles == ()
    (recorded,) = found.record["candidates"]  # type: ignore[misc]
    assert recorded["shadow"] == [["residency", "is in us-east, allowed is eu (tag:trial/regions)"]]
    assert explain(found).verdicts[0].reason == (
        "first by priority; in shadow: is in us-east, allowed is eu (tag:trial/regions)"
    )
    verify(found.permit(candidate, attempt=1), origin=origin_of(candidate.deployment.base_url))


def test_a_record_keeps_rules_places_and_exclusions() -> None:
    """The applied rules, each candidate's place, and the reason of its exclusion; no more than
    that.
    """
    found = decided(
        deployment("kept", residency=KEPT),
        deployment("in-us", region="us-east", base_url="https://us.api.openai.com/v1"),
        data_class=DataClass.CONFIDENTIAL,
        data_tags=frozenset({"here"}),
        gateway_region="eu-fr",
    )
    assert found.record == {
        "policy": "0" * 64,
        "objective": "priority",
        "rule": "confidential",
        "rules": ["class:confidential", "tag:here"],
        "gateway_region": "eu-fr",
        "ranked": ["kept"],
        "candidates": [
            {
                "deployment": "kept",
                "region": "eu-de",
                "host": "127.0.0.1",
                "at_rest": "fr",
                "telemetry": "global",
                "obstacles": [],
            },
            {
                "deployment": "in-us",
                "region": "us-east",
                "host": "us.api.openai.com",
                "at_rest": "us",
                "telemetry": "global",
                "obstacles": [
                    ["residency", "is in us-east, allowed is eu (class:confidential/regions)"]
                ],
            },
        ],
    }
    assert "gateway_region" not in decided().record
    assert "shadow" not in decided().record["candidates"][0]  # type: ignore[index]


def test_an_undeclared_label_is_refused() -> None:
    """A replay of an old request, or a bug at the edge, must not end as a request without a
    rule.
    """
    with pytest.raises(InvalidRequest, match="declares no data tag 'x'"):
        decided(data_tags=frozenset({"x"}))
    with pytest.raises(InvalidRequest, match="declares no data class 'restricted'"):
        decided(data_class=DataClass.RESTRICTED)


def test_a_permit_carries_the_rules_of_its_decision() -> None:
    """The transport asks the very same question again: of a forged one, the rule that it breaks is
    found.
    """
    found = decided(
        deployment(residency=KEPT),
        data_tags=frozenset({"here"}),
        gateway_region="eu-de",
        document={"facts_valid_days": 30},
    )
    permit = found.permit(found.eligible[0], attempt=1)
    assert (permit.rules, permit.gateway_region, permit.day, permit.valid_days) == (
        found.rules,
        "eu-de",
        TODAY,
        30,
    )
    assert permit.regions is found.policy.policy.region_tree
    verify(permit, origin=permit.origin)


def test_the_day_of_a_request_is_that_of_its_id() -> None:
    """In UTC, as everything in the ledger."""
    assert day_of(factories.request_id(NOW)) == date(2026, 11, 20)
    assert day_of(factories.request_id(NOW.replace(hour=23, minute=59, second=59))) == date(
        2026, 11, 20
    )


async def served(on: Stage, document: Any, **asked: Any) -> None:
    """One request, over a snapshot of its own."""
    read = factories.read(body())
    known, request = factories.snapshot(document=document), factories.request(read, **asked)
    await on.service().answer(
        request, known, terms=factories.terms(known, request), received_s=on.clock.monotonic()
    )


async def test_an_event_keeps_the_data_tags_that_it_was_decided_by() -> None:
    """A replay decides by them again, and an auditor counts them."""
    on = stage(FakeUpstreamAnswer([WHOLE]))
    await served(
        on,
        policy(deployment(residency=KEPT), data_tags=TAGS),
        data_tags=frozenset({"phi", "trial"}),
    )
    assert on.event.features["data_tags"] == ["phi", "trial"]
    assert on.event.decision["rules"] == ["class:internal", "tag:phi", "tag:trial"]
    plain = stage(FakeUpstreamAnswer([WHOLE]))
    await served(plain, policy())
    assert "data_tags" not in plain.event.features


def test_alike_requests_share_a_decision_and_others_do_not() -> None:
    """The cache key must contain every dependency: a tag, and the day if facts expire."""
    on = stage()
    known = factories.snapshot(document=policy(deployment(residency=KEPT), data_tags=TAGS))
    expiring = factories.snapshot(
        document=policy(
            deployment(residency=KEPT),
            data_tags=TAGS,
            facts_valid_days=30,
            classes={DataClass.INTERNAL: class_rule("internal", "eu")},
        )
    )
    later = factories.request_id(NOW + timedelta(days=31))
    service = on.service()
    first = service.decide(factories.request(), known)
    assert service.decide(factories.request(request_id=later), known) is first
    assert service.decide(factories.request(data_tags=frozenset({"phi"})), known) is not first
    assert names(service.decide(factories.request(), expiring)) == ["one"]
    assert names(service.decide(factories.request(request_id=later), expiring)) == []


def test_no_mixture_of_tags_fills_the_memory() -> None:
    """A caller chooses the tags; ten of them are a thousand mixtures."""
    known = factories.snapshot(document=policy(data_tags=TAGS))
    known.decisions.update({(number,): None for number in range(snapshots.MOST_REMEMBERED)})  # type: ignore[misc]
    stage().service().decide(factories.request(), known)
    assert len(known.decisions) == 1
