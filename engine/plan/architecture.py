"""Counts a model's parameters and KV cache, layer by layer, from its config.

The shapes are those of the modules of the same names in Hugging Face transformers. The tests
compare the totals with those that the publishers state. A model type that is not listed here is
refused by name: a guess could be wrong by a factor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from engine.errors import EngineError
from engine.plan.config import MOST_SHOWN, ModelConfig
from engine.serving.model_config import COMPRESSED_TENSORS, weight_kinds

MOST_LAYERS = 10_000
"""The most layers that are counted; real models have some hundred at most."""
Attention = Literal["full", "window", "latent", "linear"]
FAMILIES = {
    "llama": "",
    "mistral": "",
    "ministral3": "",
    "mixtral": "moe",
    "qwen2": "qkv_bias",
    "qwen2_moe": "qkv_bias moe",
    "qwen3": "qk_norm",
    "qwen3_moe": "qk_norm moe",
    "qwen3_next": "qk_norm moe gated linear",
    "phi3": "",
    "gemma": "tied",
    "gemma2": "four_norms tied",
    "gemma3_text": "four_norms qk_norm tied",
    "gemma3": "four_norms qk_norm tied",
    "olmo2": "wide_qk_norm",
    "deepseek_v2": "latent moe",
    "deepseek_v3": "latent moe bias_route",
    "kimi_k2": "latent moe bias_route",
    "gpt_oss": "moe sinks",
}
"""Model types that can be counted, each with the traits that differ from Llama."""
NEEDS_HEAD_DIM = (
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3",
    "gpt_oss",
)
"""Types whose head width is not hidden size / heads when the field is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer: parameters by kind, and the elements of its cache."""

    attention: Attention
    window: int | None
    """Tokens that a windowed layer keeps; None for all."""
    attention_parameters: int
    mlp_parameters: int
    """Dense MLP, router and shared experts: read for every token."""
    expert_parameters: int
    """Of one expert; 0 in a dense layer."""
    experts: int
    experts_per_token: int
    norm_parameters: int
    state_elements: int
    """Elements of a linear layer's state, of fixed size for each sequence."""
    flop_per_pair: int
    """FLOP for each pair of a query token and a key token in prefill."""
    decode_flop_per_pair: int

    @property
    def parameters(self) -> int:
        """Return all parameters of the layer."""
        return (
            self.attention_parameters
            + self.mlp_parameters
            + self.expert_parameters * self.experts
            + self.norm_parameters
        )

    @property
    def active_parameters(self) -> int:
        """Return the parameters that one token uses."""
        idle = self.experts - self.experts_per_token
        return self.parameters - self.expert_parameters * idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A counted model."""

    name: str
    layers: tuple[Layer, ...]
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    latent_elements: int
    """Cached elements per token and layer of latent attention (MLA), else 0."""
    vocabulary: int
    is_tied: bool
    """True if the head shares the embedding's weights."""
    max_context: int
    own_format: str
    """The weight format of the config: none, fp8, int8, awq, gptq or mxfp4."""

    @property
    def embedding_parameters(self) -> int:
        """Return the parameters of the embedding and, if it has its own, of the head."""
        return self.vocabulary * self.hidden * (1 if self.is_tied else 2)

    @property
    def norm_parameters(self) -> int:
        """Return the parameters of all norms, the final one included."""
        return self.hidden + sum(layer.norm_parameters for layer in self.layers)

    @property
    def parameters(self) -> int:
        """Return all parameters, without next-token-prediction layers."""
        return self.embedding_parameters + self.hidden + sum(x.parameters for x in self.layers)

    @property
    def active_parameters(self) -> int:
        """Return the parameters that one token uses, embeddings included."""
        used = sum(layer.active_parameters for layer in self.layers)
        return self.embedding_parameters + self.hidden + used


def count(config: ModelConfig) -> Model:
    """Return the counted model of a config.

    Raises: EngineError: the architecture cannot be counted, or a field is missing; it is named.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        listed = config.get("architectures")
        classes = ", ".join(map(str, listed)) if isinstance(listed, list) else ""
        name = str(kind or classes or "without model_type")[:MOST_SHOWN]
        raise EngineError(
            f"The architecture {name} of {config.name} cannot be counted. Known model types:"
            f" {', '.join(sorted(FAMILIES))}."
        )
    traits = FAMILIES[kind].split()
    heads = config.count("num_attention_heads")
    hidden = config.count("hidden_size")
    latent = 0
    if "latent" in traits:
        latent = config.count("kv_lora_rank") + config.count("qk_rope_head_dim")
        kv_heads, head_dim = heads, config.count("v_head_dim")
    else:
        kv_heads = config.count("num_key_value_heads", most=heads)
        if heads % kv_heads:
            raise config.wrong("num_key_value_heads", f"a divisor of the {heads} heads")
        if hidden < heads:
            raise config.wrong("hidden_size", f"at least the {heads} heads")
        must_have = kind in NEEDS_HEAD_DIM or config.get("head_dim") is not None
        head_dim = config.count("head_dim") if must_have else hidden // heads
    layers = tuple(
        _layer(config, traits, index=index, kv_heads=kv_heads, head_dim=head_dim)
        for index in range(config.count("num_hidden_layers", most=MOST_LAYERS))
    )
    return Model(
        name=config.name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        latent_elements=latent,
        vocabulary=config.count("vocab_size"),
        is_tied=_is_tied(config, traits),
        max_context=config.count("max_position_embeddings"),
        own_format=_own_format(config),
    )


def _is_tied(config: ModelConfig, traits: list[str]) -> bool:
    """Return True if the head shares the embedding's weights. Raises `EngineError` for a field that
    is neither true nor false.
    """
    value = config.get("tie_word_embeddings", "tied" in traits)
    if not isinstance(value, bool):
        raise config.wrong("tie_word_embeddings", "true or false")
    return value


def _layer(
    config: ModelConfig, traits: list[str], *, index: int, kv_heads: int, head_dim: int
) -> Layer:
    """Return one layer of a model."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    kind = _attention_kind(config, traits, index)
    norms = hidden * (4 if "four_norms" in traits else 2)
    pair, decode_pair, state = 4 * heads * head_dim, 4 * heads * head_dim, 0
    if kind == "latent":
        weights, extra, pair, decode_pair = _latent_attention(config, hidden, heads)
        norms += extra
    elif kind == "linear":
        weights, state = _linear_attention(config, hidden)
        norms += config.count("linear_value_head_dim")
        pair = decode_pair = 0
    else:
        weights = _grouped_attention(config, traits, kv_heads=kv_heads, head_dim=head_dim)
        if "qk_norm" in traits:
            norms += 2 * head_dim
        if "wide_qk_norm" in traits:
            norms += (heads + kv_heads) * head_dim
    mlp, expert, experts, chosen = _mlp(config, traits, index)
    return Layer(
        attention=kind,
        window=_window(config) if kind == "window" else None,
        attention_parameters=weights,
        mlp_parameters=mlp,
        expert_parameters=expert,
        experts=experts,
        experts_per_token=chosen,
        norm_parameters=norms,
        state_elements=state,
        flop_per_pair=pair,
        decode_flop_per_pair=decode_pair,
    )


def _window(config: ModelConfig) -> int:
    """Return the tokens that a windowed layer keeps."""
    return config.count("sliding_window")


def _attention_kind(config: ModelConfig, traits: list[str], index: int) -> Attention:
    """Return the kind of attention of one layer.

    Raises: EngineError: `layer_types` has a kind that cannot be counted, or too few entries.
    """
    if "latent" in traits:
        return "latent"
    types = config.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) < config.count("num_hidden_layers"):
            raise EngineError(f"layer_types of {config.name} must name every layer.")
        kinds: dict[str, Attention] = {
            "full_attention": "full",
            "sliding_attention": "window",
            "linear_attention": "linear",
        }
        given = str(types[index])
        if given not in kinds or (given == "linear_attention" and "linear" not in traits):
            raise EngineError(
                f"layer_types of {config.name} has {given[:MOST_SHOWN]!r}, which cannot be counted."
            )
        return kinds[given]
    if "linear" in traits:
        every = config.count_or("full_attention_interval", 4)
        return "full" if (index + 1) % every == 0 else "linear"
    if config.get("sliding_window") is None or config.get("use_sliding_window") is False:
        return "full"
    rules: dict[str, Callable[[], bool]] = {
        "gemma2": lambda: index % 2 == 0,
        "gpt_oss": lambda: index % 2 == 0,
        "gemma3": lambda: (index + 1) % config.count_or("sliding_window_pattern", 6) != 0,
        "gemma3_text": lambda: (index + 1) % config.count_or("sliding_window_pattern", 6) != 0,
        "qwen2": lambda: (
            bool(config.get("use_sliding_window"))
            and index >= config.count("max_window_layers", least=0)
        ),
    }
    kind = config.get("model_type")
    name = "qwen2" if kind in ("qwen2_moe", "qwen3", "qwen3_moe") else kind
    return "window" if rules.get(name, lambda: True)() else "full"


def _grouped_attention(
    config: ModelConfig, traits: list[str], *, kv_heads: int, head_dim: int
) -> int:
    """Return the parameters of multi-head or grouped-query attention."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    q, kv = heads * head_dim, kv_heads * head_dim
    gate = q if "gated" in traits else 0
    weights = hidden * (q + gate) + 2 * hidden * kv + q * hidden
    if "qkv_bias" in traits:
        weights += q + 2 * kv
    elif config.get("attention_bias"):
        weights += q + 2 * kv + hidden
    return weights + (heads if "sinks" in traits else 0)


def _latent_attention(config: ModelConfig, hidden: int, heads: int) -> tuple[int, int, int, int]:
    """Return parameters, norms and FLOP per pair (prefill, decode) of latent attention (MLA).

    In decode the up-projections are absorbed, so queries meet the compressed cache itself
    (DeepSeek-V2, arXiv 2405.04434, section 2.1).
    """
    rank, rope = config.count("kv_lora_rank"), config.count("qk_rope_head_dim")
    nope, value = config.count("qk_nope_head_dim"), config.count("v_head_dim")
    q_rank = config.count_or("q_lora_rank", 0)
    q_width = heads * (nope + rope)
    weights = hidden * q_rank + q_rank * q_width if q_rank else hidden * q_width
    weights += hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    norms = rank + q_rank
    return weights, norms, 2 * heads * (nope + rope + value), 2 * heads * (2 * rank + rope)


def _linear_attention(config: ModelConfig, hidden: int) -> tuple[int, int]:
    """Return the parameters and the state's elements of a gated delta net layer (Qwen3-Next)."""
    keys, values = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    key_dim = keys * config.count("linear_key_head_dim")
    value_dim = values * config.count("linear_value_head_dim")
    kernel = config.count("linear_conv_kernel_dim")
    channels = 2 * key_dim + value_dim
    weights = hidden * (channels + value_dim + 2 * values) + channels * kernel + 2 * values
    weights += value_dim * hidden
    state = values * config.count("linear_key_head_dim") * config.count("linear_value_head_dim")
    return weights, state + channels * (kernel - 1)


def _mlp(config: ModelConfig, traits: list[str], index: int) -> tuple[int, int, int, int]:
    """Return dense parameters, parameters of an expert, experts, and experts per token."""
    hidden = config.count("hidden_size")
    if "moe" not in traits or not _is_sparse(config, index):
        return 3 * hidden * config.count("intermediate_size"), 0, 0, 0
    fields = ("num_local_experts", "n_routed_experts", "num_experts")
    name = next((field for field in fields if config.get(field) is not None), fields[-1])
    experts, chosen = config.count(name), config.count("num_experts_per_tok")
    if chosen > experts:
        raise EngineError(f"num_experts_per_tok of {config.name} is above its {experts} experts.")
    narrow = config.get("model_type") in ("mixtral", "gpt_oss")
    width = config.count("intermediate_size" if narrow else "moe_intermediate_size")
    dense, expert = hidden * experts, 3 * hidden * width
    if "sinks" in traits:  # gpt-oss: biases on router and experts
        dense, expert = dense + experts, expert + 2 * width + hidden
    if "bias_route" in traits:
        dense += experts
    if config.get("shared_expert_intermediate_size"):
        dense += 3 * hidden * config.count("shared_expert_intermediate_size") + hidden
    if config.get("n_shared_experts"):
        dense += 3 * hidden * width * config.count("n_shared_experts")
    return dense, expert, experts, chosen


def _is_sparse(config: ModelConfig, index: int) -> bool:
    """Return True if the layer has experts. Raises `EngineError` naming a wrong field."""
    dense = config.get("mlp_only_layers", [])
    if not isinstance(dense, list):
        raise config.wrong("mlp_only_layers", "a list of layers")
    if index < config.count_or("first_k_dense_replace", 0, least=0) or index in dense:
        return False
    step = config.count_or("decoder_sparse_step", config.count_or("moe_layer_freq", 1))
    return (index + 1) % step == 0


def _own_format(config: ModelConfig) -> str:
    """Return the format of the config's weights; models without one are served at 16 bits.

    Raises: EngineError: the config's quantization is none of the known ones.
    """
    quantization = config.get("quantization_config")
    if not quantization:
        return "none"
    if not isinstance(quantization, dict):
        raise EngineError(f"quantization_config of {config.name} is no JSON object.")
    method = str(quantization.get("quant_method", "")).lower()
    if method == COMPRESSED_TENSORS and (kinds := weight_kinds(quantization)):
        known: dict[object, str] = {
            ("float", 8): "fp8",
            ("int", 8): "int8",
            ("int", 4): "gptq",
        }
        method = known.get(kinds[0], method)
    bits = quantization.get("bits", 4)
    if method in ("gptq", "awq") and bits not in (4, 8):
        raise EngineError(
            f"quantization_config of {config.name} has bits: {repr(bits)[:MOST_SHOWN]}; 4 and 8 can"
            " be counted."
        )
    is_eight_bit = method in ("gptq", "awq") and bits == 8
    if method not in ("fp8", "int8", "awq", "gptq", "mxfp4"):
        raise EngineError(
            f"quantization_config of {config.name} has quant_method {method!r}, which cannot be"
            " counted. Say the format with --quantization none|fp8|int8|awq|gptq after removing it."
        )
    return "int8" if is_eight_bit else method
