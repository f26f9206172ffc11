"""One case from the beginning to the end, and its violations."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.policy.policy import DataClass, Deployment, Policy, ResidencyRule
from gateway.domain.residency.rules import Permit, denials, rules_for, verify
from gateway.errors import ResidencyDenied
from tests.residency.cases import ENGINES, REFERENCE, TEAM, Ask, Case
from tests.residency.hosts import HOSTS, WIDER
from tests.residency.lane import Lane, Reply, policy_of
from tests.residency.oracle import Verdict, contradicts, judge

TRIES = 3
OLLAMAS_CLOUD = "ollama.com"  # never self-hosted
HERE = "http://here:80"
SLOW = ("upstream_timeout", "upstream_unreachable")
LATE = (Outcome.UPSTREAM_TIMEOUT, Outcome.UPSTREAM_UNREACHABLE)


@dataclass
class Tally:
    """The counts over all cases."""

    findings: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)


async def run(case: Case, lane: Lane, tally: Tally) -> None:
    """Ask under the policy and under its edit; every answer and every connection against the
    specification.
    """
    before, after = lane.at(case.document), lane.at(case.edited)
    expected = verdicts(before, case.ask)
    for document in (before, after, at_known_hosts(before, case.number)):
        compare_words(case, document, tally)
    await _behave(case, lane)
    lane.clock.day = case.ask.day
    lane.apply(before)
    asking = asyncio.ensure_future(lane.ask(case.ask))
    if case.edits_in_flight:
        await _reached(lane, asking)
        lane.apply(after)  # the request keeps the version that it began with
    reply = await asking
    _judge(case, lane, expected, reply, "before", tally)
    out = liars(case, lane, before, reply)
    tally.seen["taken out of use"] += len(out)
    lane.apply(after)
    _judge(case, lane, verdicts(after, case.ask), await lane.ask(case.ask), "after", tally, out=out)
    tally.seen["in flight"] += case.edits_in_flight
    tally.seen[f"asked in {case.ask.dialect}"] += 2


def liars(case: Case, lane: Lane, document: dict[str, Any], reply: Reply) -> frozenset[str]:
    """Return the deployment that answered the first request from a place that it had not promised,
    or that the rules do not allow: not to be used again.
    """
    name = reply.headers.get("x-tollgate-deployment")
    return frozenset(
        one["name"]
        for one, endpoint in zip(document["deployments"], lane.endpoints, strict=False)
        if one["name"] == name
        and endpoint.stated is not None
        and contradicts(document, one, asked(case.ask), shipped(one), endpoint.stated)
    )


def asked(ask: Ask) -> dict[str, Any]:
    """Return a request as the specification reads it."""
    return {
        "team": TEAM,
        "data_class": ask.data_class,
        "data_tags": ask.data_tags,
        "gateway_region": ask.gateway_region,
        "day": ask.day,
    }


def verdicts(document: dict[str, Any], ask: Ask) -> dict[str, Verdict]:
    """Return the specification's verdict on each deployment, in the route's order."""
    by_name = {one["name"]: one for one in document["deployments"]}
    return {
        name: judge(document, by_name[name], asked(ask), shipped(by_name[name]))
        for name in document["routes"][0]["deployments"]
    }


def shipped(deployment: dict[str, Any]) -> Mapping[str, Any]:
    """Return its provider's statement about the host of a deployment's address."""
    return HOSTS.get(str(deployment["base_url"]).split("/")[2].split(":")[0], {})


def at_known_hosts(document: dict[str, Any], number: int) -> dict[str, Any]:
    """The document with some deployments at hosts of which something ships: decided about, never
    sent to.

    In every fourth document, facts expire, the classes allow regions that hosts promise, and a
    deployment at such a host has no block of its own: the date of the host's promise decides.
    """
    moved, hosts = [], tuple(HOSTS)
    expires = number % 4 == 1
    for place, one in enumerate(document["deployments"]):
        # Every other one at a host that promises its region, if there is one.
        fitting = [at for at in hosts if HOSTS[at].get("processing") == one["region"]]
        choice = fitting if fitting and number % 2 else hosts
        host = choice[(number * 7 + place * 5) % len(choice)]
        promised = HOSTS[host].get("processing")
        is_accepted = (
            promised is None
            or one["region"] in ("global", "unknown", *WIDER.get(promised, (promised,)))
            or "residency" in one
        )
        is_own = one.get("self_hosted", one.get("provider") in ENGINES)
        is_accepted = is_accepted and not (is_own and host == OLLAMAS_CLOUD)
        if not (number + place) % 2 or not is_accepted:
            moved.append(one)
            continue
        one = {**one, "base_url": f"https://{host}/v1"}
        if expires and promised == one["region"]:
            one.pop("residency", None)
        if (number + place) % 3 == 0:  # as a server of OpenAI's dialect
            one = {name: one[name] for name in one if name not in ("credentials", "native")}
            one |= {"provider": "openai_compatible", "api_key": REFERENCE}
        moved.append(one)
    if not expires:
        return {**document, "deployments": moved}
    classes = {
        label: {**one, "regions": ["eea", "us"]} for label, one in document["classes"].items()
    }
    return {"facts_valid_days": 90, **document, "classes": classes, "deployments": moved}


def compare_words(case: Case, document: dict[str, Any], tally: Tally) -> None:
    """Compare every denial by its rule and field, even if another had decided already."""
    policy = policy_of(json.dumps(document))
    team = policy.teams[TEAM]
    asked = DataClass[case.ask.data_class.upper()] if case.ask.data_class else team.data_class
    rules = rules_for(
        policy,
        team,
        data_class=max(asked, team.data_class),
        data_tags=frozenset(case.ask.data_tags),
    )
    for name, verdict in verdicts(document, case.ask).items():
        found = denials(
            rules,
            policy.deployments[name],
            regions=policy.region_tree,
            valid_days=policy.facts_valid_days,
            gateway_region=case.ask.gateway_region,
            day=case.ask.day,
        )
        _compare_permits(case, policy.deployments[name], rules, policy, verdict, tally)
        enforced = {(one.rule_id, one.field) for one in found if not one.is_shadow}
        shadows = {(one.rule_id, one.field) for one in found if one.is_shadow}
        tally.seen["deployments judged"] += 1
        tally.seen["of them denied"] += bool(verdict.denials)
        if (enforced, shadows) != (verdict.denials, verdict.shadows):
            tally.findings.append(
                f"case {case.number}: {name}: the gateway says {sorted(enforced)} and shadows "
                f"{sorted(shadows)}, the specification {sorted(verdict.denials)} and "
                f"{sorted(verdict.shadows)}"
            )


def _compare_permits(
    case: Case,
    deployment: Deployment,
    rules: tuple[ResidencyRule, ...],
    policy: Policy,
    verdict: Verdict,
    tally: Tally,
) -> None:
    """The transport's own check, as if the choice before it had been wrong."""
    permit = Permit(
        deployment=deployment,
        attempt=1,
        policy_version=1,
        origin=HERE,
        rules=rules,
        regions=policy.region_tree,
        gateway_region=case.ask.gateway_region,
        day=case.ask.day,
        valid_days=policy.facts_valid_days,
    )
    for origin in (HERE, "http://elsewhere:80"):
        is_allowed = True
        try:
            verify(permit, origin=origin)
        except ResidencyDenied:
            is_allowed = False
        if is_allowed != (verdict.is_allowed and origin == HERE):
            tally.findings.append(
                f"case {case.number}: the transport would send to {deployment.name}: {is_allowed}"
            )


def _was_late(lane: Lane, good: list[str]) -> bool:
    """Return whether an answering deployment was tried and not received in time; the caller gets
    the last error.
    """
    return any(event.deployment in good and event.outcome in LATE for event in lane.journal.events)


def _judge(
    case: Case,
    lane: Lane,
    expected: dict[str, Verdict],
    reply: Reply,
    when: str,
    tally: Tally,
    out: frozenset[str] = frozenset(),
) -> None:
    tally.seen["requests"] += 1
    names = [one["name"] for one in case.document["deployments"]]
    allowed = [name for name, verdict in expected.items() if verdict.is_allowed and name not in out]
    touched = {name: lane.endpoints[number].touched for number, name in enumerate(names)}
    for endpoint in lane.endpoints:
        endpoint.touched = 0
    wrong = [name for name, times in touched.items() if times and name not in allowed]
    where = f"case {case.number}, {when}: allowed {allowed}, {reply.status} {reply.code}"
    if wrong:
        tally.findings.append(f"{where}: touched {wrong}")
    tally.seen[f"{reply.status} {reply.code or ''}".strip()] += 1
    if not allowed:
        tally.seen["no deployment may"] += 1
        if (reply.status, reply.code) != (403, "residency_denied"):
            tally.findings.append(f"{where}, though nobody may")
        return
    answering = {
        name
        for name, behaviour, endpoint in zip(names, case.behaviours, lane.endpoints, strict=False)
        if behaviour in ("answers", "lies", "wanders") or (behaviour == "down" and endpoint.is_open)
    }
    good = [name for name in allowed[:TRIES] if name in answering]
    if reply.status == 200:
        if reply.headers["x-tollgate-deployment"] not in good:
            tally.findings.append(f"{where}: answered by {reply.headers['x-tollgate-deployment']}")
    elif good and (reply.code in SLOW or _was_late(lane, good)):
        # By a machine that does many things at once: nothing was sent wrongly.
        tally.seen["not answered in time"] += 1
    elif good:
        tally.findings.append(f"{where}, though {good[0]} answers")
    elif reply.status == 403:
        tally.findings.append(f"{where}: refused, not failed")


async def _behave(case: Case, lane: Lane) -> None:
    """Set the endpoints up. Forbidden ones listen too, so that an attempt to reach them is seen."""
    expected = [verdicts(lane.at(document), case.ask) for document in (case.document, case.edited)]
    for number, (one, behaviour) in enumerate(
        zip(case.document["deployments"], case.behaviours, strict=True)
    ):
        endpoint = lane.endpoints[number]
        endpoint.behaviour, endpoint.touched, endpoint.stated = behaviour, 0, None
        endpoint.reached.clear()
        other = lane.endpoints[(number + 1) % len(case.behaviours)]
        endpoint.elsewhere = f"http://127.0.0.1:{other.port}/v1/chat/completions"
        if behaviour == "down" and all(judged[one["name"]].is_allowed for judged in expected):
            await endpoint.shut()
        else:
            await endpoint.open()


async def _reached(lane: Lane, asking: asyncio.Future[Reply]) -> None:
    """Wait until an endpoint has the request, or none will get it."""
    waits = [asyncio.ensure_future(endpoint.reached.wait()) for endpoint in lane.endpoints]
    await asyncio.wait({asking, *waits}, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
        with suppress(asyncio.CancelledError):
            await wait


def shown(seen: Counter[str]) -> Iterator[str]:
    """The counts, the largest first."""
    return (f"{times:>9,}  {what}" for what, times in seen.most_common())
