"""Declares a conversation in neutral values: the request between a caller's dialect and another
one of an upstream; reads and writes no dialect.

A caller's dialect makes a `Conversation` of its request, and an upstream's dialect makes its own
request of it. A value that a dialect has no place for goes to `losses.Losses`, by the caller's own
name for it: no writer leaves one out by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec
from msgspec import Struct

NO_JSON = msgspec.Raw()  # an absent JSON value


class Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"


class TextPart(Struct, frozen=True, kw_only=True):
    """A piece of text. `cache_control` is Anthropic's mark of a prefix to be cached, as sent.

    `is_refusal`: the model's text of a refusal, in an earlier turn.
    """

    text: str
    cache_control: msgspec.Raw = NO_JSON
    is_refusal: bool = False


class Media(Struct, frozen=True, kw_only=True):
    """A picture, a document or a sound: its bytes in base64 in `data`, else an address in `url`.

    `kind` is `image`, `document` or `audio`. `detail` is OpenAI's wish for a picture's resolution.
    """

    kind: str
    media_type: str = ""
    data: str = ""
    url: str = ""
    name: str = ""
    detail: str = ""
    cache_control: msgspec.Raw = NO_JSON


class Thought(Struct, frozen=True, kw_only=True):
    """Reasoning of an earlier turn. `signature` proves to its provider that it is unchanged;
    `sealed` is reasoning that only its provider can read.
    """

    text: str = ""
    signature: str = ""
    sealed: str = ""


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call that the model made. `arguments` is a JSON text. `signature` is Gemini's
    `thoughtSignature` of the call.
    """

    call_id: str
    name: str
    arguments: str
    signature: str = ""
    cache_control: msgspec.Raw = NO_JSON


# Gemini and Ollama want the tool's name beside each result, so that one long name would be sent
# thousands of times. Anthropic takes 128 letters, OpenAI 64.
MOST_TOOL_NAME_CHARS = 128


class ToolResult(Struct, frozen=True, kw_only=True):
    """The caller's answer to a tool call. `name` is the tool's, empty if the dialect leaves it
    out.
    """

    call_id: str
    parts: tuple[TextPart | Media, ...]
    name: str = ""
    is_error: bool = False
    cache_control: msgspec.Raw = NO_JSON


Part = TextPart | Media | Thought | ToolCall | ToolResult


class ConversationTurn(Struct, frozen=True, kw_only=True):
    """One turn. Results of tools stand in a turn of the user. `name` is the speaker's.

    `is_instruction`: a system or developer message after the first turn, as a turn of the user. A
    dialect with system messages between turns writes one.
    """

    role: Role
    parts: tuple[Part, ...]
    name: str = ""
    is_instruction: bool = False


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A function that the caller runs. `parameters` is its JSON schema, as sent."""

    name: str
    description: str = ""
    parameters: msgspec.Raw = NO_JSON
    is_strict: bool | None = None
    cache_control: msgspec.Raw = NO_JSON


class ToolMode(StrEnum):
    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"  # any of the tools
    NAMED = "named"


class ToolChoice(Struct, frozen=True, kw_only=True):
    """The caller's wish about tool calls. `name` is set for the mode `named`."""

    mode: ToolMode
    name: str = ""


def is_forced(choice: ToolChoice | None) -> bool:
    """Return True if the model must call a tool."""
    return choice is not None and choice.mode in (ToolMode.REQUIRED, ToolMode.NAMED)


class OutputFormat(Struct, frozen=True, kw_only=True):
    """The form of the answer: JSON, of a schema if there is one."""

    schema: msgspec.Raw = NO_JSON
    name: str = ""
    description: str = ""
    is_strict: bool | None = None


class Reasoning(Struct, frozen=True, kw_only=True):
    """The caller's wish about reasoning.

    `effort` is a word of OpenAI's (`none` to `xhigh`), `budget_tokens` Anthropic's and Gemini's
    bound. `is_shown`: whether the caller asked to see it; None without a wish.
    """

    effort: str | None = None
    budget_tokens: int | None = None
    is_adaptive: bool = False  # the model chooses, as Anthropic's newer models do
    is_shown: bool | None = None


class Sampling(Struct, frozen=True, kw_only=True):
    """How tokens are drawn. None: the caller sent nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None  # 0: those of the drawn tokens alone
    logit_bias: msgspec.Raw = NO_JSON


class Conversation(Struct, frozen=True, kw_only=True):
    """A request in neutral values.

    `most_tokens` is the caller's maximum of one answer, None without one; the gateway's own bound
    goes beside it. `choices` is the number of answers. `others` are the members that no value here
    carries, by their path in the caller's body (`logit_bias`, `messages[2].audio`, `tools[1]`): a
    dialect that has no place for them loses them. `named` gives the caller's own name for a value
    here, if it differs from the value's (`stop` is `stop_sequences` for Anthropic's callers).
    """

    is_stream: bool
    system: tuple[TextPart, ...] = ()
    turns: tuple[ConversationTurn, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice | None = None
    has_parallel_calls: bool | None = None
    output_format: OutputFormat | None = None
    reasoning: Reasoning | None = None
    sampling: Sampling = Sampling()
    most_tokens: int | None = None
    choices: int = 1
    service_tier: str | None = None
    user: str | None = None
    cache_key: str | None = None
    verbosity: str | None = None
    others: Mapping[str, msgspec.Raw] = {}
    named: Mapping[str, str] = {}

    def name_of(self, value: str) -> str:
        """Return the caller's own name for one of the values here."""
        return self.named.get(value, value)
