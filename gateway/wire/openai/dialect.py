"""Implements the `Dialect` of OpenAI's clients: reads their request bodies and writes errors in
their form.
"""

from __future__ import annotations

from gateway.domain.operation import Operation
from gateway.domain.policy.request_fields import ANSWERED_LATER
from gateway.domain.request.request import RequestBody
from gateway.errors import InvalidRequest
from gateway.wire.openai import error
from gateway.wire.openai.request.member_names import refuse_later
from gateway.wire.openai.request.read import read_request


class OpenAIDialect:
    """Reads the requests of OpenAI's clients and writes their errors."""

    def read_request(self, operation: Operation, body: bytes) -> RequestBody:
        """Return a client's request, parsed from its body. Raises `InvalidRequest` with the field
        and the fix.
        """
        read = read_request(operation, body)
        if "messages" not in read.members and operation is Operation.CHAT:
            raise InvalidRequest("'messages' is missing. Nothing was sent.", param="messages")
        if not ANSWERED_LATER.isdisjoint(read.members):
            refuse_later(read)
        return read

    def error_body(
        self, code: str, message: str, *, param: str | None = None, request_id: str | None = None
    ) -> bytes:
        """Return the body of an error answer in OpenAI's form, which has no request id."""
        return error.error_body(code, message, param=param)

    def error_event(
        self, operation: Operation, code: str, message: str, *, request_id: str | None = None
    ) -> bytes:
        """Return the event that ends a stream with an error after its start."""
        return error.error_event(code, message, is_responses=operation is Operation.RESPONSES)
