"""Reads Ollama's own answers, streamed as lines of JSON or whole, into neutral answer events.

The last line has the counts, which are left out when they are 0, and times in nanoseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from gateway.domain.pricing.tokens import UNREADABLE, TokenUsage
from gateway.domain.request.served_tier import UNKNOWN_TIER
from gateway.domain.residency.stated_place import ELSEWHERE
from gateway.wire.dialect import NO_ANSWER, UnreadableAnswer
from gateway.wire.foreign_json import (
    MAX_WHOLE_BYTES,
    arguments_in,
    count_in,
    has_others,
    is_error,
    is_unread,
    names_in,
    note_first_reading,
    note_unknown,
    object_in,
    object_of,
    objects_in,
    text_in,
    time_in,
)
from gateway.wire.json_lines import LineSplitter
from gateway.wire.observed import WORD, Observed
from gateway.wire.surrogates import with_stand_ins
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Ended,
    Failed,
    Finish,
    Finished,
    Omitted,
    Started,
    TextPiece,
    ThoughtPiece,
    used,
)
from gateway.wire.translation.conversation import NO_JSON
from gateway.wire.translation.split_pairs import SplitPairs

MAX_WORD_CHARS, MAX_MESSAGE_CHARS = 64, 1000
# The members of a line and of its message without generated content, or whose content is read.
_LINE = names_in(
    "model created_at message done done_reason error logprobs remote_model remote_host"
)
_REMOTE = ("remote_host", "remote_model")  # of an answer that another server made
_BESIDE = frozenset({"tool_name", "tool_call_id"})  # of a message, without content
_MESSAGE = frozenset({"role", "content", "thinking", "tool_calls"})
_USUAL, _USUAL_MESSAGE = 4, 2  # members of a line with a piece of text
_TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
_LENGTH = "length"
_QUOTED_COUNTS = (b'"eval_count"', b'"prompt_eval_count"')
_encode = msgspec.json.Encoder().encode


class OllamaReader:
    """Reads one streamed answer, or one whole answer as its only line."""

    def __init__(self, observed: Observed | None = None) -> None:
        """Start before the first line. The text is kept: only the last line has a usage."""
        self.observed = Observed(collects_text=True) if observed is None else observed
        self._lines = LineSplitter()
        self._calls, self._read, self._id = 0, 0, ""
        self._has_begun = self._has_failed = False
        self._last = b""  # the line that is read
        self._pairs = SplitPairs()

    def feed(self, data: bytes) -> Sequence[AnswerEvent]:
        """Return the events that the upstream's `data` completes. Raises `EventTooLarge`."""
        return [one for line in self._lines.feed(data) for one in self._line(line)]

    def end(self) -> Sequence[AnswerEvent]:
        """Return the last events, when the upstream's body has ended."""
        rest = self._lines.end()
        if rest and not self._read and object_of(rest) is None:
            self.observed.note_unread()
            self.observed.is_whole = True
            return []
        return list(self._line(rest)) if rest else []

    def _line(self, line: bytes) -> Iterator[AnswerEvent]:
        """Yield the events of one line."""
        text, stand_ins = with_stand_ins(line)
        members, self._last = object_of(text), line
        self._read += 1
        if members is None or not (self._has_begun or _has_shape(members)):
            self.observed.note_unread()
        elif self.observed.is_done:
            with self.observed.behind_end():
                self._meter(members)
        else:
            yield from self._pairs.joined([*self.read(members)], stand_ins)

    def read(self, members: dict[str, Any]) -> Iterator[AnswerEvent]:
        """Yield the events of one piece of the answer. An error is the last one, but content and
        usage beside it and after it are metered.
        """
        error = members.get("error")
        if self._has_failed or is_error(error):
            has_failed, self._has_failed, self.observed.is_error = self._has_failed, True, True
            self._meter(members)
            if not has_failed:
                message = text_in(members, "error") or text_in(error, "message")
                yield Failed(
                    code="upstream_error",
                    message=message[:MAX_MESSAGE_CHARS] or "The upstream failed.",
                )
            return
        if not self._has_begun:
            self._has_begun = True
            self._id = _made_id(text_in(members, "created_at"))
            yield Started(answer_id=self._id, created_s=time_in(members, "created_at"))
        content = object_in(members, "message")
        pieces = list(self._content(content, _logprobs(members)))
        is_usual = len(members) <= _USUAL
        if not is_usual:
            self._note_place(members)
        is_usual = is_usual and len(content) <= _USUAL_MESSAGE
        if not (self.observed.has_content and is_usual) and (
            has_others(members, _LINE) or has_others(content, _MESSAGE)
        ):
            self.observed.note_odd()
        self.observed.pieces += bool(pieces)
        yield from pieces
        if members.get("done") is True:
            yield from self._ended(members)
        elif has_counts(members):
            self.observed.note_running(msgspec.Raw(_encode(members)), usage_in)
            self.observed.note_least(usage_of(members))

    def _meter(self, members: dict[str, Any]) -> None:
        """Record the content and the counts in a piece that has an error, or follows one or the
        end.
        """
        self._note_place(members)
        deque(self._content(object_in(members, "message"), NO_JSON), maxlen=0)
        for holder in filter(has_counts, _holders(members)):
            usage = _usage_after(holder, has_content=self.observed.has_content)
            if usage is not None:
                self.observed.note_final(usage)

    def _content(self, message: dict[str, Any], logprobs: msgspec.Raw) -> Iterator[AnswerEvent]:
        """Yield the events of a message's thoughts, text and calls."""
        if thinking := text_in(message, "thinking"):
            self._note(thinking)
            yield ThoughtPiece(text=thinking)
        if content := text_in(message, "content"):
            self._note(content)
            yield TextPiece(text=content, logprobs=logprobs)
        for name in message:
            if message[name] and name not in _MESSAGE and name not in _BESIDE:
                yield Omitted(name=name)
        for call in objects_in(message, "tool_calls"):
            function = object_in(call, "function")
            name, place = text_in(function, "name"), self._calls
            arguments = arguments_in(function, "arguments")
            self._note(name + arguments)
            self._calls += 1
            yield CallStarted(
                call=place,
                call_id=text_in(call, "id")
                or "call_" + _made_id(f"{self._id}.{place}.{name}.{arguments}"),
                name=name,
            )
            yield CallArguments(call=place, text=arguments)

    def _ended(self, members: dict[str, Any]) -> Iterator[AnswerEvent]:
        """Yield the end of the answer, and record its usage and times."""
        observed = self.observed
        word = text_in(members, "done_reason")[:MAX_WORD_CHARS] or "stop"
        observed.finish_reason, observed.is_done = word, True
        usage = _usage_after(members, has_content=observed.has_content or observed.has_odd)
        if usage is not None:
            observed.note_final(usage)
            _note_twice(observed, self._last)
        times = {name: count_in(members, name) for name in _TIMES}
        observed.note_detail({f"{name}_ns": n for name, n in times.items() if n is not None})
        otherwise = Finish.TOOL_CALLS if self._calls else Finish.STOP
        yield Finished(finish=Finish.LENGTH if word == _LENGTH else otherwise, native=word)
        yield from used(observed)
        yield Ended()

    def _note_place(self, members: dict[str, Any]) -> None:
        """Record that another server made the answer, with its name, if the piece states one."""
        stated = {name: members[name] for name in _REMOTE if members.get(name)}
        if not stated:
            return
        self.observed.note_geo(ELSEWHERE)
        self.observed.note_detail({name: _word(value) for name, value in stated.items()})

    def _note(self, text: str) -> None:
        """Record that content came, and keep its text."""
        self.observed.note_more()
        self.observed.has_content = True
        self.observed.note_text(text)


def ollama_events(body: bytes, observed: Observed) -> Sequence[AnswerEvent]:
    """Return the events of a whole answer, and meter it. Raises `UnreadableAnswer`."""
    members = object_of(body, most_bytes=MAX_WHOLE_BYTES)
    if members is None:
        observed.note_unread()
        raise UnreadableAnswer("no JSON object, or too large a one")
    observed.collects_text = True  # its usage may lack a count
    if not _has_shape(members):
        note_unknown(observed, body, usage_in)
        raise UnreadableAnswer(NO_ANSWER)
    events = list(OllamaReader(observed).read(members | {"done": True}))
    _note_twice(observed, body)
    return events


def _has_shape(members: dict[str, Any]) -> bool:
    """Return True if an object has a message or an error, or is the last piece with its counts."""
    is_last = members.get("done") is True and has_counts(members)
    return is_last or isinstance(members.get("message"), dict) or is_error(members.get("error"))


def _note_twice(observed: Observed, line: bytes) -> None:
    """Record the other reading of a last piece that has a count twice."""
    if any(line.count(name) > 1 for name in _QUOTED_COUNTS):
        note_first_reading(observed, line, usage_in)


def usage_of(members: dict[str, Any]) -> TokenUsage:
    """Return the counts of the last piece: 0 for one that is left out."""
    return TokenUsage(
        input_tokens=count_in(members, "prompt_eval_count") or 0,
        output_tokens=count_in(members, "eval_count") or 0,
        unexplained_tokens=UNREADABLE
        if is_unread(members, "prompt_eval_count", "eval_count")
        else None,
    )


def _usage_after(members: dict[str, Any], *, has_content: bool) -> TokenUsage | None:
    """Return the counts of the last piece: after content, an absent count is unknown."""
    usage = usage_of(members)
    prompt, answer = count_in(members, "prompt_eval_count"), count_in(members, "eval_count")
    if not has_content or usage.has_unread:
        return usage
    if prompt is None and answer is None:
        return None
    return msgspec.structs.replace(usage, input_tokens=prompt, output_tokens=answer)


def usage_in(body: bytes) -> TokenUsage | None:
    """Return the usage that a complete answer reports, None if it reports none."""
    for holder in _holders(object_of(body) or {}):
        if has_counts(holder):
            return usage_of(holder)
    return None


def has_counts(members: dict[str, Any]) -> bool:
    """Return True if a piece has one of the two counts."""
    return "eval_count" in members or "prompt_eval_count" in members


def _holders(members: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the objects that may have the counts: the piece, and an error in it."""
    return members, object_in(members, "error")


def _word(value: Any) -> str:
    """Return the name of a model, or the host of an address; `?` for another value."""
    text = value.rpartition("://")[2].rstrip("/") if isinstance(value, str) else ""
    return text if WORD.fullmatch(text) else UNKNOWN_TIER


def _logprobs(members: dict[str, Any]) -> msgspec.Raw:
    """Return the log probabilities of a piece, which have OpenAI's members."""
    found = objects_in(members, "logprobs")
    if not found:
        return NO_JSON
    tokens = [_token(one) | {"top_logprobs": _tops(one)} for one in found]
    return msgspec.Raw(_encode(tokens))


def _tops(token: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the likeliest tokens at one place."""
    return [_token(one) for one in objects_in(token, "top_logprobs")]


def _token(one: dict[str, Any]) -> dict[str, Any]:
    """Return one token with its log probability and its bytes."""
    token, logprob = text_in(one, "token"), one.get("logprob")
    is_number = isinstance(logprob, int | float) and not isinstance(logprob, bool)
    return {
        "token": token,
        "logprob": logprob if is_number else 0.0,
        "bytes": list(token.encode()),
    }


def _made_id(of: str) -> str:
    """Return an id for an answer or a call, the same whenever the answer is read again."""
    return sha256(of.encode()).hexdigest()[:24]
