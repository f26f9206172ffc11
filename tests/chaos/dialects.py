"""The deployments and routes of a run over all dialects: who speaks what, and who may be asked for
what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.fake_upstream.faults import Kind
from tests.fake_upstream.plans import CONVERSATIONS

Rates = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One more deployment: its provider, the rest of its address, and its rates in USD per million
    tokens: input, cached input, output. Tokens written to a cache cost as much as input.
    """

    provider: str
    base: str
    rates: Rates
    operations: str = "chat, responses, messages"


DIALECTS: Mapping[str, Dialect] = {
    "paid-claude": Dialect(provider="anthropic", base="/v1", rates=("3.0007", "0.3001", "15.0003")),
    "paid-gemini": Dialect(
        provider="gemini", base="/v1beta", rates=("1.2507", "0.3127", "10.0009")
    ),
    "paid-converse": Dialect(provider="bedrock", base="", rates=("0.8003", "0.2001", "3.2007")),
    "own-ollama": Dialect(provider="ollama", base="", rates=("0.0507", "0.0051", "0.1501")),
    "own-triton": Dialect(
        provider="triton",
        base="",
        rates=("0.0703", "0.0071", "0.2801"),
        operations="completions",
    ),
}
PROVIDER_BASES = {one.provider: one.base for one in DIALECTS.values()}
ROUTES: Mapping[str, tuple[str, ...]] = {
    "claude": ("paid-claude", "paid-converse"),
    "converse": ("paid-converse", "paid-gemini"),
    "gemini": ("paid-gemini", "vllm-b"),
    "ollama": ("own-ollama", "paid-claude"),
    "triton": ("own-triton", "vllm-a"),
}
# What deployments of OpenAI's dialect speak by themselves; messages are translated, and responses
# at one of them.
NATIVE = "chat, completions, responses, embeddings"
NATIVE_OF = {"vllm-b": "chat, completions, embeddings"}


def serves(route: str, kind: Kind) -> bool:
    """Return True if a route serves requests of a kind."""
    if route == "triton":
        return kind in (Kind.PROMPT, Kind.COMPLETIONS)
    return route not in ROUTES or kind in CONVERSATIONS


def terms_of(name: str) -> tuple[str, str, str]:
    """Return a deployment's provider, the rest of its address, and further members."""
    if name in DIALECTS:
        dialect = DIALECTS[name]
        more = f'operations: [{dialect.operations}], untranslatable: drop, api_key: "env:FAKE_KEY"'
        return dialect.provider, dialect.base, more
    provider = "vllm" if name.startswith("vllm") else "openai_compatible"
    native = NATIVE_OF.get(name, NATIVE)
    more = f"operations: [{NATIVE}, messages], native: [{native}], untranslatable: drop"
    return provider, "/v1", more
