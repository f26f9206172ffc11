"""What an answer has said of itself so far: its usage, how it ended, and, where nobody else will
count, its text.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.openai.usage import usage_from_wire

MAX_CHOICES = 16_384  # whose running usage is kept: 2,048 prompts, eight answers to each
MAX_TEXT_CHARS = 256 * 1024  # of one answer, kept to be counted: about 60,000 tokens
_OF_CHOICES = ("output_tokens", "reasoning_tokens", "audio_output_tokens", "image_output_tokens")
_OF_PROMPTS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "cache_write_30m_tokens",
    "cache_write_1h_tokens",
    "cache_write_12h_tokens",
    "audio_input_tokens",
    "image_input_tokens",
)
# No tokenizer in use has a longer token: so many bytes of text are at least one.
MOST_BYTES_PER_TOKEN = 1024


class Observed(msgspec.Struct, kw_only=True):
    """What was seen of one answer.

    `final` is the upstream's last word on its usage. Text is kept only where `collects_text` (an
    upstream without running usage), in memory, bounded, and never shown by `repr`.
    """

    final: TokenUsage | None = None
    finish_reason: str | None = None
    upstream_id: str | None = None
    service_tier: str | None = None
    stated_geo: str | None = (
        None  # where the upstream says that the answer was made, in its own words
    )
    is_error: bool = False
    is_done: bool = False  # the dialect's own end was seen
    is_whole: bool = False  # a plain answer came to its end, readable or not
    is_unfinished: bool = (
        False  # its upstream says that it goes on working: nobody can count what comes of it
    )
    has_content: bool = False
    pieces: int = 0  # of content that came one after the other, the first among them
    engine_queue_s: float | None = None  # how long its engine says that it waited there
    collects_text: bool = False
    output_bytes: int = 0  # of the answer's text; counted only where `collects_text`
    _texts: dict[int, list[str]] = {}
    _kept_chars: int = 0
    _running: dict[int, msgspec.Raw] = {}  # as it came, by choice
    _choices_per_prompt: int = 1

    def __repr__(self) -> str:
        return (
            f"Seen(usage={self.usage!r}, is_done={self.is_done}, output_bytes={self.output_bytes})"
        )

    @property
    def running(self) -> TokenUsage | None:
        """The upstream's last figure on the way; None where it gave none that can be read.

        Read only when asked for: it comes with every token, and reading it costs as much as all
        else done to an event. Each choice has a figure of its own; choices of one prompt share its
        input.
        """
        if not self._running:
            return None
        read = {choice: usage_from_wire(raw) for choice, raw in self._running.items()}
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
        """The last figure, final or not."""
        return self.final if self.final is not None else self.running

    @property
    def is_final(self) -> bool:
        """`usage` is the upstream's last word."""
        return self.final is not None

    @property
    def least_output_tokens(self) -> int:
        """What the answer cannot have cost less than."""
        return max(int(self.has_content), -(-self.output_bytes // MOST_BYTES_PER_TOKEN))

    @property
    def size_bytes(self) -> int:
        """How large the answer's text was, as far as that was counted; else four bytes for each
        piece of it.
        """
        return self.output_bytes or 4 * self.pieces

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each choice, as far as it was kept."""
        return tuple("".join(parts) for _, parts in sorted(self._texts.items()))

    @property
    def has_all_text(self) -> bool:
        """Nothing was left out of `texts`."""
        return self.collects_text and self._kept_chars <= MAX_TEXT_CHARS

    def note_final(self, usage: TokenUsage) -> None:
        """Take a last word. Of several the last one that can be true counts, once."""
        if self.final is None or self._is_no_worse(usage, self.final):
            self.final = usage

    def note_running(
        self, usage: msgspec.Raw, *, choice: int = 0, choices_per_prompt: int = 1
    ) -> None:
        """Take a running figure, as it came."""
        if len(self._running) < MAX_CHOICES or choice in self._running:
            self._running[choice] = usage
        self._choices_per_prompt = choices_per_prompt

    def note_text(self, text: str, *, choice: int = 0) -> None:
        """Take a piece of the answer, to be counted if nobody says how much it was."""
        self.output_bytes += len(text.encode())
        self._kept_chars += len(text)
        if self._kept_chars <= MAX_TEXT_CHARS:
            self._texts.setdefault(choice, []).append(text)

    def note_unread(self, size_bytes: int) -> None:
        """Take an answer that cannot be read: something was generated, at most so many bytes of
        it.
        """
        self.has_content, self.collects_text = True, True
        self.output_bytes += size_bytes
        self._kept_chars = MAX_TEXT_CHARS + 1  # its text is not known

    def _is_no_worse(self, usage: TokenUsage, than: TokenUsage) -> bool:
        return self._can_be_true(usage) or not self._can_be_true(than)

    def _can_be_true(self, usage: TokenUsage) -> bool:
        output = usage.output_tokens
        return (
            usage.is_plausible
            and usage.input_tokens is not None
            and (output is None or output >= self.least_output_tokens)
        )


def _sum(counts: Iterable[int | None]) -> int | None:
    """None where nobody said anything: unknown is never 0."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
