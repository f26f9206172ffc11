"""Builds the adapters of all providers, by the provider's name in a deployment.

A provider of a dialect that exists is one entry in `domain.providers.table`; one with a dialect of
its own is also one file here and one line in `build_providers`.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.domain.providers.table import PROVIDERS
from gateway.providers.openai import OpenAI
from gateway.providers.vllm import Vllm


def build_providers(*, salt_key: bytes) -> Mapping[str, OpenAI]:
    """Return the adapter of each provider. `salt_key` makes the per-team cache salts."""
    own = {"vllm": Vllm(salt_key, assembles_plain=True)}
    return dict.fromkeys(PROVIDERS, OpenAI()) | own
