"""Rewrites stream events that repeat the previous one except for text and running usage, by
comparing bytes instead of decoding.

Most events of a stream are such events, and decoding one yields nothing new. So the first of them
is decoded and rewritten in the general way, and the next ones are compared with it, byte by byte
except for the text: a third of the work.
"""

from __future__ import annotations

import re

import msgspec

MAX_TRIES = 4  # then the comparison of a stream without repeated events stops
# A delta with only one text. It has no escapes and no control characters, so its bytes are its
# text.
_DELTA = re.compile(rb'\{(?:"role": ?"assistant", ?)?"[a-z_]+": ?"([^"\\\x00-\x1f]*)"\}')
_TEXT = re.compile(rb'[^"\\\x00-\x1f]*')
# Every match is valid, complete JSON.
_COUNTS = re.compile(
    rb'\{"[a-z_]+":(?:null|0|[1-9][0-9]{0,11})(?:,"[a-z_]+":(?:null|0|[1-9][0-9]{0,11}))*\}'
)
_NAME, _USAGE, _END = b'"delta"', b',"usage":', b"}\n\n"


class Repetition(msgspec.Struct, gc=False):
    """The new parts of a repeated event: its text, its running usage, and the event sent on to
    the caller.
    """

    text: str
    usage: bytes  # empty if this stream's events have none
    event: bytes


class RepeatedEvent:
    """The last event handled in the general way, with which the next ones are compared.

    Use it only if an event's text and running usage are its only parts with an effect beyond the
    previous event. Call `forget` whenever another event passes.
    """

    __slots__ = (
        "_between",
        "_has_usage",
        "_head",
        "_is_known",
        "_new_head",
        "_new_tail",
        "_tail",
        "_tries_left",
    )

    def __init__(self, tries: int = MAX_TRIES) -> None:
        """Start without a known event; at most `tries` events are learnt."""
        self._is_known = self._has_usage = False
        self._tries_left = tries
        # As received: before the text, up to the usage, after it.
        self._head = self._between = self._tail = b""
        self._new_head = self._new_tail = b""  # as sent on: before the text and after it

    def stop(self) -> None:
        """Learn no more events: a large one would be compared letter by letter."""
        self._is_known, self._tries_left = False, 0

    def forget(self) -> None:
        """Forget the learnt event, because one of another kind came."""
        self._is_known = False

    def learn(self, event: bytes, rewritten: bytes, *, delta: bytes, usage: bytes) -> None:
        """Learn an event and its rewritten form, if later events can be compared with them.

        `usage` is its running usage if that was cut out, else empty.
        """
        if not self._tries_left:
            return
        self._tries_left -= 1
        delta_match = _DELTA.fullmatch(delta)
        if (
            delta_match is None
            or b"\\" in event
            or event.count(_NAME) != 1
            or rewritten.count(_NAME) != 1
        ):
            return
        place = _text_place(event, delta, delta_match)
        new_place = _text_place(rewritten, delta, delta_match)
        after = event[place + len(delta_match[1]) :]
        if usage:
            end = _USAGE + usage + _END
            if not after.endswith(end):
                return
            self._between, self._tail = after[: len(_USAGE) - len(end)], _END
        else:
            self._between, self._tail = b"", after
        self._has_usage = bool(usage)
        self._head, self._new_head = event[:place], rewritten[:new_place]
        self._new_tail = rewritten[new_place + len(delta_match[1]) :]
        self._is_known = True

    def match(self, event: bytes) -> Repetition | None:
        """Return the new parts of `event`, or None if it is not the learnt event with another
        text.
        """
        if not self._is_known or not event.startswith(self._head):
            return None
        start = len(self._head)
        found = _TEXT.match(event, start)
        assert found is not None, "it matches nothing as well"
        end = found.end()
        usage = b""
        if self._has_usage:
            if not (event.startswith(self._between, end) and event.endswith(_END)):
                return None
            usage = event[end + len(self._between) : -len(_END)]
            if not _COUNTS.fullmatch(usage):
                return None
        elif event[end:] != self._tail:
            return None
        text = event[start:end]
        try:
            decoded_text = text.decode()
        except UnicodeDecodeError:
            return None
        self._tries_left = MAX_TRIES
        return Repetition(decoded_text, usage, self._new_head + text + self._new_tail)


def _text_place(event: bytes, delta: bytes, delta_match: re.Match[bytes]) -> int:
    """Return the position of the text of an event's only delta.

    The event contains no backslash, so each name is written without escapes.
    """
    return event.index(delta, event.index(_NAME)) + delta_match.start(1)
