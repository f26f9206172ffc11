"""Declares token kinds and counts in one normal form for every provider, with None for unknown;
parses no provider's usage.

Unknown is None and never 0; 0 is never unknown.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import asdict, astuple, replace

MOST_TOKENS = 10**11  # no attempt can use that many: a larger count is the reporter's error
UNREADABLE = -MOST_TOKENS  # as unexplained tokens: a count is there that cannot be read
MAX_STORED_COUNT = 10**18  # a longer count is cut to it: equally untrue, but short enough to keep


class TokenKind(StrEnum):
    """The kind that one line of a receipt charges for.

    The lines of a receipt are disjoint; see `pricing.lines`.
    """

    INPUT = "input"  # text, neither read from nor written to the provider's cache
    CACHED_INPUT = "cached_input"
    CACHED_AUDIO_INPUT = "cached_audio_input"
    CACHE_WRITE = "cache_write"  # for the provider's own shortest time, five minutes with most
    CACHE_WRITE_30M = "cache_write_30m"
    CACHE_WRITE_1H = "cache_write_1h"
    CACHE_WRITE_12H = "cache_write_12h"
    AUDIO_INPUT = "audio_input"
    IMAGE_INPUT = "image_input"
    OUTPUT = "output"  # reasoning included, unless the price has a separate rate for it
    REASONING = "reasoning"
    AUDIO_OUTPUT = "audio_output"
    IMAGE_OUTPUT = "image_output"
    WEB_SEARCH = "web_search"  # from here on calls, not tokens
    FILE_SEARCH = "file_search"
    CODE_INTERPRETER = "code_interpreter"
    IMAGE_GENERATION = "image_generation"
    X_SEARCH = "x_search"  # xAI's, in the posts of X
    OTHER_MODEL = "other_model"  # Anthropic's advisor, or a part of Groq's compound systems


INPUT_KINDS = frozenset(
    {
        TokenKind.INPUT,
        TokenKind.CACHED_INPUT,
        TokenKind.CACHED_AUDIO_INPUT,
        TokenKind.CACHE_WRITE,
        TokenKind.CACHE_WRITE_30M,
        TokenKind.CACHE_WRITE_1H,
        TokenKind.CACHE_WRITE_12H,
        TokenKind.AUDIO_INPUT,
        TokenKind.IMAGE_INPUT,
    }
)
# Read from the provider's prompt cache or written to it, each with the kind that it would be if
# nothing was cached.
UNCACHED_KINDS = {
    TokenKind.CACHED_INPUT: TokenKind.INPUT,
    TokenKind.CACHED_AUDIO_INPUT: TokenKind.AUDIO_INPUT,
    TokenKind.CACHE_WRITE: TokenKind.INPUT,
    TokenKind.CACHE_WRITE_30M: TokenKind.INPUT,
    TokenKind.CACHE_WRITE_1H: TokenKind.INPUT,
    TokenKind.CACHE_WRITE_12H: TokenKind.INPUT,
}
OUTPUT_KINDS = frozenset(
    {TokenKind.OUTPUT, TokenKind.REASONING, TokenKind.AUDIO_OUTPUT, TokenKind.IMAGE_OUTPUT}
)
CALL_KINDS = frozenset(TokenKind) - INPUT_KINDS - OUTPUT_KINDS


class UsageSource(StrEnum):
    """The certainty of a count."""

    PROVIDER = "provider"  # the upstream's own final figure
    DERIVED = "derived"  # a running figure of the upstream, or counted
    ESTIMATED = "estimated"
    NONE = "none"  # certainly nothing was served
    UNKNOWN = "unknown"


_USUAL_COUNTS = 6  # the first fields of a `TokenUsage`


class TokenUsage(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Tokens of one attempt, and calls of tools that the provider ran.

    None: the upstream did not report it.

    A struct, like every part of an event: creating it takes a tenth of a frozen dataclass's time,
    several times per attempt. Unreported counts are left out of its document.

    Inclusion, for every provider: `input_tokens` is the whole prompt. Cached, cache-write, audio
    and image input tokens are parts of it; a token can be cached and an image at once.
    `cache_write_tokens` counts all writes, those for a named time included. `output_tokens` is the
    whole answer; reasoning, audio and image output tokens are parts of it.

    `unexplained_tokens` are those of the reported total that no part explains; negative if its
    parts are more than a total. Such a report contradicts itself. They are in no other count.
    Without a total they are those that may stand beside the prompt or the answer, by their names:
    the cache's and the reasoning. `UNREADABLE` there marks a report with a count that cannot be
    read. `unknown_input_tokens` and `unknown_output_tokens` are parts of a side whose kind (text,
    audio, images) is not known, and `unknown_cache_write_tokens` those of the writes whose lifetime
    is not. `unknown_units` are calls, units, and tokens beside both sides that have no name here:
    they have no price.
    """

    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    unexplained_tokens: int | None = None
    # From here on they are rare: `is_text_alone`.
    cache_write_30m_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    cache_write_12h_tokens: int | None = None
    audio_input_tokens: int | None = None
    image_input_tokens: int | None = None
    audio_output_tokens: int | None = None
    image_output_tokens: int | None = None
    web_search_calls: int | None = None
    file_search_calls: int | None = None
    code_interpreter_calls: int | None = None
    image_generation_calls: int | None = None
    x_search_calls: int | None = None
    other_model_calls: int | None = None
    cached_audio_input_tokens: int | None = None
    unknown_input_tokens: int | None = None
    unknown_output_tokens: int | None = None
    unknown_cache_write_tokens: int | None = None
    unknown_units: int | None = None

    @property
    def is_text_alone(self) -> bool:
        """Return True if only text was read and written, and no write to the cache was for a
        named time.
        """
        return not any(astuple(self)[_USUAL_COUNTS:])

    @property
    def has_unread(self) -> bool:
        """Return True if a reported count could not be read, which may be any number."""
        return self.unexplained_tokens is not None and self.unexplained_tokens <= UNREADABLE

    @property
    def lacks_prompt(self) -> bool:
        """Return True if output tokens were written and no prompt tokens were read.

        No model does that, so a 0 means that the prompt was not reported.
        """
        return not self.input_tokens and bool(self.output_tokens)

    @property
    def is_plausible(self) -> bool:
        """Return False if the counts contradict each other: negative, parts larger than their
        whole, or a total that is not the sum of its parts.
        """
        if self.unexplained_tokens:
            return False
        prompt, answer, written = (
            self.input_tokens or 0,
            self.output_tokens or 0,
            self.cache_write_tokens or 0,
        )
        cached, reasoning = self.cached_input_tokens or 0, self.reasoning_tokens or 0
        # The usual answer: with all other counts at 0, the checks below reduce to this.
        if self.is_text_alone:
            are_counts = (
                cached >= 0
                and written >= 0
                and reasoning >= 0
                and prompt < MOST_TOKENS
                and answer < MOST_TOKENS
            )
            return are_counts and cached + written <= prompt and reasoning <= answer
        for_a_time = (
            self.cache_write_30m_tokens or 0,
            self.cache_write_1h_tokens or 0,
            self.cache_write_12h_tokens or 0,
            self.unknown_cache_write_tokens or 0,
        )
        media_tokens = (
            self.audio_input_tokens or 0,
            self.image_input_tokens or 0,
            self.unknown_input_tokens or 0,
        )
        spoken_drawn = (
            self.audio_output_tokens or 0,
            self.image_output_tokens or 0,
            self.unknown_output_tokens or 0,
        )
        calls = (
            self.web_search_calls or 0,
            self.file_search_calls or 0,
            self.code_interpreter_calls or 0,
            self.image_generation_calls or 0,
            self.x_search_calls or 0,
            self.other_model_calls or 0,
        )
        cached_audio = self.cached_audio_input_tokens or 0
        counts = (
            prompt,
            answer,
            written,
            cached,
            reasoning,
            *for_a_time,
            *media_tokens,
            *spoken_drawn,
            *calls,
            cached_audio,
        )
        return (
            min(counts) >= 0
            and max(counts) < MOST_TOKENS
            and cached + written <= prompt
            and sum(for_a_time) <= written
            and sum(media_tokens) <= prompt
            and cached_audio <= min(cached, self.audio_input_tokens or 0)
            and reasoning + sum(spoken_drawn) <= answer
        )

    @property
    def bounded(self) -> TokenUsage:
        """Return the same counts, with those of hundreds of digits cut: a stored report must have a
        bounded size.
        """
        counts = asdict(self)
        return TokenUsage(
            **{
                name: None
                if count is None
                else max(-MAX_STORED_COUNT, min(count, MAX_STORED_COUNT))
                for name, count in counts.items()
            }
        )


# Of a usage whose counts are there and none of them can be read.
UNREADABLE_USAGE = TokenUsage(unexplained_tokens=UNREADABLE)
NOTHING_SERVED = TokenUsage(
    input_tokens=0, cached_input_tokens=0, cache_write_tokens=0, output_tokens=0, reasoning_tokens=0
)


def with_reasoning(usage: TokenUsage | None, *, is_beside: bool | None) -> TokenUsage | None:
    """Return a usage with reasoning of which only the provider's page says whether it stands beside
    the answer; unchanged without such reasoning, and if no page says it.

    A total settles it, so beside a total unexplained tokens are never those of the reasoning.
    """
    if usage is None or not usage.unexplained_tokens or is_beside is None:
        return usage  # nearly every one
    reasoning, answer = usage.reasoning_tokens, usage.output_tokens
    if reasoning != usage.unexplained_tokens or usage.input_tokens is None or answer is None:
        return usage
    return replace(
        usage, output_tokens=answer + (reasoning if is_beside else 0), unexplained_tokens=None
    )
