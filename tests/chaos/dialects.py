"""The deployments and routes of a run over all dialects: who speaks what, and who may be asked for
what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.fake_upstream.faults import Kind
from tests.fake_upstream.plans import CONVERSATIONS

Rates = tuple[str, str, str]
CONVERSATIONAL = "chat, responses, messages"
EVERYTHING = "chat, completions, responses, embeddings, messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One more deployment: its provider, the rest of its address, and its rates in USD per million
    tokens: input, cached input, output. Tokens written to a cache cost as much as input, unless
    `more` has the rate of their time, by the kind of a receipt's line.
    """

    provider: str
    base: str
    rates: Rates
    operations: str = CONVERSATIONAL
    more: Mapping[str, str] = field(default_factory=dict)
    key: str = "FAKE_KEY"


DIALECTS: Mapping[str, Dialect] = {
    "paid-claude": Dialect(
        provider="anthropic",
        base="/v1",
        rates=("3.0007", "0.3001", "15.0003"),
        more={"cache_write_1h": "6.0011"},
    ),
    "paid-gemini": Dialect(
        provider="gemini",
        base="/v1beta",
        rates=("1.2507", "0.3127", "10.0009"),
        more={"image_input": "1.7503"},
    ),
    "paid-converse": Dialect(
        provider="bedrock",
        base="",
        rates=("0.8003", "0.2001", "3.2007"),
        more={"cache_write_1h": "1.6009"},
    ),
    "paid-vertex": Dialect(
        provider="vertex",
        base="/v1/projects/p/locations/europe-west4",
        rates=("0.3001", "0.0303", "2.5003"),
        more={"image_input": "0.4507"},
        key="FAKE_GOOGLE_KEY",
    ),
    "paid-openai": Dialect(
        provider="openai",
        base="/v1",
        rates=("1.7501", "0.1753", "14.0007"),
        operations=EVERYTHING,
        more={"cache_write_30m": "2.1883", "image_input": "1.9901"},
    ),
    "paid-azure": Dialect(
        provider="azure_openai",
        base="/openai/v1",
        rates=("1.6503", "0.1651", "13.0001"),
        operations=EVERYTHING,
        more={"cache_write_12h": "3.3007", "image_input": "1.8803"},
    ),
    "paid-groq": Dialect(provider="groq", base="/openai/v1", rates=("0.1501", "0.0753", "0.7507")),
    "paid-mistral": Dialect(provider="mistral", base="/v1", rates=("0.5003", "0.0503", "1.5007")),
    "paid-deepseek": Dialect(provider="deepseek", base="/v1", rates=("0.2803", "0.0281", "0.4201")),
    "paid-openrouter": Dialect(
        provider="openrouter", base="/api/v1", rates=("0.9007", "0.0901", "4.0009")
    ),
    "paid-together": Dialect(provider="together", base="/v1", rates=("0.6007", "0.3001", "1.7003")),
    "paid-fireworks": Dialect(
        provider="fireworks", base="/inference/v1", rates=("0.5603", "0.2801", "1.6801")
    ),
    "paid-xai": Dialect(provider="xai", base="/v1", rates=("2.0003", "0.2003", "6.0007")),
    "own-sglang": Dialect(provider="sglang", base="/v1", rates=("0.1103", "0.0111", "0.4403")),
    "own-trtllm": Dialect(provider="trtllm", base="/v1", rates=("0.0907", "0.0093", "0.3607")),
    "own-llamacpp": Dialect(
        provider="llamacpp",
        base="/v1",
        rates=("0.0401", "0.0041", "0.1201"),
        operations=f"{CONVERSATIONAL}, rerank",
    ),
    "own-lmstudio": Dialect(provider="lmstudio", base="/v1", rates=("0.0307", "0.0031", "0.1001")),
    "own-ollama": Dialect(provider="ollama", base="", rates=("0.0507", "0.0051", "0.1501")),
    "own-triton": Dialect(
        provider="triton",
        base="",
        rates=("0.0703", "0.0071", "0.2801"),
        operations="completions",
    ),
}
PROVIDER_BASES = {one.provider: one.base for one in DIALECTS.values()}
MORE_RATES = {name: one.more for name, one in DIALECTS.items()}
ROUTES: Mapping[str, tuple[str, ...]] = {
    "claude": ("paid-claude", "paid-converse"),
    "converse": ("paid-converse", "paid-gemini"),
    "gemini": ("paid-gemini", "vllm-b"),
    "vertex": ("paid-vertex", "own-sglang"),
    "azure": ("paid-azure", "paid-openai"),
    "groq": ("paid-groq", "paid-mistral"),
    "deepseek": ("paid-deepseek", "paid-openrouter"),
    "together": ("paid-together", "paid-fireworks"),
    "xai": ("paid-xai", "own-lmstudio"),
    "trtllm": ("own-trtllm", "own-sglang"),
    "llamacpp": ("own-llamacpp", "paid-mistral"),
    "ollama": ("own-ollama", "paid-claude"),
    "triton": ("own-triton", "vllm-a"),
    "rerank": ("vllm-a", "own-llamacpp"),
}
# What deployments of OpenAI's dialect speak by themselves; messages are translated, and responses
# at one of them.
NATIVE = "chat, completions, responses, embeddings"
NATIVE_OF = {"vllm-a": f"{NATIVE}, rerank", "vllm-b": "chat, completions, embeddings"}
OF_EVERYTHING = frozenset({"azure"})  # routes whose deployments serve all but rerank


def serves(route: str, kind: Kind) -> bool:
    """Return True if a route serves requests of a kind."""
    if route == "rerank" or kind is Kind.RERANK:
        return (route, kind) == ("rerank", Kind.RERANK)
    if route == "triton":
        return kind in (Kind.PROMPT, Kind.COMPLETIONS)
    if route == "llamacpp" and kind is Kind.CHOICES:
        return False  # llama.cpp ends each of its answers with a usage of its own
    return route not in ROUTES or route in OF_EVERYTHING or kind in (*CONVERSATIONS, Kind.COUNT)


def terms_of(name: str) -> tuple[str, str, str]:
    """Return a deployment's provider, the rest of its address, and further members."""
    if name in DIALECTS:
        dialect = DIALECTS[name]
        key = f'api_key: "env:{dialect.key}"'
        more = f"operations: [{dialect.operations}], untranslatable: drop, {key}"
        return dialect.provider, dialect.base, more
    provider = "vllm" if name.startswith("vllm") else "openai_compatible"
    native = NATIVE_OF.get(name, NATIVE)
    served = f"{native}, responses" if "responses" not in native else native
    more = f"operations: [{served}, messages], native: [{native}], untranslatable: drop"
    return provider, "/v1", more
