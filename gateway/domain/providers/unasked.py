"""States what a model, or a thing that is stored at a provider, may do without being asked in the
request: bring tools or a maximum of its own, answer in pictures or speech.

Facts only: `domain.request.unpriced` and `domain.request.bound` decide with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.domain.pricing.tokens import TokenKind

# Members that name a thing stored at the provider, with tools, a model, a prompt or a maximum of
# its own, which no request shows. A stored `prompt` has "tools" and "model" (OpenAI's pages on
# reusable prompts), a cached content "tools" and "toolConfig" (google-genai 3.6.1, types.py,
# CreateCachedContentConfig), a conversation of Mistral "tools" and "completion_args" (mistralai
# 3.7.0, client/models/conversationrequest.py), and one of OpenAI `additional_tools` (openai 3.57.0,
# types/responses/response_input_item_param.py). Anthropic states nothing about a thread.
BRINGS_ITS_OWN = frozenset({"cachedContent", "cached_content", "conversation", "prompt", "thread"})
# In responses the ledger knows the id, so that the earlier request was bounded as well.
PREVIOUS = "previous_response_id"
# Models that are stored configurations, by provider, and the word by which a deployment lists one:
# "presets ... system prompts, model selection, parameters, provider preferences"
# (openrouter.ai/docs/features/presets), a prompt of Bedrock's prompt management with its tools and
# `inferenceConfig` (botocore, bedrock-agent, CreatePrompt), and an agent of Mistral. 2026-11-29.
STORED_MODELS: Mapping[str, tuple[str, str]] = {
    "openrouter": ("*@preset/*", "preset"),
    "bedrock": ("*:prompt/*", "prompt"),
    "mistral": ("ag:*", "agent"),
}
# Models that answer in pictures or speech without being asked: by default Gemini's image models
# give "TEXT" and "IMAGE" (ai.google.dev/gemini-api/docs/image-generation), its models of speech and
# of live sound "AUDIO" (docs/speech-generation, docs/live), and OpenAI's `gpt-image-*` and `tts-*`
# write nothing else. OpenAI's `gpt-audio` speaks if `modalities` ask for it, and is here since a
# proxy may ask by itself. 2026-11-29.
_UNASKED: Mapping[TokenKind, tuple[str, ...]] = {
    TokenKind.IMAGE_OUTPUT: ("*-image*", "*imagen-*", "*dall-e*", "*nano-banana*"),
    TokenKind.AUDIO_OUTPUT: ("*-audio*", "*-live*", "*-realtime*", "*-tts*", "*tts-*", "*lyria*"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unasked:
    """The facts about a deployment's model.

    `stored` is the word for a stored configuration that stands instead of the model, None for a
    model. `kinds` are the kinds of tokens in which it may answer unasked.
    """

    stored: str | None = None
    kinds: tuple[TokenKind, ...] = ()

    @property
    def is_special(self) -> bool:
        """Return True if a plain request may do what it does not ask for."""
        return self.stored is not None or bool(self.kinds)


def unasked_of(provider: str, model: str) -> Unasked:
    """Return the facts about a model of a provider by its name."""
    pattern, word = STORED_MODELS.get(provider, ("", ""))
    name = model.lower()
    return Unasked(
        stored=word if pattern and fnmatchcase(model, pattern) else None,
        kinds=tuple(
            kind
            for kind, patterns in _UNASKED.items()
            if any(fnmatchcase(name, one) for one in patterns)
        ),
    )
