"""Verifies that a team's past attempts were allowed, by deciding each kind of them again under its
own policy version; `audit residency` reports it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from gateway.domain.policy.policy import DataClass, Deployment, PolicyVersion
from gateway.domain.providers.facts import Fact
from gateway.domain.residency.rules import denials, rules_for
from gateway.domain.residency.sent_attempts import SentAttempts
from gateway.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Attempts that cannot be verified, with the reason."""

    day: date
    deployment: str
    data_class: str
    policy_version: int
    attempts: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceCount:
    """The number of attempts sent to one place with one data class."""

    region: str
    host: str
    deployment: str
    data_class: str
    data_tags: tuple[str, ...]
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedFact:
    """One known fact about a used deployment, with its source."""

    deployment: str
    fact: str
    value: str
    source: str
    as_of: date | None
    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The verdict on all attempts. `outside` broke a rule; `unverified` could not be decided."""

    attempts: int
    places: Sequence[PlaceCount]
    outside: Sequence[Doubt]
    unverified: Sequence[Doubt]
    facts: Sequence[UsedFact]


def verify_sent(
    sent: Sequence[SentAttempts], versions: Mapping[int, PolicyVersion], *, team: str
) -> Verified:
    """Return the verdict on a team's past attempts: each kind is decided again under its own
    version of `versions`, by number.
    """
    outside, unverified = [], []
    for one in sent:
        version = versions.get(one.policy_version)
        broken, unknown = (
            _broken(one, version, team)
            if version is not None
            else ([], "its policy cannot be read")
        )
        if broken:
            outside.append(_doubt(one, ", ".join(broken)))
        elif unknown:
            unverified.append(_doubt(one, unknown))
        if one.contradicted:
            outside.append(
                _doubt(one, "its upstream reported another place", attempts=one.contradicted)
            )
    return Verified(
        attempts=sum(one.attempts for one in sent),
        places=_places(sent),
        outside=outside,
        unverified=unverified,
        facts=_facts(sent, versions),
    )


def _broken(one: SentAttempts, version: PolicyVersion, team: str) -> tuple[list[str], str]:
    """Return the rules that a kind of attempt broke under its policy version, and the reason if
    that cannot be decided.
    """
    policy = version.policy
    deployment, asking = policy.deployments.get(one.deployment), policy.teams.get(team)
    if deployment is None or asking is None or one.data_class.upper() not in DataClass.__members__:
        return [], "its policy has no such deployment, team or class"
    if (version.sha256, deployment.region) != (one.policy_sha256, one.region):
        return [], "its record and its policy do not agree"
    try:
        rules = rules_for(
            policy, asking, data_class=DataClass[one.data_class.upper()], data_tags=one.data_tags
        )
    except InvalidRequest as unknown:
        return [], unknown.message
    found = denials(
        rules,
        deployment,
        regions=policy.region_tree,
        gateway_region=one.gateway_region,
        day=one.day,
        valid_days=policy.facts_valid_days,
    )
    return [f"{denial.rule_id}/{denial.field}" for denial in found if not denial.is_shadow], ""


def _doubt(one: SentAttempts, why: str, *, attempts: int | None = None) -> Doubt:
    """Return the doubt about some attempts, with its reason."""
    return Doubt(
        day=one.day,
        deployment=one.deployment,
        data_class=one.data_class,
        policy_version=one.policy_version,
        attempts=one.attempts if attempts is None else attempts,
        why=why,
    )


def _places(sent: Iterable[SentAttempts]) -> list[PlaceCount]:
    """Return the number of attempts sent to each region, host and deployment, by data class and
    tags.
    """
    counted: Counter[tuple[str, str, str, str, tuple[str, ...]]] = Counter()
    for one in sent:
        place = (one.region, one.host, one.deployment, one.data_class, tuple(sorted(one.data_tags)))
        counted[place] += one.attempts
    return [
        PlaceCount(
            region=region,
            host=host,
            deployment=name,
            data_class=label,
            data_tags=tags,
            attempts=attempts,
        )
        for (region, host, name, label, tags), attempts in sorted(counted.items())
    ]


def _facts(sent: Iterable[SentAttempts], versions: Mapping[int, PolicyVersion]) -> list[UsedFact]:
    """Return the recorded facts about the place of each used deployment, with their policy
    versions.
    """
    used = sorted(
        {(one.deployment, one.policy_version) for one in sent if one.policy_version in versions}
    )
    found: dict[tuple[str, str, str, str, date | None], list[int]] = {}
    for name, number in used:
        deployment = versions[number].policy.deployments.get(name)
        for fact, value, source, as_of in _facts_of(deployment) if deployment is not None else ():
            found.setdefault((name, fact, value, source, as_of), []).append(number)
    return [
        UsedFact(
            deployment=name,
            fact=fact,
            value=value,
            source=source,
            as_of=as_of,
            versions=tuple(numbers),
        )
        for (name, fact, value, source, as_of), numbers in found.items()
    ]


def _facts_of(deployment: Deployment) -> Iterable[tuple[str, str, str, date | None]]:
    """Yield each known fact of a deployment's place: name, value, source and date."""
    facts = deployment.facts
    named: tuple[tuple[str, Fact[str] | Fact[int | None] | Fact[str | None]], ...] = (
        ("processing", facts.processing),
        ("at rest", facts.at_rest),
        ("telemetry", facts.telemetry),
        ("retention (days)", facts.retention_days),
        ("sub-processor", facts.sub_processor),
    )
    for name, fact in named:
        yield (
            name,
            "unknown" if fact.value is None else str(fact.value),
            fact.source or "the policy",
            fact.as_of,
        )
