"""Builds the adapters of all providers, by the provider's name in a deployment; a new provider is
one file and one line here.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.providers.openai import OpenAI
from gateway.providers.openai_compatible import OpenAICompatible
from gateway.providers.vllm import Vllm


def build_providers(*, salt_key: bytes) -> Mapping[str, OpenAI]:
    """Return one adapter per dialect. `salt_key` makes the per-team cache salts."""
    return {
        "vllm": Vllm(salt_key, assembles_plain=True),
        "openai": OpenAI(),
        "openai_compatible": OpenAICompatible(),
    }
