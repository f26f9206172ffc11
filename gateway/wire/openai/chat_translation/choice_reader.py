"""Reads one choice of an upstream's chat answer, piece by piece or whole, into neutral answer
events.

Servers differ in their pieces: thoughts have two names, Mistral's content is a list, and some send
a call's index twice or never. Members of other types are passed over; other content is named.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from gateway.wire.foreign_json import MAX_WHOLE_BYTES, object_in, objects_in, text_in, value_of
from gateway.wire.openai.answer.shapes import ABSENT, number_of
from gateway.wire.openai.bounds import decode_few
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Finish,
    Finished,
    Omitted,
    RefusalPiece,
    TextPiece,
    ThoughtPiece,
    media_of,
)
from gateway.wire.translation.block_order import OpenJson
from gateway.wire.translation.conversation import NO_JSON

_FINISHES = {
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "content_filter": Finish.CONTENT_FILTER,
}


class RawChoice(Struct):
    index: msgspec.Raw = ABSENT
    delta: msgspec.Raw = ABSENT
    message: msgspec.Raw = ABSENT
    finish_reason: msgspec.Raw = ABSENT
    stop_reason: msgspec.Raw = ABSENT
    logprobs: msgspec.Raw = ABSENT


class _Message(Struct):
    content: msgspec.Raw = ABSENT
    refusal: msgspec.Raw = ABSENT
    reasoning_content: msgspec.Raw = ABSENT
    reasoning: msgspec.Raw = ABSENT
    tool_calls: msgspec.Raw = ABSENT
    function_call: msgspec.Raw = ABSENT  # the older form of a call
    images: msgspec.Raw = ABSENT  # OpenRouter's
    audio: msgspec.Raw = ABSENT
    annotations: msgspec.Raw = ABSENT


class _Call(Struct):
    index: msgspec.Raw = ABSENT
    id: msgspec.Raw = ABSENT
    function: msgspec.Raw = ABSENT
    custom: msgspec.Raw = ABSENT
    extra_content: msgspec.Raw = ABSENT


class _Function(Struct):
    name: msgspec.Raw = ABSENT
    arguments: msgspec.Raw = ABSENT


class _Part(Struct):
    """A part of Mistral's content: a text, or a thought that is a list of texts."""

    type: msgspec.Raw = ABSENT
    text: msgspec.Raw = ABSENT
    thinking: msgspec.Raw = ABSENT


class _Google(Struct):
    thought_signature: msgspec.Raw = ABSENT


class _Extra(Struct):
    google: msgspec.Raw = ABSENT


class _Logprobs(Struct):
    content: msgspec.Raw = ABSENT


_decode_text = msgspec.json.Decoder(str).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_call = msgspec.json.Decoder(_Call).decode
_decode_function = msgspec.json.Decoder(_Function).decode
_decode_google = msgspec.json.Decoder(_Google).decode
_decode_extra = msgspec.json.Decoder(_Extra).decode
_decode_logprobs = msgspec.json.Decoder(_Logprobs).decode


class _OpenCall(Struct):
    """A tool call of which at least one piece came. `held` are arguments that came before its
    name.
    """

    number: int
    call_id: str = ""
    name: str = ""
    signature: str = ""
    held: list[str] = []
    has_started: bool = False
    arguments: OpenJson = msgspec.field(default_factory=OpenJson)


class ChoiceReader(Struct):
    """Reads the pieces of one choice in order."""

    number: int
    _calls: list[_OpenCall] = []
    _by_index: dict[int, _OpenCall] = {}
    _finished: Finished | None = None

    def events(self, choice: RawChoice, *, native: str | None) -> list[AnswerEvent]:
        """Return the events of one piece, or of a whole choice. `native` is the provider's own
        word for the end.

        Raises an error of `UNREADABLE`.
        """
        found: list[AnswerEvent] = []
        whole = next((one for one in (choice.delta, choice.message) if _is_object(one)), None)
        if whole is not None:
            message = _decode_message(whole)
            found += self._message_events(message, _logprobs_of(choice.logprobs))
            found += self._calls_of(message, is_whole=whole is choice.message)
        word = text_of(choice.finish_reason)
        if word:
            for call in self._calls:
                found += self._start(call)
            finish = _FINISHES.get(word, Finish.STOP)
            if self._calls and finish is Finish.STOP:
                finish = Finish.TOOL_CALLS  # some servers end an answer with calls as any other
            self._finished = Finished(
                finish=finish,
                native=native or word,
                stop_sequence=text_of(choice.stop_reason) or None,
                choice=self.number,
            )
            found.append(self._finished)
        return found

    def close(self) -> list[AnswerEvent]:
        """Return the end of a choice that the upstream left without a finish reason."""
        if self._finished is not None:
            return []
        self._finished = Finished(
            finish=Finish.TOOL_CALLS if self._calls else Finish.STOP, choice=self.number
        )
        return [*(event for call in self._calls for event in self._start(call)), self._finished]

    def _message_events(self, message: _Message, logprobs: msgspec.Raw) -> list[AnswerEvent]:
        """Return the events of a message or of a piece of one."""
        found: list[AnswerEvent] = []
        thought = text_of(message.reasoning_content) or text_of(message.reasoning)
        if thought:
            found.append(ThoughtPiece(text=thought, choice=self.number))
        if bytes(message.content)[:1] == b"[":
            found += self._part_events(decode_few(message.content, _Part))
        else:
            text = text_of(message.content)
            if text or logprobs is not NO_JSON:
                found.append(TextPiece(text=text, logprobs=logprobs, choice=self.number))
        refusal = text_of(message.refusal)
        if refusal:
            found.append(RefusalPiece(text=refusal, choice=self.number))
        found += self._media_events(message)
        return found

    def _media_events(self, message: _Message) -> Iterator[AnswerEvent]:
        """Yield the pictures of a message, and the names of its other content."""
        images = value_of(bytes(message.images) or b"null", most_bytes=MAX_WHOLE_BYTES)
        for image in objects_in({"images": images}, "images"):
            url = text_in(object_in(image, "image_url"), "url")
            head, _, data = url.partition(";base64,")
            media_type = head.removeprefix("data:") if data else "image"
            yield media_of(media_type, data, choice=self.number)
        if _is_object(message.audio):
            yield Omitted(name="audio", choice=self.number)
        if bytes(message.annotations).strip(b"[ \r\n\t]") not in (b"", b"null"):
            yield Omitted(name="annotations", choice=self.number)

    def _calls_of(self, message: _Message, *, is_whole: bool) -> list[AnswerEvent]:
        """Return the events of the calls in a message, each of them whole, or of their pieces."""
        pieces: list[_Call] = []
        if _is_object(message.function_call):
            pieces.append(_Call(function=message.function_call))
        if bytes(message.tool_calls)[:1] == b"[":
            pieces += decode_few(message.tool_calls, _Call)
        found: list[AnswerEvent] = []
        for piece in pieces:
            if _is_object(piece.custom):
                found.append(Omitted(name="custom", choice=self.number))
            else:
                found += self._call_events(piece, is_whole=is_whole)
        return found

    def _part_events(self, parts: list[_Part]) -> Iterator[AnswerEvent]:
        """Yield the events of content that is a list."""
        for part in parts:
            if bytes(part.thinking)[:1] == b"[":
                for inner in decode_few(part.thinking, _Part):
                    yield ThoughtPiece(text=text_of(inner.text), choice=self.number)
            elif text := text_of(part.text):
                yield TextPiece(text=text, choice=self.number)
            elif part.text is ABSENT:
                yield Omitted(name=text_of(part.type) or "content", choice=self.number)

    def _call_events(self, piece: _Call, *, is_whole: bool) -> Iterator[AnswerEvent]:
        """Yield the events of a piece of a tool call, or of a whole one."""
        is_function = _is_object(piece.function)
        function = _decode_function(piece.function) if is_function else _Function()
        arguments = _arguments_of(function.arguments)
        call_id, name = text_of(piece.id), text_of(function.name)
        last = self._by_index.get(number_of(piece.index))
        if last is None or is_whole or _is_other(last, piece, call_id, name, arguments):
            if self._calls and self._calls[-1].name:  # no id will come: calls keep their order
                yield from self._start(self._calls[-1])
            last = self._by_index[number_of(piece.index)] = _OpenCall(number=len(self._calls))
            self._calls.append(last)
        call = last
        if not call.has_started:
            call.call_id, call.name = call.call_id or call_id, call.name or name
            call.signature = call.signature or _signature_of(piece.extra_content)
        if not call.has_started and call.name and (call.call_id or is_whole):
            yield from self._start(call)
        if not arguments:
            return
        call.arguments.add(arguments)
        if call.has_started:
            yield CallArguments(call=call.number, text=arguments, choice=self.number)
        else:
            call.held.append(arguments)

    def _start(self, call: _OpenCall) -> Iterator[AnswerEvent]:
        """Yield the start of a call, once, and its arguments so far. A call without an id gets one
        from the caller's writer.
        """
        if call.has_started:
            return
        call.has_started = True
        yield CallStarted(
            call=call.number,
            call_id=call.call_id,
            name=call.name,
            signature=call.signature,
            choice=self.number,
        )
        if call.held:
            yield CallArguments(call=call.number, text="".join(call.held), choice=self.number)
            call.held = []


def _is_other(last: _OpenCall, piece: _Call, call_id: str, name: str, arguments: str) -> bool:
    """Return True if a piece begins another call than the last one of its index.

    Gemini's chat endpoint gives each of several calls the index 0 and sends it whole, with an id
    and a name of its own. Servers without ids do it as well: there another name begins a call, and
    so does any name with arguments if those before it are complete.
    """
    has_same_id = call_id == last.call_id != ""
    if piece.index is ABSENT and call_id:
        return not has_same_id
    if name and call_id and last.call_id and not has_same_id:
        return True
    if not name or not last.name:
        return False
    if name != last.name:
        return not has_same_id or last.arguments.is_complete
    return not has_same_id and last.arguments.is_complete and bool(arguments.strip())


def text_of(raw: msgspec.Raw) -> str:
    """Return a text, empty for any other value."""
    return _decode_text(raw) if bytes(raw)[:1] == b'"' else ""


def _is_object(raw: msgspec.Raw) -> bool:
    return bytes(raw)[:1] == b"{"


def _arguments_of(raw: msgspec.Raw) -> str:
    """Return the JSON text of a call's arguments; a few servers send the object itself."""
    return bytes(raw).decode() if _is_object(raw) else text_of(raw)


def _logprobs_of(raw: msgspec.Raw) -> msgspec.Raw:
    """Return the list of a piece's log probabilities, as sent but on one line; nothing for a value
    of another type.
    """
    if not _is_object(raw):
        return NO_JSON
    content = _decode_logprobs(raw).content
    if bytes(content)[:1] != b"[":
        return NO_JSON
    return msgspec.Raw(msgspec.json.format(bytes(content), indent=-1))


def _signature_of(extra: msgspec.Raw) -> str:
    """Return Gemini's signature of a call, as Google's chat endpoint sends it."""
    google = _decode_extra(extra).google if _is_object(extra) else ABSENT
    return text_of(_decode_google(google).thought_signature) if _is_object(google) else ""
