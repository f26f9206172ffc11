"""A made-up dialect on each side of the gateway, as unlike OpenAI's as the seam allows.

`Telex` is a provider: its calls are signed over their body with a token that expires, its path
names the model, and it answers in frames of four bytes of length and a JSON document. `Memo` is the
dialect of an endpoint's callers: plain lines, and their answers are JSON lines.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote
from uuid import UUID

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import Request, RequestBody, RequestFacts
from gateway.errors import InvalidRequest, RequestError, UpstreamError
from gateway.wire.dialect import (
    AnswerPart,
    EventTooLarge,
    PlainAnswerAssembler,
    Translation,
    UnpricedPart,
    UnreadableAnswer,
    UpstreamRequest,
)
from gateway.wire.observed import Observed

MAX_FRAME_BYTES = 1000


def frame(document: Mapping[str, Any]) -> bytes:
    """Return one frame of a Telex answer."""
    content = json.dumps(document).encode()
    return struct.pack(">I", len(content)) + content


def signature(token: str, body: bytes) -> str:
    """Return the signature that a Telex server expects."""
    return hmac.new(token.encode(), body, hashlib.sha256).hexdigest()


class Memo:
    """Callers write `model`, `stream` or `whole`, and their text, each on a line of its own."""

    def read_request(self, operation: Operation, body: bytes) -> RequestBody:
        lines = body.decode().split("\n", 2)
        if len(lines) != 3:
            raise InvalidRequest("A memo has three lines. Nothing was sent.", param="line")
        facts = RequestFacts(
            operation=operation,
            model=lines[0],
            is_stream=lines[1] == "stream",
            wants_usage=True,
            wants_running_usage=False,
            output_bound_tokens=50,
            choices=1,
            capabilities=frozenset(),
            features=frozenset(),
            end_user=None,
            body_bytes=len(body),
        )
        return RequestBody(facts, body, {})

    def error_body(
        self, code: str, message: str, *, param: str | None = None, request_id: str | None = None
    ) -> bytes:
        return json.dumps({"refused": code, "at": param, "because": message}).encode()

    def error_event(
        self, operation: Operation, code: str, message: str, *, request_id: str | None = None
    ) -> bytes:
        return json.dumps({"broken": code}).encode() + b"\n"


class Telex:
    """The provider. Its answers are for callers of the Memo dialect."""

    bills_errors = False

    def __init__(self, token: Callable[[], Awaitable[str]]) -> None:
        self._token = token

    def translate(self, deployment: Deployment, read: RequestBody) -> Translation | None:
        return None

    async def call(
        self,
        deployment: Deployment,
        request: Request,
        *,
        output_cap_tokens: int | None = None,
        translation: Translation | None = None,
    ) -> UpstreamRequest:
        text = request.body.body.decode().split("\n", 2)[2]
        words: dict[str, Any] = {"ask": text}
        if output_cap_tokens is not None:
            words["most"] = output_cap_tokens
        kind = "frames" if request.body.facts.is_stream else "whole"
        return await self._signed(deployment, kind, words)

    async def probe(self, deployment: Deployment, probe_id: UUID) -> UpstreamRequest:
        return await self._signed(deployment, "whole", {"ask": ".", "most": 1})

    async def _signed(
        self, deployment: Deployment, kind: str, words: Mapping[str, Any]
    ) -> UpstreamRequest:
        token, body = await self._token(), json.dumps(words).encode()
        return UpstreamRequest(
            url=f"{deployment.base_url}/{quote(deployment.model, safe='')}/{kind}",
            headers={"x-token": token, "x-signature": signature(token, body)},
            body=body,
            is_streamed=kind == "frames",
            answer_type="application/x-memo",
        )

    def stream(self, read: RequestBody, call: UpstreamRequest) -> FrameStream:
        return FrameStream()

    def assembler(self, read: RequestBody, *, limit_bytes: int) -> PlainAnswerAssembler:
        raise AssertionError("no call of this provider is assembled")

    def rewrite(
        self, read: RequestBody, call: UpstreamRequest, body: bytes, observed: Observed
    ) -> AnswerPart:
        try:
            answer = json.loads(body)
        except ValueError:
            raise UnreadableAnswer("no telex") from None
        observed.note_final(usage_of(answer["end"]))
        observed.has_content = observed.is_done = True
        return last_line({"memo": answer["word"]}, usage_of(answer["end"]))

    def usage_in(self, body: bytes) -> TokenUsage | None:
        return None

    def error(
        self, deployment: Deployment, status: int, headers: Mapping[str, str], *, body: bytes
    ) -> RequestError:
        return UpstreamError(f"{deployment.name} hung up ({headers['x-reason']}).")


class FrameStream:
    """Telex frames, each returned as a line of JSON."""

    content_type = "application/x-memo-lines"

    def __init__(self) -> None:
        self.observed = Observed(collects_text=True)
        self._arrived = b""

    def feed(self, data: bytes) -> Sequence[AnswerPart]:
        self._arrived += data
        lines = [self._line(json.loads(document)) for document in self._documents()]
        if not lines and self._next_size > MAX_FRAME_BYTES:
            raise EventTooLarge
        return lines

    def end(self) -> Sequence[AnswerPart]:
        return []

    @property
    def _next_size(self) -> int:
        return int.from_bytes(self._arrived[:4], "big") if len(self._arrived) >= 4 else 0

    def _documents(self) -> Iterator[bytes]:
        while self._next_size and len(self._arrived) >= 4 + self._next_size:
            end = 4 + self._next_size
            document, self._arrived = self._arrived[4:end], self._arrived[end:]
            yield document

    def _line(self, document: Mapping[str, Any]) -> AnswerPart:
        if "word" in document:
            self.observed.has_content = True
            self.observed.note_text(document["word"])
            return json.dumps({"memo": document["word"]}).encode() + b"\n"
        usage = usage_of(document["end"])
        self.observed.note_final(usage)
        self.observed.is_done = True
        return last_line({}, usage)


def usage_of(end: Mapping[str, int]) -> TokenUsage:
    """Return the usage in the end of a Telex answer."""
    return TokenUsage(input_tokens=end["asked"], output_tokens=end["said"])


def last_line(members: Mapping[str, Any], usage: TokenUsage) -> AnswerPart:
    """Return the line that has the usage, with room for its cost."""
    units = (usage.input_tokens or 0) + (usage.output_tokens or 0)
    content = json.dumps({**members, "units": units}).encode()
    end = len(content) - 1
    return UnpricedPart(usage, content, end, end, b', "cost": ', lambda line: line + b"\n")
