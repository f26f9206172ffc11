"""Collects the values read from one answer so far: its usage, its end, its size and, if only the
gateway can count it, its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.domain.pricing.repeated_usage import completed, dearer, states_more
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.served_tier import UNKNOWN_TIER, agreed_tier

ReadUsage = Callable[[msgspec.Raw], TokenUsage | None]
MAX_CHOICES = 16_384  # whose running usage is kept: 2,048 prompts, eight answers to each
MAX_DETAILS = 32  # of an answer: the longest known usage has 12
MAX_EARLIER = 16  # running usages of a choice with other parts than the one after them
_DIGITS = b"0123456789"
MAX_TEXT_CHARS = 256 * 1024  # of one answer, kept to be counted: about 60,000 tokens
_OF_CHOICES = (
    "output_tokens",
    "reasoning_tokens",
    "audio_output_tokens",
    "image_output_tokens",
    "unexplained_tokens",
    "unknown_output_tokens",
    "unknown_units",
)
_NO_ANSWER = dict.fromkeys(_OF_CHOICES)
_OF_PROMPTS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "cache_write_30m_tokens",
    "cache_write_1h_tokens",
    "cache_write_12h_tokens",
    "audio_input_tokens",
    "image_input_tokens",
    "unknown_input_tokens",
    "unknown_cache_write_tokens",
)
# A finish reason, a tier or a place. An upstream can put a text anywhere, and none is stored.
WORD = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
# The reasons, in lower case, of an answer that ended at its maximum or at the window: OpenAI's and
# Ollama's (openai 3.57.0), of responses, Anthropic's and Bedrock's (anthropic 2.14.0), Gemini's
# (google-genai 3.6.1), Mistral's (mistralai 3.7.0). 2026-11-29.
CUT = frozenset(
    {"length", "incomplete", "max_output_tokens", "max_tokens", "model_context_window_exceeded"}
    | {"model_length"}
)
# No tokenizer in use has a longer token, so this many bytes of text are at least one token.
MOST_BYTES_PER_TOKEN = 1024


class Observed(msgspec.Struct, kw_only=True):
    """The observations of one answer.

    `final` is the upstream's final usage. Text is kept only if `collects_text` (an upstream without
    running usage), in memory, bounded, and never shown by `repr`. `counts_each_piece`: the gateway
    asked for a usage beside each piece, so a running one of 0 output tokens says that there are
    none yet.
    """

    final: TokenUsage | None = None
    dearest: TokenUsage | None = None  # of several final usages that could be true
    amid: TokenUsage | None = None  # a final one that the answer went on after
    impossible: TokenUsage | None = None  # a final one beside it that cannot be true, and is larger
    finish_reason: str | None = None
    upstream_id: str | None = None
    service_tier: str | None = None  # `UNKNOWN_TIER` if its statements differ
    echoed_tier: str | None = None  # of a response in progress: it may repeat the request's
    # The upstream's own figures beside tokens: its cost, its times; numbers and short words.
    usage_detail: dict[str, Any] = {}
    stated_geo: str | None = None  # the upstream's own name for the place that made the answer
    other_geo: str | None = None  # a second name that differs from it
    is_error: bool = False
    has_failed: bool = False  # the reason for an answer's end says that it failed
    is_done: bool = False  # the dialect's own end was seen
    is_whole: bool = False  # a plain answer came to its end, readable or not
    # The upstream continues working, and its further usage stays unknown.
    is_unfinished: bool = False
    has_content: bool = False
    has_unread: bool = False  # a part of the answer could not be read
    has_odd: bool = False  # a part has a form that is not known, so it may be content
    has_other: bool = False  # a part of the content is no text: a picture, sound, a sealed thought
    has_thought: bool = False  # an item of thinking came that is not shown, or in a summary
    pieces: int = 0  # content chunks, the first included
    ended: set[int] = set()  # the choices of a stream with their finish reason
    end_mark: bytes = b""  # the event that ends a stream and says nothing else
    engine_queue_s: float | None = None  # the queue time that the engine reports
    collects_text: bool = False
    counts_each_piece: bool = False
    output_bytes: int = 0  # of the answer's text; counted only if `collects_text`
    # The provider's own tool calls that were seen in the answer, by their counts' names.
    calls: dict[str, int] = {}
    # Seen in the answer: output that is no text, and work of the provider's tools, by their kinds.
    shown: frozenset[str] = frozenset()
    _texts: dict[int, list[str]] = {}
    _kept_chars: int = 0
    _running: dict[int, msgspec.Raw] = {}  # undecoded, by choice
    _earlier: dict[int, list[msgspec.Raw]] = {}  # running ones with other parts, by choice
    _running_bytes: int = 0  # the size of the last one
    _behind: set[int] = set()  # the choices with content that their running usage does not count
    _choices_per_prompt: int = 1
    _read_usage: ReadUsage | None = None  # the dialect's

    def __repr__(self) -> str:
        """Return the usage, end and size, without the answer's text."""
        return (
            f"Observed(usage={self.usage!r}, is_done={self.is_done}, "
            f"output_bytes={self.output_bytes})"
        )

    @property
    def running(self) -> TokenUsage | None:
        """The upstream's last running usage; None if it sent none that can be read.

        Decoded only on demand: it comes with every token, and reading it costs as much as
        everything else done to an event. Each choice has its own figure; the choices of one prompt
        share its input. A part that the last one leaves out is taken from an earlier one. Without
        any, it is a final usage that the answer went on after.
        """
        if not self._running:
            return self.amid
        assert self._read_usage is not None, "a running usage comes with its reader"
        read = {choice: self._read_usage(raw) for choice, raw in self._running.items()}
        for choice, earlier in self._earlier.items():
            read[choice] = self._with_earlier(read[choice], earlier)
        known = {choice: usage for choice, usage in read.items() if usage is not None}
        if len(known) < 2:
            return next(iter(known.values()), None)
        prompts = {choice // self._choices_per_prompt: usage for choice, usage in known.items()}
        of_prompts = {
            name: _sum(getattr(usage, name) for usage in prompts.values()) for name in _OF_PROMPTS
        }
        of_choices = {
            name: _sum(getattr(usage, name) for usage in known.values()) for name in _OF_CHOICES
        }
        return TokenUsage(**of_prompts, **of_choices)

    @property
    def usage(self) -> TokenUsage | None:
        """The upstream's last usage, final or running; None if it sent none that can be read.

        A running one that does not count the whole answer so far is known by its prompt alone.
        """
        if self.final is not None:
            return self.final
        running = self.running
        if running is None or running.has_unread:
            return running
        is_first = self._is_first(running) and not (self.is_done or self.is_whole)
        is_least = self._behind or self.is_unfinished or is_first or not self._running
        return replace(running, **_NO_ANSWER) if is_least else running

    @property
    def has_running(self) -> bool:
        """True if the upstream sent a running usage."""
        return bool(self._running)

    @property
    def is_behind(self) -> bool:
        """True if the upstream's last usage does not count the whole answer so far.

        A first figure never stands for a last one: Anthropic's `message_start` counts one token,
        and others count none.
        """
        if self.final is not None or not self._running:
            return self.final is None and self.amid is not None
        if self.is_unfinished:
            return True
        if self._behind or self.is_done or self.is_whole:
            return bool(self._behind)
        running = self.running
        return running is not None and self._is_first(running)

    def _is_first(self, running: TokenUsage) -> bool:
        """Return True if a running usage may be one that stands before the answer."""
        return running.output_tokens == 0 and not self.counts_each_piece

    @property
    def is_cut(self) -> bool:
        """True if the upstream says that the answer, or one of its choices, ended at a maximum."""
        return self.finish_reason is not None and self.finish_reason.lower() in CUT

    @property
    def is_final(self) -> bool:
        """True if `usage` is the upstream's final one."""
        return self.final is not None

    @property
    def least_output_tokens(self) -> int:
        """The least number of output tokens that the answer can have."""
        return max(
            int(self.has_content or self.has_odd), -(-self.output_bytes // MOST_BYTES_PER_TOKEN)
        )

    def may_hide_text(self, size_bytes: int) -> bool:
        """Return True if an answer of this size may have more text than the output tokens of its
        usage can have made, and its text is not counted yet.
        """
        if self.collects_text or self.final is None or self.final.output_tokens is None:
            return False
        return size_bytes > MOST_BYTES_PER_TOKEN * self.final.output_tokens

    @property
    def is_countable(self) -> bool:
        """True if the content is text alone, as far as is known: a count of the texts is one of the
        answer.
        """
        return not (self.has_unread or self.has_odd or self.has_other)

    @property
    def size_bytes(self) -> int:
        """The size of the answer's counted text; if none was counted, four bytes for each chunk of
        a stream, and 0 for a plain answer, whose size is then unknown.
        """
        return self.output_bytes or (0 if self.is_whole else 4 * self.pieces)

    @property
    def is_empty(self) -> bool:
        """True if the answer came to its end without any content. Content is not looked for beside
        a usage with output.
        """
        has_output = self.final is not None and bool(self.final.output_tokens)
        is_ended = self.is_whole or self.is_done
        return is_ended and not (self.has_content or self.has_odd or has_output)

    @property
    def texts(self) -> tuple[str, ...]:
        """The kept text of each choice of the answer."""
        return tuple("".join(parts) for _, parts in sorted(self._texts.items()))

    @property
    def has_all_text(self) -> bool:
        """True if `texts` has the answer's complete text."""
        is_kept = self.collects_text and self._kept_chars <= MAX_TEXT_CHARS
        return is_kept and self.is_countable

    def missing_end(self, answers: int) -> bytes:
        """Return the mark of its end that a stream lacks, though each of its `answers` has its
        finish reason; empty for any other, and for one that failed. Several servers leave it out.
        """
        is_over = self.is_done or self.is_error or self.has_failed or len(self.ended) < answers
        return b"" if is_over else self.end_mark

    def note_ended(self, choice: int) -> None:
        """Record that a choice of a stream has its finish reason."""
        if len(self.ended) < MAX_CHOICES:
            self.ended.add(choice)

    def note_final(self, usage: TokenUsage) -> None:
        """Record a final usage; one that comes later replaces it, unless only the earlier one can
        be true. A larger figure of an earlier one stays in `dearest`, and one that cannot be true
        and is larger in `impossible`.
        """
        known, self.amid = self.final, None
        if known is None:
            self.final = usage
        else:
            replaces = self._is_no_worse(usage, known)
            self.final, other = (usage, known) if replaces else (known, usage)
            if not self._can_be_true(other) and states_more(other, self.final):
                self.impossible = other
        if known is not None or self.dearest is not None:
            self._note_dearer(known)
            self._note_dearer(usage)

    def note_other_reading(self, usage: TokenUsage) -> None:
        """Record the other reading of the final usage, of whose names one stands there twice."""
        if usage != self.final:
            self._note_dearer(self.final)
            self._note_dearer(usage)
            self.impossible = usage

    def note_reading(self, other: Observed) -> None:
        """Record the observations of another reading of the same answer, which has a name twice."""
        if other.final is not None and self.final is None:
            self.note_final(other.final)
        elif other.final is not None:
            self.note_other_reading(other.final)
        self.impossible = self.impossible or other.impossible
        if other.dearest is not None:
            self.note_least(other.dearest)
        self.note_tier(other.service_tier)
        self.note_geo(other.stated_geo)
        self.shown |= other.shown
        for name, calls in other.calls.items():
            self.calls[name] = max(calls, self.calls.get(name, 0))
        self.output_bytes = max(self.output_bytes, other.output_bytes)
        self.finish_reason = self.finish_reason or other.finish_reason
        self.has_content = self.has_content or other.has_content
        self.has_other = self.has_other or other.has_other
        self.is_unfinished = self.is_unfinished or other.is_unfinished
        self.is_done = self.is_done or other.is_done

    def note_least(self, usage: TokenUsage) -> None:
        """Record a usage that counts a part of the answer, or stands beside its place: it is the
        least that is charged.
        """
        if usage.is_plausible:
            self.dearest = usage if self.dearest is None else dearer(self.dearest, usage)

    def note_finish(self, reason: str | None) -> None:
        """Record the reason for the end of a choice: of several, the one of a cut answer stays."""
        if reason and (self.finish_reason is None or not self.is_cut):
            self.finish_reason = reason

    def note_more(self) -> None:
        """Record that the answer goes on after its final usage, which does not count all of it: it
        is the least, and no longer final; its prompt stays true.
        """
        if self.final is not None:
            self._note_dearer(self.final)
            self.amid = self.final if self._can_be_true(self.final) else self.amid
            self.final = None

    def _note_dearer(self, usage: TokenUsage | None) -> None:
        """Record a final usage beside others, if it can be true."""
        if usage is not None and self._can_be_true(usage):
            self.note_least(usage)

    @contextmanager
    def behind_end(self) -> Iterator[None]:
        """Meter a part that comes after the answer's end: a usage counts as any other, and content
        changes neither the end, nor its reason, nor the final usage.
        """
        ended, final = (self.is_done, self.is_error, self.finish_reason), self.final
        self.is_done = False
        yield
        self.is_done, self.is_error, self.finish_reason = ended
        self.final = self.final or final

    def note_tier(self, stated: str | None) -> None:
        """Record the service tier that a part of the answer states; None if it states none."""
        if stated != self.service_tier:
            self.service_tier = agreed_tier(self.service_tier, stated)

    def note_geo(self, stated: str | None) -> None:
        """Record the place that a part of the answer states; None if it states none."""
        known = self.stated_geo
        if known is None:
            self.stated_geo = stated
        elif stated is not None and stated.lower() != known.lower():
            self.other_geo = stated

    def note_detail(self, detail: Mapping[str, Any]) -> None:
        """Record the upstream's own figures beside tokens; later ones replace earlier ones."""
        for name, value in detail.items():
            if name in self.usage_detail or len(self.usage_detail) < MAX_DETAILS:
                self.usage_detail[name] = value

    def note_call(self, name: str, calls: int = 1) -> None:
        """Record calls of the provider's own tools; -1 for one that failed and is not billed."""
        self.calls[name] = self.calls.get(name, 0) + calls
        if self.calls[name] <= 0:
            del self.calls[name]

    def note_shown(self, kind: str) -> None:
        """Record that the answer has output of a kind that is no text, or shows the work of a tool
        that the provider ran.
        """
        self.shown |= {kind}

    def note_running(
        self,
        usage: msgspec.Raw,
        read: ReadUsage,
        *,
        choice: int = 0,
        choices_per_prompt: int = 1,
    ) -> None:
        """Record a running usage, undecoded; `read` decodes it on demand."""
        size = memoryview(usage).nbytes
        if size != self._running_bytes:
            self._running_bytes = size
            self._note_earlier(choice, usage)
        if len(self._running) < MAX_CHOICES or choice in self._running:
            self._running[choice] = usage
            self._behind.discard(choice)
        self._choices_per_prompt, self._read_usage = choices_per_prompt, read

    def _note_earlier(self, choice: int, usage: msgspec.Raw) -> None:
        """Keep the running usage before this one, if the two differ in more than their digits: this
        one may leave out a part.
        """
        known = self._running.get(choice)
        if known is None or (shape := _shape(known)) == _shape(usage):
            return  # nearly every one: a count has one digit more
        others = [one for one in self._earlier.get(choice, ()) if _shape(one) != shape]
        self._earlier[choice] = [*others[1 - MAX_EARLIER :], known]

    def _with_earlier(
        self, usage: TokenUsage | None, earlier: list[msgspec.Raw]
    ) -> TokenUsage | None:
        """Return a running usage with the parts that it leaves out, from earlier ones."""
        assert self._read_usage is not None, "a running usage comes with its reader"
        for raw in reversed(earlier):
            before = self._read_usage(raw)
            if usage is not None and before is not None and before.is_plausible:
                usage = completed(usage, before)
        return usage

    def note_uncounted(self, choice: int = 0) -> None:
        """Record that a choice has content which its running usage, if there is one, does not
        count.
        """
        if choice in self._running:
            self._behind.add(choice)

    def note_text(self, text: str, *, choice: int = 0) -> None:
        """Record a piece of the answer's text, so that the gateway can count its tokens if the
        upstream reports no usage.
        """
        self.output_bytes += len(text.encode())
        self._kept_chars += len(text)
        if self._kept_chars <= MAX_TEXT_CHARS:
            self._texts.setdefault(choice, []).append(text)

    def note_other(self) -> None:
        """Record content that is no text: its size in bytes is none of tokens, so without a usage
        the whole answer stays unknown.
        """
        self.has_content = self.has_other = True

    def note_odd(self) -> None:
        """Record a part that may be content of an unknown form: no running usage counts it."""
        self.has_odd = True
        self._behind.update(self._running)

    def note_unread(self) -> None:
        """Record a part of the answer that cannot be read: something was generated.

        The size of its bytes is no size of a text (JSON around it, a coding), so without a usage
        the whole answer stays unknown.
        """
        self.has_content = self.has_unread = True
        self._behind.update(self._running)

    def _is_no_worse(self, usage: TokenUsage, than: TokenUsage) -> bool:
        """Return True if a later final usage may replace an earlier one: it can be true, or neither
        can.
        """
        return self._can_be_true(usage) or not self._can_be_true(than)

    def _can_be_true(self, usage: TokenUsage) -> bool:
        """Return True if a usage is plausible, has input tokens, and no fewer output tokens than
        the answer seen so far must have.
        """
        output = usage.output_tokens
        return (
            usage.is_plausible
            and usage.input_tokens is not None
            and (output is None or output >= self.least_output_tokens)
        )


def stated_word(value: Any) -> str | None:
    """Return the word of a service tier or a place; None if there is none, and `UNKNOWN_TIER` for
    a value that is no word: it may stand for any.
    """
    if value is None or value in ("", {}, []):
        return None
    is_word = isinstance(value, str) and WORD.fullmatch(value) is not None
    return value if is_word else UNKNOWN_TIER


def _shape(raw: msgspec.Raw) -> bytes:
    """Return the bytes of a usage without its digits: its names and its signs."""
    return bytes(raw).translate(None, _DIGITS)


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the known counts, or None if there is none: unknown is never 0."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
