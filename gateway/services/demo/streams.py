"""Builds the common part of one project's requests: a template event for each deployment of its
route, and the names of its end users and tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import NamedTuple

from gateway.domain.ids import RANDOM_BYTES, uuid7
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.services.demo.answers import MAX_OUTPUT_TOKENS
from gateway.services.demo.catalogue import DESTINATIONS
from gateway.services.demo.organisation import Project

POLICY_VERSION, OBJECTIVE = 1, "priority"
ONE_IN_STAGING = 8
NO_TAGS: Mapping[str, str] = {}
_FEATURES = {"max_output_tokens": MAX_OUTPUT_TOKENS, "class_source": "team"}


class Stream(NamedTuple):
    """The requests of one project: a template for each deployment of its route, and the names to
    draw from.
    """

    project: Project
    templates: tuple[UsageEvent, ...]
    end_users: Sequence[str | None]
    tags: Sequence[Mapping[str, str]]


def stream_of(project: Project, *, is_demo: bool) -> Stream:
    """Return the templates and names of a project's requests."""
    work = project.work
    decision = {
        "objective": OBJECTIVE,
        "rule": project.data_class,
        "ranked": list(work.route.order),
        "candidates": [
            {"deployment": name, "region": DESTINATIONS[name].region, "obstacles": []}
            for name in work.route.order
        ],
    }
    customers = [f"c-{n:02}" for n in range(work.customers)]
    names: Sequence[str | None] = customers or [None]
    tags = [
        {"feature": work.name, "env": "production" if n else "staging"}
        | ({} if name is None else {"customer": name})
        for name in names
        for n in range(ONE_IN_STAGING)
    ]
    return Stream(
        project=project,
        templates=tuple(
            _template(project, name, decision, is_demo=is_demo) for name in work.route.order
        ),
        end_users=[f"{project.team}-u{n:04}" for n in range(work.end_users)] or [None],
        tags=tags,
    )


def _template(
    project: Project, deployment: str, decision: Mapping[str, object], *, is_demo: bool
) -> UsageEvent:
    """Return an event with everything that the attempts of a project at a deployment share."""
    place = DESTINATIONS[deployment]
    return UsageEvent(
        request_id=uuid7(0, bytes(RANDOM_BYTES)),
        attempt=1,
        started_at=datetime.combine(date.min, time(), UTC),
        team=project.team,
        project=project.name,
        cost_centre=project.cost_centre,
        key_id=project.key_id,
        end_user=None,
        tags=NO_TAGS,
        route=project.work.route.name,
        deployment=deployment,
        provider=place.provider,
        model=place.model,
        region=place.region,
        is_self_hosted=place.gpu is not None,
        data_class=project.data_class,
        policy_version=POLICY_VERSION,
        operation=project.work.route.operation.value,
        outcome=Outcome.OK,
        http_status=None,
        streamed=False,
        usage=TokenUsage(),
        usage_source=UsageSource.UNKNOWN,
        price_id=None,
        lines=(),
        cost_nusd=None,
        held_nusd=None,
        ttft_s=None,
        tpot_s=None,
        duration_s=0.0,
        overhead_s=None,
        is_demo=is_demo,
        features=_FEATURES,
        decision=decision,
    )
