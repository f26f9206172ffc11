"""Implements the `Dialect` of OpenAI's clients: reads their request bodies and writes errors in
their form.
"""

from __future__ import annotations

from gateway.domain.operation import Operation
from gateway.domain.request.request import RequestBody
from gateway.errors import InvalidRequest
from gateway.wire.openai import error
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
        if "background" in read.members and operation is Operation.RESPONSES:
            _refuse_background(read)
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


def _refuse_background(read: RequestBody) -> None:
    """Raise `InvalidRequest` if a request for a response asks to be answered later: its usage would
    come after the answer, and nothing of it could be settled.
    """
    place = read.members["background"]
    if read.body[place.start : place.end] not in (b"null", b"false"):
        raise InvalidRequest(
            "'background' is not offered: the usage would come after the answer. Leave it out, and "
            "stream the answer if it takes long. Nothing was sent.",
            param="background",
        )
