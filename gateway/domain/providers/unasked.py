"""Lists the effects of a model, or of a thing stored at a provider, that no request asks for: tools
or a maximum of its own, an answer in pictures or speech, a sound heard in any part, a picture that
is charged beyond the window, hidden thinking.

Facts only: `domain.request.unpriced`, `domain.request.bound` and `domain.pricing.settlement` decide
with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase

# Members that name a thing stored at the provider, with tools, a model, a prompt or a maximum of
# its own, which no request shows: OpenAI's stored prompt and conversation (whose items may be
# `additional_tools`: openai 3.57.0, types/responses/response_input_item_param.py), Google's cached
# content with its `tools` (google-genai 3.6.1, types.py), Mistral's conversation with an agent's.
# No page lists the contents of Anthropic's threads. 2026-11-29.
BRINGS_ITS_OWN = frozenset({"cachedContent", "cached_content", "conversation", "prompt", "thread"})
# In responses the ledger knows the id, so that the earlier request was bounded as well.
PREVIOUS = "previous_response_id"
# Models that are stored configurations, by provider, and the word by which a deployment lists one.
# "Each preset can manage: ... Model selection ... Generation parameters ... Tools, including
# OpenRouter server tools" (openrouter.ai/docs/guides/features/presets, 2026-11-29). Bedrock takes
# the ARN of a stored prompt as `modelId` (botocore, bedrock-runtime, Converse), with its tools and
# `inferenceConfig`. `ag:` is the name of an agent at Mistral.
STORED_MODELS: Mapping[str, tuple[str, str]] = {
    "openrouter": ("*@preset/*", "preset"),
    "bedrock": ("*:prompt/*", "prompt"),
    "mistral": ("ag:*", "agent"),
}
# Models that may answer in pictures or speech without being asked, by the names that Google, OpenAI
# and xAI give them (genai-prices 0.2.3 and the tables of ai.google.dev/gemini-api/docs/models,
# 2026-11-29). OpenAI's `gpt-audio` speaks only if `modalities` ask for it, and is here because a
# proxy may ask by itself.
_UNASKED: Mapping[str, tuple[str, ...]] = {
    "image_output": ("*-image*", "*imagen-*", "*dall-e*", "*nano-banana*"),
    "audio_output": ("*-audio*", "*-live*", "*-realtime*", "*-tts*", "*tts-*", "*lyria*"),
}
# Models that hear a sound in any part of the prompt, by provider: Gemini takes a file by its type
# (ai.google.dev/gemini-api/docs/audio), OpenRouter resells such models, and another server of
# OpenAI's dialect may be a proxy of one. Every other provider names a part for sound, and takes a
# picture or a page alone in the others. 2026-11-29.
_HEARING: Mapping[str, tuple[str, ...]] = {
    "gemini": ("*",),
    "vertex": ("*",),
    "openai_compatible": ("*",),
    "openrouter": ("*gemini*", "openrouter/*", "*audio*", "*omni*", "*voxtral*"),
}
_HEARING_ANYWHERE = ("*-audio*", "*-omni*", "*-realtime*", "*gemini*", "*voxtral*")
# A picture is billed there for 2,833 tokens and 5,667 a tile, and takes 85 and 170 in the window
# (developers.openai.com/api/docs/guides/images-vision, gpt-4o-mini, 2026-11-28).
_DEAR_PICTURES = ("*gpt-4o-mini*",)
DEAR_PICTURE_FACTOR = 34
# At these a name may hide that model: an alias of one's own, as at Azure. A name of another of
# OpenAI's families, or of another company at OpenRouter, is believed.
_HIDING = frozenset({"azure_openai", "openai", "openrouter"})
_FAMILIES = re.compile(
    r"(?:openai/)?(?:ft:)?(?:babbage|chatgpt-|codex-|computer-use-|davinci|gpt-(?:[0-9]|audio|image|"
    r"oss|realtime)|o[0-9](?:$|-))"
)
# It costs USD 0.15 a million tokens of input, 0.165 in one region, and 0.30 if it is fine-tuned
# (genai-prices 0.2.3 and OpenAI's price page). A price above twice that is another model's.
MOST_DEAR_PICTURES_USD_PER_MTOK = Decimal("0.60")

# "From GPT-5.6 on" OpenAI's models write to their cache unasked, at a rate of its own (genai-prices
# 0.2.3: 1.25 times the input). These are older. A model under a name of the caller's own, as at
# Azure, may be any.
_WRITING = frozenset({"openai", "azure_openai", "openrouter"})
_OLDER = re.compile(
    r"(?:openai/)?(?:gpt-[34]|gpt-5(?:\.[0-5])?(?:$|[^.0-9])|gpt-oss|chatgpt-4|o[134](?:$|-)|"
    r"codex-mini|computer-use-preview|babbage|davinci)"
)
# Claude writes to a cache if a request has a `cache_control`, at Bedrock a `cachePoint`, and never
# unasked (platform.claude.com/docs/en/build-with-claude/prompt-caching; docs.aws.amazon.com/
# bedrock/latest/userguide/prompt-caching.html, 2026-11-29).
_MARKING = frozenset({"bedrock", "vertex"})
# Models that choose another one, which is then billed:
# openrouter.ai/docs/guides/routing/routers/auto-router, "you pay the rate of the selected model";
# learn.microsoft.com/azure/foundry/openai/concepts/model-router;
# docs.aws.amazon.com/bedrock/latest/userguide/prompt-routing.html. 2026-11-29.
_ROUTERS: Mapping[str, tuple[str, ...]] = {
    "openrouter": ("openrouter/*",),
    "azure_openai": ("model-router*",),
    "bedrock": ("*prompt-router*",),
}
# Models that think unasked and show none of it, or a summary, by the names of their makers; behind
# them a reseller's prefix may stand. Others think if they are asked, or show it all (gpt-oss,
# DeepSeek, Qwen, grok-3-mini). GPT-5.1, 5.2 and 5.4 think at no effort unless asked
# (learn.microsoft.com, `ReasoningEffort`; replicate.com/openai/gpt-5.4/api), 5.5 at a medium one.
# Claude thinks from its fifth generation on (platform.claude.com, "What's new in Claude Opus 5"),
# Gemini from 2.5 on but for its small ones (ai.google.dev/gemini-api/docs/thinking), and grok-4
# without a `reasoning_content` (docs.cloud.google.com, "Reasoning for Grok Models"). A router may
# choose any of them. Families without a page are here too (grok-build, gpt-rosalind). 2026-11-29.
_THINKING = re.compile(
    r"(?:^|[/.:])(?:"
    r"o[1-9](?:$|[-:])|gpt-5(?!\.[124]|-chat|\.[0-9]+-chat)|gpt-5\.[0-9]+-(?:codex|pro)|gpt-[6-9]|"
    r"gpt-rosalind|codex-mini|computer-use-preview|model-router|"
    r"claude-(?:opus|sonnet|haiku|fable|mythos)-[5-9](?![0-9])|claude-[^/]*:thinking|"
    r"gemini-2\.5-(?:pro|flash(?!-(?:image|lite)))|gemini-[3-9]|gemini-(?:pro|flash)-latest|"
    r"gemini-robotics|grok-(?:[4-9]|build)|sonar-deep-research)|^openrouter/"
)
_NOT_THINKING = re.compile(r"non-reasoning|-tts|-live|-audio|-transcribe")
# Providers whose maximum leaves the thinking out, by host, with the models that it counts whole or
# that do not think. Alibaba's `max_tokens` does not limit the chain of thought, and
# `max_completion_tokens` limits both with the models from these on (help.aliyun.com/zh/
# model-studio, OpenAI-compatible chat). SiliconFlow's limits the answer "excluding the
# chain-of-thought part" (docs.siliconflow.com/en/userguide/capabilities/reasoning). 2026-11-29.
_WITHOUT_THOUGHTS = r"instruct|coder|embed|rerank|qwen-?2|qwen-(?:max|long|mt)"
_COUNTED_WHOLE = (
    r"qwen3\.[7-9]-max|qwen3\.[5-9]-plus|kimi-k2\.[5-9]|kimi-k[3-9]|glm-[5-9]|minimax-m2\.[5-9]|"
    r"minimax-m[3-9]|deepseek-v[4-9]"
)
_THINKING_APART: Mapping[str, re.Pattern[str]] = {
    "*.aliyuncs.com": re.compile(f"{_WITHOUT_THOUGHTS}|^(?:{_COUNTED_WHOLE})"),
    "api.siliconflow.*": re.compile(_WITHOUT_THOUGHTS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unasked:
    """The facts about a deployment's model.

    `stored` is the word for a stored configuration that stands instead of the model, None for a
    model. `kinds` are the kinds of tokens in which it may answer unasked.
    `hears` is True if it may hear a sound in any part of the prompt. `has_dear_pictures` is True
    if it charges a picture for more tokens than it takes in the window, and
    `may_hide_dear_pictures` if its name may stand for such a model. `writes_cache` is True if it
    may write to its provider's cache, and `is_router` if it chooses another model to answer.
    `thinks_hidden` is True if it thinks before it answers, and does not show all of that, and
    `thinks_beyond` if the maximum of its answer may leave the thinking out. `writes_if_marked`: its
    provider writes to the cache only those parts that a request marks, at rates of their own.
    `is_special`: a plain request may have effects that it does not ask for, or kinds without them.
    """

    stored: str | None = None
    kinds: tuple[str, ...] = ()
    hears: bool = False
    has_dear_pictures: bool = False
    may_hide_dear_pictures: bool = False
    writes_cache: bool = False
    is_router: bool = False
    thinks_hidden: bool = False
    thinks_beyond: bool = False
    writes_if_marked: bool = False
    is_special: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Note whether the kinds of a plain request matter: each one asks."""
        is_special = bool(
            self.stored is not None or self.kinds or self.writes_cache or self.writes_if_marked
        )
        object.__setattr__(self, "is_special", is_special)


def unasked_of(provider: str, model: str, *, host: str = "") -> Unasked:
    """Return the facts about a model of a provider by its name, and by the provider's host."""
    pattern, word = STORED_MODELS.get(provider, ("", ""))
    name = model.lower()
    return Unasked(
        stored=word if pattern and fnmatchcase(model, pattern) else None,
        kinds=tuple(kind for kind, patterns in _UNASKED.items() if _fits(name, patterns)),
        has_dear_pictures=_fits(name, _DEAR_PICTURES),
        may_hide_dear_pictures=_is_hidden(provider, name),
        hears=_fits(name, _HEARING.get(provider, _HEARING_ANYWHERE)),
        writes_cache=_writes_cache(provider, model),
        writes_if_marked=_writes_if_marked(provider, name),
        is_router=_fits(model, _ROUTERS.get(provider, ())),
        thinks_hidden=_THINKING.search(name) is not None and _NOT_THINKING.search(name) is None,
        thinks_beyond=any(
            fnmatchcase(host, at) and counted.search(name) is None
            for at, counted in _THINKING_APART.items()
        ),
    )


def _writes_cache(provider: str, model: str) -> bool:
    """Return True unless a model is known to write nothing to its provider's cache unasked."""
    if provider == "openrouter" and "/" in model and not model.startswith("openai/"):
        return False
    return provider in _WRITING and _OLDER.match(model) is None


def _writes_if_marked(provider: str, name: str) -> bool:
    """Return True if a model writes nothing to its provider's cache without a mark."""
    return provider == "anthropic" or (provider in _MARKING and "claude" in name)


def _is_hidden(provider: str, name: str) -> bool:
    """Return True if a name at a provider may be an alias of any of OpenAI's models."""
    if provider not in _HIDING:
        return False
    if "@preset/" in name:
        return True
    if _FAMILIES.match(name) is not None:
        return False
    vendor, slash, _ = name.partition("/")
    is_of_another = provider == "openrouter" and slash and vendor not in ("openai", "openrouter")
    return not is_of_another


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    """Return True if one of the patterns fits a name."""
    return any(fnmatchcase(name, one) for one in patterns)
