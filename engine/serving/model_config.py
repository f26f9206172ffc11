"""Reads the figures of a model's `config.json` that decide whether a profile can serve it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import EngineError

COMPRESSED_TENSORS = "compressed-tensors"
UNSCALED = frozenset(
    {"default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
)
"""RoPE types whose `max_position_embeddings` is the whole context: vllm/config/model.py,
`_get_and_verify_max_len` (vLLM 0.32.0).
"""

MOST_FACTOR = 1_000_000
"""The largest RoPE factor; a larger one, or one that is no number, is left to vLLM to refuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The figures of a model's `config.json`; None if it does not give one."""

    is_known: bool = True
    """Whether there is a `config.json` on this machine."""
    context_tokens: int | None = None
    attention_heads: int | None = None
    head_dim: int | None = None
    vocabulary: int | None = None
    layers: int | None = None
    has_experts: bool = False
    is_eagle: bool = False
    is_eagle3: bool = False
    quantization: str | None = None
    """The checkpoint's quantization: `fp8`, `int8`, `awq`, `gptq`, or another method's own name."""
    quantization_method: str | None = None
    """The method's name in `config.json`, which is also vLLM's."""


def model_facts(folder: Path) -> ModelFacts:
    """Return the facts of the model in a folder. Raises `EngineError` if its `config.json` is
    broken.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"Cannot read {path}: {error}. Nothing was started.") from error
    if not isinstance(config, dict):
        raise EngineError(f"{path} is no JSON object. Nothing was started.")
    return facts_of(config)


def facts_of(config: Mapping[str, Any]) -> ModelFacts:
    """Return the facts of a `config.json`, whose text model may lie in `text_config`."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    heads, hidden = _whole(text, "num_attention_heads"), _whole(text, "hidden_size")
    derived = hidden // heads if heads and hidden else None
    architectures = str(config.get("architectures")).lower()
    method = config.get("quantization_config")
    return ModelFacts(
        context_tokens=_context_tokens(text),
        attention_heads=heads,
        head_dim=_whole(text, "head_dim") or derived,
        vocabulary=_whole(text, "vocab_size"),
        layers=_whole(text, "num_hidden_layers"),
        has_experts=any(
            (_whole(text, name) or 0) > 1
            for name in ("num_experts", "num_local_experts", "n_routed_experts")
        ),
        is_eagle="eagle" in architectures,
        is_eagle3="eagle3" in architectures,
        quantization=_quantization(method) if isinstance(method, dict) else None,
        quantization_method=str(method.get("quant_method")) if isinstance(method, dict) else None,
    )


def _whole(text: Mapping[str, Any], name: str) -> int | None:
    """Return a whole number above 0 of a config, or None."""
    value = text.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _context_tokens(text: Mapping[str, Any]) -> int | None:
    """Return the tokens of a model's context, with a RoPE factor that is not yet in them."""
    tokens = _whole(text, "max_position_embeddings")
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    if tokens is None or not isinstance(rope, dict) or "gemma3" in str(text.get("model_type")):
        return tokens
    is_scaled = str(rope.get("rope_type", rope.get("type", "default"))) not in UNSCALED
    factor = rope.get("factor")
    if not is_scaled or isinstance(factor, bool) or not isinstance(factor, int | float):
        return tokens
    return int(tokens * factor) if 0 < factor <= MOST_FACTOR else tokens


def _quantization(method: Mapping[str, Any]) -> str:
    """Return a checkpoint's quantization in a profile's words."""
    name = str(method.get("quant_method")).lower()
    if name != COMPRESSED_TENSORS:
        return name
    kinds = set(weight_kinds(method))
    if kinds == {("float", 8)}:
        return "fp8"
    return "int8" if kinds == {("int", 8)} else name


def weight_kinds(quantization: Mapping[str, Any]) -> list[tuple[object, object]]:
    """Return the type and the bits of each group's weights in a `quantization_config` of
    compressed-tensors, in order, such as ("float", 8). The members are those of that package.
    """
    groups = quantization.get("config_groups")
    found = []
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            found.append((_plain(weights.get("type")), _plain(weights.get("num_bits"))))
    return found


def _plain(value: object) -> object:
    """Return a word or a number as it is, and anything else as text: only those name a format."""
    return value if isinstance(value, str | int) else str(value)
