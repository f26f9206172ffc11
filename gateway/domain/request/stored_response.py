"""Declares what the ledger knows of a response that an upstream may keep: which deployment gave it
to which team; no content of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import DataClass, Deployment


class StoredResponseAction(StrEnum):
    """The action on a response that its upstream keeps."""

    READ = "read"
    DELETE = "delete"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """One response of a team, by the attempt that gave it.

    `host` is the deployment's host at that time, None if the event lacks it. `data_tags` are the
    request's own, besides its team's. `cost_nusd` is its booked cost, None if unknown.
    """

    response_id: str
    request_id: UUID
    team: str
    route: str
    deployment: str
    provider: str
    host: str | None
    data_class: DataClass
    data_tags: frozenset[str]
    cost_nusd: int | None

    def is_of(self, deployment: Deployment) -> bool:
        """Return True if this deployment is still the place that gave the response, and no other
        one that has its name now.
        """
        return (
            deployment.name == self.deployment
            and deployment.provider == self.provider
            and self.host in (None, deployment.facts.host)
        )


def stored_response(fields: Mapping[str, Any]) -> StoredResponse:
    """Return the stored response of an event's fields: those of `StoredResponse`, with the label of
    its class, and the event's `features` and `decision`.
    """
    deployment = fields["deployment"]
    candidates = fields["decision"].get("candidates", ())
    hosts = (one.get("host") for one in candidates if one.get("deployment") == deployment)
    return StoredResponse(
        response_id=fields["upstream_request_id"],
        request_id=fields["request_id"],
        team=fields["team"],
        route=fields["route"],
        deployment=deployment,
        provider=fields["provider"],
        host=next(hosts, None),
        data_class=DataClass[fields["data_class"].upper()],
        data_tags=frozenset(fields["features"].get("data_tags", ())),
        cost_nusd=fields["cost_nusd"],
    )


def stored_response_of(event: UsageEvent) -> StoredResponse | None:
    """Return the response that an event's attempt gave, None if it is of another operation or has
    no id.
    """
    if event.operation != Operation.RESPONSES.value or event.upstream_request_id is None:
        return None
    names = (
        "upstream_request_id",
        "request_id",
        "team",
        "route",
        "deployment",
        "provider",
        "data_class",
        "features",
        "decision",
        "cost_nusd",
    )
    return stored_response({name: getattr(event, name) for name in names})
