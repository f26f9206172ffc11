"""Answers `POST /v1/messages/count_tokens`: the tokens of a prompt, without an answer and without a
charge.
"""

from __future__ import annotations

from functools import partial
from uuid import UUID

import msgspec
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from gateway.api import attribution, dialect_headers
from gateway.api.http.parser import Fields
from gateway.api.plain.endpoints import PlainEndpoints, headers_of
from gateway.api.routes import ANTHROPIC
from gateway.domain.operation import Operation
from gateway.domain.request.request import Caller, Request, RequestBody
from gateway.services.request.prompt_counts import PromptCount
from gateway.services.snapshot.snapshot import Snapshot

ESTIMATED = "x-tollgate-estimated"


async def count_tokens(request: HttpRequest) -> Response:
    """Return the tokens of a prompt of messages; it counts as one request of the team."""
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    snapshot = endpoints.holder.require()
    headers = headers_of(request)
    endpoints.check_declared(headers)
    await endpoints.read(caller, lambda: None)
    parse = partial(ANTHROPIC.read_request, Operation.MESSAGES)
    with endpoints.slot(caller):
        asked = counting_request(
            await endpoints.read_body(request, caller, parse),
            caller=caller,
            request_id=request.state.request_id,
            headers=headers,
            fields=request.scope["headers"],
            is_beta=dialect_headers.is_beta(b"?" + request.scope["query_string"]),
            snapshot=snapshot,
        )
        answer, named = count_answer(await endpoints.counts.count(asked, snapshot))
    return Response(answer, headers=named, media_type="application/json")


def counting_request(
    read: RequestBody,
    *,
    caller: Caller,
    request_id: UUID,
    headers: dict[str, str],
    fields: Fields,
    is_beta: bool,
    snapshot: Snapshot,
) -> Request:
    """Return the request whose prompt is counted, with the labels that decide where it may go."""
    policy = snapshot.policy.policy
    team = policy.teams[caller.team]
    data_class, source, data_tags = attribution.data_labels(
        headers, team, declared_tags=policy.data_tags
    )
    own_headers = dialect_headers.read(fields)
    return Request(
        request_id=request_id,
        caller=caller,
        body=dialect_headers.with_needs(read, own_headers),
        data_class=data_class,
        data_class_source=source,
        data_tags=data_tags,
        end_user=None,
        project=attribution.project(headers, caller.project, team),
        tags=(),
        client_request_id=None,
        traceparent=attribution.traceparent(headers),
        priority=team.priority,
        dialect_headers=own_headers,
        is_beta=is_beta,
    )


def count_answer(count: PromptCount) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of the answer; an estimate is marked."""
    headers = {} if count.deployment is not None else {ESTIMATED: "true"}
    if count.deployment is not None:
        headers["x-tollgate-deployment"] = count.deployment
    return msgspec.json.encode({"input_tokens": count.tokens}), headers
