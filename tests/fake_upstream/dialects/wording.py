"""What all dialects beside OpenAI's have in common: words, framing and what they cannot say."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.canary import COMPLETION
from tests.fake_upstream.faults import Behaviour, Fault, Work

EVENT_STREAM = "text/event-stream; charset=utf-8"
Usage = dict[str, Any] | None
TOOL = "look"  # the name of the tool that is called


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording(ABC):
    """The words of one attempt. `number` tells its ids from those of others."""

    stream_type: ClassVar[str] = EVENT_STREAM
    # Counts for which the dialect has no word.
    untold: ClassVar[frozenset[str]] = frozenset()
    # An error may stand in a plain answer of status 200.
    has_plain_error: ClassVar[bool] = True
    # An error's wait stands in the header `retry-after`.
    has_wait_header: ClassVar[bool] = True
    number: int
    model: str
    behaviour: Behaviour

    # ---- what a dialect says

    @abstractmethod
    def usage(self, made: int, reasoning: int, *, prompt: int) -> dict[str, Any]:
        """Return the final usage."""

    @abstractmethod
    def whole(self, made: int, usage: Usage) -> bytes:
        """Return a plain answer of `made` tokens."""

    @abstractmethod
    def begin(self) -> bytes:
        """Return the first event, empty if there is none."""

    @abstractmethod
    def token(self, number: int, usage: Usage) -> bytes:
        """Return the event of one token. `usage` is that up to it."""

    @abstractmethod
    def last(self, usage: Usage, text: str) -> bytes:
        """Return the event that has the usage and the end. `text` is the whole answer."""

    @abstractmethod
    def error(self) -> bytes:
        """Return an error in the stream, after a head of status 200."""

    @abstractmethod
    def error_body(self, usage: Usage) -> bytes:
        """Return the body of an error answer."""

    # ---- what most of them have in common

    @property
    def has_final_usage(self) -> bool:
        """Return True if a stream ends with its usage."""
        return self.behaviour.has_final_usage

    @property
    def has_running_usage(self) -> bool:
        """Return True if each token's event has the usage so far."""
        return False

    def status(self, status: int) -> int:
        """Return the status that the dialect has for an error."""
        return status

    def error_headers(self) -> str:
        """Return further header lines of an error answer."""
        return ""

    def done(self) -> bytes:
        """Return the last event, behind the usage."""
        return b""

    def bad_event(self) -> bytes:
        """Return an event that is no JSON."""
        return b"data: {not json\n\n"

    def broken_json(self) -> bytes:
        """Return a whole answer that is no JSON."""
        return b'{"candidates": [{"message"'

    # ---- words

    def text(self, numbers: Iterable[int]) -> str:
        """Return the words of these tokens."""
        return " ".join(map(self.word, numbers))

    def word(self, number: int) -> str:
        """Return the word of one token."""
        return COMPLETION if number == 0 and self.behaviour.has_canary else f"t{number}"

    def piece(self, number: int) -> str:
        """Return the word of one token as a stream sends it."""
        return self.word(number) + " "

    def argument(self, number: int) -> str:
        """Return the piece of a tool call's arguments that one token is."""
        return argument_of(self.behaviour.work, number, self.word(number))

    def call(self, made: int) -> dict[str, Any] | None:
        """Return the arguments of the tool's call in an answer of `made` tokens; None without
        one.
        """
        begins_at = self.behaviour.work.tool_begins_at
        return None if begins_at is None else {"q": self.text(range(begins_at, made)) + " "}

    def is_call(self, number: int) -> bool:
        """Return True if a token belongs to the call of a tool."""
        begins_at = self.behaviour.work.tool_begins_at
        return begins_at is not None and number >= begins_at

    def is_thought(self, number: int) -> bool:
        """Return True if a token is reasoning."""
        return number < self.behaviour.work.reasoning_tokens

    def thoughts(self, made: int) -> str:
        """Return the reasoning of an answer of `made` tokens."""
        return self.text(range(min(made, self.behaviour.work.reasoning_tokens)))

    def answer(self, made: int) -> str:
        """Return the text of an answer of `made` tokens."""
        return self.text(range(self.behaviour.work.reasoning_tokens, made))

    @property
    def failing_status(self) -> int:
        """Return the status that an error body names."""
        is_in_band = self.behaviour.fault is Fault.IN_BAND
        return 500 if is_in_band else self.status(self.behaviour.status)

    @property
    def complaint(self) -> str:
        """Return the message of an error."""
        return f"the fake fails with {self.failing_status}"


def argument_of(work: Work, number: int, word: str) -> str:
    """Return one token's piece of the JSON that is a tool call's arguments."""
    opening = '{"q": "' if number == work.tool_begins_at else ""
    return opening + word + " " + ('"}' if number == work.output_tokens - 1 else "")


def event(value: Any) -> bytes:
    """Return a server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"
