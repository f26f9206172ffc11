"""Reads one upstream answer and returns it for the caller with its cost, plain or as a stream,
recording the usage; a drain reads on later. It settles nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import astuple

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import Request
from gateway.errors import RequestError, UpstreamError
from gateway.services.codings import (
    CODING,
    BrokenCoding,
    Opener,
    is_closed,
    may_be_coded,
    opened,
    opened_to_end,
)
from gateway.services.ports import Provider, Upstream
from gateway.services.request.attempt import Attempt
from gateway.services.upstream_error import caller_error, error_body, is_before_work
from gateway.wire.dialect import (
    AnswerPart,
    AnswerStream,
    EventTooLarge,
    PlainAnswerAssembler,
    UnreadableAnswer,
    UpstreamRequest,
    written,
)
from gateway.wire.foreign_json import STATES_USAGE, repaired
from gateway.wire.hidden_cache.answers import Written, without_cache
from gateway.wire.observed import Observed
from gateway.wire.prompt_text import has_prompt_text
from gateway.wire.sent_credentials import with_clean_message, without_credentials
from gateway.wire.sse import holds_data
from gateway.wire.vllm_load import LOAD_HEADER
from gateway.wire.whole_forms import (
    is_cut_short,
    is_event_stream,
    only_item,
    plain_answer,
    usage_in_forms,
)

# A plain answer is held whole: usage and model are spliced into it. The largest embeddings request,
# 2,048 inputs of 3,072 dimensions as decimals, gets an answer of about 130 MB.
MAX_ANSWER_BYTES = 32 * 2**20  # parsing takes up to 3 ms for each MiB
MAX_EMBEDDINGS_BYTES = 256 * 2**20
LARGE_BYTES = 2**20  # reading a smaller answer takes less time than starting a thread
MAX_FED_BYTES = 16 * 1024  # of a stream, between two turns of the event loop
# A translation decodes each event: 16 KiB of the shortest lines of JSON took 20 ms.
MAX_TRANSLATED_BYTES = 4 * 1024
BEHIND_ERROR_S = 1.0  # seconds that events behind an error that came first may take
ARRIVED_WAIT_S = 0.05  # seconds for bytes that the kernel has already acknowledged
# One thread for all large answers: several would hold the interpreter for longer. Other work that
# needs a thread (callers' bodies, background loops) does not wait behind answers.
_LARGE_ANSWERS = ThreadPoolExecutor(1, "large-answers")

T = TypeVar("T")


class UpstreamAnswer(Struct, kw_only=True):
    """An upstream request that was sent, with its incoming answer. No method here settles."""

    attempt: Attempt
    request: Request
    provider: Provider
    call: UpstreamRequest
    upstream: Upstream
    content_type: str = ""
    has_begun: bool = False  # a head with a success status arrived
    reported_load: str | None = None  # the load that an engine reported
    is_ended: bool = False  # True if its settlement is already under way
    has_content: bool = False  # True once the upstream was notified of the first content
    _has_whole_refusal: bool = False  # the body of an error status was read to its end
    _has_billed_refusal: bool = False  # the provider bills a request whose content it refuses
    _unfed: bytes = b""  # the part of a stream that arrived and is not parsed yet
    _fed_bytes: int = 0  # since the last turn of the event loop
    _most_fed_bytes: int = MAX_FED_BYTES
    _whole: bytes | None = None  # a complete plain answer, until it is parsed
    _coding: str | None = None  # the codings that its head names
    _opener: Opener | None = None  # of a stream that is coded, or begins with a byte order mark
    _has_unended: bool = False  # a part of an event arrived, and its end did not yet
    _is_read: bool = False  # a stream came to the end of its body
    _is_begun: bool = False  # the first bytes of a stream arrived
    _stream: AnswerStream | None = None
    _assembler: PlainAnswerAssembler | None = None
    _write: Written = written  # of its parts, for the caller
    _parts: int = 0  # of a stream, returned so far

    @property
    def is_read_to_its_end(self) -> bool:
        """Return True if the answer is read on after its caller left: it is billed anyway, or has
        the only usage.

        A self-hosted engine that reports running usage is stopped at once instead.
        """
        says_on_the_way = self.call.asks_running_usage and (
            self.request.body.facts.is_stream or self.call.is_assembled
        )
        return not (self.attempt.candidate.deployment.is_self_hosted and says_on_the_way)

    @property
    def is_refused(self) -> bool:
        """Return True if the upstream answered with an error status."""
        status = self.attempt.http_status
        return status is not None and not _is_success(status)

    @property
    def needs_counting(self) -> bool:
        """Return True if there is an answer, complete or not, without usage from the upstream."""
        observed = self.attempt.observed
        has_answered = observed.has_content or observed.is_whole or observed.is_done
        if not has_answered or observed.is_unfinished or self.is_only_an_error:
            return False
        usage = observed.usage
        if usage is None or observed.is_behind:
            return observed.is_countable
        return usage.lacks_prompt and has_prompt_text(self.request.body)

    @property
    def has_more(self) -> bool:
        """Return True if there is more of the answer to read: its rest, or its arrived part."""
        observed = self.attempt.observed
        if self.has_all:
            return True
        if observed.is_whole or observed.is_done or self._is_read:
            return False
        return self.is_read_to_its_end or self._arrived_bytes > 0

    @property
    def _arrived_bytes(self) -> int:
        """Return the number of the answer's bytes that arrived and are not parsed yet, here or in
        the kernel.
        """
        return len(self._unfed) + self.upstream.arrived_bytes()

    @property
    def was_served(self) -> bool:
        """Return False if the upstream certainly generated nothing, or does not bill it.

        408, 504 and similar statuses come from a proxy that gave up; the upstream may continue and
        bill. An error that may come after the work, and whose body was not read to its end, may
        state a usage in the rest.
        """
        observed = self.attempt.observed
        if self.is_refused:
            return observed.has_content or self._may_be_billed
        is_all = self._is_read or observed.is_whole or observed.is_done
        return not (self.is_only_an_error and is_all and not self.provider.bills_errors)

    @property
    def _may_be_billed(self) -> bool:
        """Return True for an error status without a usage that may still be billed."""
        status = self.attempt.http_status
        assert status is not None, "it is an error status"
        if self._has_billed_refusal:
            return True
        if self._has_whole_refusal:
            return status in MAY_HAVE_BEEN_SERVED
        facts = self.attempt.candidate.deployment.provider_facts
        return status in MAY_HAVE_BEEN_SERVED or not is_before_work(status, facts)

    @property
    def has_all(self) -> bool:
        """Return True if a plain answer has arrived completely and was not read yet."""
        return self._whole is not None

    async def head(self) -> None:
        """Wait until the upstream begins its answer, and record its status and headers.

        Raises the caller's error for an upstream's error answer.
        """
        if self.has_begun:
            return
        status, headers = await self.upstream.head()
        self.attempt.note_head(status, headers)
        if not _is_success(status):
            raise await self._refusal(status, headers)
        self.has_begun = True
        self.content_type = self.call.answer_type or headers.get("content-type", "application/json")
        self.reported_load = headers.get(LOAD_HEADER)
        self._coding = headers.get(CODING)
        facts = self.request.body.facts
        if self.attempt.candidate.deployment.hides_cache:
            self._write = without_cache(facts.operation, is_stream=facts.is_stream)
        if facts.is_stream:
            if self.call.translation is not None:
                self._most_fed_bytes = MAX_TRANSLATED_BYTES
            self._stream = self.provider.stream(self.request.body, self.call)
            self.content_type = self._stream.content_type
            self.attempt.observed = self._stream.observed

    async def body(self) -> bytes:
        """Return the complete plain answer for the caller.

        Raises `UpstreamError` if it is not an answer, is cut or is an error.

        A complete answer is paid for: an unreadable one is refused and never tried again. A
        cancellation loses nothing: the next call continues with the same bytes.
        """
        if self.call.is_assembled:
            rewritten = await self._assembled()
        else:
            rewritten = await self._plain()
        if self.is_only_an_error:
            error = UpstreamError(
                f"{self.attempt.candidate.deployment.name} answered with an error and nothing else."
            )
            error.is_final = self.is_paid
            raise error
        return rewritten

    async def _plain(self) -> bytes:
        """Read a plain answer completely, and return it for the caller; a large one is processed in
        a thread.
        """
        is_embeddings = self.request.body.facts.operation is Operation.EMBEDDINGS
        if self._whole is None:
            most_bytes = MAX_EMBEDDINGS_BYTES if is_embeddings else MAX_ANSWER_BYTES
            try:
                self._whole = await self.upstream.read(most_bytes)
            except RequestError as cut:
                raise await self._cut(cut, most_bytes) from None
            self.attempt.observed.is_whole = True
        body = self._whole
        is_object = self._coding is None and body[:1] == b"{"  # nearly every answer
        is_usual = is_object or not (may_be_coded(body, self._coding) or is_event_stream(body))
        if is_usual and len(body) < LARGE_BYTES:
            self._whole = None
            return self._read_whole(body, self.attempt.observed, is_object=is_object)
        # After a cancellation it is read again from the start, once the thread has finished.
        observed = self.attempt.observed = Observed(is_whole=True)
        try:
            rewritten = await in_own_thread(self._read_whole, body, observed)
        except RequestError:
            self._whole = None
            raise
        self._whole = None
        return rewritten

    async def _cut(self, error: RequestError, most_bytes: int) -> RequestError:
        """Return the error of a plain answer that broke off on its way, after recording any usage
        in the part that came. If any part came, the answer was bought, so the error is final.
        """
        part = b""
        if self.upstream.arrived_bytes() <= most_bytes:  # a larger one is not read
            with suppress(RequestError):
                part = await self.upstream.chunk()
        if part and not part.isspace():  # a proxy may send blanks while it waits for the answer
            error.is_final = True
            await in_own_thread(self._note_cut, part, self.attempt.observed)
        return error

    def _note_cut(self, part: bytes, observed: Observed) -> None:
        """Record the part that came of a plain answer, and the usage in it."""
        observed.note_unread()
        text, _ = opened_to_end(part, self._coding, most_bytes=MAX_ANSWER_BYTES)
        usage = usage_in_forms(text, self.provider.usage_in)
        if usage is not None:
            observed.note_final(usage)

    def _read_whole(self, body: bytes, observed: Observed, *, is_object: bool = False) -> bytes:
        """Record a complete answer's metadata and return it for the caller. `is_object`: it is
        known to begin as an object of JSON.

        Raises `UpstreamError` if it is not an answer.
        """
        try:
            if is_object:
                part = self.provider.rewrite(self.request.body, self.call, body, observed)
            else:
                body = opened(body, self._coding, most_bytes=MAX_ANSWER_BYTES)
                part = self._rewritten(body, observed)
            whole = self._write(part, self.attempt.cost_text)
        except (UnreadableAnswer, EventTooLarge) as problem:
            self._note_unreadable(body)
            raise self._unreadable(str(problem)) from None
        return self._without_credentials(whole) if self.attempt.observed.is_error else whole

    def _note_unreadable(self, body: bytes) -> None:
        """Record the usage in a complete answer that cannot be read, if it is certain. One that may
        state another usage has no estimate.
        """
        observed, found = self.attempt.observed, Observed(is_whole=True)
        if observed.final is not None:
            return
        if is_closed(self._coding) or is_event_stream(body):
            observed.note_unread()
        elif len(body) <= MAX_ANSWER_BYTES:
            if (text := repaired(body)) is not None:
                with suppress(UnreadableAnswer, EventTooLarge, UpstreamError):
                    self.provider.rewrite(self.request.body, self.call, text, found)
            if found.final is not None:
                self.attempt.observed = found
            elif STATES_USAGE.search(body):
                observed.note_unread()

    def _rewritten(self, body: bytes, observed: Observed) -> AnswerPart:
        """Return a complete answer for the caller, in whichever form it came.

        Raises `UnreadableAnswer` or `EventTooLarge`.
        """
        read, call = self.request.body, self.call
        if is_event_stream(body):
            stream = self.provider.stream(read, call)
            self.attempt.observed, self.content_type = stream.observed, "application/json"
            stream.observed.is_whole = True
            has_end = self.upstream.has_stated_end()
            return plain_answer(stream, body, read, call, has_end=has_end)
        return self.provider.rewrite(read, call, only_item(body), observed)

    async def piece(self) -> bytes:
        """Return the next piece of the stream for the caller, empty at its end.

        Raises `UpstreamError` if it is cut before its end.

        A cancellation loses nothing: the next call continues from there.
        """
        stream = self._stream
        assert stream is not None, "a stream has begun"
        while chunk := await self._chunk():
            try:
                parts = stream.feed(chunk)
            except EventTooLarge as problem:
                if piece := await self._around_large(stream, chunk, problem):
                    return piece
                continue
            self._note_progress(stream.observed)
            if piece := self._written(parts):
                return piece
            self._has_unended = not parts and (self._has_unended or holds_data(chunk))
        if parts := stream.end():
            self._note_progress(stream.observed)
            if piece := self._written(parts):
                return piece
        if (mark := self._missing_end(stream.observed)) and (
            piece := self._written(stream.feed(mark))
        ):
            return piece
        if stream.observed.is_whole or (self._has_unended and not self._parts):
            stream.observed.note_unread()
            raise self._unreadable("no event stream")
        if not stream.observed.is_done and not stream.observed.is_error:
            raise UpstreamError(self.cut_message)
        return b""

    async def _around_large(
        self, stream: AnswerStream, chunk: bytes, problem: EventTooLarge
    ) -> bytes:
        """Return the piece before an event that is too large for `feed`, which is met again, else
        that event. Raises as `_large_piece`.
        """
        if not problem.before:
            return await self._large_piece(stream, chunk)
        self._unfed = problem.rest + self._unfed
        self._note_progress(stream.observed)
        return self._written(problem.before)

    async def _large_piece(self, stream: AnswerStream, chunk: bytes) -> bytes:
        """Read on an event that is too large for the event loop, and return it for the caller; a
        thread rewrites it. Raises `EventTooLarge` if it has more bytes than a plain answer may
        have, or cannot be translated.
        """
        if not self.has_content:
            self.upstream.note_first_token()  # nothing else is so large
        try:
            while chunk and not stream.keep_large(chunk):
                chunk = await self._chunk()
            if not chunk:
                stream.observed.note_unread()  # unless its end can be read all the same
            read = stream.feed_large if chunk else stream.end
            piece = await in_own_thread_to_its_end(lambda: self._written(read()))
        except (RequestError, EventTooLarge, asyncio.CancelledError):
            stream.observed.note_unread()
            raise
        self._note_progress(stream.observed)
        return piece

    def _missing_end(self, observed: Observed) -> bytes:
        """Return the mark of its end that a whole stream lacks; empty for any other."""
        mark = observed.missing_end(self.request.body.facts.answers)
        return mark if mark and self.upstream.has_stated_end() else b""

    async def _chunk(self) -> bytes:
        """Return the stream's next piece; after a large one, yield to the event loop first.

        A cancellation loses nothing.
        """
        most_bytes = self._most_fed_bytes
        if self._fed_bytes >= most_bytes:
            self._fed_bytes = 0
            await asyncio.sleep(0)
        if not self._unfed:
            self._unfed = await self._next()
            self._is_read = not self._unfed
        if len(self._unfed) <= most_bytes:
            chunk, self._unfed = self._unfed, b""
        else:
            chunk, self._unfed = self._unfed[:most_bytes], self._unfed[most_bytes:]
        self._fed_bytes += len(chunk)
        return chunk

    async def _next(self) -> bytes:
        """Return the stream's next bytes without their coding; empty at its end.

        Raises `UpstreamError` if it is cut, or coded in a way that breaks off.
        """
        try:
            while True:
                if self._opener is not None and (piece := self._opener.take()):
                    return piece
                chunk = await self.upstream.chunk()
                if not self._is_begun and may_be_coded(chunk, self._coding):
                    self._opener = Opener(self._coding)
                self._is_begun = True
                if self._opener is None:
                    return chunk
                if not chunk:
                    return self._opener.take(is_end=True)
                self._opener.feed(chunk)
        except BrokenCoding:
            broken = UpstreamError(self.cut_message)
            broken.is_final = True  # it is no cut: a connection that breaks raises its own error
            raise broken from None

    async def _assembled(self) -> bytes:
        """Read a stream to its end, and return it as the plain answer that the caller requested."""
        assembler = self._assembler = self._new_assembler()
        observed = assembler.observed
        while chunk := await self._chunk():
            _feed(assembler, chunk)
            self._note_progress(observed)
        assembler.end()
        if mark := self._missing_end(observed):
            assembler.feed(mark)
        if not observed.is_done and not observed.is_error:
            raise UpstreamError(self.cut_message)
        observed.is_whole = True
        if assembler.size_bytes < LARGE_BYTES:
            return self._assembled_body(assembler)
        return await in_own_thread(self._assembled_body, assembler)

    def _assembled_body(self, assembler: PlainAnswerAssembler) -> bytes:
        """Return the plain answer that a stream was assembled to, for the caller, with its cost."""
        try:
            body = assembler.body()
        except UpstreamError as failed:  # with the upstream's own message
            raise with_clean_message(failed, self.call.headers) from None
        part = self.provider.rewrite(self.request.body, self.call, body, assembler.observed)
        return self._write(part, self.attempt.cost_text)

    def _written(self, parts: Sequence[AnswerPart]) -> bytes:
        """Return the bytes of these stream parts for the caller, with the cost of the usage that
        they show.
        """
        self._parts += len(parts)
        write, cost = self._write, self.attempt.cost_text
        sent = b"".join([write(part, cost) for part in parts])
        return self._without_credentials(sent) if self.attempt.observed.is_error else sent

    def _without_credentials(self, sent: bytes) -> bytes:
        """Return bytes for the caller without the credential, which an upstream may repeat in its
        error.
        """
        return without_credentials(sent, self.call.headers)

    def _note_progress(self, observed: Observed) -> None:
        """Record that a part of the answer arrived, and tell the transport about the first
        content.
        """
        self.attempt.note_progress()
        if not self.has_content and observed.has_content:
            self.has_content = True
            self.upstream.note_first_token()

    async def _refusal(self, status: int, headers: Mapping[str, str]) -> RequestError:
        """Read an error answer and return the caller's error for it, after recording any usage it
        reports.
        """
        body, is_whole = await error_body(self.upstream)
        deployment = self.attempt.candidate.deployment
        observed = self.attempt.observed
        if len(body) <= MAX_TRANSLATED_BYTES:
            usage, observed.has_content, is_cut = self._paid_in(body)
        else:  # a megabyte of short events takes half a second
            usage, observed.has_content, is_cut = await in_own_thread(self._paid_in, body)
        self._has_whole_refusal = is_whole and not is_cut
        if usage is not None:
            observed.note_final(usage)
        shown = body if is_whole else b""  # the part of an error may say something else
        error = caller_error(
            self.provider,
            deployment,
            self.call,
            (status, headers),
            body=shown,
            asked=self.attempt.request.body.body,
        )
        self._has_billed_refusal = (
            error.is_refused_content
            and self._sent_operation in deployment.provider_facts.bills_refused
        )
        error.is_final = (
            error.is_final or self.is_paid or observed.has_content or self._has_billed_refusal
        )
        return error

    @property
    def _sent_operation(self) -> Operation:
        """Return the operation in which the request was sent."""
        sent = self.call.translation
        return (self.request.body if sent is None else sent.body).facts.operation

    def _paid_in(self, body: bytes) -> tuple[TokenUsage | None, bool, bool]:
        """Return the usage that an error answer's body states, None if it states none, whether it
        holds a part of an answer, and whether its JSON is cut.
        """
        usage = usage_in_forms(body, self.provider.usage_in)
        return usage, self._holds_content(body), is_cut_short(body)

    def _holds_content(self, body: bytes) -> bool:
        """Return True if the body of an error answer holds a part of an answer that can be read."""
        read, found = self.request.body, Observed()
        with suppress(UnreadableAnswer, EventTooLarge, UpstreamError):
            if read.facts.is_stream and body[:1] != b"{":
                stream = self.provider.stream(read, self.call)
                found = stream.observed
                stream.feed(body)
                stream.end()
            else:
                self.provider.rewrite(read, self.call, only_item(body), found)
        return found.has_content and not found.has_unread

    def _unreadable(self, what: str) -> UpstreamError:
        """Return the error for an answer that cannot be used; it is final, so no other attempt
        follows.
        """
        name = self.attempt.candidate.deployment.name
        error = UpstreamError(
            f"{name} answered with something that is {what}. It is not asked again."
        )
        error.is_final = True
        return error

    async def read_on(self, *, max_events: int) -> None:
        """Read the rest of the answer for its usage, at most about `max_events` more events."""
        await self.head()
        if self._stream is None:
            await self.body()
            return
        most_parts = self._parts + max_events
        while self._parts <= most_parts and await self.piece():
            pass

    async def read_arrived(self) -> None:
        """Read the answer's bytes that the kernel has received by now, for their usage, without
        waiting for more.

        An engine continues to write meanwhile. Later bytes are ignored, and at most as much is read
        as had arrived, framing included.
        """
        left_bytes = self._arrived_bytes
        if not self.has_begun:
            async with asyncio.timeout(ARRIVED_WAIT_S):
                await self.head()
        if self._stream is None and self._assembler is None and self.call.is_assembled:
            self._assembler = self._new_assembler()
        while left_bytes > 0 and not self.attempt.observed.is_done:
            # With TLS, a part may be decrypted and not handed over yet.
            is_last = not self._arrived_bytes
            async with asyncio.timeout(ARRIVED_WAIT_S):
                chunk, self._unfed = self._unfed or await self._next(), b""
            if not chunk:
                return
            left_bytes = 0 if is_last else left_bytes - len(chunk)
            for at in range(0, len(chunk), self._most_fed_bytes):
                self.note_chunk(chunk[at : at + self._most_fed_bytes])
                await asyncio.sleep(0)

    def _new_assembler(self) -> PlainAnswerAssembler:
        """Make the assembler of a stream into a plain answer; the attempt's usage is recorded there
        from now on.
        """
        assembler = self.provider.assembler(self.request.body, limit_bytes=MAX_ANSWER_BYTES)
        self.attempt.observed = assembler.observed
        return assembler

    def note_chunk(self, chunk: bytes) -> None:
        """Record the metadata in a piece of an answer without a reader."""
        reader = self._stream if self._stream is not None else self._assembler
        if reader is not None:
            _feed(reader, chunk)

    @property
    def is_only_an_error(self) -> bool:
        """Return True if only an error arrived: a vLLM whose engine died sends 200, an error,
        then `[DONE]`.
        """
        observed = self.attempt.observed
        return observed.is_error and not observed.has_content

    @property
    def is_paid(self) -> bool:
        """Return True if the upstream stated a usage that is not zero."""
        usage = self.attempt.observed.usage
        return usage is not None and any(astuple(usage))

    async def read_behind_error(self) -> None:
        """Read the events behind an error that came first, for their content and usage.

        An upstream that stays silent behind its error delays no failover for long: the attempt is
        then unknown.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(BEHIND_ERROR_S):
                while await self.piece():
                    pass

    @property
    def cut_message(self) -> str:
        """Return the message for the caller of a cut answer."""
        return (
            f"The answer of {self.attempt.candidate.deployment.name} stopped before its end. The "
            "generated part is charged; see the receipt at GET "
            f"/v1/requests/{self.attempt.request.request_id}."
        )


# Statuses with which a proxy gives up on an upstream that may continue: RFC 9110 §15.5.9 and
# §15.6.5, nginx's 499, Cloudflare's 524; and its 520, for an upstream that had the request and
# answered with nothing that can be passed on (developers.cloudflare.com/support/troubleshooting/
# http-status-codes/cloudflare-5xx-errors, 2026-11-29). Its 521 to 523 are no connection.
MAY_HAVE_BEEN_SERVED = frozenset({408, 499, 504, 520, 524})


def _feed(reader: AnswerStream | PlainAnswerAssembler, chunk: bytes) -> None:
    """Record a piece of an answer. Raises `EventTooLarge`, after recording that it is unread."""
    try:
        reader.feed(chunk)
    except EventTooLarge:
        reader.observed.note_unread()
        raise


async def in_own_thread(work: Callable[..., T], *content: object) -> T:
    """Run slow work on a large answer in the one thread that all large answers share."""
    return await asyncio.get_running_loop().run_in_executor(_LARGE_ANSWERS, work, *content)


async def in_own_thread_to_its_end(work: Callable[[], T]) -> T:
    """Run slow work as `in_own_thread`. A cancellation waits for its end: whoever reads the stream
    next must not meet the thread there.
    """
    working = asyncio.ensure_future(in_own_thread(work))
    is_cancelled = False
    while not working.done():
        try:
            await asyncio.wait((working,))
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        working.exception()  # it is the caller's no more
        raise asyncio.CancelledError
    return working.result()


def _is_success(status: int) -> bool:
    """Return True for 2xx. A redirect is no success: it is not followed, and no decision allowed
    its target.
    """
    return 200 <= status < 300
