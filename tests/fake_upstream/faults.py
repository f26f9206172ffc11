"""The named faults of an attempt, and the value that describes all that one attempt does."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """A request's endpoint and the form of its prompt."""

    CHAT = "chat"
    PICTURES = "chat with pictures and tools"
    TOOLS = "chat with tools"
    CHOICES = "chat with two answers"
    COMPLETIONS = "completions"
    PROMPT = "completions of one text"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    RERANK = "rerank"
    SCORE = "score"
    COUNT = "count of tokens"

    @property
    def writes_output(self) -> bool:
        """Return True if the model writes an answer, token by token."""
        return self not in (Kind.EMBEDDINGS, Kind.RERANK, Kind.SCORE, Kind.COUNT)


class Fault(StrEnum):
    """The fault of an attempt.

    All but the healthy ones count as fired once the upstream has begun them.
    """

    NONE = "none"
    SPLIT = "split"  # events arrive in pieces of a few bytes
    SLOW = "slow"  # 25 ms between tokens
    BUSY = "429"
    BROKEN = "500"
    OVERLOADED = "503"
    ERROR_WITH_USAGE = "500 with usage"  # it generated, charges, and fails all the same
    STATUS = "an error status"
    REDIRECT = "redirect"
    HANG = "hang before headers"
    CUT = "cut at a byte"
    RESET = "reset at a byte"
    STALL = "stall at a byte"
    END = "clean end without [DONE]"
    NO_USAGE = "no usage"
    IN_BAND = "in-band error"
    BAD_JSON = "an answer that is no JSON"
    WILD = "implausible usage"
    STALE = "idle connection closed"  # without saying so in a header


BREAKS = frozenset({Fault.CUT, Fault.RESET, Fault.STALL, Fault.END})
ERRORS = frozenset(
    {Fault.BUSY, Fault.BROKEN, Fault.OVERLOADED, Fault.ERROR_WITH_USAGE, Fault.STATUS}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The rarer counts of one attempt: named parts of its prompt, of its cache writes and of its
    answer, and the calls of tools that the upstream runs itself.

    `tool_prompt_tokens` are the part of the prompt that Gemini counts beside it.
    """

    cache_write_30m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    cache_write_12h_tokens: int = 0
    audio_input_tokens: int = 0
    image_input_tokens: int = 0
    audio_output_tokens: int = 0
    image_output_tokens: int = 0
    web_search_calls: int = 0
    tool_prompt_tokens: int = 0

    def booked(self) -> dict[str, int]:
        """Return the counts that are not 0, by the names under which a ledger has them."""
        counts = asdict(self)
        del counts["tool_prompt_tokens"]
        return {name: count for name, count in counts.items() if count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The tokens of a request and its answers.

    `input_tokens` are those of all `prompts` together, `output_tokens` those of all answers; each
    prompt is answered `choices` times. `calls_tool`: the reasoning is followed by a call of a
    tool.
    """

    kind: Kind = Kind.CHAT
    prompts: int = 1
    choices: int = 1
    input_tokens: int = 10
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 8
    reasoning_tokens: int = 0
    parts: Parts = field(default_factory=Parts)
    calls_tool: bool = False
    is_shortened: bool = False  # by the request's own maximum

    @property
    def answers(self) -> int:
        """Return the number of answers to all prompts."""
        return self.prompts * self.choices

    @property
    def tool_begins_at(self) -> int | None:
        """Return the number of the first token of a tool's call; None if there is no call."""
        is_called = self.calls_tool and self.reasoning_tokens < self.output_tokens
        return self.reasoning_tokens if is_called else None

    def input_of(self, prompt: int) -> int:
        """Return the tokens of one of the prompts."""
        each, rest = divmod(self.input_tokens, self.prompts)
        return each + (prompt < rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How one attempt goes.

    A break comes before token number `at_tokens` (6.5: within the event after the sixth), or after
    the share `at` of the body's events.
    `style` is the spelling of usage: openai, vllm, deepseek or mistral. `goes_on`: it generates all
    its tokens although the other side has left, and charges for them.
    """

    work: Work = field(default_factory=Work)
    fault: Fault = Fault.NONE
    at: float = 0.0
    at_tokens: float | None = None
    status: int = 200
    error_code: str | None = None
    retry_after_s: int | None = None
    style: str = "openai"
    ttft_s: float = 0.0
    gap_s: float = 0.0
    is_early: bool = False  # a stream's head comes before the first token is awaited
    has_running_usage: bool = True
    has_final_usage: bool = True
    usage_on_choice: bool = False  # on the last chunk with choices, not on one of its own
    goes_on: bool = False
    has_canary: bool = True  # as its first word; it counts as one token, and is longer than one
    index: int = 0
