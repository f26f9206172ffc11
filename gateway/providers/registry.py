"""Builds the adapters of all providers, by the provider's name in a deployment.

A provider of a dialect that exists is one entry in `domain.providers.table`. One with a dialect of
its own is also one adapter and one line in `build_providers`. The adapter is a file in this folder,
or in the folder of its company (`aws`, `azure`, `google`) or of engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from gateway.domain.operation import Operation
from gateway.domain.providers.table import PROVIDERS
from gateway.providers.anthropic import Anthropic
from gateway.providers.aws.bedrock import Bedrock
from gateway.providers.azure.azure_openai import AzureOpenAI
from gateway.providers.azure.azure_tokens import AzureTokens
from gateway.providers.engines.ollama import Ollama
from gateway.providers.engines.triton import Triton
from gateway.providers.google.gemini import Gemini, Vertex
from gateway.providers.google.google_tokens import GoogleTokens
from gateway.providers.openai import OpenAI
from gateway.providers.vllm import Vllm

Adapter = Anthropic | Bedrock | Gemini | OpenAI


def _now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def build_providers(
    *, salt_key: bytes, now: Callable[[], datetime] = _now
) -> Mapping[str, Adapter]:
    """Return the adapter of each provider. `salt_key` makes the per-team cache salts; `now` dates
    the statements that ask for access tokens.
    """
    family = OpenAI(salt_key)
    own: dict[str, Adapter] = {
        "anthropic": Anthropic(),
        "azure_openai": AzureOpenAI(AzureTokens(now)),
        "bedrock": Bedrock(),
        "gemini": Gemini(),
        "ollama": Ollama(),
        "triton": Triton(),
        "vertex": Vertex(GoogleTokens(now)),
        "vllm": Vllm(salt_key, assembles_plain=True),
    }
    return {name: own.get(name, family) for name in PROVIDERS}


def prompt_counters(providers: Mapping[str, Adapter]) -> Mapping[str, Anthropic | OpenAI]:
    """Return the adapters of the providers that can count a prompt of messages, by name."""
    return {
        name: adapter
        for name, adapter in providers.items()
        if Operation.MESSAGES in PROVIDERS[name].native and isinstance(adapter, Anthropic | OpenAI)
    }
