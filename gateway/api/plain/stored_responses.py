"""Answers requests for a stored response: takes the request apart, has the service ask the
deployment that keeps the response, and writes the answer.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

import structlog
from fastapi import Request
from fastapi.responses import Response

from gateway.api import attribution
from gateway.api.forward import place_headers
from gateway.api.plain.endpoints import PlainEndpoints, labels_of
from gateway.domain.ids import day_of
from gateway.domain.request.request import Caller
from gateway.domain.request.stored_response import StoredResponseAction
from gateway.errors import InvalidRequest
from gateway.services.request.stored_response_calls import (
    StoredResponseCalls,
    StoredResponseRequest,
)
from gateway.services.snapshot.snapshot import Snapshot

log = structlog.get_logger()

_INCLUDE = ("include", "include[]")  # official SDKs write it with brackets
_INCLUDED = re.compile(r"[a-z_]{1,64}(\.[a-z_]{1,64}){0,4}")
MOST_INCLUDED = 32
MOST_SHOWN = 64  # letters of a parameter's name in a message


async def ask_for_stored_response(request: Request, response_id: str) -> Response:
    """Return or delete a response that the team's deployment keeps."""
    is_read = request.method == "GET"
    action = StoredResponseAction.READ if is_read else StoredResponseAction.DELETE
    return await _ask(request, action, response_id)


async def cancel_stored_response(request: Request, response_id: str) -> Response:
    """Cancel a response that the team's deployment keeps."""
    return await _ask(request, StoredResponseAction.CANCEL, response_id)


async def _ask(request: Request, action: StoredResponseAction, response_id: str) -> Response:
    """Answer a request for a stored response, in one of its team's slots."""
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    snapshot = endpoints.holder.require()
    headers = labels_of(request)
    with endpoints.slot(caller):
        return await answer_stored(
            action,
            response_id,
            query=request.scope["query_string"],
            headers=headers,
            caller=caller,
            snapshot=snapshot,
            calls=endpoints.stored_responses,
            request_id=request.state.request_id,
        )


async def answer_stored(
    action: StoredResponseAction,
    response_id: str,
    *,
    query: bytes,
    headers: dict[str, str],
    caller: Caller,
    snapshot: Snapshot,
    calls: StoredResponseCalls,
    request_id: UUID,
) -> Response:
    """Return the answer to a request for a stored response, from the deployment that keeps it.

    Raises the `RequestError` for the caller. The log line has no part of the answer.
    """
    team = snapshot.policy.policy.teams[caller.team]
    data_class, _, data_tags = attribution.data_labels(
        headers, team, declared_tags=snapshot.policy.policy.data_tags
    )
    asked = StoredResponseRequest(
        request_id=request_id,
        action=action,
        response_id=response_id,
        query=forwarded_query(action, query),
        caller=caller,
        data_class=data_class,
        data_tags=data_tags,
    )
    terms = snapshot.terms_of(
        team, project=caller.project, key_id=caller.key_id, day=day_of(request_id)
    )
    answer = await calls.ask(asked, snapshot, terms=terms)
    deployment, version = answer.deployment, answer.decision.policy.version
    log.info(
        "stored_response",
        request_id=str(request_id),
        action=action.value,
        team=caller.team,
        key_id=caller.key_id,
        deployment=deployment.name,
        region=deployment.region,
        policy_version=version,
    )
    place = place_headers(
        answer.decision.route.name,
        deployment.name,
        deployment.provider,
        deployment.region,
        version,
    )
    shown = {name.decode(): value.decode("latin-1") for name, value in place}
    content_type = answer.content_type.encode("latin-1", "replace").decode("latin-1")
    return Response(answer.body, 200, {**shown, "content-type": content_type})


def forwarded_query(action: StoredResponseAction, query: bytes) -> str:
    """Return the part of a request's query that goes upstream, with its `?`; empty if none does.

    Only `include` does, when a response is read. Raises `InvalidRequest` for a parameter that would
    change the answer; `beta` and `stream=false` change nothing.
    """
    included: list[tuple[str, str]] = []
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name == "beta" or (name == "stream" and value.lower() == "false"):
            continue
        if action is not StoredResponseAction.READ or name not in _INCLUDE:
            shown = "".join(letter for letter in name[:MOST_SHOWN] if letter.isprintable())
            raise InvalidRequest(
                f"The parameter '{shown}' is not offered here. Nothing was sent. A stored response "
                "is read as a whole, with 'include' at most.",
                param=shown,
            )
        if not _INCLUDED.fullmatch(value) or len(included) == MOST_INCLUDED:
            raise InvalidRequest(
                f"'include' names at most {MOST_INCLUDED} parts of a response, as in "
                "include[]=message.output_text.logprobs. Nothing was sent.",
                param="include",
            )
        included.append((name, value))
    return f"?{urlencode(included)}" if included else ""
