"""Translates requests for api.openai.com and every provider with the same dialect, and reads their
answers, usage and errors; it sends nothing itself. Their differences are data
(`domain.providers.table`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.providers.table import OutputLimit
from gateway.domain.request.request import Request, RequestBody
from gateway.domain.request.stored_response import StoredResponseAction
from gateway.errors import RequestError
from gateway.providers import cache_salts, native_messages
from gateway.providers.differences import (
    TOOLS,
    asks_timings,
    endpoint_of,
    maximum_members,
    tool_members,
    unwanted_members,
    usage_members,
    with_known_messages,
    without_refused,
)
from gateway.providers.translated_dialect import losses_at
from gateway.providers.upstream_errors import request_error
from gateway.providers.upstream_headers import upstream_headers
from gateway.wire.anthropic.answer.messages import message_stream, rewrite_message
from gateway.wire.callers import conversation_of, writer_for
from gateway.wire.dialect import AnswerPart, AnswerStream, Translation, UpstreamRequest
from gateway.wire.observed import Observed
from gateway.wire.openai.answer import complete_answer
from gateway.wire.openai.answer.assemble import Assembler
from gateway.wire.openai.answer.chat import ChatStream, chat_stream
from gateway.wire.openai.answer.responses import response_stream
from gateway.wire.openai.answer.shapes import usage_in
from gateway.wire.openai.chat_translation.reader import ChatReader, chat_events
from gateway.wire.openai.chat_translation.request_writer import write_chat_request
from gateway.wire.openai.error import read_error
from gateway.wire.openai.request.read import prepare, read_request
from gateway.wire.translation.translated_stream import TranslatedStream

PATHS = {
    Operation.CHAT: "/chat/completions",
    Operation.COMPLETIONS: "/completions",
    Operation.RESPONSES: "/responses",
    Operation.EMBEDDINGS: "/embeddings",
    Operation.RERANK: "/rerank",
    Operation.SCORE: "/score",
    Operation.MESSAGES: native_messages.PATH,
}
# The method and the end of the address for each action on a stored response.
STORED_RESPONSE_CALLS = {
    StoredResponseAction.READ: ("GET", ""),
    StoredResponseAction.DELETE: ("DELETE", ""),
    StoredResponseAction.CANCEL: ("POST", "/cancel"),
}
# The smallest request for each endpoint. It contains nothing of any caller's request.
PROBES: Mapping[Operation, Mapping[str, Any]] = {
    Operation.CHAT: {"messages": [{"role": "user", "content": "."}], "max_tokens": 1},
    Operation.COMPLETIONS: {"prompt": ".", "max_tokens": 1},
    Operation.EMBEDDINGS: {"input": "."},
    Operation.RERANK: {"query": ".", "documents": ["."]},
    Operation.SCORE: {"text_1": ".", "text_2": "."},
    Operation.RESPONSES: {"input": ".", "max_output_tokens": 1, "store": False},
    Operation.MESSAGES: native_messages.PROBE,
}


class OpenAI:
    """Calls one upstream of the OpenAI dialect and reads its answers.

    `salt_key` makes the teams' salts for engines that take them; it is secret.
    """

    bills_errors = False
    # `store` is true there unless the body sets it to false.
    stores_by_default = frozenset({Operation.RESPONSES})

    def __init__(self, salt_key: bytes = b"") -> None:
        """Make the adapter."""
        self._salt_key = salt_key

    def translate(self, deployment: Deployment, read: RequestBody) -> Translation | None:
        """Return the request as a chat if the deployment does not speak its dialect, else without
        the members and with the ids that the deployment takes; None if nothing has to change.

        Raises `Untranslatable` for a field that a chat has no place for, or that it refuses.
        """
        if read.facts.operation in deployment.native:
            body = with_known_messages(deployment, read)
            own = None if body is read else Translation(sent_as=Operation.CHAT, body=body)
            return without_refused(deployment, body) or own
        losses = losses_at(deployment, "chat completions")
        chat = write_chat_request(
            conversation_of(read),
            losses,
            model=read.facts.model,
            facts=deployment.provider_facts,
            maximum_members=deployment.output_limit.members,
        )
        body = with_known_messages(deployment, read_request(Operation.CHAT, chat))
        return without_refused(deployment, body, losses) or Translation(
            sent_as=Operation.CHAT, body=body, dropped_fields=tuple(losses.fields)
        )

    async def call(
        self,
        deployment: Deployment,
        request: Request,
        *,
        output_cap_tokens: int | None = None,
        translation: Translation | None = None,
    ) -> UpstreamRequest:
        """Return the HTTP request of one attempt (address, headers, and the caller's adapted body),
        to be sent by the transport.

        Changes `model`, `stream_options` and `store`; docs/decisions/0002 gives the reasons.

        `output_cap_tokens` is the maximum that is sent, None to keep the caller's own.
        """
        provider = deployment.provider_facts
        read = request.body if translation is None else translation.body
        if read.facts.operation is Operation.MESSAGES:
            return self._messages_call(deployment, request, output_cap_tokens)
        is_another = read.facts.operation is not request.body.facts.operation
        is_assembled = self.assembles(deployment, read)
        values = self.values(deployment, read, request.caller.team, is_assembled=is_assembled)
        others: tuple[str, ...] = ()
        if output_cap_tokens is not None or deployment.output_limit is OutputLimit.MAX_TOKENS:
            maximum, others = maximum_members(deployment, read, output_cap_tokens)
            values.update(maximum)
        dropped = others if provider.takes_stream_options else (*others, *unwanted_members(read))
        is_streamed = read.facts.is_stream or is_assembled
        headers = await self.headers(
            deployment, request.request_id, traceparent=request.traceparent, is_stream=is_streamed
        )
        self.add_headers(headers, deployment, request, is_streamed=is_streamed)
        return UpstreamRequest(
            url=endpoint_of(deployment, PATHS[read.facts.operation]),
            headers=headers,
            body=prepare(read, values, dropped=dropped),
            asks_running_usage=provider.running_usage is not None,
            is_assembled=is_assembled,
            is_streamed=is_streamed,
            answer_type="application/json" if is_assembled or is_another else None,
            translation=translation,
        )

    async def headers(
        self,
        deployment: Deployment,
        request_id: UUID,
        *,
        is_stream: bool,
        traceparent: str | None = None,
    ) -> dict[str, str]:
        """Return the headers with the deployment's key."""
        return upstream_headers(
            deployment, request_id, is_stream=is_stream, traceparent=traceparent
        )

    def add_headers(
        self,
        headers: dict[str, str],
        deployment: Deployment,
        request: Request,
        *,
        is_streamed: bool,
    ) -> None:
        """Add the headers of this dialect's variant to a request: none here."""

    def _messages_call(
        self, deployment: Deployment, request: Request, output_cap_tokens: int | None
    ) -> UpstreamRequest:
        """Return the call of a messages request for an engine that speaks them itself."""
        read, is_stream = request.body, request.body.facts.is_stream
        headers = upstream_headers(
            deployment, request.request_id, traceparent=request.traceparent, is_stream=is_stream
        )
        self.add_headers(headers, deployment, request, is_streamed=is_stream)
        native_messages.add_headers(headers, request)
        values: dict[str, Any] = {}
        if Operation.MESSAGES in deployment.salted:
            values[cache_salts.MEMBER] = cache_salts.salt_of(self._salt_key, request.caller.team)
        return UpstreamRequest(
            url=native_messages.address(deployment.address, request),
            headers=headers,
            body=native_messages.body(deployment, read, values, output_cap_tokens),
            is_streamed=is_stream,
        )

    async def count_call(self, deployment: Deployment, request: Request) -> UpstreamRequest:
        """Return the call that counts the tokens of a messages request's prompt."""
        return native_messages.count_call(deployment, deployment.address, request)

    def counted(self, body: bytes) -> int | None:
        """Return the tokens that an answer to that call states, None if it states none."""
        return native_messages.counted(body)

    async def probe(self, deployment: Deployment, probe_id: UUID) -> UpstreamRequest:
        """Return a call of fixed content with at most one output token. It tests whether the model
        answers at all.
        """
        spoken = deployment.operations & deployment.native
        operation = next((one for one in PROBES if one in spoken), Operation.CHAT)
        return UpstreamRequest(
            url=endpoint_of(deployment, PATHS[operation]),
            headers=await self.headers(deployment, probe_id, is_stream=False),
            body=msgspec.json.encode({"model": deployment.model, **PROBES[operation]}),
        )

    async def stored_response(
        self,
        deployment: Deployment,
        request_id: UUID,
        *,
        action: StoredResponseAction,
        response_id: str,
        query: str,
    ) -> UpstreamRequest:
        """Return the call that reads, deletes or cancels a stored response."""
        method, ending = STORED_RESPONSE_CALLS[action]
        path = f"{PATHS[Operation.RESPONSES]}/{response_id}{ending}"
        return UpstreamRequest(
            url=endpoint_of(deployment, path, query),
            headers=await self.headers(deployment, request_id, is_stream=False),
            body=b"",
            method=method,
        )

    def assembles(self, deployment: Deployment, read: RequestBody) -> bool:
        """Return True if a plain request is sent as a stream, so that it can be billed when its
        caller leaves: never here.

        That helps only with self-hosted engines, because only they report running usage.
        """
        return False

    def assembler(self, read: RequestBody, *, limit_bytes: int) -> Assembler:
        """Return the assembler that makes a plain answer of the stream.

        Raises `UpstreamError` if the stream is too large.
        """
        return Assembler(
            operation=read.facts.operation, choices=read.facts.choices, limit_bytes=limit_bytes
        )

    def values(
        self, deployment: Deployment, read: RequestBody, team: str, *, is_assembled: bool
    ) -> dict[str, Any]:
        """Return the members that this dialect sets in a request's body."""
        values: dict[str, Any] = {}
        if read.facts.model != deployment.model:
            values["model"] = deployment.model
        if read.facts.is_stream and read.facts.operation is not Operation.RESPONSES:
            values |= usage_members(deployment.provider_facts, read)
        if TOOLS in read.members:
            values |= tool_members(deployment.provider_facts, read)
        if read.facts.operation in self.stores_by_default and "store" not in deployment.allows:
            values["store"] = False
        if read.facts.operation in deployment.salted:
            values[cache_salts.MEMBER] = cache_salts.salt_of(self._salt_key, team)
        return values

    def stream(self, read: RequestBody, call: UpstreamRequest) -> AnswerStream:
        """Return the reader of a streamed answer to this call.

        It keeps the text if the upstream reports no running usage.
        """
        if _is_another(call, read):
            chat = self._chat_stream(_sent(call, read), call)
            return TranslatedStream(ChatReader(chat), writer_for(read, call))
        if read.facts.operation is Operation.MESSAGES:
            return message_stream(
                model=read.facts.model, request_id=call.headers.get("x-request-id")
            )
        if read.facts.operation is Operation.RESPONSES:
            return response_stream(model=read.facts.model, collects_text=True)
        return self._chat_stream(read, call)

    def _chat_stream(self, read: RequestBody, call: UpstreamRequest) -> ChatStream:
        """Return the reader of a chat's or a completion's stream."""
        return chat_stream(
            model=read.facts.model,
            wants_usage=read.facts.wants_usage,
            wants_running_usage=read.facts.wants_running_usage,
            asked_running_usage=call.asks_running_usage,
            cuts_timings=call.asks_running_usage and not asks_timings(read),
            choices=read.facts.choices,
            collects_text=not call.asks_running_usage,
        )

    def rewrite(
        self, read: RequestBody, call: UpstreamRequest, body: bytes, observed: Observed
    ) -> AnswerPart:
        """Return a complete answer for the caller; record its metadata in `observed`.

        Raises `UnreadableAnswer` for one that cannot be an answer.
        """
        sent = read if call.translation is None else call.translation.body
        if sent.facts.operation is Operation.MESSAGES:
            return rewrite_message(body, observed, model=read.facts.model)
        answer = complete_answer.rewrite(sent, body, observed)
        if sent.facts.operation is read.facts.operation:
            return answer
        return writer_for(read, call).whole(chat_events(answer, observed))

    def error(
        self, deployment: Deployment, status: int, headers: Mapping[str, str], *, body: bytes
    ) -> RequestError:
        """Map an upstream's error by status and type, never by the text of its message."""
        return request_error(deployment, status, headers, read_error(body))

    def usage_in(self, body: bytes) -> TokenUsage | None:
        """Return the usage that a complete answer or an error reports, None if it reports none."""
        return usage_in(body)


def _sent(call: UpstreamRequest, read: RequestBody) -> RequestBody:
    """Return the request as it was sent, before the gateway's own members."""
    return read if call.translation is None else call.translation.body


def _is_another(call: UpstreamRequest, read: RequestBody) -> bool:
    """Return True if a request was sent in another dialect than its caller's."""
    return _sent(call, read).facts.operation is not read.facts.operation
